//! What a generating request asks for, whichever of the endpoints it came to.

use serde_json::Value;

use super::scenario::Played;
use super::tokens;

/// An endpoint that generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// SGLang's `/generate`.
    Generate,
    /// llama.cpp's `/completion`.
    Completion,
}

impl Route {
    /// The endpoint behind a path of an engine that has it.
    pub(super) fn of(path: &str, played: Played) -> Option<Route> {
        match (path, played) {
            ("/v1/chat/completions", _) | ("/chat/completions", Played::Llamacpp) => Some(Route::Chat),
            ("/v1/completions", _) => Some(Route::Completions),
            ("/generate", Played::Sglang) => Some(Route::Generate),
            ("/completion" | "/completions", Played::Llamacpp) => Some(Route::Completion),
            _ => None,
        }
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) route: Route,
    pub(super) stream: bool,
    pub(super) max_tokens: Option<u64>,
    pub(super) min_tokens: u64,
    pub(super) ignore_eos: bool,
    pub(super) seed: Option<u64>,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) timings_per_token: bool,
    /// Whether the prefix cache may be used for it.
    pub(super) may_use_cache: bool,
    /// What it leaves in the prefix cache is for those of the same salt.
    pub(super) cache_salt: Option<String>,
    /// The ids of the prompt, chat template included.
    pub(super) prompt: Vec<u64>,
    /// The last thing that the user said, for what is known.
    pub(super) question: String,
    /// The model that it wants.
    pub(super) model: Option<String>,
    /// Its own id, if it brought one.
    pub(super) id: Option<String>,
}

impl Asked {
    /// Reads a body; `Err` is what is wrong with it, for the answer.
    pub(super) fn read(route: Route, body: &[u8]) -> Result<Asked, String> {
        let body: Value = serde_json::from_slice(body).map_err(|error| format!("the body is no JSON: {error}"))?;
        if !body.is_object() {
            return Err("the body is no object".to_owned());
        }
        let limits = if route == Route::Generate { &body["sampling_params"] } else { &body };
        let number = |keys: &[&str]| keys.iter().find_map(|key| limits[*key].as_u64());
        let max_tokens = match route {
            Route::Chat => number(&["max_completion_tokens", "max_tokens"]),
            // The default of OpenAI's interface, which engines follow here and nowhere else.
            Route::Completions => Some(number(&["max_tokens"]).unwrap_or(16)),
            Route::Generate => Some(number(&["max_new_tokens"]).unwrap_or(128)),
            Route::Completion => number(&["n_predict", "max_tokens"]),
        };
        let (prompt, question) = prompt(route, &body)?;
        let text = |key: &str| body[key].as_str().map(str::to_owned);
        let options = &body["stream_options"];
        Ok(Asked {
            route,
            stream: body["stream"].as_bool().unwrap_or(false),
            max_tokens,
            min_tokens: number(&["min_tokens", "min_new_tokens"]).unwrap_or(0),
            ignore_eos: limits["ignore_eos"].as_bool().unwrap_or(false),
            seed: number(&["seed", "sampling_seed"]),
            include_usage: options["include_usage"].as_bool().unwrap_or(false),
            continuous_usage: options["continuous_usage_stats"].as_bool().unwrap_or(false),
            timings_per_token: body["timings_per_token"].as_bool().unwrap_or(false),
            may_use_cache: body["cache_prompt"].as_bool().unwrap_or(true),
            cache_salt: text("cache_salt"),
            prompt,
            question,
            model: text("model"),
            id: text("request_id").or_else(|| text("rid")),
        })
    }
}

/// The ids of a prompt, and the question in it.
fn prompt(route: Route, body: &Value) -> Result<(Vec<u64>, String), String> {
    let key = match route {
        Route::Chat => "messages",
        Route::Completions | Route::Completion => "prompt",
        Route::Generate => "text",
    };
    if let Some(ids) = ids(&body["input_ids"]).filter(|_| route == Route::Generate) {
        return Ok((ids, String::new()));
    }
    match &body[key] {
        Value::Array(messages) if route == Route::Chat && !messages.is_empty() => {
            let text = template(messages)?;
            let question = messages.iter().rev().find(|message| message["role"] == "user").map(content);
            Ok((text_ids(&text), question.unwrap_or_default()))
        }
        Value::String(text) if route != Route::Chat => Ok((text_ids(text), text.clone())),
        Value::Array(items) if route != Route::Chat => match (ids(&body[key]), items.first()) {
            (Some(ids), _) if !ids.is_empty() => Ok((ids, String::new())),
            (_, Some(Value::String(text))) if items.len() == 1 => Ok((text_ids(text), text.clone())),
            _ => Err(format!("`{key}` is neither a text nor a list of token ids")),
        },
        Value::Null => Err(format!("`{key}` is missing")),
        _ => Err(format!("`{key}` is not what it should be")),
    }
}

fn ids(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

fn text_ids(text: &str) -> Vec<u64> {
    tokens::pieces(text).into_iter().map(tokens::id).collect()
}

/// Messages as the one text that the model would see.
pub(super) fn template(messages: &[Value]) -> Result<String, String> {
    let mut text = String::new();
    for message in messages {
        let role = message["role"].as_str().ok_or("a message has no `role`")?;
        text.push_str(&format!("<|{role}|>\n{}\n", content(message)));
    }
    text.push_str("<|assistant|>\n");
    Ok(text)
}

/// The text of a message, whether plain or in parts.
fn content(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(route: Route, body: &str) -> Asked {
        Asked::read(route, body.as_bytes()).unwrap()
    }

    #[test]
    fn each_endpoint_has_its_words() {
        let chat = read(
            Route::Chat,
            r#"{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"one two"}]}],
                "max_completion_tokens":9,"ignore_eos":true,"stream":true,
                "stream_options":{"include_usage":true,"continuous_usage_stats":true},"seed":4,"rid":"r7"}"#,
        );
        assert_eq!((chat.max_tokens, chat.ignore_eos, chat.stream, chat.seed), (Some(9), true, true, Some(4)));
        assert_eq!((chat.include_usage, chat.continuous_usage, chat.id.as_deref()), (true, true, Some("r7")));
        assert_eq!(chat.question, "one two");
        // `<|system|` and `>`, two words, `<|user|>`, two words, `<|assist` and `ant|>`.
        assert_eq!(chat.prompt.len(), 9);
        assert_eq!(read(Route::Completions, r#"{"prompt":"one two"}"#).max_tokens, Some(16));
        let generate = read(Route::Generate, r#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":5}}"#);
        assert_eq!((generate.prompt.len(), generate.max_tokens), (3, Some(5)));
        assert_eq!(read(Route::Completion, r#"{"prompt":["one"],"n_predict":7}"#).max_tokens, Some(7));
        assert_eq!(read(Route::Completions, r#"{"prompt":[4,5]}"#).prompt, [4, 5]);
    }

    #[test]
    fn what_cannot_be_answered_is_said() {
        for (route, body) in [
            (Route::Chat, "{"),
            (Route::Chat, "[]"),
            (Route::Chat, "{}"),
            (Route::Chat, r#"{"messages":[]}"#),
            (Route::Chat, r#"{"messages":[{"content":"x"}]}"#),
            (Route::Completions, r#"{"prompt":7}"#),
            (Route::Completions, r#"{"prompt":["a","b"]}"#),
        ] {
            assert!(Asked::read(route, body.as_bytes()).is_err(), "{body}");
        }
    }
}
