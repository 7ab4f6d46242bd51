//! Asking a server, from the cheapest sign to the proof that it generates tokens.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::probe::{Answer, Probes};
use super::proof::{self, NoProof};
use super::wait::Pace;
use crate::launch::{PortOwner, Watched};
use crate::render::Readiness;

/// A server that generated tokens.
pub(super) struct Proven {
    pub(super) model: String,
    pub(super) tokens: u64,
    /// From the launch to the end of the answer.
    pub(super) after: Duration,
}

/// An answer that will not do.
pub(super) struct Unfit {
    pub(super) probe: String,
    pub(super) answer: String,
    pub(super) remedy: String,
}

/// Asks, round after round, until there is a proof.
pub(super) struct Prober<'a> {
    pub(super) pace: Pace,
    pub(super) server: &'a dyn Watched,
    pub(super) readiness: &'a Readiness,
    pub(super) probes: Probes,
    pub(super) port: Option<u16>,
    pub(super) sign: watch::Receiver<bool>,
    pub(super) tell: mpsc::UnboundedSender<(String, String)>,
    pub(super) last: BTreeMap<String, String>,
}

/// How a round ended without a proof.
enum Round {
    /// It is not there yet.
    NotYet,
    /// It is there, and its answer will not do.
    Wrong(Unfit),
}

impl Prober<'_> {
    pub(super) async fn prove(mut self) -> Result<Proven, Unfit> {
        // Since when the same answer would not do.
        let mut wrong: Option<(String, Instant)> = None;
        loop {
            match self.round().await {
                Ok(proven) => return Ok(proven),
                Err(Round::NotYet) => wrong = None,
                Err(Round::Wrong(unfit)) => match &wrong {
                    Some((answer, since)) if *answer == unfit.answer => {
                        if since.elapsed() >= self.pace.unfit {
                            return Err(unfit);
                        }
                    }
                    _ => wrong = Some((unfit.answer, Instant::now())),
                },
            }
            sleep(self.pace.probe).await;
        }
    }

    /// From the cheapest sign to the proof; the first that is missing ends the round.
    async fn round(&mut self) -> Result<Proven, Round> {
        if !*self.sign.borrow() {
            return Err(Round::NotYet);
        }
        if let Some(path) = self.readiness.health.clone() {
            // Whatever else it answers, it may be the answer of a server that is not there yet.
            self.page(&path).await.map_err(|_| Round::NotYet)?;
        }
        let listed = match self.readiness.models.clone() {
            Some(path) => Some(self.models(&path).await?),
            None => self.readiness.model.clone(),
        };
        self.is_ours()?;
        let proof = proof::prove(&self.probes, listed.as_deref(), self.readiness.tokens).await;
        // Now, and not after the looks at processes and the log that follow: they take their time on a busy host.
        let after = self.server.launched().elapsed();
        let (path, proof) = match proof {
            Ok(proven) => proven,
            Err((path, NoProof::NotYet(answer))) => {
                self.answered(path, &answer);
                return Err(Round::NotYet);
            }
            Err((path, NoProof::NoPath(status))) => {
                let remedy = "it has no endpoint of OpenAI's interface, which orch measures through";
                return Err(self.wrong(path, &status.to_string(), remedy));
            }
            Err((path, NoProof::Wrong(answer))) => {
                return Err(self.wrong(path, &answer, "its log may say more"));
            }
        };
        // A stranger could have answered in its place; it is looked at again while the answer is fresh.
        self.is_ours()?;
        self.answered(path, &format!("{} tokens", proof.tokens));
        let Some(model) = listed.or(proof.model) else {
            return Err(self.wrong(path, "without a model's name", "set `model.served_name`"));
        };
        Ok(Proven { model, tokens: proof.tokens, after })
    }

    /// A page that must answer 200.
    async fn page(&mut self, path: &str) -> Result<Vec<u8>, Round> {
        let answer = self.probes.get(path).await;
        let text = answer.text();
        match answer {
            Answer::Page(200, body) => {
                self.answered(path, &text);
                Ok(body)
            }
            // These do not change by waiting, as 503 does.
            Answer::Page(400..=499, _) if !["408", "425", "429"].contains(&text.as_str()) => {
                Err(self.wrong(path, &text, "the definition of the engine names this path"))
            }
            _ => {
                self.answered(path, &text);
                Err(Round::NotYet)
            }
        }
    }

    /// The model that requests will name: the one asked for, if it is listed, or the only one.
    async fn models(&mut self, path: &str) -> Result<String, Round> {
        let body = self.page(path).await?;
        let list: Value = serde_json::from_slice(&body).unwrap_or_default();
        let entries = list["data"].as_array().or_else(|| list.as_array());
        let Some(entries) = entries else {
            return Err(self.wrong(
                path,
                "200, without a list of models",
                "the definition of the engine names this path",
            ));
        };
        let names: Vec<String> = entries.iter().filter_map(|entry| entry["id"].as_str()).map(str::to_owned).collect();
        let quoted = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        match (&self.readiness.model, names.as_slice()) {
            (Some(wanted), names) if names.contains(wanted) => Ok(wanted.clone()),
            // A server that takes models in later has none at first.
            (_, []) => {
                self.answered(path, "200, without a model");
                Err(Round::NotYet)
            }
            (Some(wanted), _) => {
                let remedy = format!("set `model.served_name` to what it serves, {quoted}");
                Err(self.wrong(path, &format!("200, without `{wanted}`: it has {quoted}"), &remedy))
            }
            (None, [only]) => Ok(only.clone()),
            (None, _) => Err(self.wrong(
                path,
                &format!("200, with several models: {quoted}"),
                "say which by `model.served_name`",
            )),
        }
    }

    /// Whether the port is answered by this server and nobody else, where it can be told.
    fn is_ours(&mut self) -> Result<(), Round> {
        let Some(port) = self.port else { return Ok(()) };
        let probe = format!("port {port}");
        match self.server.owner_of(port) {
            PortOwner::Stranger(who) => {
                self.answered(&probe, &format!("by {who}, which is not this server"));
                Err(Round::NotYet)
            }
            PortOwner::Ours => {
                self.answered(&probe, "by this server");
                Ok(())
            }
            // Another user's process, or one in a container of its own: what it generates has to do.
            PortOwner::CannotTell | PortOwner::Nobody => Ok(()),
        }
    }

    fn wrong(&mut self, probe: &str, answer: &str, remedy: &str) -> Round {
        self.answered(probe, answer);
        Round::Wrong(Unfit { probe: probe.to_owned(), answer: answer.to_owned(), remedy: remedy.to_owned() })
    }

    /// Tells an answer that differs from the last one.
    fn answered(&mut self, probe: &str, answer: &str) {
        if self.last.get(probe).is_none_or(|last| last != answer) {
            self.last.insert(probe.to_owned(), answer.to_owned());
            // The gate is gone when nobody listens.
            let _ = self.tell.send((probe.to_owned(), answer.to_owned()));
        }
    }
}
