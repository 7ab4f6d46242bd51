//! The engine's own counters over the measured part of a step: read from a page in Prometheus's text format by rules
//! that an engine's definition gives, as differences between a reading before and one after. Pure.
//!
//! The way is page ([`Page`]), reading ([`Reading`]), window ([`Window`]), metrics.

mod formula;
mod name;
mod page;
mod reading;
mod rules;
mod window;

pub use formula::{Formula, FormulaError};
pub use name::Counter;
pub use page::{Page, Sample};
pub use reading::Reading;
pub use rules::CounterRules;
pub use window::{Gauge, Window};
