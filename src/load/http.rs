//! HTTP/1.1 answers, read from bytes that may be cut anywhere. No I/O.
//!
//! What the framing says is held to (RFC 9112, section 6.3), and what this reader does not know is refused, never
//! guessed: a coding other than `chunked`, two lengths that disagree, a chunk size that is no number.

use std::ops::ControlFlow;

use memchr::memmem;

/// The head of an answer, chunk-size lines and trailers, each may be this long.
const HEAD_LIMIT: usize = 64 << 10;
const HEADER_COUNT: usize = 128;
const CHUNK_LINE_LIMIT: usize = 4 << 10;

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The status.
    pub status: u16,
    /// `content-type`, lower-case, without parameters; empty when there is none.
    pub content_type: String,
    /// `retry-after` in seconds; a date is not read.
    pub retry_after_s: Option<u64>,
}

/// What the bytes turned out to be.
#[derive(Debug)]
pub enum Piece<'a> {
    /// The head is complete. Interim (1xx) answers are passed over.
    Head(Head),
    /// Bytes of the body, framing removed.
    Body(&'a [u8]),
}

/// Why an answer breaks its protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not HTTP.
    #[error("the answer is not HTTP/1.1: {0}")]
    Head(String),
    /// The head or its trailers do not end.
    #[error("the head of the answer is longer than {HEAD_LIMIT} bytes")]
    LongHead,
    /// A framing that is not understood.
    #[error("the answer's framing is not understood: {0}")]
    Framing(String),
    /// A bad chunk.
    #[error("the answer's chunked coding is broken: {0}")]
    Chunk(&'static str),
}

/// Where the connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing was missing.
    Complete,
    /// Before a head was complete.
    BeforeHead,
    /// In the body.
    InBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    UntilClose,
    ChunkSize,
    Chunk(u64),
    /// The CRLF after a chunk's data; so many bytes of it were seen.
    ChunkEnd(u8),
    Trailer,
    Done,
}

/// Cuts one answer into its head and its body.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// The head, chunk-size line or trailer line so far.
    held: Vec<u8>,
    /// Bytes of heads and trailers so far: interim answers may not go on for ever either.
    spent: usize,
    keep_alive: bool,
    excess: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { state: State::Head, held: Vec::new(), spent: 0, keep_alive: true, excess: false }
    }
}

impl Decoder {
    /// Takes the next bytes. `sink` may break off; the answer is then left as it is.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut sink: impl FnMut(Piece<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Fault> {
        while !bytes.is_empty() {
            match self.state {
                State::Head => {
                    bytes = self.take_head(bytes)?;
                    if self.state != State::Head {
                        let Some(head) = self.parse_head()? else { continue };
                        if sink(Piece::Head(head)).is_break() {
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                }
                State::Length(left) | State::Chunk(left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    let rest = left - count as u64;
                    self.state = match (self.state, rest) {
                        (State::Length(_), 0) => State::Done,
                        (State::Length(_), _) => State::Length(rest),
                        (_, 0) => State::ChunkEnd(0),
                        _ => State::Chunk(rest),
                    };
                    let body = &bytes[..count];
                    bytes = &bytes[count..];
                    if sink(Piece::Body(body)).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                State::UntilClose => return Ok(sink(Piece::Body(bytes))),
                State::ChunkEnd(seen) => {
                    if bytes[0] != b"\r\n"[usize::from(seen)] {
                        return Err(Fault::Chunk("a chunk is longer or shorter than its size says"));
                    }
                    bytes = &bytes[1..];
                    self.state = if seen == 0 { State::ChunkEnd(1) } else { State::ChunkSize };
                }
                State::ChunkSize => {
                    let Some(line) = self.take_line(&mut bytes, CHUNK_LINE_LIMIT)? else { break };
                    let size = chunk_size(&line)?;
                    self.state = if size == 0 { State::Trailer } else { State::Chunk(size) };
                }
                State::Trailer => {
                    let limit = HEAD_LIMIT.saturating_sub(self.spent);
                    let Some(line) = self.take_line(&mut bytes, limit)? else { break };
                    self.spent += line.len() + 2;
                    if line.is_empty() {
                        self.state = State::Done;
                    }
                }
                State::Done => {
                    self.excess = true;
                    break;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Whether the answer is complete. One that ends with its connection never is before [`Decoder::end`].
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the connection may carry another request.
    pub fn reusable(&self) -> bool {
        self.is_done() && self.keep_alive && !self.excess
    }

    /// The connection ended: what that means.
    pub fn end(&mut self) -> Ending {
        match self.state {
            State::Done => Ending::Complete,
            State::UntilClose => {
                self.state = State::Done;
                Ending::Complete
            }
            State::Head => Ending::BeforeHead,
            _ => Ending::InBody,
        }
    }

    /// Moves bytes to the head until it is complete; then the state is no longer `Head`.
    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        // Empty lines before a head are passed over.
        let skip =
            if self.held.is_empty() { bytes.iter().take_while(|byte| b"\r\n".contains(byte)).count() } else { 0 };
        self.spent += skip;
        if self.spent > HEAD_LIMIT {
            return Err(Fault::LongHead);
        }
        let bytes = &bytes[skip..];
        let old = self.held.len();
        let room = HEAD_LIMIT - self.spent.min(HEAD_LIMIT);
        self.held.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let start = self.held.len().min(5);
        if self.held[..start] != b"HTTP/"[..start] {
            return Err(Fault::Head("it does not begin with `HTTP/`".to_owned()));
        }
        match end_of_head(&self.held, old.saturating_sub(3)) {
            Some(end) => {
                self.held.truncate(end);
                self.spent += end - old;
                self.state = State::Done;
                Ok(&bytes[end - old..])
            }
            None if self.held.len() - old < bytes.len() || self.held.len() >= room => Err(Fault::LongHead),
            None => Ok(&[]),
        }
    }

    /// Reads a complete head and settles the framing; `None` for an interim answer.
    fn parse_head(&mut self) -> Result<Option<Head>, Fault> {
        let held = std::mem::take(&mut self.held);
        let mut headers = [httparse::EMPTY_HEADER; HEADER_COUNT];
        let mut response = httparse::Response::new(&mut headers);
        let complete = response.parse(&held).map_err(|error| Fault::Head(error.to_string()))?;
        let (httparse::Status::Complete(_), Some(status), Some(minor)) = (complete, response.code, response.version)
        else {
            return Err(Fault::Head("its head is cut short".to_owned()));
        };
        if status == 101 {
            return Err(Fault::Framing("it switches protocols".to_owned()));
        }
        if (100..200).contains(&status) {
            self.state = State::Head;
            return Ok(None);
        }
        let framing = Framing::of(response.headers)?;
        self.keep_alive = if minor == 0 { framing.keep_alive && !framing.close } else { !framing.close };
        self.state = match framing {
            _ if status == 204 || status == 304 => State::Done,
            Framing { chunked: true, .. } if minor == 0 => {
                return Err(Fault::Framing("HTTP/1.0 with a transfer coding".to_owned()));
            }
            Framing { chunked: true, length, .. } => {
                // The coding overrides a length, but who sends both is not to be trusted with the next answer.
                self.keep_alive &= length.is_none();
                State::ChunkSize
            }
            Framing { length: Some(0), .. } => State::Done,
            Framing { length: Some(length), .. } => State::Length(length),
            _ => {
                self.keep_alive = false;
                State::UntilClose
            }
        };
        Ok(Some(Head { status, content_type: framing.content_type, retry_after_s: framing.retry_after_s }))
    }

    /// The next line without its CRLF, once it is complete.
    fn take_line(&mut self, bytes: &mut &[u8], limit: usize) -> Result<Option<Vec<u8>>, Fault> {
        let end = memchr::memchr(b'\n', bytes);
        let count = end.map_or(bytes.len(), |end| end + 1);
        if self.held.len() + count > limit + 2 {
            return Err(if self.state == State::Trailer {
                Fault::LongHead
            } else {
                Fault::Chunk("a size line is too long")
            });
        }
        self.held.extend_from_slice(&bytes[..count]);
        *bytes = &bytes[count..];
        if end.is_none() {
            return Ok(None);
        }
        let mut line = std::mem::take(&mut self.held);
        if !line.ends_with(b"\r\n") {
            return Err(Fault::Chunk("a line does not end with CRLF"));
        }
        line.truncate(line.len() - 2);
        Ok(Some(line))
    }
}

/// Where the empty line after the headers ends, looked for from `from` on.
fn end_of_head(held: &[u8], from: usize) -> Option<usize> {
    let tail = &held[from..];
    let crlf = memmem::find(tail, b"\r\n\r\n").map(|at| at + 4);
    let lf = memmem::find(tail, b"\n\n").map(|at| at + 2);
    [crlf, lf].into_iter().flatten().min().map(|end| from + end)
}

/// `1a`, `1a;ext=1`; at most 15 hex digits, so that no sum overflows.
fn chunk_size(line: &[u8]) -> Result<u64, Fault> {
    const BAD: Fault = Fault::Chunk("a chunk size is not a hexadecimal number");
    let digits = line.split(|byte| *byte == b';').next().unwrap_or(line).trim_ascii_end();
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(BAD);
    }
    std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or(BAD)
}

/// What the headers say of the body.
#[derive(Default)]
struct Framing {
    chunked: bool,
    length: Option<u64>,
    close: bool,
    keep_alive: bool,
    content_type: String,
    retry_after_s: Option<u64>,
}

impl Framing {
    fn of(headers: &[httparse::Header<'_>]) -> Result<Self, Fault> {
        let mut framing = Framing::default();
        for header in headers {
            let value = String::from_utf8_lossy(header.value).trim().to_ascii_lowercase();
            match header.name.to_ascii_lowercase().as_str() {
                "transfer-encoding" => {
                    if framing.chunked || value != "chunked" {
                        return Err(Fault::Framing(format!("transfer coding `{value}`")));
                    }
                    framing.chunked = true;
                }
                "content-length" => {
                    for one in value.split(',').map(str::trim) {
                        let length = one.parse().ok().filter(|_| one.bytes().all(|byte| byte.is_ascii_digit()));
                        let length = length.ok_or_else(|| Fault::Framing(format!("content length `{value}`")))?;
                        if framing.length.is_some_and(|before| before != length) {
                            return Err(Fault::Framing("two content lengths that disagree".to_owned()));
                        }
                        framing.length = Some(length);
                    }
                }
                "content-encoding" if value != "identity" => {
                    return Err(Fault::Framing(format!("content coding `{value}`, which was not asked for")));
                }
                "connection" => {
                    framing.close |= value.split(',').any(|word| word.trim() == "close");
                    framing.keep_alive |= value.split(',').any(|word| word.trim() == "keep-alive");
                }
                "retry-after" => framing.retry_after_s = value.parse().ok(),
                "content-type" => {
                    framing.content_type = value.split(';').next().unwrap_or("").trim().to_owned();
                }
                _ => {}
            }
        }
        Ok(framing)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Seen {
        status: Option<u16>,
        body: Vec<u8>,
        done: bool,
        reusable: bool,
        fault: Option<Fault>,
    }

    fn read(pieces: &[&[u8]]) -> (Seen, Decoder) {
        let mut decoder = Decoder::default();
        let mut seen = Seen { status: None, body: Vec::new(), done: false, reusable: false, fault: None };
        for piece in pieces {
            let result = decoder.feed(piece, |piece| {
                match piece {
                    Piece::Head(head) => seen.status = Some(head.status),
                    Piece::Body(body) => seen.body.extend_from_slice(body),
                }
                ControlFlow::Continue(())
            });
            if let Err(fault) = result {
                seen.fault = Some(fault);
                break;
            }
        }
        seen.done = decoder.is_done();
        seen.reusable = decoder.reusable();
        (seen, decoder)
    }

    fn whole(text: &str) -> Seen {
        read(&[text.as_bytes()]).0
    }

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

    #[test]
    fn each_framing_is_followed_to_its_end() {
        let chunked = whole(&format!("{CHUNKED}3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\nx-trailer: 1\r\n\r\n"));
        assert_eq!((chunked.body.as_slice(), chunked.done, chunked.reusable), (&b"abc0123456789"[..], true, true));
        let length = whole("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc");
        assert_eq!((length.body.as_slice(), length.reusable), (&b"abc"[..], true));
        let (close, mut decoder) = read(&[b"HTTP/1.1 200 OK\r\n\r\nabc"]);
        assert_eq!((close.body.as_slice(), close.done), (&b"abc"[..], false));
        assert_eq!(decoder.end(), Ending::Complete);
        assert!(!decoder.reusable());
        assert!(whole("HTTP/1.1 204 No Content\r\ncontent-length: 9\r\n\r\n").done);
    }

    #[test]
    fn interim_answers_are_passed_over() {
        let seen = whole(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na",
        );
        assert_eq!((seen.status, seen.body.as_slice(), seen.reusable), (Some(200), &b"a"[..], true));
        assert!(whole("HTTP/1.1 101 Switching\r\n\r\n").fault.is_some());
    }

    #[test]
    fn a_connection_is_kept_only_when_both_sides_agree() {
        assert!(!whole("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nConnection: Close\r\n\r\n").reusable);
        assert!(!whole("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n").reusable);
        assert!(whole("HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n").reusable);
        assert!(!whole("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab").reusable, "bytes beyond the answer");
        assert!(!whole(&format!("{}0\r\n\r\n", CHUNKED.replace("\r\n\r\n", "\r\nContent-Length: 5\r\n\r\n"))).reusable);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let bad_heads = [
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ];
        let bad_bodies = [
            "x\r\n",
            "-1\r\na",
            "1 2\r\n",
            "\r\n",
            "1\na\r\n",
            "1\r\nab\r\n",
            "fffffffffffffffff\r\n",
            "0x1\r\na\r\n",
            "3\r\nab\r\n0\r\n\r\n",
        ];
        for text in bad_heads.into_iter().map(str::to_owned).chain(bad_bodies.map(|body| format!("{CHUNKED}{body}"))) {
            assert!(whole(&text).fault.is_some(), "{text:?}");
        }
        assert_eq!(whole("HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nab").body, b"ab");
    }

    #[test]
    fn nothing_goes_on_for_ever() {
        let endless_headers = format!("HTTP/1.1 200 OK\r\n{}", "x: yyyyyyyyyyyyyyyy\r\n".repeat(5000));
        assert_eq!(whole(&endless_headers).fault, Some(Fault::LongHead));
        assert_eq!(whole(&"HTTP/1.1 100 Continue\r\n\r\n".repeat(5000)).fault, Some(Fault::LongHead));
        assert_eq!(whole(&"\r\n".repeat(50_000)).fault, Some(Fault::LongHead));
        assert_eq!(whole(&format!("{CHUNKED}0\r\n{}", "x: y\r\n".repeat(20_000))).fault, Some(Fault::LongHead));
        assert!(matches!(whole(&format!("{CHUNKED}1;{}", "x".repeat(10_000))).fault, Some(Fault::Chunk(_))));
        let pieces: Vec<&[u8]> = endless_headers.as_bytes().chunks(7).collect();
        assert_eq!(read(&pieces).0.fault, Some(Fault::LongHead));
    }

    #[test]
    fn an_end_is_told_from_where_it_came() {
        for (text, ending) in [
            ("", Ending::BeforeHead),
            ("HTTP/1.1 200 OK\r\n", Ending::BeforeHead),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", Ending::InBody),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", Ending::InBody),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", Ending::InBody),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Ending::Complete),
        ] {
            let (_, mut decoder) = read(&[text.as_bytes()]);
            assert_eq!(decoder.end(), ending, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_split_reads_the_same(
            chunks in proptest::collection::vec("[a-z\r\n]{1,20}", 0..6),
            interim in any::<bool>(),
            trailer in any::<bool>(),
            cuts in proptest::collection::vec(0usize..400, 0..12),
        ) {
            let mut text = String::new();
            if interim { text.push_str("HTTP/1.1 100 Continue\r\n\r\n"); }
            text.push_str(CHUNKED);
            for chunk in &chunks { text.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len())); }
            text.push_str("0\r\n");
            if trailer { text.push_str("a: b\r\n"); }
            text.push_str("\r\n");
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut <= bytes.len()).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            let expected = Seen { status: Some(200), body: chunks.concat().into_bytes(), done: true, reusable: true, fault: None };
            prop_assert_eq!(&read(&pieces).0, &expected);
            prop_assert_eq!(&read(&single).0, &expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), prefix in any::<bool>()) {
            let mut input = if prefix { CHUNKED.as_bytes().to_vec() } else { b"HTTP/1.1 200 OK\r\n".to_vec() };
            input.extend(bytes);
            let (seen, _) = read(&[&input]);
            prop_assert!(seen.body.len() <= input.len());
        }
    }
}
