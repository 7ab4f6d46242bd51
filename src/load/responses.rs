//! What an event of OpenAI's `/v1/responses` says, or a whole answer of it. No I/O.
//!
//! An event names its kind under `type`. The usual one, a piece of text, is read by a typed reader that borrows from it;
//! all others go through a tree.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::answer::{NotAnObject, Said, error_of, object};
use crate::measure::Usage;

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    delta: Option<Text<'a>>,
}

/// Reads an event's data, or a whole answer.
pub(super) fn read(data: &[u8]) -> Result<Said<'_>, NotAnObject> {
    if let Ok(Event { kind: Some(kind), delta: Some(Text(delta)) }) = serde_json::from_slice::<Event<'_>>(data) {
        let mut said = Said::default();
        match &*kind.0 {
            "response.output_text.delta" => said.content = Some(delta),
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" | "response.reasoning.delta" => {
                said.reasoning = Some(delta);
            }
            "response.refusal.delta" | "response.function_call_arguments.delta" => said.other = Some(delta),
            _ => {}
        }
        return Ok(said);
    }
    let value = object(data)?;
    let answer = value.get("response").filter(|answer| answer.is_object());
    Ok(match value.get("type").and_then(Value::as_str) {
        Some("response.completed" | "response.incomplete" | "response.failed") => {
            ended(answer.unwrap_or(&value), false)
        }
        Some("error") => Said { error: Some(words(&value)), ..Said::default() },
        // Beginnings and ends of parts say nothing that is generated.
        Some(kind) if kind.starts_with("response.") => Said::default(),
        _ if value.get("object").and_then(Value::as_str) == Some("response") => ended(&value, true),
        _ => Said { error: error_of(&value), ..Said::default() },
    })
}

/// How an answer ended; `whole`: its text is in it and did not come before.
fn ended(answer: &Value, whole: bool) -> Said<'static> {
    let mut said = Said { usage: usage(answer.get("usage")), error: error_of(answer), ..Said::default() };
    let status = answer.get("status").and_then(Value::as_str).unwrap_or("completed");
    let reason = answer.pointer("/incomplete_details/reason").and_then(Value::as_str);
    let reason = match (status, reason) {
        ("incomplete", Some("max_output_tokens") | None) => "length",
        ("incomplete", Some(other)) => other,
        ("failed", _) => "error",
        ("cancelled", _) => "cancelled",
        _ => "stop",
    };
    said.finish_reason = Some(Cow::Owned(reason.to_owned()));
    if whole {
        for item in answer.get("output").and_then(Value::as_array).into_iter().flatten() {
            take_item(item, &mut said);
        }
    }
    said
}

fn take_item(item: &Value, said: &mut Said<'static>) {
    let part = match item.get("type").and_then(Value::as_str) {
        Some("reasoning") => &mut said.reasoning,
        Some("function_call") => &mut said.other,
        _ => &mut said.content,
    };
    let texts = ["content", "summary"].into_iter().filter_map(|key| item.get(key)?.as_array()).flatten();
    let texts = texts.filter_map(|piece| piece.get("text")?.as_str());
    for text in texts.chain(item.get("arguments").and_then(Value::as_str)) {
        part.get_or_insert_with(Cow::default).to_mut().push_str(text);
    }
}

fn usage(usage: Option<&Value>) -> Option<Usage> {
    let usage = usage.filter(|usage| usage.is_object())?;
    let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
    Some(Usage {
        prompt_tokens: count("/input_tokens"),
        completion_tokens: count("/output_tokens"),
        reasoning_tokens: count("/output_tokens_details/reasoning_tokens"),
        cached_tokens: count("/input_tokens_details/cached_tokens"),
    })
}

fn words(error: &Value) -> String {
    let message = error.get("message").or_else(|| error.pointer("/error/message")).and_then(Value::as_str);
    super::answer::cut(&message.map_or_else(|| error.to_string(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(json: &str) -> Said<'_> {
        read(json.as_bytes()).unwrap()
    }

    #[test]
    fn pieces_of_text_are_told_by_their_kind() {
        let text = said(r#"{"type":"response.output_text.delta","sequence_number":4,"delta":" hi","logprobs":[]}"#);
        assert!(matches!(&text.content, Some(Cow::Borrowed(" hi"))) && text.generates());
        let thought = said(r#"{"type":"response.reasoning_text.delta","delta":"hm"}"#);
        assert_eq!((thought.reasoning.as_deref(), thought.content), (Some("hm"), None));
        for quiet in [
            r#"{"type":"response.created","response":{"object":"response","status":"in_progress","error":null}}"#,
            r#"{"type":"response.output_text.done","text":" hi"}"#,
            r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#,
        ] {
            let said = said(quiet);
            assert!(!said.generates() && said.finish_reason.is_none() && said.error.is_none(), "{quiet}");
        }
    }

    #[test]
    fn the_end_says_why_and_how_many_tokens_there_were() {
        let counts = r#""usage":{"input_tokens":7,"output_tokens":3,"output_tokens_details":{"reasoning_tokens":1},"input_tokens_details":{"cached_tokens":2}}"#;
        let end = format!(r#"{{"type":"response.completed","response":{{"status":"completed",{counts}}}}}"#);
        let end = said(&end);
        let usage = end.usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(7), Some(3)));
        assert_eq!((usage.reasoning_tokens, usage.cached_tokens), (Some(1), Some(2)));
        assert_eq!((end.finish_reason.as_deref(), end.generates()), (Some("stop"), false));
        let short = said(
            r#"{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}}"#,
        );
        assert_eq!(short.finish_reason.as_deref(), Some("length"));
    }

    #[test]
    fn a_failure_is_one_however_it_is_told() {
        let failed = said(
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"x","message":"out of memory"}}}"#,
        );
        assert_eq!(failed.error.as_deref(), Some("out of memory"));
        assert_eq!(said(r#"{"type":"error","message":"too long"}"#).error.as_deref(), Some("too long"));
        assert_eq!(said(r#"{"error":{"message":"no"}}"#).error.as_deref(), Some("no"));
    }

    #[test]
    fn a_whole_answer_holds_its_text() {
        let whole = said(
            r#"{"object":"response","status":"completed","output":[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},{"type":"message","content":[{"type":"output_text","text":"a"},{"type":"output_text","text":"b"}]}],"usage":{"output_tokens":4}}"#,
        );
        assert_eq!((whole.content.as_deref(), whole.reasoning.as_deref()), (Some("ab"), Some("hm")));
        assert_eq!(whole.usage.unwrap().completion_tokens, Some(4));
    }
}
