//! One request, from its arrival to the end of its answer.

use std::rc::Rc;

use serde_json::Value;

use super::admission::{Admission, Slot};
use super::asked::{Asked, Route};
use super::draw::{Plan, Step};
use super::engine::{Engine, Happening, nanos};
use super::frame::{Filling, Frame, escape};
use super::http::{self, Connection, Request, STREAM_END, STREAM_HEAD};
use super::ledger::Entry;
use super::pace::now;
use super::scenario::{FaultKind, Played, RequestFault, RoleChunk};
use super::voice::{self, Outcome, Voice};
use crate::clock::Nanos;

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It may carry another request.
    Keep,
    /// It is closed,
    Close,
    /// or reset.
    Reset,
}

/// Why an answer breaks off.
struct Broken(Then);

impl From<std::io::Error> for Broken {
    fn from(_: std::io::Error) -> Self {
        Broken(Then::Close)
    }
}

/// Answers a request of a generating endpoint and writes it into the ledger, however it ends.
pub(super) async fn generate(engine: &Rc<Engine>, connection: &mut Connection, route: Route, request: Request) -> Then {
    let n = engine.arrive(request.arrived);
    let entry = Entry {
        id: request.id.clone().unwrap_or_else(|| n.to_string()),
        n,
        path: request.path.clone(),
        arrived_ns: request.arrived,
        ..Entry::default()
    };
    // The ledger has its line even where this is dropped in the middle, as at the end of the server's life.
    let mut record = Record { engine, entry, counted: false };
    let keep = if request.keep { Then::Keep } else { Then::Close };
    let result = match Asked::read(route, &request.body) {
        Ok(asked) => {
            if let (Some(id), None) = (&asked.id, &request.id) {
                record.entry.id.clone_from(id);
            }
            Answer::begin(engine, connection, &mut record, asked).run().await
        }
        Err(message) => refuse(engine, connection, &mut record, 400, &message, "").await,
    };
    if let Err(Broken(Then::Close)) = &result
        && record.entry.fault.is_none()
    {
        record.entry.aborted = true;
    }
    record.finish();
    match result {
        Ok(()) => keep,
        Err(Broken(then)) => then,
    }
}

/// Writes an error.
async fn refuse(
    engine: &Engine,
    connection: &mut Connection,
    record: &mut Record<'_>,
    status: u16,
    message: &str,
    more: &str,
) -> Result<(), Broken> {
    record.entry.status = status;
    engine.counters.borrow_mut().failed += 1;
    let body = voice::error(engine.played(), status, message).to_string();
    connection.write(&http::answer(status, "application/json", more, body.as_bytes())).await?;
    record.counted = true;
    Ok(())
}

/// A line of the ledger that is written when this goes.
struct Record<'a> {
    engine: &'a Rc<Engine>,
    entry: Entry,
    /// Whether the request's end is counted.
    counted: bool,
}

impl Record<'_> {
    fn finish(&mut self) {
        if self.entry.end_ns == 0 {
            self.entry.end_ns = now();
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if self.entry.end_ns == 0 {
            // Dropped in the middle.
            self.entry.aborted = true;
        }
        self.finish();
        if !self.counted {
            self.engine.counters.borrow_mut().aborted += 1;
        }
        let (path, status) = (self.entry.path.clone(), self.entry.status);
        self.engine.ledger.add(std::mem::take(&mut self.entry));
        (self.engine.log)(Happening::Answered { path, status });
        self.engine.end();
    }
}

/// An answer under way.
struct Answer<'a, 'e> {
    engine: &'e Rc<Engine>,
    connection: &'a mut Connection,
    record: &'a mut Record<'e>,
    asked: Asked,
    plan: Plan,
    voice: Voice,
    /// Tokens so far,
    tokens: u64,
    /// and the events that carried them.
    events: u64,
    /// The moment from which its steps are counted.
    start: Nanos,
    /// When the first tokens came.
    first: Option<Nanos>,
    last: Nanos,
    /// What is to be written.
    out: Vec<u8>,
    /// A stream that is held back.
    held: Option<Vec<u8>>,
    /// All text so far, for a stream that says it again each time.
    text: Vec<u8>,
}

impl<'a, 'e> Answer<'a, 'e> {
    fn begin(engine: &'e Rc<Engine>, connection: &'a mut Connection, record: &'a mut Record<'e>, asked: Asked) -> Self {
        let plan = Plan::draw(&engine.scenario, engine.seed, record.entry.n, &asked);
        let serve = &engine.scenario.serve;
        let played = engine.played();
        record.entry.prompt_tokens = asked.prompt.len() as u64;
        record.entry.fault = plan.fault.as_ref().map(|fault| word(fault.kind));
        let prefix = match (asked.route, played) {
            (_, Played::Sglang) => "",
            (Route::Chat, _) => "chatcmpl-",
            _ => "cmpl-",
        };
        let reasoning_key = serve.reasoning.as_ref().and_then(|reasoning| reasoning.key.clone());
        let own_key = if played == Played::Vllm { "reasoning" } else { "reasoning_content" };
        let voice = Voice {
            played,
            route: asked.route,
            id: format!("{prefix}{:016x}", super::words::mix(engine.seed, record.entry.n)),
            model: asked.model.clone().unwrap_or_else(|| engine.model.clone()),
            created: jiff::Timestamp::now().as_second(),
            prompt_tokens: asked.prompt.len() as u64,
            cached_tokens: 0,
            says_cached: serve.cache_report.unwrap_or(played == Played::Llamacpp),
            reasoning_tokens: plan.reasoning,
            reasoning_key: reasoning_key.unwrap_or_else(|| own_key.to_owned()),
            continuous: serve.continuous_usage.to(asked.continuous_usage && played != Played::Llamacpp),
            timings: asked.timings_per_token,
        };
        Answer {
            engine,
            connection,
            record,
            asked,
            plan,
            voice,
            tokens: 0,
            events: 0,
            start: 0,
            first: None,
            last: 0,
            out: Vec::new(),
            held: None,
            text: Vec::new(),
        }
    }

    fn fault(&self) -> Option<FaultKind> {
        self.plan.fault.as_ref().map(|fault| fault.kind)
    }

    fn is(&self, kind: FaultKind) -> bool {
        self.fault() == Some(kind)
    }

    async fn run(mut self) -> Result<(), Broken> {
        if self.before_it_runs().await? {
            return Ok(());
        }
        let slot = self.admitted().await?;
        let slot = self.read_prompt(slot);
        if self.asked.stream { self.stream(slot).await } else { self.whole(slot).await }
    }

    async fn refuse(&mut self, status: u16, message: &str, more: &str) -> Result<(), Broken> {
        refuse(self.engine, self.connection, self.record, status, message, more).await
    }

    /// What ends a request before it runs: faults, and limits. Whether it has ended.
    async fn before_it_runs(&mut self) -> Result<bool, Broken> {
        if self.is(FaultKind::NoAnswer) {
            return Err(Broken(Then::Close));
        }
        if let Some(RequestFault { kind: FaultKind::Status, status, retry_after, .. }) = &self.plan.fault {
            let status = status.unwrap_or(503);
            let more = retry_after.map(|span| format!("retry-after: {}\r\n", span.as_secs_f64().ceil()));
            let message = self.message("refused as the scenario says");
            self.refuse(status, &message, more.as_deref().unwrap_or("")).await?;
            return Ok(true);
        }
        let scenario = &self.engine.scenario;
        let (prompt, context) = (self.asked.prompt.len() as u64, scenario.context());
        // llama.cpp cuts the answer where it does not fit; the others refuse.
        let asked = if self.engine.played() == Played::Llamacpp { 1 } else { self.asked.max_tokens.unwrap_or(1) };
        if prompt + asked > context {
            let message = format!(
                "This model's maximum context length is {context} tokens. However, you requested {asked} output tokens \
                 and your prompt contains {prompt} input tokens, which is longer than the model's context length"
            );
            self.refuse(400, &message, "").await?;
            return Ok(true);
        }
        if self.engine.draining.get() {
            self.refuse(503, "The server is shutting down.", "").await?;
            return Ok(true);
        }
        let queue = self.engine.admission.borrow().waiting();
        let full = scenario.serve.max_queued.is_some_and(|most| queue >= most);
        if full && self.engine.admission.borrow().try_enter(prompt).is_none() {
            self.refuse(503, "The request queue is full.", "").await?;
            return Ok(true);
        }
        Ok(false)
    }

    fn message(&self, otherwise: &str) -> String {
        let told = self.plan.fault.as_ref().and_then(|fault| fault.message.clone());
        told.unwrap_or_else(|| otherwise.to_owned())
    }

    /// Waits for its turn.
    async fn admitted(&mut self) -> Result<Slot, Broken> {
        let prompt = self.asked.prompt.len() as u64;
        let admission = Rc::clone(&*self.engine.admission.borrow());
        let at_once = admission.try_enter(prompt);
        let (slot, start) = match at_once {
            Some(slot) => (slot, self.record.entry.arrived_ns),
            None => (self.wait_in(&admission, prompt, false).await?, now()),
        };
        self.start = start;
        self.record.entry.started_ns = Some(start);
        Ok(slot)
    }

    async fn wait_in(&self, admission: &Rc<Admission>, tokens: u64, first: bool) -> Result<Slot, Broken> {
        let turn = admission.enter(tokens, first);
        tokio::select! {
            slot = turn => slot.map_err(|_| Broken(Then::Close)),
            () = self.connection.gone() => Err(Broken(Then::Close)),
        }
    }

    /// Counts the prompt as read.
    fn read_prompt(&mut self, slot: Slot) -> Slot {
        let cached = self.engine.cached(&self.asked.prompt, self.asked.may_use_cache, self.asked.cache_salt.as_deref());
        let prompt = self.asked.prompt.len() as u64;
        self.voice.cached_tokens = cached;
        self.record.entry.cached_tokens = cached;
        let mut counters = self.engine.counters.borrow_mut();
        counters.prompt_tokens += prompt;
        counters.cached_tokens += cached;
        counters.prefills += 1;
        counters.prompt_lengths.tokens(prompt);
        counters.queued.seconds(self.start.saturating_sub(self.record.entry.arrived_ns), 1);
        slot
    }

    /// The span from its start to its first tokens.
    fn until_first(&self) -> Nanos {
        let speed = &self.engine.scenario.speed;
        let fresh = (self.voice.prompt_tokens - self.voice.cached_tokens) as f64;
        let reading = speed.input_tokens_per_s.map_or(0.0, |rate| fresh / rate * 1e9);
        self.scaled(nanos(speed.ttft) as f64 + reading)
    }

    fn scaled(&self, span: f64) -> Nanos {
        (span * self.engine.factor * self.plan.factor).round() as Nanos
    }

    /// Waits until step `index` is due and has its room; the result is when it was due.
    async fn step_due(&mut self, index: usize, step: Step, before: Nanos, slot: &mut Slot) -> Result<Nanos, Broken> {
        let speed = &self.engine.scenario.speed;
        let mut due = if index == 0 {
            self.start + self.until_first()
        } else {
            let others = self.engine.admission.borrow().running().saturating_sub(1) as f64;
            before + self.scaled(nanos(speed.step) as f64 * (1.0 + speed.slowdown * others))
        };
        loop {
            due = self.engine.after_pauses(due);
            if index == 0 && due > now() {
                // The first wait may be long, and a client that goes meanwhile shows by no write.
                tokio::select! {
                    () = self.engine.pacer.until(due) => {}
                    () = self.connection.gone() => return Err(Broken(Then::Close)),
                }
            } else {
                self.engine.pacer.until(due).await;
            }
            if self.engine.after_pauses(due) == due {
                break;
            }
        }
        if slot.grow(u64::from(step.tokens)) {
            return Ok(due);
        }
        self.retract(step, slot).await
    }

    /// Gives its place up, waits for another, and reads everything anew.
    async fn retract(&mut self, step: Step, slot: &mut Slot) -> Result<Nanos, Broken> {
        (self.engine.log)(Happening::Retracted);
        self.engine.counters.borrow_mut().retracted += 1;
        self.record.entry.retracted += 1;
        let admission = Rc::clone(&*self.engine.admission.borrow());
        let tokens = self.voice.prompt_tokens + self.tokens + u64::from(step.tokens);
        // The old place must be free before the new one is asked for, or it would wait for itself.
        let empty = Admission::new(None, None).try_enter(0).ok_or(Broken(Then::Close))?;
        drop(std::mem::replace(slot, empty));
        *slot = self.wait_in(&admission, tokens, true).await?;
        let due = now() + self.until_first();
        self.engine.pacer.until(due).await;
        Ok(due)
    }

    /// Counts a step that is about to be said.
    fn count(&mut self, step: Step, at: Nanos) {
        let running = self.engine.admission.borrow().running();
        let in_graph = self.engine.in_graph(running);
        let drafted = self.engine.scenario.draft_steps();
        let mut counters = self.engine.counters.borrow_mut();
        if self.first.is_some() {
            counters.step(step, drafted, running, in_graph, at);
            let gap = at.saturating_sub(self.last);
            // vLLM takes one sample a step, the others one a token.
            let times = if self.engine.played() == Played::Vllm { 1 } else { step.tokens.max(1) };
            counters.itl.seconds(gap / u64::from(times), u64::from(times));
        } else {
            counters.first(step, at);
            counters.ttft.seconds(at.saturating_sub(self.record.entry.arrived_ns), 1);
            self.first = Some(at);
        }
        drop(counters);
        if let Some(accepted) = step.accepted {
            self.record.entry.verify_steps += 1;
            self.record.entry.drafted_tokens += u64::from(drafted);
            self.record.entry.accepted_tokens += u64::from(accepted);
        }
        self.tokens += u64::from(step.tokens);
        self.record.entry.output_tokens = self.tokens;
        self.record.entry.reasoning_tokens = self.tokens.min(self.plan.reasoning);
        self.last = at;
    }

    /// What is known at the end.
    fn outcome(&self) -> Outcome {
        let entry = &self.record.entry;
        let first = self.first.unwrap_or(self.start);
        let tokens = self.said_tokens(self.tokens);
        Outcome {
            tokens,
            finish: match self.fault() {
                Some(FaultKind::FinishError) => "error",
                _ if self.plan.by_limit => "length",
                _ => "stop",
            },
            prompt_ms: first.saturating_sub(self.start) as f64 / 1e6,
            predicted_ms: self.last.saturating_sub(first) as f64 / 1e6,
            e2e_s: now().saturating_sub(entry.arrived_ns) as f64 / 1e9,
            verify_steps: entry.verify_steps,
            drafted: entry.drafted_tokens,
            accepted: entry.accepted_tokens,
            draft_steps: self.engine.scenario.draft_steps(),
        }
    }

    /// What is said of so many tokens, which may be wrong on purpose.
    fn said_tokens(&self, tokens: u64) -> u64 {
        match self.fault() {
            Some(FaultKind::WrongUsage) => tokens / 2,
            Some(FaultKind::DoubleUsage) => tokens * 2,
            Some(FaultKind::ChunkUsage) => self.events,
            _ => tokens,
        }
    }

    /// Counts the request as ended.
    fn close(&mut self, outcome: &Outcome) {
        self.record.entry.finish_reason = Some(outcome.finish.to_owned());
        self.record.entry.end_ns = now();
        self.record.counted = true;
        let mut counters = self.engine.counters.borrow_mut();
        match outcome.finish {
            "length" => counters.limited += 1,
            "stop" => counters.stopped += 1,
            _ => counters.failed += 1,
        }
        let first = self.first.unwrap_or(self.start);
        counters.prompt_seconds += first.saturating_sub(self.start) as f64 / 1e9;
        counters.output_seconds += self.last.saturating_sub(first) as f64 / 1e9;
        counters.output_lengths.tokens(self.tokens);
        counters.longest = counters.longest.max(self.voice.prompt_tokens + self.tokens);
        counters.e2e.seconds(self.record.entry.end_ns.saturating_sub(self.record.entry.arrived_ns), 1);
        if self.tokens > 1 {
            counters.tpot.seconds(self.last.saturating_sub(first) / (self.tokens - 1), 1);
        }
    }

    /// After how many tokens a fault in the middle comes.
    fn fault_at(&self) -> u64 {
        let told = self.plan.fault.as_ref().and_then(|fault| fault.after_tokens);
        told.unwrap_or((self.plan.tokens / 2).max(1))
    }
}

mod stream;
mod whole;

/// The word for a kind of fault.
fn word(kind: FaultKind) -> String {
    match serde_json::to_value(kind) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}
