//! The body of a generating request, in the words of each endpoint.

use serde_json::{Map, Value, json};

use super::Target;
use crate::render::{Api, Stop, Workload};

/// Keys of the body that the load must set itself, or the measurement would not be what it says.
pub(super) const OWNED: [&str; 12] = [
    "model",
    "messages",
    "prompt",
    "input",
    "text",
    "stream",
    "max_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
    "sampling_params",
    "ignore_eos",
];

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask<'a> {
    /// One text.
    Prompt(&'a str),
    /// What was said so far, and the text that is to be answered.
    Talk(&'a [Value]),
}

/// The body of a request.
pub(super) fn body(
    target: &Target,
    workload: &Workload,
    ask: Ask<'_>,
    stop: Stop,
    ask_usage: bool,
) -> Map<String, Value> {
    let (most, exact) = match stop {
        Stop::Natural { max_tokens } => (max_tokens, false),
        Stop::Exact { tokens } => (tokens, true),
    };
    let stream = !workload.special.whole;
    let text = || match ask {
        Ask::Prompt(text) => json!(text),
        Ask::Talk(messages) => json!(messages.last().and_then(|message| message.get("content"))),
    };
    match workload.api {
        Api::Chat | Api::Completions => open_ai(target, workload, ask, (most, exact), ask_usage),
        Api::Responses => responses(target, workload, ask, (most, exact)),
        Api::Generate => {
            let mut sampling = workload.body.clone();
            sampling.insert("max_new_tokens".to_owned(), json!(most));
            if exact {
                sampling.insert("ignore_eos".to_owned(), json!(true));
            }
            fields([("text", text()), ("sampling_params", Value::Object(sampling)), ("stream", json!(stream))])
        }
        Api::Completion => {
            let mut body = fields([("prompt", text()), ("n_predict", json!(most)), ("stream", json!(stream))]);
            if exact {
                body.insert("ignore_eos".to_owned(), json!(true));
            }
            body.extend(workload.body.clone());
            body
        }
    }
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn named(target: &Target) -> Map<String, Value> {
    target.model.iter().map(|model| ("model".to_owned(), json!(model))).collect()
}

fn open_ai(
    target: &Target,
    workload: &Workload,
    ask: Ask<'_>,
    (most, exact): (u64, bool),
    ask_usage: bool,
) -> Map<String, Value> {
    let mut body = named(target);
    match (workload.api, ask) {
        (Api::Chat, Ask::Talk(messages)) => body.insert("messages".to_owned(), json!(messages)),
        (Api::Chat, Ask::Prompt(text)) => body.insert("messages".to_owned(), json!([user(text)])),
        (_, Ask::Prompt(text)) => body.insert("prompt".to_owned(), json!(text)),
        (_, Ask::Talk(_)) => None,
    };
    let stream = !workload.special.whole;
    body.insert("stream".to_owned(), json!(stream));
    body.insert("max_tokens".to_owned(), json!(most));
    if exact {
        body.insert("ignore_eos".to_owned(), json!(true));
    }
    body.extend(workload.body.clone());
    if ask_usage && stream {
        let options = body.entry("stream_options").or_insert_with(|| json!({}));
        if let Some(options) = options.as_object_mut() {
            options.entry("include_usage").or_insert(json!(true));
        }
    }
    body
}

fn responses(target: &Target, workload: &Workload, ask: Ask<'_>, (most, exact): (u64, bool)) -> Map<String, Value> {
    let mut body = named(target);
    let input = match ask {
        Ask::Prompt(text) => json!(text),
        Ask::Talk(messages) => json!(messages),
    };
    body.insert("input".to_owned(), input);
    body.insert("stream".to_owned(), json!(!workload.special.whole));
    body.insert("max_output_tokens".to_owned(), json!(most));
    if exact {
        body.insert("ignore_eos".to_owned(), json!(true));
    }
    // A server that kept each answer for later would be measured doing so.
    body.insert("store".to_owned(), json!(false));
    body.extend(workload.body.clone());
    body
}

/// What a person says.
pub(super) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// What was answered.
pub(super) fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}
