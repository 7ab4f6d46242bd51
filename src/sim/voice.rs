//! The shapes of answers: what each engine's endpoints say, whole and in chunks. The shapes are those of recorded
//! answers of SGLang 0.5.23, vLLM 0.32.0 and llama.cpp b10434.

use serde_json::{Value, json};

use super::asked::Route;
use super::frame::{COUNT, Frame, MS, TEXT, TOTAL};
use super::scenario::Played;

/// Who says it, and about what.
#[derive(Clone, Debug)]
pub(super) struct Voice {
    pub(super) played: Played,
    pub(super) route: Route,
    pub(super) id: String,
    pub(super) model: String,
    /// Seconds since 1970.
    pub(super) created: i64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    /// Whether `usage` says the cached tokens.
    pub(super) says_cached: bool,
    /// Reasoning tokens, if there are any.
    pub(super) reasoning_tokens: u64,
    /// The key that carries reasoning.
    pub(super) reasoning_key: String,
    /// Whether each chunk says `usage`,
    pub(super) continuous: bool,
    /// or llama.cpp's `timings`.
    pub(super) timings: bool,
}

/// What is known when an answer has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// What `usage` says, which may be wrong on purpose.
    pub(super) tokens: u64,
    pub(super) finish: &'static str,
    pub(super) prompt_ms: f64,
    pub(super) predicted_ms: f64,
    pub(super) e2e_s: f64,
    pub(super) verify_steps: u64,
    pub(super) drafted: u64,
    pub(super) accepted: u64,
    /// Tokens drafted a verify.
    pub(super) draft_steps: u32,
}

impl Voice {
    fn is_chat(&self) -> bool {
        self.route == Route::Chat
    }

    /// What every chunk begins with.
    fn head(&self) -> Value {
        let object = if self.is_chat() { "chat.completion.chunk" } else { "text_completion" };
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model})
    }

    fn with_choices(&self, choices: Value) -> Value {
        let mut frame = self.head();
        frame["choices"] = choices;
        if self.played == Played::Llamacpp {
            frame["system_fingerprint"] = json!("b1-orch-sim");
        }
        frame
    }

    fn choice(&self, said: Value, finish: Option<&str>) -> Value {
        let mut choice = json!({"index": 0});
        choice[if self.is_chat() { "delta" } else { "text" }] = said;
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(finish);
        match self.played {
            Played::Sglang => choice["matched_stop"] = Value::Null,
            Played::Vllm => choice["stop_reason"] = Value::Null,
            Played::Llamacpp => {}
        }
        choice
    }

    fn delta(&self, key: &str, text: Value) -> Value {
        if !self.is_chat() {
            return text;
        }
        let mut delta = json!({});
        if self.played == Played::Sglang && key != "reasoning_content" {
            delta["reasoning_content"] = Value::Null;
        }
        delta[key] = text;
        delta
    }

    /// The event that says the role, in a chat.
    pub(super) fn role(&self) -> Option<Value> {
        if !self.is_chat() {
            return None;
        }
        let content = if self.played == Played::Llamacpp { Value::Null } else { json!("") };
        Some(self.with_choices(json!([self.choice(json!({"role": "assistant", "content": content}), None)])))
    }

    /// The events that carry text, to be filled in. `finish` is in the last one where the engine puts it there.
    pub(super) fn text(&self, is_reasoning: bool, finish: Option<&str>) -> Frame {
        let mut frame = match self.route {
            Route::Chat | Route::Completions => {
                let key = if is_reasoning { self.reasoning_key.as_str() } else { "content" };
                self.with_choices(json!([self.choice(self.delta(key, json!(TEXT)), finish)]))
            }
            Route::Generate => json!({"text": TEXT, "output_ids": [], "meta_info": {
                "id": self.id, "finish_reason": finish.map(|word| json!({"type": word})),
                "prompt_tokens": self.prompt_tokens, "completion_tokens": COUNT, "cached_tokens": self.cached_tokens,
                "weight_version": "default"}}),
            Route::Completion => json!({"index": 0, "content": TEXT, "tokens": [], "stop": false, "id_slot": 0,
                "tokens_predicted": COUNT, "tokens_evaluated": self.prompt_tokens}),
        };
        let openai = matches!(self.route, Route::Chat | Route::Completions);
        if openai && self.continuous {
            frame["usage"] = self.usage(&json!(COUNT), &json!(TOTAL));
        } else if openai && self.played == Played::Sglang && !self.is_chat() {
            frame["usage"] = Value::Null;
        }
        if self.timings && self.played == Played::Llamacpp {
            frame["timings"] = json!({"cache_n": self.cached_tokens, "prompt_n": self.prompt_tokens - self.cached_tokens,
                "predicted_n": COUNT, "predicted_ms": MS});
        }
        Frame::new(&frame)
    }

    /// Whether the reason of the end stands in the last event with text.
    pub(super) fn ends_with_text(&self) -> bool {
        match self.route {
            Route::Chat => self.played == Played::Vllm,
            Route::Completions => self.played != Played::Llamacpp,
            Route::Generate => true,
            Route::Completion => false,
        }
    }

    /// The event after the last text; `None` where the last text said it all.
    pub(super) fn finish(&self, outcome: &Outcome, had_text: bool, says_usage: bool) -> Option<Value> {
        match self.route {
            Route::Completion => return Some(self.last_of_completion(outcome, "")),
            Route::Generate => return (!had_text).then(|| self.generated("", outcome)),
            Route::Chat | Route::Completions if had_text && self.ends_with_text() => return None,
            Route::Chat | Route::Completions => {}
        }
        let said = if !self.is_chat() {
            json!("")
        } else if self.played == Played::Sglang {
            json!({"reasoning_content": null})
        } else {
            json!({})
        };
        let mut frame = self.with_choices(json!([self.choice(said, Some(outcome.finish))]));
        if self.played == Played::Llamacpp {
            // In a chat `usage` and times come in an event of their own, if they are asked for.
            if !self.is_chat() && says_usage {
                frame["usage"] = self.usage_of(outcome);
            }
            if !self.is_chat() || !says_usage {
                frame["timings"] = self.timings_of(outcome);
            }
        }
        Some(frame)
    }

    /// The event with `usage` alone.
    pub(super) fn usage_event(&self, outcome: &Outcome) -> Option<Value> {
        if !matches!(self.route, Route::Chat | Route::Completions) {
            return None;
        }
        if self.played == Played::Llamacpp && !self.is_chat() {
            return None;
        }
        let mut frame = self.with_choices(json!([]));
        frame["usage"] = self.usage_of(outcome);
        match self.played {
            Played::Llamacpp => frame["timings"] = self.timings_of(outcome),
            Played::Vllm => frame["system_fingerprint"] = json!("vllm-orch-sim"),
            Played::Sglang => {}
        }
        Some(frame)
    }

    /// Whether a stream ends with `[DONE]`.
    pub(super) fn says_done(&self) -> bool {
        self.route != Route::Completion
    }

    fn usage_of(&self, outcome: &Outcome) -> Value {
        self.usage(&json!(outcome.tokens), &json!(self.prompt_tokens + outcome.tokens))
    }

    fn usage(&self, completion: &Value, total: &Value) -> Value {
        let cached = if self.says_cached { json!({"cached_tokens": self.cached_tokens}) } else { Value::Null };
        let reasoning = self.reasoning_tokens;
        match self.played {
            Played::Sglang => json!({"prompt_tokens": self.prompt_tokens, "total_tokens": total,
                "completion_tokens": completion, "prompt_tokens_details": cached, "reasoning_tokens": reasoning,
                "completion_tokens_details": null}),
            Played::Vllm | Played::Llamacpp => {
                let mut usage = json!({"prompt_tokens": self.prompt_tokens, "total_tokens": total,
                    "completion_tokens": completion});
                if self.says_cached {
                    usage["prompt_tokens_details"] = cached;
                }
                if reasoning > 0 && self.played == Played::Vllm {
                    usage["completion_tokens_details"] = json!({"reasoning_tokens": reasoning});
                }
                usage
            }
        }
    }

    /// llama.cpp's times of a request.
    fn timings_of(&self, outcome: &Outcome) -> Value {
        let evaluated = self.prompt_tokens - self.cached_tokens;
        let per = |ms: f64, tokens: u64| if tokens > 0 { ms / tokens as f64 } else { 0.0 };
        let rate = |tokens: u64, ms: f64| if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 };
        let mut timings = json!({
            "cache_n": self.cached_tokens, "prompt_n": evaluated, "prompt_ms": outcome.prompt_ms,
            "prompt_per_token_ms": per(outcome.prompt_ms, evaluated),
            "prompt_per_second": rate(evaluated, outcome.prompt_ms),
            "predicted_n": outcome.tokens, "predicted_ms": outcome.predicted_ms,
            "predicted_per_token_ms": per(outcome.predicted_ms, outcome.tokens),
            "predicted_per_second": rate(outcome.tokens, outcome.predicted_ms),
        });
        if outcome.verify_steps > 0 {
            timings["draft_n"] = json!(outcome.drafted);
            timings["draft_n_accepted"] = json!(outcome.accepted);
        }
        timings
    }

    fn last_of_completion(&self, outcome: &Outcome, content: &str) -> Value {
        let stop = match outcome.finish {
            "length" => "limit",
            "stop" => "eos",
            _ => "none",
        };
        json!({"index": 0, "content": content, "tokens": [], "id_slot": 0, "stop": true, "model": self.model,
            "tokens_predicted": outcome.tokens, "tokens_evaluated": self.prompt_tokens, "truncated": false,
            "stop_type": stop, "stopping_word": "", "tokens_cached": self.prompt_tokens + outcome.tokens,
            "timings": self.timings_of(outcome)})
    }

    fn generated(&self, text: &str, outcome: &Outcome) -> Value {
        let mut meta = json!({"id": self.id, "finish_reason": {"type": outcome.finish, "length": outcome.tokens},
            "prompt_tokens": self.prompt_tokens, "weight_version": "default", "total_retractions": 0,
            "reasoning_tokens": self.reasoning_tokens, "completion_tokens": outcome.tokens,
            "cached_tokens": self.cached_tokens, "e2e_latency": outcome.e2e_s});
        if outcome.verify_steps > 0 {
            let steps = outcome.verify_steps as f64;
            meta["spec_verify_ct"] = json!(outcome.verify_steps);
            meta["spec_accept_length"] = json!(outcome.tokens as f64 / steps);
            meta["spec_accept_rate"] = json!(outcome.accepted as f64 / (steps * f64::from(outcome.draft_steps)));
            meta["spec_num_correct_drafts"] = json!(outcome.accepted);
            meta["spec_num_proposed_drafts"] = json!(outcome.drafted);
        }
        json!({"text": text, "output_ids": [], "meta_info": meta})
    }

    /// An answer as one document.
    pub(super) fn whole(&self, text: &str, reasoning: Option<&str>, outcome: &Outcome, says_usage: bool) -> Value {
        match self.route {
            Route::Completion => return self.last_of_completion(outcome, text),
            Route::Generate => return self.generated(text, outcome),
            Route::Chat | Route::Completions => {}
        }
        let mut choice = json!({"index": 0});
        if self.is_chat() {
            choice["message"] = json!({"role": "assistant", "content": text});
            if let Some(reasoning) = reasoning {
                choice["message"][&self.reasoning_key] = json!(reasoning);
            }
        } else {
            choice["text"] = json!(text);
        }
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(outcome.finish);
        let mut answer = self.with_choices(json!([choice]));
        answer["object"] = json!(if self.is_chat() { "chat.completion" } else { "text_completion" });
        if says_usage {
            answer["usage"] = self.usage_of(outcome);
        }
        if self.played == Played::Llamacpp {
            answer["timings"] = self.timings_of(outcome);
        }
        answer
    }
}

/// An error, as the engine writes it.
pub(super) fn error(played: Played, status: u16, message: &str) -> Value {
    let kind = match status {
        400 => "BadRequestError",
        404 => "NotFoundError",
        429 => "RateLimitError",
        503 => "ServiceUnavailableError",
        _ => "InternalServerError",
    };
    match played {
        Played::Sglang => json!({"object": "error", "message": message, "type": kind, "param": null, "code": status}),
        Played::Vllm => json!({"error": {"message": message, "type": kind, "param": null, "code": status}}),
        Played::Llamacpp => {
            let kind = match status {
                400 => "invalid_request_error",
                404 => "not_found_error",
                503 => "unavailable_error",
                _ => "server_error",
            };
            json!({"error": {"code": status, "message": message, "type": kind}})
        }
    }
}

/// An error inside a stream.
pub(super) fn error_event(played: Played, status: u16, message: &str) -> Value {
    match played {
        Played::Sglang => json!({"error": error(played, status, message)}),
        Played::Vllm | Played::Llamacpp => error(played, status, message),
    }
}
