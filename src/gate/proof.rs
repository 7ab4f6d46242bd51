//! The proof of readiness: a request that was made for this, and what came back as tokens.

use bytes::BytesMut;
use futures_util::StreamExt;
use serde_json::{Value, json};

use super::probe::{Probes, whole, why};

/// An answer may not hold more than this: it was asked for a few tokens.
const ANSWER_BYTES: usize = 4 << 20;

/// Tokens that a server generated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proof {
    /// How many, by the server's own count, else by its chunks, of which one may hold several.
    pub(crate) tokens: u64,
    /// The model that the answer names.
    pub(crate) model: Option<String>,
}

/// Why there was no proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoProof {
    /// There is no such path.
    NoPath(u16),
    /// It may be otherwise in a moment.
    NotYet(String),
    /// It will be the same the next time.
    Wrong(String),
}

/// Asks for `tokens` tokens: as a chat, and where a server has no chat, as a plain completion.
pub(crate) async fn prove(
    probes: &Probes,
    model: Option<&str>,
    tokens: u32,
) -> Result<(&'static str, Proof), (&'static str, NoProof)> {
    const CHAT: &str = "/v1/chat/completions";
    const COMPLETIONS: &str = "/v1/completions";
    // New in every request, so that no cache of answers can give an old one.
    let nonce = format!("{:016x}", rand::random::<u64>());
    let text = format!("Request {nonce}. Count from one to one hundred in words.");
    let chat = json!({"messages": [{"role": "user", "content": text}]});
    match ask(probes, CHAT, chat, model, tokens).await {
        Ok(proof) => Ok((CHAT, proof)),
        Err(NoProof::NoPath(_)) => match ask(probes, COMPLETIONS, json!({"prompt": text}), model, tokens).await {
            Ok(proof) => Ok((COMPLETIONS, proof)),
            Err(no) => Err((COMPLETIONS, no)),
        },
        Err(no) => Err((CHAT, no)),
    }
}

async fn ask(probes: &Probes, path: &str, mut body: Value, model: Option<&str>, tokens: u32) -> Result<Proof, NoProof> {
    body["max_tokens"] = json!(tokens);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    body["temperature"] = json!(0);
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    let response = probes.post(path, &body).await.map_err(NoProof::NotYet)?;
    let status = response.status().as_u16();
    if status != 200 {
        let said = whole(response).await.map(|body| fault(&body)).unwrap_or_default();
        return Err(match status {
            404 | 405 | 501 => NoProof::NoPath(status),
            408 | 425 | 429 | 500.. => NoProof::NotYet(format!("{status}{said}")),
            _ => NoProof::Wrong(format!("{status}{said}")),
        });
    }
    let mut answer = Reading::default();
    let mut blocks = response.bytes_stream();
    let mut bytes = BytesMut::new();
    let mut total = 0;
    while let Some(block) = blocks.next().await {
        let block = block.map_err(|error| NoProof::NotYet(why(&error)))?;
        total += block.len();
        if total > ANSWER_BYTES {
            return Err(NoProof::Wrong(format!("more than {} MiB for {tokens} tokens", ANSWER_BYTES >> 20)));
        }
        bytes.extend_from_slice(&block);
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            answer.line(&bytes.split_to(end + 1))?;
        }
    }
    answer.line(&bytes)?;
    answer.judge(model, u64::from(tokens))
}

/// ` (message)` of an error's body, if it has one.
fn fault(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = &value["error"];
    let message = [&error["message"], error, &value["message"], &value["detail"]].into_iter().find_map(Value::as_str);
    message.map(|message| format!(" ({})", message.chars().take(200).collect::<String>())).unwrap_or_default()
}

/// What has come of an answer.
#[derive(Debug, Default)]
struct Reading {
    text: String,
    chunks: u64,
    counted: Option<u64>,
    finish: Option<String>,
    model: Option<String>,
    frames: u64,
}

impl Reading {
    /// Takes a line: of a stream (`data: {…}`), or a whole answer from a server that does not stream.
    fn line(&mut self, line: &[u8]) -> Result<(), NoProof> {
        let line = line.trim_ascii();
        let data = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii);
        let data = match data {
            Some(b"[DONE]") => return Ok(()),
            Some(data) => data,
            None if line.starts_with(b"{") => line,
            // Comments, event names and empty lines.
            None => return Ok(()),
        };
        if std::str::from_utf8(data).is_err() {
            return Err(NoProof::Wrong("text that is not UTF-8".to_owned()));
        }
        let frame: Value = serde_json::from_slice(data)
            .map_err(|error| NoProof::Wrong(format!("something that is not JSON ({error})")))?;
        self.frame(&frame)
    }

    fn frame(&mut self, frame: &Value) -> Result<(), NoProof> {
        if !frame["error"].is_null() {
            return Err(NoProof::NotYet(format!("an error in its stream{}", fault(frame.to_string().as_bytes()))));
        }
        self.frames += 1;
        if let Some(model) = frame["model"].as_str() {
            self.model = Some(model.to_owned());
        }
        self.counted = frame["usage"]["completion_tokens"].as_u64().or(self.counted);
        let choice = &frame["choices"][0];
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
        let before = self.text.len();
        for part in [&choice["delta"], &choice["message"]] {
            // What a model thinks is generated as much as what it says.
            for key in ["content", "reasoning_content", "reasoning"] {
                self.text.push_str(part[key].as_str().unwrap_or_default());
            }
        }
        self.text.push_str(choice["text"].as_str().unwrap_or_default());
        self.chunks += u64::from(self.text.len() > before);
        Ok(())
    }

    fn judge(self, model: Option<&str>, wanted: u64) -> Result<Proof, NoProof> {
        let wrong = |what: String| Err(NoProof::Wrong(what));
        if self.frames == 0 {
            return wrong("200 without an answer in it".to_owned());
        }
        if let (Some(model), Some(named)) = (model, &self.model)
            && named != model
        {
            return wrong(format!("as model `{named}`, and `{model}` was asked for"));
        }
        if self.text.trim().is_empty() {
            return wrong("200 without any text".to_owned());
        }
        let readable = |c: char| c != '\u{fffd}' && !c.is_control() && !c.is_whitespace();
        if !self.text.chars().any(readable) {
            return wrong("text without a readable character".to_owned());
        }
        let tokens = self.counted.unwrap_or(self.chunks);
        // A model may be done sooner than it was allowed to, and a server that fills a chunk with several tokens is done
        // with fewer chunks; an answer that breaks off proves nothing.
        if tokens < wanted && !matches!(self.finish.as_deref(), Some("stop" | "length")) {
            let finish = self.finish.as_deref().unwrap_or("none");
            return Err(NoProof::NotYet(format!("{tokens} of {wanted} tokens (finish_reason {finish})")));
        }
        Ok(Proof { tokens, model: self.model })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(lines: &[&[u8]]) -> Result<Proof, NoProof> {
        let mut reading = Reading::default();
        for line in lines {
            reading.line(line)?;
        }
        reading.judge(Some("m"), 2)
    }

    fn chunk(delta: &Value) -> Vec<u8> {
        format!("data: {}\r\n", json!({"model": "m", "choices": [{"delta": delta, "finish_reason": null}]}))
            .into_bytes()
    }

    const LAST: &[u8] = br#"data: {"model":"m","choices":[{"delta":{},"finish_reason":"length"}]}"#;

    #[test]
    fn tokens_are_counted_by_the_server_else_by_chunks() {
        let (first, a, b) = (
            chunk(&json!({"role": "assistant", "content": null})),
            chunk(&json!({"content": "a"})),
            chunk(&json!({"content": "b"})),
        );
        let by_chunks = judge(&[&first, b": ping", b"", &a, &b, LAST, b"data: [DONE]"]).unwrap();
        assert_eq!(by_chunks, Proof { tokens: 2, model: Some("m".into()) });
        let usage = br#"data: {"model":"m","choices":[],"usage":{"completion_tokens":7}}"#;
        assert_eq!(judge(&[&a, LAST, usage]).unwrap().tokens, 7);
    }

    #[test]
    fn thoughts_are_tokens_too() {
        for key in ["reasoning_content", "reasoning"] {
            let part = chunk(&json!({key: "hm"}));
            assert_eq!(judge(&[&part, &part, LAST]).unwrap().tokens, 2, "{key}");
        }
    }

    #[test]
    fn a_whole_answer_counts_as_well() {
        let whole =
            br#"{"model":"m","choices":[{"text":"a b","finish_reason":"length"}],"usage":{"completion_tokens":2}}"#;
        assert_eq!(judge(&[whole]).unwrap().tokens, 2);
    }

    #[test]
    fn a_model_that_is_done_sooner_is_believed_and_an_answer_that_breaks_off_is_not() {
        let one = chunk(&json!({"content": "a"}));
        let stop = br#"data: {"model":"m","choices":[{"delta":{},"finish_reason":"stop"}]}"#;
        assert_eq!(judge(&[&one, stop]).unwrap().tokens, 1);
        assert_eq!(judge(&[&one]), Err(NoProof::NotYet("1 of 2 tokens (finish_reason none)".into())));
    }

    #[test]
    fn a_server_that_sends_several_tokens_in_a_chunk_and_counts_none_is_ready() {
        let both = chunk(&json!({"content": "one two"}));
        assert_eq!(judge(&[&both, LAST]).unwrap(), Proof { tokens: 1, model: Some("m".into()) });
        let filtered = br#"data: {"model":"m","choices":[{"delta":{},"finish_reason":"content_filter"}]}"#;
        let error = judge(&[&both, filtered]).unwrap_err();
        assert_eq!(error, NoProof::NotYet("1 of 2 tokens (finish_reason content_filter)".into()));
    }

    #[test]
    fn what_is_no_text_is_no_proof() {
        let wrong = |lines: &[&[u8]]| match judge(lines) {
            Err(NoProof::Wrong(what)) => what,
            other => panic!("{other:?}"),
        };
        let fffd = chunk(&json!({"content": "\u{fffd}\u{fffd}"}));
        assert_eq!(wrong(&[&fffd, &fffd, LAST]), "text without a readable character");
        let spaced = chunk(&json!({"content": "\u{fffd} \u{fffd} "}));
        assert_eq!(wrong(&[&spaced, LAST]), "text without a readable character");
        assert_eq!(wrong(&[LAST]), "200 without any text");
        assert_eq!(wrong(&[b"<html>"]), "200 without an answer in it");
        assert_eq!(wrong(&[b"data: {\"choices\":[{\"text\":\"\xff\"}]}"]), "text that is not UTF-8");
        assert!(wrong(&[b"data: {\"choices\":"]).starts_with("something that is not JSON"));
        let other = br#"data: {"model":"n","choices":[{"text":"a","finish_reason":"stop"}]}"#;
        assert_eq!(wrong(&[other]), "as model `n`, and `m` was asked for");
    }

    #[test]
    fn an_error_in_the_stream_is_told() {
        let error = judge(&[br#"data: {"error":{"message":"queue is full"}}"#]).unwrap_err();
        assert_eq!(error, NoProof::NotYet("an error in its stream (queue is full)".into()));
    }
}
