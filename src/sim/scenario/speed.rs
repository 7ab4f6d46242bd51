//! How fast it is, and how long its answers are.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::profile::Length;
use crate::units::{read_duration, write_duration};

/// How fast it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Speed {
    /// From the moment a request runs to its first tokens.
    #[serde(serialize_with = "write_duration", deserialize_with = "read_duration")]
    pub ttft: Duration,
    /// Between two steps.
    #[serde(serialize_with = "write_duration", deserialize_with = "read_duration")]
    pub step: Duration,
    /// Tokens of each step after the first, without drafts.
    pub tokens_per_step: u32,
    /// Tokens of the first step.
    pub first_tokens: u32,
    /// Prompt tokens a second; `None` is at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens_per_s: Option<f64>,
    /// How much longer a step takes for each further running request, as a share.
    pub slowdown: f64,
    /// How much all that varies.
    pub noise: Noise,
}

impl Default for Speed {
    fn default() -> Self {
        Speed {
            ttft: Duration::from_millis(50),
            step: Duration::from_millis(20),
            tokens_per_step: 1,
            first_tokens: 1,
            input_tokens_per_s: None,
            slowdown: 0.0,
            noise: Noise::default(),
        }
    }
}

/// How much times vary: all of a start, or all of a request, by one factor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Noise {
    /// Standard deviation of a start's factor.
    pub start: f64,
    /// Standard deviation of a request's factor.
    pub request: f64,
    /// Factors of which each start draws one.
    pub modes: Vec<f64>,
}

/// A distribution of lengths in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Natural(pub Length);

impl Default for Natural {
    fn default() -> Self {
        Natural(Length::Normal { mean: 120.0, stdev: 40.0, min: 20, max: 400 })
    }
}
