//! The state that all requests share: the settled scenario, counts, who runs, pauses, and how it ends.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::counters::Counters;
use super::draw::start_factor;
use super::ledger::Ledger;
use super::pace::{Pacer, now};
use super::scenario::{Death, Played, Scenario};
use super::tokens::Known;
use crate::clock::Nanos;

/// Tokens of a block of the prefix cache.
const BLOCK: usize = 16;
/// Blocks that the prefix cache holds before it is emptied.
const BLOCKS: usize = 1 << 20;

/// What the server says in its log; who starts it decides how that looks.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// It listens.
    Listening {
        /// Where.
        host: String,
        /// The port.
        port: u16,
        /// The seed, drawn or given.
        seed: u64,
    },
    /// An answer has ended.
    Answered {
        /// The path that was asked.
        path: String,
        /// The status, 0 for none.
        status: u16,
    },
    /// Once a second while tokens come.
    Decode {
        /// Requests that run,
        running: u64,
        /// and wait.
        queued: u64,
        /// Tokens of running requests.
        tokens: u64,
        /// Tokens per second.
        tokens_per_s: f64,
        /// Tokens of a verify step since the start, with speculation.
        acceptance_length: Option<f64>,
        /// Whether the batch runs in captured graphs.
        in_graph: bool,
    },
    /// A request was retracted for want of room.
    Retracted,
    /// Something is compiled.
    Compiling {
        /// How long it will take.
        length: Duration,
    },
    /// It ends by itself.
    Dying,
    /// It restarts.
    Restarting,
    /// It was asked to stop.
    Stopping {
        /// Requests that run or wait.
        remaining: u64,
    },
}

/// Takes what happens.
pub type Log = Rc<dyn Fn(Happening)>;

/// The simulated engine.
pub(super) struct Engine {
    pub(super) scenario: Scenario,
    pub(super) seed: u64,
    /// The factor on all times of this start.
    pub(super) factor: f64,
    pub(super) model: String,
    /// Seconds since 1970.
    pub(super) since: Cell<i64>,
    pub(super) admission: RefCell<Rc<Admission>>,
    pub(super) counters: RefCell<Counters>,
    pub(super) pacer: Rc<Pacer>,
    pub(super) ledger: Ledger,
    pub(super) log: Log,
    pub(super) known: RefCell<Known>,
    /// Whether it has loaded its model.
    pub(super) ready: Cell<bool>,
    /// Whether it takes no new requests.
    pub(super) draining: Cell<bool>,
    /// Ends all connections of the present life.
    life: RefCell<CancellationToken>,
    /// Generating requests that have arrived, and ended, in all lives.
    arrived: Cell<u64>,
    ended: Cell<u64>,
    active: Cell<u64>,
    first_arrival: Cell<Option<Nanos>>,
    pauses: RefCell<Vec<(Nanos, Nanos)>>,
    prefixes: RefCell<HashSet<u64>>,
    changed: Notify,
    /// How the process is to end by itself.
    death: Cell<Option<u8>>,
    compiled: Cell<bool>,
    restarted: Cell<bool>,
}

impl Engine {
    pub(super) fn new(scenario: Scenario, pacer: Rc<Pacer>, ledger: Ledger, log: Log) -> Rc<Self> {
        let seed = scenario.seed.unwrap_or_else(|| rand::rng().random_range(0..1 << 53));
        Rc::new(Engine {
            seed,
            factor: start_factor(&scenario, seed),
            model: scenario.served_name.clone().unwrap_or_else(|| "simulated".to_owned()),
            since: Cell::new(jiff::Timestamp::now().as_second()),
            admission: RefCell::new(admission(&scenario)),
            counters: RefCell::default(),
            pacer,
            ledger,
            log,
            known: RefCell::default(),
            ready: Cell::new(false),
            draining: Cell::new(false),
            life: RefCell::default(),
            arrived: Cell::new(0),
            ended: Cell::new(0),
            active: Cell::new(0),
            first_arrival: Cell::new(None),
            pauses: RefCell::default(),
            prefixes: RefCell::default(),
            changed: Notify::new(),
            death: Cell::new(None),
            compiled: Cell::new(false),
            restarted: Cell::new(false),
            scenario,
        })
    }

    pub(super) fn played(&self) -> Played {
        self.scenario.played()
    }

    /// Cancelled when all connections of this life are to end.
    pub(super) fn life(&self) -> CancellationToken {
        self.life.borrow().clone()
    }

    /// Tokens of running requests that it says it can hold.
    pub(super) fn kv_tokens(&self) -> u64 {
        self.admission.borrow().room().unwrap_or_else(|| self.scenario.kv_room())
    }

    /// Ends all connections. Those that come after belong to a new life.
    pub(super) fn end_life(&self) {
        self.life.replace(CancellationToken::new()).cancel();
    }

    /// A generating request has arrived; the result is its number.
    pub(super) fn arrive(&self, at: Nanos) -> u64 {
        let n = self.arrived.get() + 1;
        self.arrived.set(n);
        self.active.set(self.active.get() + 1);
        self.counters.borrow_mut().requests += 1;
        if self.first_arrival.get().is_none() {
            self.first_arrival.set(Some(at));
        }
        if let Some(compile) = &self.scenario.serve.compile {
            let due = compile.after.is_some_and(|after| n >= after);
            if due && !self.compiled.replace(true) {
                self.pause(at, compile.length);
            }
        }
        self.changed.notify_waiters();
        n
    }

    /// A generating request has ended.
    pub(super) fn end(&self) {
        self.active.set(self.active.get() - 1);
        self.ended.set(self.ended.get() + 1);
        self.changed.notify_waiters();
    }

    /// Generating requests that have not ended.
    pub(super) fn active(&self) -> u64 {
        self.active.get()
    }

    /// Returns when all generating requests have ended.
    pub(super) async fn idle(&self) {
        while self.active.get() > 0 {
            self.changed.notified().await;
        }
    }

    fn pause(&self, at: Nanos, length: Duration) {
        (self.log)(Happening::Compiling { length });
        self.pauses.borrow_mut().push((at, at + nanos(length)));
    }

    /// When something that is due really happens, given the pauses.
    pub(super) fn after_pauses(&self, due: Nanos) -> Nanos {
        let mut due = due;
        if let Some(end) = self.stall_end(due) {
            due = end;
        }
        for (from, to) in self.pauses.borrow().iter() {
            if (*from..*to).contains(&due) {
                due = *to;
            }
        }
        due
    }

    /// When the stall ends in which a moment lies.
    fn stall_end(&self, at: Nanos) -> Option<Nanos> {
        let stall = self.scenario.serve.stall.as_ref()?;
        let since = at.checked_sub(self.first_arrival.get()? + nanos(stall.at))?;
        let round = stall.every.map_or(0, |every| since / nanos(every).max(1) * nanos(every));
        let within = since - round;
        (within < nanos(stall.length)).then(|| at - within + nanos(stall.length))
    }

    /// Whether a batch of so many runs in captured graphs.
    pub(super) fn in_graph(&self, running: u64) -> bool {
        self.scenario.serve.graph_max_batch.is_none_or(|most| running <= u64::from(most))
    }

    /// How many tokens of a prompt are in the prefix cache; from now on all of it is.
    pub(super) fn cached(&self, prompt: &[u64], may_use: bool, salt: Option<&str>) -> u64 {
        let length = prompt.len() as u64;
        if let Some(share) = self.scenario.serve.cached {
            return ((length as f64 * share) as u64).min(length.saturating_sub(1));
        }
        if !self.scenario.serve.prefix_cache {
            return 0;
        }
        let mut known = self.prefixes.borrow_mut();
        if known.len() > BLOCKS {
            known.clear();
        }
        let salt = salt.unwrap_or_default().bytes();
        let salt = salt.fold(0_u64, |hash, byte| super::words::mix(hash, u64::from(byte)));
        let (mut hash, mut hits, mut unbroken) = (salt, 0, true);
        for block in prompt.chunks_exact(BLOCK) {
            hash = block.iter().fold(hash, |hash, id| super::words::mix(hash, *id));
            let new = known.insert(hash);
            unbroken &= !new;
            hits += if unbroken { BLOCK as u64 } else { 0 };
        }
        // The last token is always computed, or there would be nothing to go on from.
        if may_use { hits.min(length.saturating_sub(1)) } else { 0 }
    }

    /// Forgets all prompts.
    pub(super) fn forget_prompts(&self) {
        self.prefixes.borrow_mut().clear();
    }

    /// Ends the process as the scenario says. What is in the ledger so far is kept.
    pub(super) fn die(&self) {
        let Some(die) = &self.scenario.serve.die else { return };
        (self.log)(Happening::Dying);
        self.ledger.sync();
        match die.how {
            Death::Kill => {
                let own = nix::unistd::Pid::this();
                let _ = nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGKILL);
            }
            Death::Exit => self.death.set(Some(die.code)),
        }
        self.changed.notify_waiters();
    }

    /// Returns the exit code when the process is to end by itself.
    pub(super) async fn death(&self) -> u8 {
        loop {
            let changed = self.changed.notified();
            if let Some(code) = self.death.get() {
                return code;
            }
            changed.await;
        }
    }

    /// Sees to what happens at a time or after a number of requests: compiling and dying, and, once, the restart, at
    /// which this returns.
    pub(super) async fn watch(&self) -> Duration {
        loop {
            let changed = self.changed.notified();
            let now = now();
            let serve = &self.scenario.serve;
            let mut next = Nanos::MAX;
            let mut due = |at: Option<Duration>, after: Option<u64>| {
                let moment = at.zip(self.first_arrival.get()).map(|(at, first)| first + nanos(at));
                if let Some(moment) = moment.filter(|moment| *moment > now) {
                    next = next.min(moment);
                }
                moment.is_some_and(|moment| moment <= now) || after.is_some_and(|after| self.ended.get() >= after)
            };
            if let Some(compile) = &serve.compile
                && due(compile.at, None)
                && !self.compiled.replace(true)
            {
                self.pause(now, compile.length);
            }
            if let Some(die) = &serve.die
                && due(die.at, die.after)
                && self.death.get().is_none()
            {
                self.die();
            }
            if let Some(restart) = &serve.restart
                && !self.restarted.get()
                && due(restart.at, restart.after)
            {
                self.restarted.set(true);
                return restart.length;
            }
            if next == Nanos::MAX {
                changed.await;
            } else {
                tokio::select! { () = changed => {} () = self.pacer.until(next) => {} }
            }
        }
    }

    /// Begins again with nothing but its settings.
    pub(super) fn restart(&self) {
        (self.log)(Happening::Restarting);
        self.end_life();
        self.since.set(jiff::Timestamp::now().as_second());
        self.counters.replace(Counters::default());
        let fresh = admission(&self.scenario);
        self.admission.replace(fresh);
        self.forget_prompts();
    }

    /// What is said in the log once a second.
    pub(super) fn decode(&self) -> Happening {
        let (counters, admission) = (self.counters.borrow(), self.admission.borrow());
        Happening::Decode {
            running: admission.running(),
            queued: admission.waiting(),
            tokens: admission.used(),
            tokens_per_s: counters.rate.last,
            acceptance_length: counters.acceptance_length(),
            in_graph: counters.last_in_graph.unwrap_or(false),
        }
    }
}

fn admission(scenario: &Scenario) -> Rc<Admission> {
    Admission::new(scenario.running_cap().map(u64::from), scenario.serve.kv_tokens)
}

/// A span in nanoseconds.
pub(super) fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
