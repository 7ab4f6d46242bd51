//! What the played engine writes while it serves.

use crate::sim::Played;

/// A moment of decoding, or of an interval of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub queued: u64,
    /// Tokens in the cache.
    pub tokens: u64,
    /// Share of the cache that is used, 0 to 1.
    pub usage: f64,
    /// Generated tokens per second since the last line.
    pub tokens_per_s: f64,
    /// Prompt tokens per second since the last line.
    pub prompt_tokens_per_s: f64,
    /// Whether the batch ran in a captured graph.
    pub graph: bool,
    /// Verify steps, drafted and accepted tokens since the last line; `None` without speculation.
    pub drafts: Option<Drafts>,
    /// Seconds since the last line.
    pub interval_s: f64,
    /// Share of prompt tokens that were cached.
    pub cache_hits: f64,
}

/// Speculation over an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafts {
    /// Verify steps, of each request.
    pub verifies: u64,
    /// Drafted tokens.
    pub drafted: u64,
    /// Accepted ones.
    pub accepted: u64,
    /// Of these by position.
    pub by_position: Vec<u64>,
}

impl Drafts {
    /// Tokens a verify, with the one that it brings itself.
    fn length(&self) -> f64 {
        1.0 + self.accepted as f64 / self.verifies.max(1) as f64
    }

    fn share(&self) -> f64 {
        self.accepted as f64 / self.drafted.max(1) as f64
    }
}

/// The times of one request, as llama-server tells them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timing {
    /// Its slot.
    pub slot: u64,
    /// Its number.
    pub task: u64,
    /// Prompt tokens that were computed.
    pub prompt_tokens: u64,
    /// How long that took.
    pub prompt_ms: f64,
    /// Generated tokens.
    pub tokens: u64,
    /// How long that took.
    pub ms: f64,
    /// Drafted and accepted tokens, and verify steps; `None` without speculation.
    pub drafts: Option<Drafts>,
}

/// SGLang's line of decoding; nothing of other engines.
pub fn decode(played: Played, round: &Round) -> Vec<String> {
    let Round { running, queued, tokens, usage, tokens_per_s, graph, drafts, .. } = round;
    match played {
        Played::Sglang => {
            let accepted = drafts.as_ref().map_or_else(String::new, |drafts| {
                format!("accept len: {:.2}, accept rate: {:.2}, ", drafts.length(), drafts.share())
            });
            let graph = if *graph { "True" } else { "False" };
            vec![format!(
                "Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2}, {accepted}cuda graph: {graph}, gen throughput (token/s): {tokens_per_s:.2}, #queue-req: {queued}"
            )]
        }
        Played::Vllm => {
            let mut lines = vec![format!(
                "Engine 000: Avg prompt throughput: {:.1} tokens/s, Avg generation throughput: {tokens_per_s:.1} tokens/s, Running: {running} reqs, Waiting: {queued} reqs, GPU KV cache usage: {:.1}%, Prefix cache hit rate: {:.1}%",
                round.prompt_tokens_per_s,
                usage * 100.0,
                round.cache_hits * 100.0
            )];
            if let Some(drafts) = drafts {
                let per_position: Vec<String> = drafts
                    .by_position
                    .iter()
                    .map(|accepted| format!("{:.3}", *accepted as f64 / drafts.verifies.max(1) as f64))
                    .collect();
                let s = round.interval_s.max(0.001);
                lines.push(format!(
                    "SpecDecoding metrics: Mean acceptance length: {:.2}, Accepted throughput: {:.2} tokens/s, Drafted throughput: {:.2} tokens/s, Accepted: {} tokens, Drafted: {} tokens, Per-position acceptance rate: {}, Avg Draft acceptance rate: {:.1}%",
                    drafts.length(),
                    drafts.accepted as f64 / s,
                    drafts.drafted as f64 / s,
                    drafts.accepted,
                    drafts.drafted,
                    per_position.join(", "),
                    drafts.share() * 100.0
                ));
            }
            lines
        }
        Played::Llamacpp => Vec::new(),
    }
}

/// SGLang's line of a prompt; nothing of other engines.
pub fn prefill(played: Played, new_tokens: u64, cached: u64, round: &Round) -> Option<String> {
    (played == Played::Sglang).then(|| {
        format!(
            "Prefill batch, #new-seq: 1, #new-token: {new_tokens}, #cached-token: {cached}, token usage: {:.2}, #running-req: {}, #queue-req: {}, #pending-token: 0, cuda graph: False, input throughput (token/s): {:.2}",
            round.usage, round.running, round.queued, round.prompt_tokens_per_s
        )
    })
}

/// llama-server's lines of a request that begins.
pub fn task_began(slot: u64, task: u64) -> Vec<String> {
    vec![
        format!("slot get_availabl: id  {slot} | task -1 | selected slot by LRU, t_last = -1"),
        format!("slot launch_slot_: id  {slot} | task {task} | processing task, is_child = 0"),
    ]
}

/// llama-server's lines of a request that is done.
pub fn task_done(timing: &Timing) -> Vec<String> {
    let Timing { slot, task, prompt_tokens, prompt_ms, tokens, ms, drafts } = timing;
    let who = |function: &str| format!("slot {function}: id  {slot} | task {task} | ");
    let speed = |ms: f64, tokens: u64| {
        let each = ms / tokens.max(1) as f64;
        let rate = if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 };
        format!("{ms:>10.2} ms / {tokens:>5} tokens ({each:>8.2} ms per token, {rate:>8.2} tokens per second)")
    };
    let timed = who("print_timing");
    let mut lines = vec![
        format!("{timed}prompt eval time = {}", speed(*prompt_ms, *prompt_tokens)),
        format!("{timed}       eval time = {}", speed(*ms, *tokens)),
        format!("{timed}      total time = {:>10.2} ms / {:>5} tokens", prompt_ms + ms, prompt_tokens + tokens),
    ];
    if let Some(drafts) = drafts {
        lines.push(format!(
            "{timed}draft acceptance = {:.5} ({:>5} accepted / {:>5} generated), mean len = {:>5.2}",
            drafts.share(),
            drafts.accepted,
            drafts.drafted,
            drafts.length()
        ));
    }
    lines.push(format!("{}stop processing: n_tokens = {}, truncated = 0", who("     release"), prompt_tokens + tokens));
    lines
}
