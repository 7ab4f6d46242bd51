//! What an event of an engine's own endpoint says: SGLang's `/generate` and llama.cpp's `/completion`. No I/O.

use std::borrow::Cow;

use serde_json::Value;

use super::answer::{NotAnObject, Said, error_of, object, read_leniently};
use crate::measure::Usage;
use crate::render::Api;

/// Reads events of one answer. SGLang repeats the whole text in each event, so what has come is remembered.
#[derive(Debug, Default)]
pub(super) struct Native {
    so_far: String,
}

impl Native {
    /// Reads an event's data, or a whole answer.
    pub(super) fn read(&mut self, api: Api, data: &[u8]) -> Result<Said<'static>, NotAnObject> {
        let value = object(data)?;
        match api {
            Api::Generate => Ok(self.generate(&value)),
            Api::Completion => Ok(completion(&value)),
            Api::Chat | Api::Completions | Api::Responses => read_leniently(data),
        }
    }

    fn generate(&mut self, value: &Value) -> Said<'static> {
        let meta = value.get("meta_info").unwrap_or(&Value::Null);
        let reason = meta.get("finish_reason").filter(|reason| !reason.is_null());
        let reason_word = reason.and_then(|reason| reason.as_str().or_else(|| reason.get("type")?.as_str()));
        let count = |key: &str| meta.get(key).and_then(Value::as_u64);
        let usage = Usage {
            prompt_tokens: count("prompt_tokens"),
            completion_tokens: count("completion_tokens"),
            reasoning_tokens: count("reasoning_tokens"),
            cached_tokens: count("cached_tokens"),
        };
        let mut error = error_of(value);
        if error.is_none() && reason_word == Some("abort") {
            error = reason.and_then(|reason| reason.get("message")?.as_str()).map(str::to_owned);
        }
        Said {
            content: value.get("text").and_then(Value::as_str).map(|text| Cow::Owned(self.news(text))),
            finish_reason: reason_word.map(|word| Cow::Owned(word.to_owned())),
            usage: (usage != Usage::default()).then_some(usage),
            timings: super::answer::speculation(meta),
            error,
            ..Said::default()
        }
    }

    /// What is new in a text that may hold all that came before (the usual way), or may not
    /// (`--incremental-streaming-output`).
    fn news(&mut self, text: &str) -> String {
        let news = match text.strip_prefix(self.so_far.as_str()) {
            Some(rest) => rest.to_owned(),
            None => text.to_owned(),
        };
        self.so_far.push_str(&news);
        news
    }
}

fn completion(value: &Value) -> Said<'static> {
    let count = |key: &str| value.get(key).and_then(Value::as_u64);
    let usage = Usage {
        prompt_tokens: count("tokens_evaluated"),
        completion_tokens: count("tokens_predicted"),
        ..Usage::default()
    };
    let over = value.get("stop").and_then(Value::as_bool) == Some(true);
    let reason = value.get("stop_type").and_then(Value::as_str).unwrap_or("stop");
    Said {
        content: value.get("content").and_then(Value::as_str).map(|text| Cow::Owned(text.to_owned())),
        finish_reason: over.then(|| Cow::Owned(reason.to_owned())),
        usage: (usage != Usage::default()).then_some(usage),
        timings: value.get("timings").and_then(|timings| serde_json::from_value(timings.clone()).ok()),
        error: error_of(value),
        ..Said::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(native: &mut Native, api: Api, json: &str) -> Said<'static> {
        native.read(api, json.as_bytes()).unwrap()
    }

    #[test]
    fn sglangs_words_on_speculation_are_read_under_the_names_of_its_versions() {
        let new = r#"{"spec_verify_ct":100,"spec_num_correct_drafts":177,"spec_num_proposed_drafts":300}"#;
        let old = r#"{"spec_verify_ct":100,"spec_accept_token_num":177,"spec_draft_token_num":300}"#;
        for details in [new, old] {
            let native = format!(r#"{{"text":"a","meta_info":{details}}}"#);
            let chat = format!(r#"{{"choices":[],"sglext":{{"spec_tokens_details":{details}}}}}"#);
            for (api, json) in [(Api::Generate, native), (Api::Chat, chat)] {
                let timings = match api {
                    Api::Chat => crate::load::answer::read(json.as_bytes()).unwrap().timings,
                    _ => Native::default().read(api, json.as_bytes()).unwrap().timings,
                };
                let found = timings.unwrap();
                assert_eq!((found.verify_n, found.draft_n_accepted, found.draft_n), (Some(100), Some(177), Some(300)));
            }
        }
        let plain = Native::default().read(Api::Generate, br#"{"text":"a","meta_info":{"spec_verify_ct":0}}"#);
        assert_eq!(plain.unwrap().timings, None);
    }

    #[test]
    fn sglang_repeats_the_text_and_only_its_end_is_new() {
        let mut native = Native::default();
        let event = |text: &str, tokens: u64| {
            format!(
                r#"{{"text":"{text}","output_ids":[1],"meta_info":{{"id":"a","finish_reason":null,"prompt_tokens":5,"completion_tokens":{tokens},"cached_tokens":2}}}}"#
            )
        };
        let texts: Vec<_> = [("Hel", 1), ("Hello", 3), ("Hello", 4), ("Hello w", 5)]
            .into_iter()
            .map(|(text, tokens)| {
                let said = said(&mut native, Api::Generate, &event(text, tokens));
                (said.content.clone().unwrap().into_owned(), said.usage.unwrap().completion_tokens, said.generates())
            })
            .collect();
        let expected = [("Hel", 1, true), ("lo", 3, true), ("", 4, false), (" w", 5, true)];
        assert_eq!(texts, expected.map(|(text, tokens, generates)| (text.to_owned(), Some(tokens), generates)));
        let last = said(
            &mut native,
            Api::Generate,
            r#"{"text":"Hello w","meta_info":{"finish_reason":{"type":"length","length":5},"completion_tokens":5}}"#,
        );
        assert_eq!(last.finish_reason.as_deref(), Some("length"));
        assert!(!last.finished_badly());
    }

    #[test]
    fn sglang_may_send_only_what_is_new() {
        let mut native = Native::default();
        for (text, news) in [("Hel", "Hel"), ("lo", "lo"), (" world", " world")] {
            let json = format!(r#"{{"text":"{text}","meta_info":{{}}}}"#);
            assert_eq!(said(&mut native, Api::Generate, &json).content.as_deref(), Some(news));
        }
    }

    #[test]
    fn an_abort_says_why() {
        let json =
            r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"too long","status_code":400}}}"#;
        let said = said(&mut Native::default(), Api::Generate, json);
        assert!(said.finished_badly() && said.error.as_deref() == Some("too long"));
        let json = r#"{"error":{"message":"The request queue is full."}}"#;
        let refused = self::said(&mut Native::default(), Api::Generate, json);
        assert_eq!(refused.error.as_deref(), Some("The request queue is full."));
    }

    #[test]
    fn llama_cpp_ends_with_a_stop_and_its_counts() {
        let mut native = Native::default();
        let one = said(
            &mut native,
            Api::Completion,
            r#"{"index":0,"content":" a","tokens":[3],"stop":false,"tokens_predicted":1,"tokens_evaluated":7}"#,
        );
        assert!(one.generates() && one.finish_reason.is_none());
        assert_eq!(one.usage.unwrap().completion_tokens, Some(1));
        let last = said(
            &mut native,
            Api::Completion,
            r#"{"content":"","stop":true,"stop_type":"limit","tokens_predicted":2,"tokens_evaluated":7,"timings":{"predicted_n":2,"cache_n":3}}"#,
        );
        assert_eq!((last.finish_reason.as_deref(), last.generates()), (Some("limit"), false));
        assert_eq!((last.usage.unwrap().prompt_tokens, last.timings.unwrap().cache_n), (Some(7), Some(3)));
    }
}
