//! How often a verdict is right on servers whose noise is known: false alarms, and losses that are found. The cases that
//! `tests/it/verdict_rates.rs` holds to their limits, and more of them.
//!
//! `cargo bench --bench verdict_rates`; a number after `--` says how many comparisons each case has (1000).
#![allow(clippy::print_stdout, reason = "a bench says what it measured")]
#![allow(dead_code, clippy::unwrap_used, reason = "it shares the stories' helpers")]

#[path = "../tests/it/built.rs"]
mod built;
#[path = "../tests/it/drawn.rs"]
mod drawn;

use drawn::{Draw, FIVE_BY_THREE, PLAIN, Plan, Server};
use orch::history::changes;
use orch::record::model::VerdictKind::{Improved, Inconclusive, Ok, Regressed};

fn main() {
    let count = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(1000);
    let spawn = Server { slow: Some((0.25, 0.08)), ..PLAIN };
    let night = Server { drift: 0.05, ..PLAIN };
    let everything = Server { drift: 0.05, ..spawn };
    let single = Plan { starts: [1, 1], runs: 1, interleaved: false, nights: 0 };
    let history = Plan { starts: [3, 1], runs: 1, interleaved: false, nights: 14 };
    let in_turn = Plan { interleaved: false, ..FIVE_BY_THREE };
    let cases: [(&str, &Server, &Plan); 9] = [
        ("5 starts x 3 runs, A B B A", &PLAIN, &FIVE_BY_THREE),
        ("5 x 3, one side after the other", &PLAIN, &in_turn),
        ("5 x 3, A B B A, drift 5 %", &night, &FIVE_BY_THREE),
        ("5 x 3, A B B A, two speeds", &spawn, &FIVE_BY_THREE),
        ("5 x 3, A B B A, two speeds, drift", &everything, &FIVE_BY_THREE),
        ("1 start against 1, first day", &PLAIN, &single),
        ("1 against 1, two speeds, first day", &spawn, &single),
        ("1 against 3, 14 nights of history", &PLAIN, &history),
        ("1 against 3, history, two speeds", &spawn, &history),
    ];
    println!("starts vary by 1 %, requests by 2 %; {count} comparisons each; % of them\n");
    println!("{:<36} {:>5} {:>10} {:>13} {:>9} {:>6}", "", "loss", "regressed", "inconclusive", "improved", "ok");
    let mut draw = Draw::new(20261129);
    for (name, server, plan) in cases {
        for loss in [0.0, 0.02, 0.03, 0.05] {
            let found = draw.count(count, (server, plan, loss), [Regressed, Inconclusive, Improved, Ok]);
            let [regressed, open, improved, ok] = found.map(|each| 100.0 * each as f64 / count as f64);
            println!("{name:<36} {:>3.0} % {regressed:>10.1} {open:>13.1} {improved:>9.1} {ok:>6.1}", loss * 100.0);
        }
    }
    println!("\nhistory: 28 nights, then 14 with a loss");
    for loss in [0.0, 0.01, 0.02, 0.03] {
        let nights = (count / 10).max(20);
        let found = (0..nights).filter(|_| !changes(&draw.nights(&PLAIN, 28, 14, loss)).is_empty()).count();
        println!("loss {:>3.0} %: found in {:.1} %", loss * 100.0, 100.0 * found as f64 / nights as f64);
    }
}
