//! What a person sees: the live view, tables. Reads events and records only.

pub mod export;
pub mod failed;
pub mod live;
pub mod number;
pub mod page;
pub mod record;
pub mod run;
mod steps;
pub mod sweep;
pub mod table;
pub mod text;

pub use table::{Align, Table};
