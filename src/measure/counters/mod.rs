//! The engine's own counters over the measured part of a step: read from a page in Prometheus's text format by rules
//! that an engine's definition gives, as differences between a reading before and one after. Pure.
//!
//! The way is page ([`Page`]), reading ([`Reading`]), window ([`Window`]), metrics.

mod acceptance;
mod figures;
mod formula;
mod lines;
mod name;
mod page;
mod reading;
mod rules;
mod source;
mod text;
mod throughput;
mod window;

#[cfg(test)]
mod tests;

pub(super) use figures::Figures;
pub use formula::{Formula, FormulaError};
pub use lines::AcceptanceLines;
pub use name::Counter;
pub use page::{Page, Sample};
pub use reading::Reading;
pub use rules::CounterRules;
pub use source::Source;
pub use text::LEAST_PROMPTS;
pub use window::{Gauge, Window};
