//! Reading a server's log, in three layers that touch nothing but their arguments: bytes to pieces ([`Splitter`]), pieces
//! to observations by an engine's rules ([`LogGrammar`]), observations to the state of the start-up ([`Startup`]).
//! What is told while requests are served is summed up by [`Serving`].

mod fold;
mod grammar;
mod serving;
mod split;
mod whole;

pub use crate::engine::{Again, BarRule, EventRule, FailureRule, LogRules, PhaseRule, SampleRule, ServingRules};
pub use fold::{Change, Failure, Phase, Startup};
pub use grammar::{GrammarError, LogGrammar, Observation, Seen};
pub use serving::{Serving, ServingGrammar};
pub use split::{PIECE_BYTES, Piece, Splitter};
pub use whole::{Told, read};
