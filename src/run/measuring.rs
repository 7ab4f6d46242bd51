//! What a run and a deployment measure alike: whom they ask, how, and what of the server's own words is read beside.

use tokio_util::sync::CancellationToken;

use super::bench::Bench;
use super::error::Stop;
use super::serving::ServerLog;
use super::{Context, Job, Sources};
use crate::gate::{self, LogGrammar};
use crate::load::{Options, Target};
use crate::measure::Capacity;
use crate::record::settings;

/// What is the same for every step.
pub(super) struct Measuring {
    target: Target,
    options: Options,
    sources: Sources,
}

impl Measuring {
    /// On a server that has proven itself.
    pub(super) fn on(ready: &gate::Ready, job: &Job<'_>, cx: &Context<'_>) -> Self {
        let model = Some(ready.model.clone());
        Measuring {
            target: Target { base_url: ready.base_url.clone(), model, ..Target::default() },
            options: Options { ask_usage: job.profile.instrument, ..Options::default() },
            sources: Sources::of_run(job.profile, job.definition, cx.server_log),
        }
    }

    /// What a step needs beside itself. A cancelled `interrupt` ends it in order.
    pub(super) fn bench<'a>(
        &'a self,
        job: &'a Job<'_>,
        cx: &'a Context<'_>,
        interrupt: &'a CancellationToken,
        server_log: Option<ServerLog<'a>>,
        capacity: &'a Capacity,
    ) -> Bench<'a> {
        let endpoints = &job.definition.endpoints;
        Bench {
            sources: &self.sources,
            target: &self.target,
            options: &self.options,
            clock: cx.clock,
            interrupt,
            log: &cx.folder.journal,
            load_path: "beside",
            ceiling: crate::selftest::known_ceiling(cx.work),
            server_log,
            flush: endpoints.flush.as_deref().filter(|_| job.definition.requests.cold_prefix.is_empty()),
            capacity: Some(capacity),
            machine: Some(cx.machine),
            probe: false,
            keep_chunks: false,
            keep_partial: false,
        }
    }
}

/// How the server's log is read.
pub(super) fn grammar(job: &Job<'_>, cx: &Context<'_>) -> Result<LogGrammar, Stop> {
    let grammar = LogGrammar::new(&job.definition.log).map_err(Stop::grammar)?;
    Ok(grammar.with_settings(settings::dotted(&cx.folder.record().profile)).with_secrets(job.secrets))
}
