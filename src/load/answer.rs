//! What one event of an OpenAI-style stream says. No I/O, no state.
//!
//! The usual event is read by a typed reader that borrows from the event. Whatever that cannot read (a finish reason
//! that is an object, content in parts, two choices, a number in place of a text) goes through a lenient second reader,
//! so that an odd field never fails a request whose text is plain to see.

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::measure::{EngineTimings, Usage};

/// What an event says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said<'a> {
    /// Text of the answer: `content`, or `text` of a completion.
    pub content: Option<Cow<'a, str>>,
    /// Reasoning, under whatever name.
    pub reasoning: Option<Cow<'a, str>>,
    /// Other generated text: a refusal, or the arguments of a tool call.
    pub other: Option<Cow<'a, str>>,
    /// Why the engine stopped.
    pub finish_reason: Option<Cow<'a, str>>,
    /// Token counts.
    pub usage: Option<Usage>,
    /// llama.cpp's times.
    pub timings: Option<EngineTimings>,
    /// The words of an error.
    pub error: Option<String>,
}

impl Said<'_> {
    /// Whether it carries something generated.
    pub fn generates(&self) -> bool {
        [&self.content, &self.reasoning, &self.other].into_iter().any(is_there)
    }

    /// Whether its finish reason says that the engine failed.
    pub fn finished_badly(&self) -> bool {
        const BAD: [&str; 6] =
            ["error", "abort", "aborted", "cancelled", "internal_error", "insufficient_system_resource"];
        self.finish_reason.as_deref().is_some_and(|reason| BAD.contains(&reason))
    }
}

fn is_there(text: &Option<Cow<'_, str>>) -> bool {
    text.as_ref().is_some_and(|text| !text.is_empty())
}

/// The event is no JSON object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a JSON object: {why}")]
pub struct NotAnObject {
    /// What the JSON reader said.
    pub why: String,
}

/// How much of a server's words is kept, in bytes.
const WORDS_LIMIT: usize = 1024;

/// Cuts a text to a kilobyte, at a character.
pub fn cut(text: &str) -> String {
    let mut end = text.len().min(WORDS_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Reads an event's data.
pub fn read(data: &[u8]) -> Result<Said<'_>, NotAnObject> {
    match serde_json::from_slice::<Frame<'_>>(data) {
        Ok(frame) if frame.is_plain() => Ok(frame.into_said()),
        _ => read_leniently(data),
    }
}

/// The second reader: any JSON object, through a tree.
pub fn read_leniently(data: &[u8]) -> Result<Said<'static>, NotAnObject> {
    object(data).map(|value| lenient::said(&value))
}

/// An event's data as a tree. What Python's JSON writes and no JSON is (`NaN`, `-Infinity`, half of a surrogate pair) is
/// mended: it stands beside the text, or is one character of it.
pub(super) fn object(data: &[u8]) -> Result<Value, NotAnObject> {
    let value = serde_json::from_slice(data).or_else(|error| {
        let mended = mend::mended(data).and_then(|mended| serde_json::from_str(&mended).ok());
        mended.ok_or_else(|| NotAnObject { why: error.to_string() })
    });
    match value {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(NotAnObject { why: "a bare value".to_owned() }),
        Err(error) => Err(error),
    }
}

/// The words of an error, if `value` is one.
pub(super) fn error_of(value: &Value) -> Option<String> {
    lenient::error(value)
}

/// SGLang's words on a request's speculation, under their names of several versions; `None` without.
pub(super) fn speculation(details: &Value) -> Option<EngineTimings> {
    let count = |names: [&str; 2]| names.iter().find_map(|name| details.get(*name)?.as_u64());
    let found = EngineTimings {
        draft_n: count(["spec_num_proposed_drafts", "spec_draft_token_num"]),
        draft_n_accepted: count(["spec_num_correct_drafts", "spec_accept_token_num"]),
        verify_n: count(["spec_verify_ct", "spec_verify_count"]).filter(|verified| *verified > 0),
        ..EngineTimings::default()
    };
    found.verify_n.is_some().then_some(found)
}

/// The words of an error in an answer's body, whatever its shape.
pub fn error_words(body: &[u8]) -> String {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => lenient::error(&value).unwrap_or_else(|| cut(&value.to_string())),
        Err(_) => cut(String::from_utf8_lossy(body).trim()),
    }
}

/// `Option<Cow<str>>` with `#[serde(borrow)]` does not borrow, since serde borrows a `Cow` only as a direct field;
/// through this newtype it does.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow)]
    object: Option<Text<'a>>,
    #[serde(borrow)]
    choices: Option<Choices<'a>>,
    usage: Option<Counts>,
    timings: Option<EngineTimings>,
    sglext: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
    detail: Option<IgnoredAny>,
    message: Option<IgnoredAny>,
}

/// The first choice; a second one is only noticed. A list would be an allocation an event.
struct Choices<'a> {
    first: Option<Choice<'a>>,
    more: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Choices<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Choices<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Choices<'de>, A::Error> {
                let first = list.next_element()?;
                let mut more = false;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    more = true;
                }
                Ok(Choices { first, more })
            }
        }
        deserializer.deserialize_seq(One)
    }
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    message: Option<IgnoredAny>,
    #[serde(borrow)]
    finish_reason: Option<Text<'a>>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
    #[serde(borrow)]
    reasoning_content: Option<Text<'a>>,
    #[serde(borrow)]
    reasoning: Option<Text<'a>>,
    thinking: Option<IgnoredAny>,
    reasoning_details: Option<IgnoredAny>,
    #[serde(borrow)]
    refusal: Option<Text<'a>>,
    tool_calls: Option<IgnoredAny>,
    function_call: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
    completion_tokens_details: Option<CompletionDetails>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

impl<'a> Frame<'a> {
    /// Whether the typed reader has seen all that is in it.
    fn is_plain(&self) -> bool {
        let choice = self.choices.as_ref().and_then(|choices| choices.first.as_ref());
        let odd_choice = choice.is_some_and(|choice| {
            let odd_delta = choice.delta.as_ref().is_some_and(|delta| {
                delta.tool_calls.is_some()
                    || delta.function_call.is_some()
                    || delta.thinking.is_some()
                    || delta.reasoning_details.is_some()
            });
            odd_delta || choice.message.is_some() || choice.error.is_some()
        });
        let object = self.object.as_ref().map(|object| &*object.0);
        !odd_choice
            && self.error.is_none()
            && self.sglext.is_none()
            && self.detail.is_none()
            && self.message.is_none()
            && object != Some("error")
            && !self.choices.as_ref().is_some_and(|choices| choices.more)
    }

    fn into_said(self) -> Said<'a> {
        let mut said = Said { usage: self.usage.map(Counts::into_usage), timings: self.timings, ..Said::default() };
        let Some(choice) = self.choices.and_then(|choices| choices.first) else { return said };
        said.finish_reason = choice.finish_reason.map(|text| text.0);
        said.content = choice.text.map(|text| text.0);
        if let Some(delta) = choice.delta {
            said.content = first_there(delta.content.map(|text| text.0), said.content.take());
            // Some servers send the same words under both names: one of them is taken, never both.
            said.reasoning =
                first_there(delta.reasoning_content.map(|text| text.0), delta.reasoning.map(|text| text.0));
            said.other = delta.refusal.map(|text| text.0);
        }
        said
    }
}

fn first_there<'a>(one: Option<Cow<'a, str>>, two: Option<Cow<'a, str>>) -> Option<Cow<'a, str>> {
    if is_there(&one) || two.is_none() { one } else { two }
}

impl Counts {
    fn into_usage(self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self
                .completion_tokens_details
                .and_then(|details| details.reasoning_tokens)
                .or(self.reasoning_tokens),
            cached_tokens: self.prompt_tokens_details.and_then(|details| details.cached_tokens),
        }
    }
}

/// The same meaning, out of any JSON.
mod lenient {
    use super::*;

    pub(super) fn said(value: &Value) -> Said<'static> {
        let mut said = Said {
            usage: value.get("usage").filter(|usage| usage.is_object()).map(usage),
            timings: value
                .get("timings")
                .and_then(|timings| serde_json::from_value(timings.clone()).ok())
                .or_else(|| super::speculation(value.get("sglext")?.get("spec_tokens_details")?)),
            error: error(value),
            ..Said::default()
        };
        let empty = Vec::new();
        for choice in value.get("choices").and_then(Value::as_array).unwrap_or(&empty) {
            let part = choice.get("delta").filter(|delta| delta.is_object()).or_else(|| choice.get("message"));
            let part = part.unwrap_or(&Value::Null);
            join(&mut said.content, first(&[part.get("content"), choice.get("text")]));
            join(
                &mut said.reasoning,
                first(&[
                    part.get("reasoning_content"),
                    part.get("reasoning"),
                    part.get("thinking"),
                    part.get("reasoning_details"),
                ]),
            );
            join(&mut said.other, first(&[part.get("refusal")]));
            join(&mut said.other, Some(arguments(part)));
            if let Some(reason) = choice.get("finish_reason").and_then(finish_reason) {
                said.finish_reason = Some(Cow::Owned(reason));
            }
            if said.error.is_none() {
                said.error = choice.get("error").filter(|error| !error.is_null()).map(words);
            }
        }
        said
    }

    fn join(to: &mut Option<Cow<'static, str>>, text: Option<String>) {
        if let Some(text) = text {
            match to {
                Some(before) => before.to_mut().push_str(&text),
                None => *to = Some(Cow::Owned(text)),
            }
        }
    }

    fn first(candidates: &[Option<&Value>]) -> Option<String> {
        let texts: Vec<_> = candidates.iter().flatten().filter_map(|value| text(value)).collect();
        texts.iter().find(|text| !text.is_empty()).or(texts.first()).cloned()
    }

    /// A text, or a list of parts that hold texts.
    fn text(value: &Value) -> Option<String> {
        match value {
            Value::String(text) => Some(text.clone()),
            Value::Array(parts) => {
                let texts = parts.iter().filter_map(|part| match part {
                    Value::String(text) => Some(text.as_str()),
                    part => part.get("text").and_then(Value::as_str),
                });
                Some(texts.collect())
            }
            _ => None,
        }
    }

    fn arguments(part: &Value) -> String {
        let empty = Vec::new();
        let calls = part.get("tool_calls").and_then(Value::as_array).unwrap_or(&empty);
        let functions = calls.iter().filter_map(|call| call.get("function")).chain(part.get("function_call"));
        functions
            .filter_map(|function| match function.get("arguments")? {
                Value::String(text) => Some(text.clone()),
                Value::Null => None,
                other => Some(other.to_string()),
            })
            .collect()
    }

    fn finish_reason(value: &Value) -> Option<String> {
        match value {
            Value::String(reason) => Some(reason.clone()),
            Value::Object(reason) => reason.get("type").and_then(Value::as_str).map(str::to_owned),
            _ => None,
        }
    }

    fn usage(usage: &Value) -> Usage {
        let count = |pointer: &str| {
            let value = usage.pointer(pointer)?;
            // Some servers write counts as floats.
            value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0).map(|n| n as u64))
        };
        Usage {
            prompt_tokens: count("/prompt_tokens"),
            completion_tokens: count("/completion_tokens"),
            reasoning_tokens: count("/completion_tokens_details/reasoning_tokens")
                .or_else(|| count("/reasoning_tokens")),
            cached_tokens: count("/prompt_tokens_details/cached_tokens"),
        }
    }

    /// The words of an error, if `value` is one: `{"error": …}`, `{"object": "error", …}`, `{"message": …, "code": …}` or
    /// `{"detail": …}`.
    pub(super) fn error(value: &Value) -> Option<String> {
        // Some servers always have the field, and say with it that there is none.
        let none = |error: &&Value| error.is_null() || **error == Value::Bool(false) || error.as_str() == Some("");
        if let Some(error) = value.get("error").filter(|error| !none(error)) {
            return Some(words(error));
        }
        let says_so = ["code", "type", "status"].iter().any(|key| value.get(key).is_some());
        if value.get("message").is_some_and(Value::is_string) && says_so && value.get("choices").is_none() {
            return Some(words(value));
        }
        if value.get("object").and_then(Value::as_str) == Some("error") {
            return Some(words(value));
        }
        let detail = value.get("detail").filter(|detail| !detail.is_null())?;
        if value.get("choices").is_some() { None } else { Some(words(detail)) }
    }

    fn words(error: &Value) -> String {
        let message = error.as_str().or_else(|| error.get("message").and_then(Value::as_str));
        message.map_or_else(|| cut(&error.to_string()), cut)
    }
}

/// JSON as Python writes it, made JSON.
mod mend {
    /// `data` with what is no JSON replaced; `None` where it is no text.
    pub(super) fn mended(data: &[u8]) -> Option<String> {
        let mut rest = std::str::from_utf8(data).ok()?;
        let mut mended = String::with_capacity(rest.len());
        let mut in_string = false;
        while let Some(next) = rest.chars().next() {
            let (taken, put) = if in_string { within(rest, next) } else { between(rest, next) };
            in_string ^= next == '"';
            mended.push_str(put);
            rest = &rest[taken..];
        }
        Some(mended)
    }

    /// How much is taken of what begins within a string, and what is put in its place.
    fn within(rest: &str, next: char) -> (usize, &str) {
        if next != '\\' {
            return (next.len_utf8(), &rest[..next.len_utf8()]);
        }
        let escape = |at: usize| rest.get(at..at + 6).and_then(surrogate);
        match (escape(0), escape(6)) {
            (Some(true), Some(false)) => (12, &rest[..12]),
            (Some(_), _) => (6, "\u{fffd}"),
            // The escaped character, whatever it is, belongs to it.
            (None, _) => {
                let length = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                (length, &rest[..length])
            }
        }
    }

    /// Whether `\\uXXXX` is the first half of a pair, or the second; `None` if neither.
    fn surrogate(escape: &str) -> Option<bool> {
        let code = u16::from_str_radix(escape.strip_prefix("\\u")?, 16).ok()?;
        match code {
            0xd800..=0xdbff => Some(true),
            0xdc00..=0xdfff => Some(false),
            _ => None,
        }
    }

    fn between(rest: &str, next: char) -> (usize, &str) {
        for word in ["NaN", "-Infinity", "Infinity"] {
            if rest.starts_with(word) {
                return (word.len(), "null");
            }
        }
        (next.len_utf8(), &rest[..next.len_utf8()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_s_json_does_not_hide_the_text() {
        let infinite = r#"{"choices":[{"text":" NaN \"a\"","logprobs":{"token_logprobs":[-Infinity,NaN,Infinity]}}]}"#;
        assert_eq!(said(infinite).content.as_deref(), Some(" NaN \"a\""));
        let half = r#"{"choices":[{"delta":{"content":"a\ud83d b\udc00\\ud83d \ud83d\ude00"}}]}"#;
        assert_eq!(said(half).content.as_deref(), Some("a\u{fffd} b\u{fffd}\\ud83d 😀"));
        assert!(read(br#"{"choices":[{"text":"a"}"#).is_err(), "what is cut short stays so");
        assert!(read(b"nonsense NaN").is_err());
    }

    #[test]
    fn an_error_field_may_say_that_there_is_none() {
        for json in [
            r#"{"error":false,"choices":[{"text":"a"}]}"#,
            r#"{"error":"","choices":[{"text":"a"}]}"#,
            r#"{"message":"","type":"x","choices":[{"text":"a"}]}"#,
        ] {
            let said = said(json);
            assert!(said.error.is_none() && said.generates(), "{json}");
        }
        assert_eq!(said(r#"{"message":"died","code":500}"#).error.as_deref(), Some("died"));
        assert!(said(r#"{"error":{}}"#).error.is_some());
    }

    #[test]
    fn copies_of_the_reasoning_are_one() {
        for delta in [
            r#"{"reasoning":"hm","reasoning_content":"hm"}"#,
            r#"{"reasoning":"hm","reasoning_content":"hm","tool_calls":[]}"#,
            r#"{"reasoning_content":"hm","thinking":"hm"}"#,
            r#"{"reasoning":"hm","reasoning_details":[{"type":"reasoning.text","text":"hm"}]}"#,
            r#"{"reasoning_details":[{"type":"reasoning.text","text":"h"},{"text":"m"}]}"#,
        ] {
            let json = format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#);
            let said = said(&json);
            assert_eq!(said.reasoning.as_deref(), Some("hm"), "{json}");
            assert!(said.content.is_none_or(|text| text.is_empty()));
        }
    }

    fn said(json: &str) -> Said<'_> {
        read(json.as_bytes()).unwrap()
    }

    fn borrowed(text: &Option<Cow<'_, str>>) -> bool {
        matches!(text, Some(Cow::Borrowed(_)))
    }

    #[test]
    fn plain_text_is_borrowed_and_escaped_text_is_not() {
        let plain = said(r#"{"choices":[{"index":0,"delta":{"content":" a"},"finish_reason":null}],"usage":null}"#);
        assert_eq!(plain.content.as_deref(), Some(" a"));
        assert!(borrowed(&plain.content) && plain.generates() && plain.finish_reason.is_none());
        let escaped = said(r#"{"choices":[{"delta":{"content":"\n\"\u4e2d"}}]}"#);
        assert_eq!(escaped.content.as_deref(), Some("\n\"中"));
        assert!(!borrowed(&escaped.content));
        assert!(borrowed(&said(r#"{"choices":[{"text":"x"}]}"#).content));
    }

    #[test]
    fn roles_empty_texts_usage_and_finish_reasons_generate_nothing() {
        for json in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}}]}"#,
            r#"{"choices":[],"usage":{"completion_tokens":3}}"#,
            r#"{"choices":null}"#,
        ] {
            assert!(!said(json).generates(), "{json}");
        }
    }

    #[test]
    fn reasoning_is_found_under_each_name_and_taken_once() {
        for json in [
            r#"{"choices":[{"delta":{"reasoning":"hm"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"delta":{"thinking":"hm"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"hm","reasoning":"hm","content":null}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"","reasoning":"hm"}}]}"#,
        ] {
            assert_eq!(said(json).reasoning.as_deref(), Some("hm"), "{json}");
        }
    }

    #[test]
    fn refusals_and_arguments_of_tools_are_generated() {
        for json in [
            r#"{"choices":[{"delta":{"refusal":"No."}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\"a\""}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}}]}"#,
            r#"{"choices":[{"delta":{"function_call":{"arguments":"{"}}}]}"#,
        ] {
            let said = said(json);
            assert!(said.generates() && said.content.is_none() && said.reasoning.is_none(), "{json}");
        }
    }

    #[test]
    fn odd_shapes_do_not_hide_the_text() {
        assert_eq!(
            said(r#"{"choices":[{"delta":{"content":[{"type":"text","text":"a"},"b"]}}]}"#).content.as_deref(),
            Some("ab")
        );
        let native = said(r#"{"choices":[{"text":"a","finish_reason":{"type":"abort","message":"x"}}]}"#);
        assert!(native.finished_badly() && native.generates());
        assert_eq!(said(r#"{"choices":[{"text":"a"},{"text":"b"}]}"#).content.as_deref(), Some("ab"));
        assert_eq!(said(r#"{"choices":[{"text":"a","text":"b"}]}"#).content.as_deref(), Some("b"));
        assert_eq!(said(r#"{"usage":{"completion_tokens":4.0}}"#).usage.unwrap().completion_tokens, Some(4));
    }

    #[test]
    fn counts_are_read_where_each_engine_puts_them() {
        let usage = said(
            r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"completion_tokens_details":{"reasoning_tokens":2},"prompt_tokens_details":{"cached_tokens":1}}}"#,
        );
        let expected = Usage {
            prompt_tokens: Some(3),
            completion_tokens: Some(4),
            reasoning_tokens: Some(2),
            cached_tokens: Some(1),
        };
        assert_eq!(usage.usage, Some(expected));
        let top = said(r#"{"usage":{"completion_tokens":4,"reasoning_tokens":2,"prompt_tokens_details":null}}"#);
        assert_eq!(top.usage.unwrap().reasoning_tokens, Some(2));
        let timings = said(
            r#"{"choices":[],"timings":{"cache_n":1,"prompt_n":5,"prompt_ms":7.5,"predicted_n":9,"predicted_ms":90.25,"predicted_per_second":99.7}}"#,
        );
        let timings = timings.timings.unwrap();
        assert_eq!((timings.predicted_n, timings.predicted_ms, timings.cache_n), (Some(9), Some(90.25), Some(1)));
        assert_eq!(timings.draft_n, None);
    }

    #[test]
    fn errors_are_known_in_each_of_their_shapes() {
        for (json, words) in [
            (r#"{"error":{"message":"EngineCore died","code":500}}"#, "EngineCore died"),
            (r#"{"error":"busy"}"#, "busy"),
            (r#"{"error":{"code":7}}"#, r#"{"code":7}"#),
            (r#"{"object":"error","message":"too long","type":"BadRequest"}"#, "too long"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (r#"{"choices":[{"error":{"message":"upstream"},"finish_reason":"error"}]}"#, "upstream"),
        ] {
            assert_eq!(said(json).error.as_deref(), Some(words), "{json}");
        }
        assert_eq!(said(r#"{"error":null,"choices":[{"text":"a"}]}"#).error, None);
        assert!(said(r#"{"choices":[{"text":"","finish_reason":"error"}]}"#).finished_badly());
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        for data in [&b"hello"[..], b"[1]", b"\"a\"", b"{\"choices\":", b"{\"choices\":[{\"text\":\"\xff\"}]}"] {
            assert!(read(data).is_err(), "{}", String::from_utf8_lossy(data));
        }
    }

    #[test]
    fn words_are_cut_at_a_character() {
        let long = "é".repeat(2000);
        assert_eq!(cut(&long).len(), 1024);
        assert_eq!(error_words(b"  no healthy upstream\n"), "no healthy upstream");
    }
}
