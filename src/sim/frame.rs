//! Events that are alike but for a text and two numbers, made once and filled in many times: a thousand streams leave
//! no time to build the same JSON for every token.

use serde_json::Value;

/// Stands for the text of a chunk.
pub(super) const TEXT: &str = "\u{e000}";
/// Stands for the number of tokens so far,
pub(super) const COUNT: &str = "\u{e001}";
/// for these and the prompt's,
pub(super) const TOTAL: &str = "\u{e002}";
/// and for the milliseconds since the first token.
pub(super) const MS: &str = "\u{e003}";

/// An event with blanks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Frame(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Bytes(Vec<u8>),
    Text,
    Count,
    Total,
    Ms,
}

/// What fills the blanks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling<'a> {
    /// As it stands inside a JSON text.
    pub(super) text: &'a [u8],
    pub(super) count: u64,
    pub(super) total: u64,
    pub(super) ms: f64,
}

impl Frame {
    /// Makes an event of a document. Numbers are blanks in place of texts.
    pub(super) fn new(document: &Value) -> Self {
        let text = format!("data: {document}\n\n");
        let blanks = [
            (TEXT.to_owned(), Part::Text),
            (format!("\"{COUNT}\""), Part::Count),
            (format!("\"{TOTAL}\""), Part::Total),
            (format!("\"{MS}\""), Part::Ms),
        ];
        let mut parts = Vec::new();
        let mut rest = text.as_str();
        loop {
            let next = blanks.iter().filter_map(|(mark, part)| Some((rest.find(mark)?, mark.len(), part)));
            let Some((at, length, part)) = next.min_by_key(|(at, ..)| *at) else { break };
            parts.push(Part::Bytes(rest.as_bytes()[..at].to_vec()));
            parts.push(part.clone());
            rest = &rest[at + length..];
        }
        parts.push(Part::Bytes(rest.as_bytes().to_vec()));
        Frame(parts)
    }

    /// Adds the event with its blanks filled in.
    pub(super) fn write(&self, filling: &Filling<'_>, out: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::Text => out.extend_from_slice(filling.text),
                Part::Count => out.extend_from_slice(filling.count.to_string().as_bytes()),
                Part::Total => out.extend_from_slice(filling.total.to_string().as_bytes()),
                Part::Ms => out.extend_from_slice(format!("{:.3}", filling.ms).as_bytes()),
            }
        }
    }
}

/// Adds bytes as they stand inside a JSON text. Bytes that are no UTF-8 stay as they are.
pub(super) fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            0..=31 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            byte => out.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blanks_are_filled_in() {
        let frame = Frame::new(&json!({"a": TEXT, "usage": {"n": COUNT, "all": TOTAL}, "ms": MS}));
        let (mut text, mut out) = (Vec::new(), Vec::new());
        escape(b"say \"x\"\n\x01", &mut text);
        frame.write(&Filling { text: &text, count: 3, total: 10, ms: 1.5 }, &mut out);
        let out = String::from_utf8(out).unwrap();
        let document: Value = serde_json::from_str(out.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(document, json!({"a": "say \"x\"\n\u{1}", "usage": {"n": 3, "all": 10}, "ms": 1.5}));
        assert!(out.ends_with("}\n\n"));
    }
}
