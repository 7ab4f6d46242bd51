//! What happens to it while it serves: pauses, and the ends of its process.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::maybe_duration;
use crate::units::{duration_text, parse_duration, read_duration, write_duration};

/// A time without steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// When, after the first request arrived.
    #[serde(serialize_with = "write_duration", deserialize_with = "read_duration")]
    pub at: Duration,
    /// How long.
    #[serde(rename = "for", serialize_with = "write_duration", deserialize_with = "read_duration")]
    pub length: Duration,
    /// Again each time so much has passed.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe_duration")]
    pub every: Option<Duration>,
}

/// A compilation while it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compile {
    /// When, after the first request arrived.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe_duration")]
    pub at: Option<Duration>,
    /// When so many requests have arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How long.
    #[serde(rename = "for", default = "second", serialize_with = "write_duration", deserialize_with = "read_duration")]
    pub length: Duration,
}

/// How its process ends while it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Die {
    /// When, after the first request arrived.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe_duration")]
    pub at: Option<Duration>,
    /// When so many answers have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// In the middle of the answer to this request, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mid_stream: Option<u64>,
    /// How.
    #[serde(default)]
    pub how: Death,
    /// The code of an exit.
    #[serde(default = "one")]
    pub code: u8,
}

/// How a process ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Death {
    /// By SIGKILL.
    Kill,
    /// By an exit of its own.
    #[default]
    Exit,
}

/// How it is gone for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// When, after the first request arrived.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe_duration")]
    pub at: Option<Duration>,
    /// When so many answers have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How long.
    #[serde(rename = "for", default = "half", serialize_with = "write_duration", deserialize_with = "read_duration")]
    pub length: Duration,
}

/// What SIGTERM does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stop {
    /// Takes no notice of it.
    pub ignore_term: bool,
    /// How long running requests may go on; `None` is as the engine does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// The exit code.
    pub code: u8,
}

/// How long running requests may go on after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Not at all.
    None,
    /// Until they have ended.
    Forever,
    /// So long.
    For(Duration),
}

impl Serialize for Drain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Drain::None => serializer.serialize_str("none"),
            Drain::Forever => serializer.serialize_str("forever"),
            Drain::For(span) => serializer.serialize_str(&duration_text(*span)),
        }
    }
}

impl<'de> Deserialize<'de> for Drain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "none" => Ok(Drain::None),
            "forever" => Ok(Drain::Forever),
            span => parse_duration(span).map(Drain::For).map_err(serde::de::Error::custom),
        }
    }
}

fn one() -> u8 {
    1
}

fn second() -> Duration {
    Duration::from_secs(1)
}

fn half() -> Duration {
    Duration::from_millis(500)
}
