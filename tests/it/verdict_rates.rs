//! Someone lets a machine act on verdicts: on servers whose noise is known, noise wakes no one, and a loss is found.
//! `cargo bench --bench verdict_rates` prints the rates of more cases.

use orch::history::changes;
use orch::record::model::VerdictKind::{Improved, Regressed};

use crate::drawn::{Draw, FIVE_BY_THREE, PLAIN, Plan, Server};

const SPAWN: Server = Server { slow: Some((0.25, 0.08)), ..PLAIN };
const NIGHT: Server = Server { drift: 0.05, ..PLAIN };
const ONE_AGAINST_HISTORY: Plan = Plan { starts: [3, 1], runs: 1, interleaved: false, nights: 14 };

#[test]
fn of_a_thousand_unchanged_servers_twenty_at_most_are_called_regressed() {
    let everything = Server { drift: 0.05, ..SPAWN };
    let cases = [
        (&everything, &FIVE_BY_THREE),
        (&SPAWN, &Plan { interleaved: false, ..FIVE_BY_THREE }),
        (&PLAIN, &FIVE_BY_THREE),
        (&PLAIN, &ONE_AGAINST_HISTORY),
        (&SPAWN, &ONE_AGAINST_HISTORY),
    ];
    let mut draw = Draw::new(1);
    let counts = cases.map(|(server, plan)| draw.count(200, (server, plan, 0.0), [Regressed])[0]);
    assert!(counts.iter().sum::<usize>() <= 20, "{counts:?} of 200 each");
}

#[test]
fn a_loss_of_three_percent_is_found_by_five_starts_of_three_runs() {
    let mut draw = Draw::new(2);
    let [found] = draw.count(200, (&PLAIN, &FIVE_BY_THREE, 0.03), [Regressed]);
    assert!(found >= 180, "{found} of 200");
    let in_turn = Plan { interleaved: false, ..FIVE_BY_THREE };
    let [found] = draw.count(200, (&PLAIN, &in_turn, 0.03), [Regressed]);
    assert!(found >= 180, "{found} of 200");
}

#[test]
fn a_loss_behind_starts_of_two_speeds_is_never_called_better() {
    let mut draw = Draw::new(3);
    let [found, better] = draw.count(300, (&SPAWN, &FIVE_BY_THREE, 0.03), [Regressed, Improved]);
    assert_eq!(better, 0, "{found} of 300 found");
}

#[test]
fn a_drift_over_the_night_is_no_loss_where_the_sides_take_turns() {
    let mut draw = Draw::new(4);
    let [alarms] = draw.count(200, (&NIGHT, &FIVE_BY_THREE, 0.0), [Regressed]);
    assert!(alarms <= 4, "{alarms} of 200");
    // And the loss is found all the same.
    let [found] = draw.count(100, (&NIGHT, &FIVE_BY_THREE, 0.03), [Regressed]);
    assert!(found >= 80, "{found} of 100");
}

#[test]
fn a_lasting_loss_that_no_night_shows_alone_is_found_by_the_history() {
    let mut draw = Draw::new(5);
    let found = (0..20).filter(|_| !changes(&draw.nights(&PLAIN, 28, 14, 0.02)).is_empty()).count();
    assert!(found >= 18, "{found} of 20");
    let alarms = (0..20).filter(|_| !changes(&draw.nights(&PLAIN, 42, 0, 0.0)).is_empty()).count();
    assert!(alarms <= 2, "{alarms} of 20");
}
