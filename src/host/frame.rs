//! A command as one line for a login shell, and its output found again among whatever that shell says of its own.
//!
//! A start-up file may print, a forced command may greet. So the command's output is taken from a mark on, which is
//! random, and written by the shell that is replaced by the command. What comes before the mark is nobody's.

use std::io;

use bytes::{Buf, Bytes, BytesMut};

use super::{HostError, Words, quote_all};

/// The longest single word that Linux passes to a program, less the zero at its end.
const LONGEST_WORD: usize = (128 << 10) - 1;

/// Both halves of the mark are words of their own, so that a shell that echoes its commands does not write the mark.
/// The pid is that of the command, since `exec` keeps it; 0 is none, for a program that is not there.
const RUN: &str = r#"m=$1$2; shift 2; if command -v -- "$1" >/dev/null 2>&1; then printf "%s%s;" "$m" "$$"; printf "%s;" "$m" >&2; exec "$@"; fi; printf "%s0;" "$m"; printf "%s;" "$m" >&2; exit 127"#;

/// The same for a transport that tells exit codes badly: the code stands behind a second mark, on standard error.
const TELL: &str = r#"m=$1$2; shift 2; if command -v -- "$1" >/dev/null 2>&1; then printf "%s%s;" "$m" "$$"; printf "%s;" "$m" >&2; "$@"; c=$?; printf "%s%s;" "$m" "$c" >&2; exit "$c"; fi; printf "%s0;" "$m"; printf "%s;" "$m" >&2; exit 127"#;

/// The frame of one command.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    halves: [String; 2],
}

impl Frame {
    pub(super) fn new() -> Self {
        Frame { halves: [(); 2].map(|()| format!("{:016x}", rand::random::<u64>())) }
    }

    /// The line for the login shell; the command takes the shell's place.
    pub(super) fn line(&self, words: &Words) -> Result<String, HostError> {
        self.of(RUN, words)
    }

    /// The line for the login shell, with the exit code behind a mark of its own.
    pub(super) fn telling_line(&self, words: &Words) -> Result<String, HostError> {
        self.of(TELL, words)
    }

    fn of(&self, script: &str, words: &Words) -> Result<String, HostError> {
        let [a, b] = &self.halves;
        let shell = ["exec", "sh", "-c", script, "orch", a, b];
        let line = format!("{} {}", quote_all(&shell), quote_all(words.as_slice()));
        if line.len() > LONGEST_WORD {
            return Err(HostError::CannotRun {
                program: words.program().to_owned(),
                source: io::Error::new(io::ErrorKind::ArgumentListTooLong, "its words are too long for a command line"),
            });
        }
        Ok(line)
    }

    /// A reader of one of the command's streams.
    pub(super) fn reader(&self) -> Framed {
        Framed { mark: self.halves.concat().into_bytes(), state: State::Before(BytesMut::new()) }
    }

    /// Cuts the code behind the second mark out of standard error.
    pub(super) fn take_code(&self, stderr: &mut Vec<u8>) -> Option<i32> {
        let mark = self.halves.concat();
        let at = memchr::memmem::rfind(stderr, mark.as_bytes())?;
        let code = &stderr[at + mark.len()..];
        let end = memchr::memchr(b';', code)?;
        let code = std::str::from_utf8(&code[..end]).ok()?.parse().ok()?;
        stderr.drain(at..=at + mark.len() + end);
        Some(code)
    }
}

/// A stream of which only what follows the mark is wanted.
#[derive(Debug)]
pub(super) struct Framed {
    mark: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// What came so far, of which only the end may still hold the beginning of the mark.
    Before(BytesMut),
    /// The mark was there; with it stood this number.
    Within(Option<u32>),
}

/// So much of what comes before the mark is kept, to be able to say what came instead of it.
const KEPT_BYTES: usize = 8 << 10;

impl Framed {
    /// What of these bytes is the command's.
    pub(super) fn feed(&mut self, bytes: Bytes) -> Bytes {
        let State::Before(seen) = &mut self.state else { return bytes };
        seen.extend_from_slice(&bytes);
        let Some(at) = memchr::memmem::find(seen, &self.mark) else {
            if seen.len() > KEPT_BYTES + self.mark.len() {
                seen.advance(seen.len() - KEPT_BYTES - self.mark.len());
            }
            return Bytes::new();
        };
        let after = at + self.mark.len();
        let Some(end) = memchr::memchr(b';', &seen[after..]) else { return Bytes::new() };
        let number = std::str::from_utf8(&seen[after..after + end]).ok().and_then(|number| number.parse().ok());
        let rest = seen.split_off(after + end + 1).freeze();
        self.state = State::Within(number);
        rest
    }

    /// Whether the mark was there.
    pub(super) fn began(&self) -> bool {
        matches!(self.state, State::Within(_))
    }

    /// The pid of the command, once its standard output has begun. 0: there is no such program.
    pub(super) fn number(&self) -> Option<u32> {
        match self.state {
            State::Within(number) => number,
            State::Before(_) => None,
        }
    }

    /// What came instead of the mark.
    pub(super) fn instead(&self) -> &[u8] {
        match &self.state {
            State::Before(seen) => seen,
            State::Within(_) => &[],
        }
    }
}

/// The error for a program that is not there.
pub(super) fn not_there(words: &Words) -> HostError {
    let source = io::Error::new(io::ErrorKind::NotFound, "there is no such program on the host");
    HostError::CannotRun { program: words.program().to_owned(), source }
}

/// The error for output that never began: what came instead, cut short.
pub(super) fn no_shell(host: &str, out: &Framed, err: &Framed) -> HostError {
    let text = |framed: &Framed| String::from_utf8_lossy(framed.instead()).trim().to_owned();
    let said = [text(out), text(err)].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" / ");
    let said = match said.is_empty() {
        true => "it said nothing".to_owned(),
        false => format!("it said {:?}", said.chars().take(300).collect::<String>()),
    };
    HostError::NoShell { host: host.to_owned(), said }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a login shell makes of a line.
    fn shell(line: &str) -> std::process::Output {
        std::process::Command::new("sh").args(["-c", line]).output().unwrap()
    }

    fn words(words: &[&str]) -> Words {
        Words::new(words.iter().copied()).unwrap()
    }

    #[test]
    fn output_begins_behind_the_mark() {
        let frame = Frame::new();
        let line = frame.line(&words(&["sh", "-c", "echo $$; echo no >&2; exit 3"])).unwrap();
        let output = shell(&format!("set -x; echo noise; echo more >&2; {line}"));
        let (mut out, mut err) = (frame.reader(), frame.reader());
        // Byte by byte, as a slow line may bring it.
        let of = |framed: &mut Framed, bytes: &[u8]| -> Vec<u8> {
            bytes.iter().flat_map(|byte| framed.feed(Bytes::copy_from_slice(&[*byte]))).collect()
        };
        let pid = String::from_utf8(of(&mut out, &output.stdout)).unwrap();
        assert_eq!(out.number(), Some(pid.trim().parse().unwrap()), "the mark names the command's own pid");
        assert_eq!(of(&mut err, &output.stderr), b"no\n");
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn a_program_that_is_not_there_is_told_apart_from_its_exit_code() {
        let frame = Frame::new();
        let output = shell(&frame.line(&words(&["no-such-program-here"])).unwrap());
        let mut out = frame.reader();
        out.feed(output.stdout.into());
        assert_eq!(out.number(), Some(0));
        let output = shell(&frame.line(&words(&["sh", "-c", "exit 127"])).unwrap());
        let mut out = frame.reader();
        out.feed(output.stdout.into());
        assert_ne!(out.number(), Some(0));
    }

    #[test]
    fn the_code_behind_the_second_mark_is_cut_out() {
        let frame = Frame::new();
        let output = shell(&frame.telling_line(&words(&["sh", "-c", "printf err >&2; exit 255"])).unwrap());
        let mut stderr = frame.reader().feed(output.stderr.into()).to_vec();
        assert_eq!(frame.take_code(&mut stderr), Some(255));
        assert_eq!(stderr, b"err");
    }

    #[test]
    fn what_came_instead_is_told() {
        let frame = Frame::new();
        let (mut out, err) = (frame.reader(), frame.reader());
        assert!(out.feed("This account is currently not available.\n".into()).is_empty());
        let error = no_shell("box", &out, &err).to_string();
        assert_eq!(error, "box ran no command: it said \"This account is currently not available.\"");
    }

    #[test]
    fn a_line_that_no_kernel_would_take_is_refused() {
        let long = "x".repeat(LONGEST_WORD);
        assert!(matches!(Frame::new().line(&words(&["echo", &long])), Err(HostError::CannotRun { .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_command_sees_exactly_its_words(words in prop::collection::vec("[^\\x00]{0,12}", 1..5)) {
            let frame = Frame::new();
            let all = ["printf", r"%s\0"].into_iter().map(str::to_owned).chain(words.iter().cloned());
            let output = shell(&frame.line(&Words::new(all).unwrap()).unwrap());
            let stdout = frame.reader().feed(output.stdout.into()).to_vec();
            let seen = String::from_utf8(stdout).unwrap();
            prop_assert_eq!(seen.split_terminator('\0').map(str::to_owned).collect::<Vec<_>>(), words);
        }
    }
}
