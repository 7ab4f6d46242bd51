//! Looks at the place before anything is touched, and installs what is missing.
//!
//! In order: the engine's environment, its program, its version, its flags, the model with its draft and
//! tokenizer, the port. What is found becomes the [`Facts`](crate::render::Facts) that a plan is made of. How a command is rendered is not known here.

mod container;
pub mod doctor;
mod error;
mod executable;
mod flags;
mod gpus;
mod hardware;
pub mod install;
mod look;
mod model;
mod port;
mod stage;
mod version;

pub use error::PreflightError;
pub use hardware::{HOST_NAME, hardware};
pub use look::{Found, choose_port, look, look_without_port};
pub use stage::Staged;
