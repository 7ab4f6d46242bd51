//! Results in the shapes of other tools, and theirs as records. Pure: texts and values in, texts and values out.
//!
//! A figure goes under the name of that figure of the other tool which has the same formula; where theirs differs, the
//! name is marked as lossy, and how they differ is in `docs/interop.md`.

mod export;
mod import;

pub use export::{Format, Lossy, of_step};
pub use import::{BadResult, Foreign, Tool, read};
