//! What is known of the engines: their definitions (`templates/<kind>/engine.yaml` and `launch.hbs`) and versions.
//!
//! Facts that age are data; what must be computed is one small function per engine in `render`. Nothing here starts,
//! asks or touches an engine.

mod builtin;
mod condition;
mod definition;
mod error;
mod fields;
mod flags;
mod log_rules;
mod read;
pub mod settings;
mod template;
mod version;

pub use condition::{Condition, ConditionError};
pub use definition::*;
pub use error::{EngineError, Wrong, kind_word};
pub use fields::Shape;
pub use flags::{FlagList, FlagLists, Named, Past, Takes};
pub use log_rules::*;
pub use read::{default_folders, definition, definition_for, file, unit_template};
pub use settings::{Choice, Row, Spelled, Spelling, Unspellable};
pub use template::{LaunchTemplate, TemplateFault, TemplateRenderError, quote};
pub use version::{Requirement, RequirementError, Version};
