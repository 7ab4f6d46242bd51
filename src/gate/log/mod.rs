//! Reading a server's log, in three layers that touch nothing but their arguments: bytes to pieces ([`Splitter`]), pieces
//! to observations by an engine's rules ([`LogGrammar`]), observations to the state of the start-up ([`Startup`]).
//! What is told while requests are served is summed up by [`Serving`].

mod automaton;
mod bulk;
mod causes;
mod fill;
mod fold;
mod found;
mod grammar;
mod literals;
mod order;
mod prefix;
mod progress;
mod saved;
mod serving;
mod sieve;
mod split;
mod telling;
mod traceback;
mod values;
mod whole;

pub use crate::engine::{
    Again, BarRule, EventRule, FailureRule, KindRule, LogRules, PhaseRule, SampleRule, ServingRules, SuspectRule,
};
pub use bulk::Bulk;
pub(super) use bulk::{Passed, Passing};
pub use causes::{Failure, Nature};
pub use fill::fill;
pub use fold::{Change, Memory, Phase, Startup};
pub use grammar::{GrammarError, LogGrammar, Observation, Seen};
pub use order::{Order, newest_first};
pub use progress::Progress;
pub use saved::SavedLog;
pub use serving::{Serving, ServingGrammar};
pub use split::{PIECE_BYTES, Piece, RawPiece, Splitter};
pub use telling::Telling;
pub use whole::{Told, read, read_all, read_each};
