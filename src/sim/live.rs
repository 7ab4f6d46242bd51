//! A simulated server from its start to its end: its processes, the log of its start, its service, and how it ends.

use std::cell::RefCell;
use std::future::pending;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::Played;
use super::engine::Happening;
use super::processes::{self, Gone, Running};
use super::scenario::Scenario;
use super::serve::{Options, Server, SimError};
use super::startup::play::play;
use super::startup::serving::{Drafts, Round, decode};
use super::startup::{self, Beat, Ending, Level, Milestone, Model, Pids, Printer, Script, Stamp, What, Who};

/// Between two looks at the workers.
const LOOK: Duration = Duration::from_millis(50);

/// Takes what the server says.
pub type Sink = Rc<dyn Fn(&[u8])>;

/// A server that is to be.
pub struct Life {
    /// How it behaves.
    pub scenario: Scenario,
    /// The address to listen at.
    pub host: String,
    /// The port; 0 is any free one.
    pub port: u16,
    /// Where the ledger goes.
    pub ledger: Option<PathBuf>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code.
    Code(u8),
    /// By this signal, which the caller is to send to itself: nothing is to be cleaned up.
    Signal(i32),
}

/// Lives it, on this thread. What the server says is given to `write`, piece by piece.
pub fn live(life: Life, write: Sink) -> Result<Ended, SimError> {
    let scenario = &life.scenario;
    let workers = processes::start(&scenario.processes, scenario.played(), scenario.ranks.unwrap_or(1).max(1))?;
    let runtime = crate::host::runtime::on_this_thread()?;
    let printer = Rc::new(Printer::new(&Model::of(scenario, life.port), pids(&workers)));
    let workers = Rc::new(RefCell::new(workers));
    let ended = LocalSet::new().block_on(&runtime, async {
        let began = Instant::now();
        tokio::select! {
            ended = serve(life, &workers, &printer, began, &write) => ended,
            gone = lost(&workers) => Ok(told(&gone, &printer, began, &write)),
        }
    });
    let workers = Rc::into_inner(workers).map(RefCell::into_inner);
    match (&ended, workers) {
        (Ok(Ended::Code(_)), Some(workers)) => workers.stop(),
        (_, Some(mut workers)) => workers.kill_all(),
        (_, None) => {}
    }
    ended
}

/// From the first line to the last request.
async fn serve(
    life: Life,
    workers: &Rc<RefCell<Running>>,
    printer: &Rc<Printer>,
    began: Instant,
    write: &Sink,
) -> Result<Ended, SimError> {
    let Life { scenario, host, port, ledger } = life;
    let name = format!("{} {}", scenario.played().word(), scenario.said_version());
    let mut model = Model::of(&scenario, port);
    let teller =
        Teller { scenario: scenario.clone(), printer: Rc::clone(printer), began, write: Rc::clone(write), name };
    let shares = scenario.clone();
    let mut server =
        Server::new(scenario, Options { host, port, ledger, log: Rc::new(move |what| teller.tell(&what)) })?;
    if port == 0 {
        // Nobody could be told a port that is found later.
        server.listen().await?;
        model = Model::of(&shares, server.port()?);
    }
    let Script { beats, ending, loses } = startup::script_of(&model);
    let last = beats.last().map(|beat| beat.at);
    let (before, end): (Vec<Beat>, Vec<Beat>) =
        beats.into_iter().partition(|beat| loses.is_none() || Some(beat.at) < last);
    perform(before, printer, began, write, &mut server).await?;
    if let Some((rank, signal)) = loses {
        // Who is left says that it is gone.
        let signal = Signal::try_from(signal).unwrap_or(Signal::SIGKILL);
        workers.borrow_mut().lose(rank, signal);
    }
    perform(end, printer, began, write, &mut server).await?;
    match ending {
        Ending::Serves => server.serve().await.map(Ended::Code),
        Ending::Exits(code) => Ok(Ended::Code(code)),
        Ending::Signal(signal) => Ok(Ended::Signal(signal)),
        Ending::Hangs => pending().await,
    }
}

async fn perform(
    beats: Vec<Beat>,
    printer: &Printer,
    began: Instant,
    write: &Sink,
    server: &mut Server,
) -> Result<(), SimError> {
    play(
        &beats,
        printer,
        began,
        |bytes| write(bytes),
        async |milestone| match milestone {
            Milestone::Bound => server.hold().await,
            Milestone::Open => {
                server.listen().await?;
                server.answer_meanwhile();
                Ok(())
            }
            Milestone::Ready => {
                server.ready();
                Ok(())
            }
        },
    )
    .await
}

fn pids(workers: &Running) -> Pids {
    let main = std::process::id();
    let of =
        |title: &str| workers.workers().iter().find(|worker| worker.title.starts_with(title)).map(|worker| worker.pid);
    let ranks = (0..).map_while(|rank| workers.rank(rank)).map(|worker| worker.pid).collect();
    Pids { main, engine: of("VLLM::EngineCore").unwrap_or(main), ranks }
}

/// Ends when a worker does that was not to.
async fn lost(workers: &Rc<RefCell<Running>>) -> Gone {
    loop {
        tokio::time::sleep(LOOK).await;
        let gone = workers.borrow_mut().next_lost();
        if let Some(gone) = gone {
            return gone;
        }
    }
}

/// What the played engine says of a worker that has ended, and does: SGLang kills its whole tree, itself included; vLLM
/// exits.
fn told(gone: &Gone, printer: &Printer, began: Instant, write: &Sink) -> Ended {
    let code = match (gone.status.code(), gone.status.signal()) {
        (Some(code), _) => code,
        (None, signal) => -signal.unwrap_or(0),
    };
    let say = |who, what| write(&printer.bytes(&Beat { at: Duration::ZERO, who, what }, &Stamp::now(began)));
    if let Some(name) = gone.title.strip_prefix("sglang::") {
        let text = format!(
            "Subprocess {name} (pid={}) crashed with exit code {code}. Triggering SIGQUIT for cleanup...",
            gone.pid
        );
        say(Who::Main, What::Record(Level::Error, text));
        let text = "SIGQUIT received. signum=None, frame=None. It usually means one child failed.";
        say(Who::Main, What::Record(Level::Error, text.to_owned()));
        return Ended::Signal(9);
    }
    if let Some(rank) = gone.rank {
        let text =
            format!("Worker proc VllmWorker-{rank} died unexpectedly (exit code: {code}), shutting down executor.");
        say(Who::Engine, What::Record(Level::Error, text));
    }
    let text = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.";
    say(Who::Main, What::Record(Level::Error, text.to_owned()));
    Ended::Code(1)
}

/// Tells in the words of the played engine what happens while it serves.
struct Teller {
    scenario: Scenario,
    printer: Rc<Printer>,
    began: Instant,
    write: Sink,
    name: String,
}

impl Teller {
    fn record(&self, who: Who, level: Level, text: String) {
        self.beat(Beat { at: Duration::ZERO, who, what: What::Record(level, text) });
    }

    fn plain(&self, text: String) {
        self.beat(Beat { at: Duration::ZERO, who: Who::Main, what: What::Plain(text) });
    }

    fn beat(&self, beat: Beat) {
        (self.write)(&self.printer.bytes(&beat, &Stamp::now(self.began)));
    }

    fn tell(&self, happening: &Happening) {
        let played = self.scenario.played();
        match happening {
            Happening::Listening { host, port, seed } => {
                self.plain(format!("simulated {} listening at http://{host}:{port}, seed {seed}", self.name));
            }
            Happening::Answered { path, status } => self.answered(path, *status),
            Happening::Decode { .. } => {
                let who = if played == Played::Sglang { Who::Rank(0) } else { Who::Main };
                for line in decode(played, &self.round(happening)) {
                    self.record(who, Level::Info, line);
                }
            }
            Happening::Retracted => {
                let text = "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 512, #new_token_ratio: 0.70 -> 0.80";
                self.record(Who::Rank(0), Level::Warning, text.to_owned());
            }
            Happening::Compiling { length } => {
                let text = match played {
                    Played::Sglang => {
                        "Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=4096, K=512, num_groups=1".to_owned()
                    }
                    Played::Vllm => "JIT kernel warmup starting.".to_owned(),
                    Played::Llamacpp => format!("srv  update_slots: compiling kernels, {:.1} s", length.as_secs_f64()),
                };
                self.record(Who::Rank(0), Level::Info, text);
            }
            Happening::Dying => startup::crash(&self.scenario).into_iter().for_each(|beat| self.beat(beat)),
            Happening::Restarting => self.plain(format!("simulated {} restarts as its scenario says", self.name)),
            Happening::Stopping { .. } => {
                let text = match played {
                    Played::Sglang => {
                        "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
                    }
                    Played::Vllm => "[shutdown] API server: shutdown triggered",
                    Played::Llamacpp => "srv    operator(): operator(): cleaning up before exit...",
                };
                self.record(Who::Main, Level::Info, text.to_owned());
            }
        }
    }

    fn answered(&self, path: &str, status: u16) {
        if status == 0 {
            return;
        }
        let reason = if status == 200 { "OK" } else { "Error" };
        let text = format!("INFO:     127.0.0.1:50004 - \"POST {path} HTTP/1.1\" {status} {reason}");
        match self.scenario.played() {
            Played::Sglang => self.record(Who::Main, Level::Info, text),
            Played::Vllm => self.plain(text),
            Played::Llamacpp => self.record(Who::Main, Level::Info, "srv  update_slots: all slots are idle".to_owned()),
        }
    }

    fn round(&self, happening: &Happening) -> Round {
        let Happening::Decode { running, queued, tokens, tokens_per_s, acceptance_length, in_graph } = happening else {
            return Round::default();
        };
        // A thousand verifies with this mean: what the line shows are their shares.
        let drafts = acceptance_length.map(|length| {
            let verifies = 1000;
            let by_position = self.scenario.accepted_shares().iter().map(|share| (share * 1000.0) as u64).collect();
            Drafts {
                verifies,
                drafted: verifies * u64::from(self.scenario.draft_steps()),
                accepted: ((length - 1.0) * 1000.0).round().max(0.0) as u64,
                by_position,
            }
        });
        let room = self.scenario.serve.kv_tokens.unwrap_or(1 << 20).max(1);
        Round {
            running: *running,
            queued: *queued,
            tokens: *tokens,
            usage: *tokens as f64 / room as f64,
            tokens_per_s: *tokens_per_s,
            prompt_tokens_per_s: 0.0,
            graph: *in_graph,
            drafts,
            interval_s: 1.0,
            cache_hits: 0.0,
        }
    }
}
