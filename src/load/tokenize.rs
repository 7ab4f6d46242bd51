//! How many tokens a text has, by the server's own tokenizer. It generates nothing.

use serde_json::{Value, json};

use super::url::Endpoint;
use super::{Target, models, requests};

/// Asks the endpoint at `path` for the tokens of what `text` puts into the request's body. `None`: there is none, or
/// what it answers is no count.
pub(super) async fn ask(target: &Target, endpoint: &Endpoint, path: &str, mut body: Value) -> Option<u64> {
    if let Some(model) = &target.model {
        body["model"] = json!(model);
    }
    let request = requests::post(path, endpoint, &target.headers, &body.to_string()).ok()?;
    let (status, answer) = models::answer_to(endpoint, &request).await.ok()?;
    let answer: Value = serde_json::from_slice(&answer).ok().filter(|_| status == 200)?;
    let tokens = answer.get("tokens").and_then(Value::as_array).map(|tokens| tokens.len() as u64);
    // One that ignores what it does not know counts nothing.
    answer.get("count").and_then(Value::as_u64).or(tokens).filter(|count| *count > 0)
}

/// The tokens of a text as it stands, without those that begin or end a prompt.
pub async fn count(target: &Target, path: &str, text: &str) -> Option<u64> {
    let endpoint = target.endpoint().ok()?;
    // vLLM and SGLang call it a prompt, llama.cpp a content.
    let body = json!({"prompt": text, "content": text, "add_special_tokens": false, "add_special": false});
    let count = ask(target, &endpoint, path, body).await?;
    // A token has a byte at least.
    (count <= text.len() as u64).then_some(count)
}
