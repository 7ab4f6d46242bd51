//! When a server is warm: rounds of the same requests take as long as those before them, and nothing compiles. No I/O.
//!
//! Each round draws the same prompts, so that two rounds differ by the server alone and never by what they were asked.
//! Compared are the last third of the rounds and the third before it: the more rounds, the longer the windows, and the
//! longer ago the cold beginning.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::measure::{Settled, Timeline};

/// Two windows agree when their throughputs differ by at most this share.
pub const AGREEMENT: f64 = 0.03;
/// After so many windows of the least length it is given up.
pub const WINDOWS_AT_MOST: u64 = 10;
/// No request of the warm-up begins later than this.
pub const TIME_AT_MOST: Duration = Duration::from_secs(120);
/// A round has so many requests that they may come to this many tokens, within limits.
const TOKENS_A_ROUND: u64 = 2048;
const REQUESTS_A_ROUND: u64 = 8;
/// A window has at least so many generating chunks: fewer are a matter of luck.
const CHUNKS_A_WINDOW: u64 = 256;
/// And is made of at most so many rounds to get there.
const ROUNDS_A_WINDOW: u64 = 8;

/// A load of 120 s at the highest rate has fewer rounds: a number beyond is no request of ours.
const ROUNDS_KEPT: usize = 1 << 20;

/// Told by whoever reads the server's log that something was being compiled just now.
#[derive(Clone, Debug, Default)]
pub struct Compiling(Arc<AtomicBool>);

impl Compiling {
    /// Something was compiled, captured or tuned.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Follows the requests of a warm-up, and says when they may stop.
#[derive(Debug)]
pub(super) struct Settling {
    requests_a_round: u64,
    compiling: Compiling,
    rounds: Vec<Round>,
    settled: Settled,
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    ended: u64,
    ok: u64,
    tokens: u64,
    chunks: u64,
    busy_ns: u64,
    compiled: bool,
}

/// Whether more requests are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    More,
    NoMore,
}

impl Settling {
    /// For a load of `at_once` requests at a time, each of at most `max_tokens`.
    pub(super) fn new(at_once: u64, max_tokens: u64, compiling: Compiling) -> Self {
        let few = (TOKENS_A_ROUND / max_tokens.max(1)).clamp(1, REQUESTS_A_ROUND);
        // What was compiled before the first request is of no interest.
        compiling.take();
        Settling { requests_a_round: at_once.max(few), compiling, rounds: Vec::new(), settled: Settled::default() }
    }

    /// How many requests a round has.
    pub(super) fn requests_a_round(&self) -> u64 {
        self.requests_a_round
    }

    /// Which request of its round `number` is.
    pub(super) fn place(&self, number: u64) -> u64 {
        number % self.requests_a_round
    }

    /// How it stands.
    pub(super) fn settled(&self) -> Settled {
        self.settled
    }

    /// Takes a request that has ended.
    pub(super) fn ended(&mut self, timeline: &Timeline) -> Need {
        let at = usize::try_from(timeline.id / self.requests_a_round).unwrap_or(usize::MAX);
        // In an open loop a slow request is overtaken by those of several rounds. One that is not counted would leave its
        // round incomplete for good.
        if at >= ROUNDS_KEPT {
            return Need::More;
        }
        if at >= self.rounds.len() {
            self.rounds.resize(at + 1, Round::default());
        }
        let compiled = self.compiling.take();
        let round = &mut self.rounds[at];
        round.compiled |= compiled;
        round.ended += 1;
        if let (true, Some(sent), Some(done)) = (timeline.is_ok(), timeline.sent, timeline.done) {
            round.ok += 1;
            round.tokens += timeline.output_tokens().0;
            round.chunks += timeline.chunks.len() as u64;
            round.busy_ns += done.saturating_sub(sent);
        }
        if round.ended < self.requests_a_round {
            return Need::More;
        }
        self.judge()
    }

    fn judge(&mut self) -> Need {
        let complete = self.rounds.iter().take_while(|round| round.ended >= self.requests_a_round).count();
        let rounds = &self.rounds[..complete];
        let Some(first) = rounds.first() else { return Need::More };
        if rounds.iter().all(|round| round.ok == 0) {
            // A server that answers nothing gets no warmer.
            self.settled = Settled { rounds: complete as u64, ..Settled::default() };
            return Need::NoMore;
        }
        let least = CHUNKS_A_WINDOW.div_ceil(first.chunks.max(1)).clamp(1, ROUNDS_A_WINDOW);
        let least = usize::try_from(least).unwrap_or(1);
        let window = complete.div_ceil(3).max(least);
        let over = complete as u64 >= WINDOWS_AT_MOST * least as u64;
        let Some(from) = complete.checked_sub(2 * window) else { return Need::More };
        let (before, last) = rounds[from..].split_at(window);
        let compiled = rounds[from..].iter().any(|round| round.compiled);
        let difference_ratio = difference(throughput(before), throughput(last));
        let settled = !compiled && difference_ratio.is_some_and(|ratio| ratio <= AGREEMENT);
        self.settled = Settled { settled, rounds: complete as u64, difference_ratio, compiled };
        if settled || over { Need::NoMore } else { Need::More }
    }
}

/// Tokens per second of a request in flight; times the concurrency it is the throughput of the window.
fn throughput(rounds: &[Round]) -> Option<f64> {
    let (tokens, busy) = rounds.iter().fold((0, 0), |sum, round| (sum.0 + round.tokens, sum.1 + round.busy_ns));
    (tokens > 0 && busy > 0).then(|| tokens as f64 / busy as f64)
}

fn difference(before: Option<f64>, last: Option<f64>) -> Option<f64> {
    Some((last? / before? - 1.0).abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Chunk, ChunkKind, Outcome};

    const MS: u64 = 1_000_000;

    /// An ok request of 100 tokens that took so long.
    fn took(id: u64, ms: u64) -> Timeline {
        let chunks = (1..=100).map(|n| Chunk { at: n * ms * MS / 100, tokens: Some(1), kind: ChunkKind::Content });
        Timeline {
            id,
            sent: Some(0),
            done: Some(ms * MS),
            chunks: chunks.collect(),
            outcome: Outcome::Ok,
            ..Timeline::default()
        }
    }

    /// Feeds requests, `ms` by round, until it has enough; returns how many it took.
    fn run(settling: &mut Settling, ms: impl Fn(u64) -> u64) -> u64 {
        for id in 0..10_000 {
            if settling.ended(&took(id, ms(id / settling.requests_a_round))) == Need::NoMore {
                return id + 1;
            }
        }
        panic!("it never ends")
    }

    #[test]
    fn a_steady_server_is_warm_after_two_rounds() {
        let mut settling = Settling::new(16, 100, Compiling::default());
        assert_eq!(run(&mut settling, |_| 1000), 32);
        let expected = Settled { settled: true, rounds: 2, difference_ratio: Some(0.0), compiled: false };
        assert_eq!(settling.settled(), expected);
    }

    #[test]
    fn a_cold_beginning_is_left_behind() {
        let mut settling = Settling::new(16, 100, Compiling::default());
        // 3,000, 1,500, 1,010, 1,000, 1,000 ms: rounds 0 and 1 differ, 1 and 2 differ, the third is compared with the second.
        let rounds = [3000, 1500, 1010, 1000, 1000, 1000];
        let requests = run(&mut settling, |round| rounds[round.min(5) as usize]);
        assert_eq!((requests / 16, settling.settled().settled), (6, true), "{:?}", settling.settled());
        assert!(settling.settled().difference_ratio.unwrap() <= AGREEMENT);
    }

    #[test]
    fn one_that_never_agrees_is_given_up_and_says_so() {
        let mut settling = Settling::new(16, 100, Compiling::default());
        assert_eq!(run(&mut settling, |round| 1000 << (round % 8)), 16 * WINDOWS_AT_MOST);
        assert!(!settling.settled().settled && settling.settled().difference_ratio.unwrap() > AGREEMENT);
    }

    #[test]
    fn windows_in_which_something_compiles_do_not_count() {
        let compiling = Compiling::default();
        let mut settling = Settling::new(16, 100, compiling.clone());
        compiling.note();
        let mut noted = Vec::new();
        for id in 0..10_000 {
            if settling.ended(&took(id, 1000)) == Need::NoMore {
                break;
            }
            noted.push(settling.settled());
        }
        assert!(noted.iter().any(|settled| settled.compiled && settled.difference_ratio == Some(0.0)));
        assert!(settling.settled().settled && !settling.settled().compiled);
        assert_eq!(settling.settled().rounds, 3, "the first round is in neither window then");
    }

    #[test]
    fn a_slow_request_that_rounds_overtake_still_completes_its_round() {
        let mut settling = Settling::new(2, 1000, Compiling::default());
        // All of rounds 1 to 4 end before the first two requests do.
        let needs: Vec<_> = (2..10).rev().map(|id| settling.ended(&took(id, 1000))).collect();
        assert!(needs.iter().all(|need| *need == Need::More));
        assert_eq!((settling.ended(&took(0, 1000)), settling.ended(&took(1, 1000))), (Need::More, Need::NoMore));
        assert_eq!(settling.settled().rounds, 5);
        assert!(settling.settled().settled);
    }

    #[test]
    fn few_tokens_need_more_requests_and_a_dead_server_none() {
        assert_eq!(Settling::new(1, 4, Compiling::default()).requests_a_round, 8);
        assert_eq!(Settling::new(1, 1000, Compiling::default()).requests_a_round, 2);
        assert_eq!(Settling::new(64, 1000, Compiling::default()).requests_a_round, 64);
        let mut dead = Settling::new(4, 512, Compiling::default());
        let failed = |id| Timeline { id, outcome: Outcome::HttpError, ..Timeline::default() };
        let needs: Vec<_> = (0..4).map(|id| dead.ended(&failed(id))).collect();
        assert_eq!(needs, [Need::More, Need::More, Need::More, Need::NoMore]);
        assert!(!dead.settled().settled && dead.settled().difference_ratio.is_none());
    }
}
