//! A short cut past the JSON reader, for the event that differs from the one before it by its text alone.
//!
//! One event is read in full. If all it says is one piece of text that holds no escape, the bytes before and after that
//! text are kept. A later event that begins and ends with the same bytes, and whose middle is valid UTF-8 without a
//! quote, a backslash or a control character, must then be the same JSON with another string in that place; nothing is
//! guessed. Whatever differs (a role, a count, a finish reason, an escape, a new second in `created`) takes the full
//! reader, and renews the memo.

use std::borrow::Cow;

use memchr::memchr2;

use super::answer::Said;
use crate::measure::ChunkKind;

/// What surrounded the last plain text.
#[derive(Debug, Default)]
pub struct Memo {
    before: Vec<u8>,
    after: Vec<u8>,
    kind: Option<ChunkKind>,
}

impl Memo {
    /// The text of `data`, if `data` is the remembered event with another text.
    pub fn text<'a>(&self, data: &'a [u8]) -> Option<(ChunkKind, &'a str)> {
        let kind = self.kind?;
        let middle = data.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        let plain =
            !middle.is_empty() && memchr2(b'"', b'\\', middle).is_none() && middle.iter().all(|byte| *byte >= 0x20);
        if !plain {
            return None;
        }
        Some((kind, std::str::from_utf8(middle).ok()?))
    }

    /// Remembers an event that was read in full, if it is of the plain kind; else what was remembered stays.
    pub fn learn(&mut self, data: &[u8], said: &Said<'_>) {
        let Said { content, reasoning, other, finish_reason, usage, timings, error } = said;
        if finish_reason.is_some() || usage.is_some() || timings.is_some() || error.is_some() {
            return;
        }
        let texts = [(ChunkKind::Content, content), (ChunkKind::Reasoning, reasoning), (ChunkKind::Other, other)];
        let mut there = texts.iter().filter(|(_, text)| text.as_ref().is_some_and(|text| !text.is_empty()));
        let (Some((kind, Some(Cow::Borrowed(text)))), None) = (there.next(), there.next()) else { return };
        // A borrowed text lies within `data`, so its address tells where.
        let Some(start) = (text.as_ptr() as usize).checked_sub(data.as_ptr() as usize) else { return };
        let (Some(before), Some(after)) = (data.get(..start), data.get(start + text.len()..)) else { return };
        if before.last() != Some(&b'"') || after.first() != Some(&b'"') {
            return;
        }
        self.before.clear();
        self.before.extend_from_slice(before);
        self.after.clear();
        self.after.extend_from_slice(after);
        self.kind = Some(*kind);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::load::answer;

    fn frame(text: &str) -> String {
        format!(
            r#"{{"id":"c","created":1,"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#
        )
    }

    fn learned(data: &str) -> Memo {
        let mut memo = Memo::default();
        memo.learn(data.as_bytes(), &answer::read(data.as_bytes()).unwrap());
        memo
    }

    #[test]
    fn the_same_event_with_another_text_is_known() {
        let memo = learned(&frame(" one"));
        assert_eq!(memo.text(frame(" two, 中🦀").as_bytes()), Some((ChunkKind::Content, " two, 中🦀")));
    }

    #[test]
    fn anything_else_takes_the_full_reader() {
        let memo = learned(&frame(" one"));
        for other in [
            frame(""),
            frame(r"\n"),
            frame(r#"a","x":"b"#),
            frame("a\tb"),
            frame("two").replace("null", r#""stop""#),
            frame("two").replace(r#""created":1"#, r#""created":2"#),
        ] {
            assert_eq!(memo.text(other.as_bytes()), None, "{other}");
        }
        let mut broken = frame("ab").into_bytes();
        let at = broken.iter().rposition(|byte| *byte == b'a').unwrap();
        broken[at] = 0xff;
        assert_eq!(memo.text(&broken), None);
        // Shorter than what surrounds it: the two ends may not overlap.
        assert_eq!(memo.text(&frame("x").as_bytes()[..memo.before.len() + 2]), None);
    }

    #[test]
    fn an_event_that_says_more_than_a_text_is_not_remembered() {
        for data in [
            frame(" one").replace("null", r#""stop""#),
            frame(" one").replace(r#""id":"c""#, r#""usage":{"completion_tokens":1}"#),
            frame(r"\n"),
            frame(""),
            r#"{"choices":[{"delta":{"content":"a","reasoning":"b"}}]}"#.to_owned(),
        ] {
            assert_eq!(learned(&data).kind, None, "{data}");
        }
    }

    fn any_event() -> impl Strategy<Value = String> {
        let text = prop_oneof![
            "[ -~]{0,8}".prop_map(|text| serde_json::to_string(&text).unwrap()),
            "\\PC{0,6}".prop_map(|text| serde_json::to_string(&text).unwrap()),
            any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
            Just("null".to_owned()),
            Just(r#"" a""#.to_owned()),
        ];
        let field =
            prop_oneof![Just("content"), Just("reasoning"), Just("reasoning_content"), Just("refusal"), Just("x")];
        let finish = prop_oneof![6 => Just("null"), 1 => Just(r#""stop""#)];
        let usage =
            prop_oneof![6 => Just(""), 1 => Just(r#","usage":{"completion_tokens":3}"#), 1 => Just(r#","usage":null"#)];
        let extra = prop_oneof![
            5 => Just(""), 1 => Just(r#","role":"assistant""#), 1 => Just(r#","content":"b""#), 1 => Just(r#","reasoning":"c""#)
        ];
        (text, field, finish, usage, extra, 0u32..2).prop_map(|(text, field, finish, usage, extra, created)| {
            format!(
                r#"{{"created":{created},"choices":[{{"delta":{{"{field}":{text}{extra}}},"finish_reason":{finish}}}]{usage}}}"#
            )
        })
    }

    proptest! {
        #[test]
        fn the_short_cut_equals_the_full_reader(events in proptest::collection::vec(any_event(), 1..30)) {
            let mut memo = Memo::default();
            for event in &events {
                let full = answer::read_leniently(event.as_bytes()).unwrap();
                if let Some((kind, text)) = memo.text(event.as_bytes()) {
                    let mut short = Said::default();
                    let place = match kind {
                        ChunkKind::Content => &mut short.content,
                        ChunkKind::Reasoning => &mut short.reasoning,
                        ChunkKind::Other => &mut short.other,
                    };
                    *place = Some(Cow::Borrowed(text));
                    prop_assert!(full.generates() && full.finish_reason.is_none() && full.usage.is_none());
                    prop_assert!(full.error.is_none() && full.timings.is_none());
                    prop_assert_eq!(full.content.as_deref().unwrap_or(""), short.content.as_deref().unwrap_or(""));
                    prop_assert_eq!(full.reasoning.as_deref().unwrap_or(""), short.reasoning.as_deref().unwrap_or(""));
                    prop_assert_eq!(full.other.as_deref().unwrap_or(""), short.other.as_deref().unwrap_or(""));
                }
                memo.learn(event.as_bytes(), &answer::read(event.as_bytes()).unwrap());
            }
        }

        #[test]
        fn the_typed_reader_equals_the_lenient_one(event in any_event()) {
            let typed = answer::read(event.as_bytes()).unwrap();
            let lenient = answer::read_leniently(event.as_bytes()).unwrap();
            let plain = |text: &Option<Cow<'_, str>>| text.as_deref().unwrap_or("").to_owned();
            prop_assert_eq!(plain(&typed.content), plain(&lenient.content));
            prop_assert_eq!(plain(&typed.reasoning), plain(&lenient.reasoning));
            prop_assert_eq!(plain(&typed.other), plain(&lenient.other));
            prop_assert_eq!((typed.finish_reason, typed.usage), (lenient.finish_reason, lenient.usage));
        }
    }
}
