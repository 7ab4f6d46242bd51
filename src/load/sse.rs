//! Server-Sent Events, read as the standard says, from bytes that may be cut anywhere. No I/O.
//!
//! Lines end with LF, CR or CRLF and with nothing else: U+2028, U+0085 and their like are text. A comment is nothing,
//! an event without data is nothing, and an event that the end of the stream cuts off never was.

use memchr::{memchr, memchr2};

/// An event with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Its type as sent; empty when none was.
    pub name: &'a [u8],
    /// Its data; several `data` lines are joined by LF. Not checked to be UTF-8.
    pub data: &'a [u8],
}

/// A line or an event is longer than the reader is willing to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {limit} bytes")]
pub struct TooLarge {
    /// What it may be at most.
    pub limit: usize,
}

/// How much of one event is held at most.
pub const EVENT_LIMIT: usize = 8 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Cuts a stream into events.
#[derive(Debug)]
pub struct Decoder {
    /// The line so far, when a read ended in the middle of it.
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    name: Vec<u8>,
    /// The last line ended with CR: a LF that comes next belongs to it.
    after_cr: bool,
    /// How many bytes of a byte order mark were seen; `None` once the stream is past its beginning.
    mark: Option<usize>,
    limit: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::with_limit(EVENT_LIMIT)
    }
}

impl Decoder {
    /// A decoder that holds at most `limit` bytes of a line or an event.
    pub fn with_limit(limit: usize) -> Self {
        Decoder {
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            name: Vec::new(),
            after_cr: false,
            mark: Some(0),
            limit,
        }
    }

    /// Takes the next bytes and gives each event that they complete to `sink`.
    pub fn feed(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Event<'_>)) -> Result<(), TooLarge> {
        if self.mark.is_some() {
            bytes = self.skip_mark(bytes);
        }
        while let Some(&next) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && next == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                self.line.extend_from_slice(bytes);
                return self.within_limit();
            };
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            self.after_cr = bytes[end] == b'\r';
            bytes = rest;
            if self.line.is_empty() {
                // The usual event is one line and an empty one, both in one read: it is handed over without a copy.
                if !self.after_cr && rest.first() == Some(&b'\n') && !self.has_data && field(line).0 == b"data" {
                    sink(Event { name: &self.name, data: field(line).1 });
                    self.name.clear();
                    bytes = &rest[1..];
                    continue;
                }
                self.take_line(line, &mut sink);
            } else {
                self.line.extend_from_slice(line);
                let mut whole = std::mem::take(&mut self.line);
                self.take_line(&whole, &mut sink);
                whole.clear();
                self.line = whole;
            }
            self.within_limit()?;
        }
        Ok(())
    }

    fn within_limit(&self) -> Result<(), TooLarge> {
        if self.line.len() + self.data.len() + self.name.len() > self.limit {
            return Err(TooLarge { limit: self.limit });
        }
        Ok(())
    }

    /// A byte order mark may open the stream, and may itself be cut.
    fn skip_mark<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let mut seen = self.mark.unwrap_or(0);
        for (at, byte) in bytes.iter().enumerate() {
            if *byte != BYTE_ORDER_MARK[seen] {
                self.line.extend_from_slice(&BYTE_ORDER_MARK[..seen]);
                self.mark = None;
                return &bytes[at..];
            }
            seen += 1;
            if seen == BYTE_ORDER_MARK.len() {
                self.mark = None;
                return &bytes[at + 1..];
            }
        }
        self.mark = Some(seen);
        &[]
    }

    fn take_line(&mut self, line: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        if line.is_empty() {
            if self.has_data {
                sink(Event { name: &self.name, data: &self.data });
            }
            self.has_data = false;
            self.data.clear();
            self.name.clear();
            return;
        }
        let (name, value) = field(line);
        match name {
            b"data" => self.add_data(value),
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // Not in the standard: llama.cpp's older servers send their errors in a field of this name, without data.
            b"error" => {
                self.name.clear();
                self.name.extend_from_slice(b"error");
                self.add_data(value);
            }
            _ => {}
        }
    }

    fn add_data(&mut self, value: &[u8]) {
        if self.has_data {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
        self.has_data = true;
    }
}

/// Name and value of a line. A comment has an empty name.
fn field(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b':', line) {
        None => (line, b""),
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Owned = (String, Vec<u8>);

    fn events(pieces: &[&[u8]]) -> Vec<Owned> {
        let mut decoder = Decoder::default();
        let mut seen = Vec::new();
        for piece in pieces {
            decoder
                .feed(piece, |event| {
                    seen.push((String::from_utf8_lossy(event.name).into_owned(), event.data.to_vec()));
                })
                .unwrap();
        }
        seen
    }

    fn data(stream: &str) -> Vec<String> {
        events(&[stream.as_bytes()]).into_iter().map(|(_, data)| String::from_utf8(data).unwrap()).collect()
    }

    #[test]
    fn every_kind_of_line_end_ends_a_line() {
        for end in ["\n", "\r", "\r\n"] {
            let stream = "data: a\n\ndata:b\ndata:  c\n\n".replace('\n', end);
            assert_eq!(data(&stream), ["a", "b\n c"], "with {end:?}");
        }
        assert_eq!(data("data: a\r\ndata: b\n\rdata: c\n\n"), ["a\nb", "c"]);
    }

    #[test]
    fn what_looks_like_a_line_end_to_unicode_is_text() {
        assert_eq!(data("data: a\u{2028}b\u{85}c\u{b}d\n\n"), ["a\u{2028}b\u{85}c\u{b}d"]);
    }

    #[test]
    fn comments_other_fields_and_empty_events_are_nothing() {
        assert_eq!(data(":\n\n: keepalive\n\nid: 7\nretry: 10\n\nevent: ping\n\ndata: a\n\n"), ["a"]);
        assert_eq!(data("database: x\n\ndata\n\ndata:\n\n"), ["", ""]);
    }

    #[test]
    fn an_event_that_the_end_cuts_off_never_was() {
        assert_eq!(data("data: a\n\ndata: b\n"), ["a"]);
    }

    #[test]
    fn a_byte_order_mark_is_skipped_once_even_when_cut() {
        assert_eq!(events(&[b"\xef", b"\xbb", b"\xbfdata: a\n\n"]), [(String::new(), b"a".to_vec())]);
        assert_eq!(events(&[b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n"]), []);
        assert_eq!(events(&[b"\xef\xbbdata: a\n\ndata: b\n\n"]), [(String::new(), b"b".to_vec())]);
    }

    #[test]
    fn the_type_of_an_event_belongs_to_it_alone() {
        let seen = events(&[b"event: error\ndata: a\n\ndata: b\n\nerror: c\n\n"]);
        let names: Vec<_> = seen.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["error", "", "error"]);
    }

    #[test]
    fn a_line_without_end_is_refused_not_kept() {
        let mut decoder = Decoder::with_limit(1000);
        let mut result = Ok(());
        for _ in 0..100 {
            result = decoder.feed(&[b'x'; 100], |_| {});
            if result.is_err() {
                break;
            }
        }
        assert_eq!(result, Err(TooLarge { limit: 1000 }));
        let mut many = Decoder::with_limit(1000);
        let lines = "data: 0123456789\n".repeat(100);
        assert_eq!(many.feed(lines.as_bytes(), |_| {}), Err(TooLarge { limit: 1000 }));
    }

    /// The standard's grammar, written down a second time in the plainest way.
    fn by_the_book(stream: &[u8]) -> Vec<Owned> {
        let stream = stream.strip_prefix(BYTE_ORDER_MARK).unwrap_or(stream);
        let mut lines = vec![Vec::new()];
        let mut at = 0;
        while at < stream.len() {
            match stream[at] {
                b'\r' => {
                    lines.push(Vec::new());
                    if stream.get(at + 1) == Some(&b'\n') {
                        at += 1;
                    }
                }
                b'\n' => lines.push(Vec::new()),
                byte => lines.last_mut().unwrap().push(byte),
            }
            at += 1;
        }
        lines.pop();
        let (mut seen, mut data, mut name) = (Vec::new(), None::<Vec<u8>>, String::new());
        for line in lines {
            let (field, value) = match line.iter().position(|byte| *byte == b':') {
                Some(colon) => (line[..colon].to_vec(), line[colon + 1..].to_vec()),
                None => (line.clone(), Vec::new()),
            };
            let value = value.strip_prefix(b" ").map(<[u8]>::to_vec).unwrap_or(value);
            if line.is_empty() {
                if let Some(data) = data.take() {
                    seen.push((std::mem::take(&mut name), data));
                }
                name.clear();
            } else if field == b"data" || field == b"error" {
                data = Some(match data.take() {
                    Some(before) => [before, value].join(&b'\n'),
                    None => value,
                });
                if field == b"error" {
                    name = "error".to_owned();
                }
            } else if field == b"event" {
                name = String::from_utf8_lossy(&value).into_owned();
            }
        }
        seen
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just("data: {\"a\": 1}"), Just("data:x"), Just("data"), Just(": c"), Just(":"), Just("event: error"),
                    Just("event:"), Just("error: e"), Just("\n"), Just("\n\n"), Just("\r"), Just("\r\n"), Just("\r\n\r\n"),
                    Just("é中🦀"), Just("\u{feff}"), Just("\u{2028}"), Just("id: 1"), Just(" "),
                ], 0..40),
            cuts in proptest::collection::vec(0usize..400, 0..12),
        ) {
            let stream = parts.concat().into_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut <= stream.len()).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let single: Vec<&[u8]> = stream.chunks(1).collect();
            let expected = by_the_book(&stream);
            prop_assert_eq!(&events(&pieces), &expected);
            prop_assert_eq!(&events(&single), &expected);
        }
    }
}
