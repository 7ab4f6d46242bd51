//! Reading a server's log, in three layers that touch nothing but their arguments: bytes to pieces ([`Splitter`]), pieces
//! to observations by an engine's rules ([`LogGrammar`]), observations to the state of the start-up ([`Startup`]).

mod fold;
mod grammar;
mod split;
mod whole;

pub use crate::engine::{BarRule, FailureRule, LogRules, PhaseRule};
pub use fold::{Change, Failure, Phase, Startup};
pub use grammar::{GrammarError, LogGrammar, Observation, Seen};
pub use split::{PIECE_BYTES, Piece, Splitter};
pub use whole::{Told, read};
