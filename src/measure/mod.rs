//! From timelines to metrics. Pure, but for the writers of files beside a record.

pub mod capacity;
mod cites;
mod client;
pub mod counters;
mod distribution;
mod errors;
mod goodput;
mod histograms;
mod logged;
mod machine;
mod measured;
mod metrics;
mod page;
pub mod recount;
mod request;
mod rows;
mod seen;
mod summary;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
mod timeline;
pub mod validity;
mod value;

pub use capacity::Capacity;
pub use cites::{Cite, cites};
pub use client::*;
pub use distribution::*;
pub use errors::standard_errors;
pub use goodput::{GOODPUT_METRICS, Goodput};
pub use histograms::*;
pub use logged::Logged;
pub use machine::{Machine, Reading};
pub use measured::*;
pub use metrics::*;
pub use page::metrics_page;
pub use rows::*;
pub use seen::Seen;
pub use summary::{Summary, counts, samples, summarize};
pub use text::TextFault;
pub use timeline::*;
pub use value::*;

/// Version of the metrics' definitions; goes up when one changes, and records of two versions are not compared.
pub const METRICS_VERSION: u32 = 1;
