//! From a profile and the facts of a place to a plan. Pure: nothing here touches a file, a process or the network.

mod assume;
mod command;
pub mod docker;
mod fault;
mod flags;
mod identity;
mod logic;
mod make;
mod nodes;
mod plan;
mod steps;
#[cfg(test)]
mod tests;
mod traps;
pub mod unit;

pub use assume::{Assumed, assume, installable};
pub(crate) use command::in_environment;
pub use fault::Fault;
pub use fault::NOT_YET;
pub use make::plan;
pub use plan::*;

/// `package:NAME/FILE` as a path inside the environment that `engine.install` made.
pub fn packaged(path: &str, environment: Option<&std::path::Path>) -> Option<std::path::PathBuf> {
    Some(environment?.join("site-packages").join(path.strip_prefix("package:")?))
}
