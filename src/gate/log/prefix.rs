//! What stands before a message: what a container's runtime, a journal or a scheduler put in front of every line, and the
//! engine's own header of process, time and place.

use std::borrow::Cow;

/// How loud a record says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// It goes on: debug, info, a warning.
    Quiet,
    /// Something failed.
    Loud,
}

/// A record, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'t> {
    /// The process that wrote it, as it names itself; empty where it does not.
    pub(super) writer: &'t str,
    /// How loud it is, if it says.
    pub(super) level: Option<Level>,
    /// Whether it has a header of any kind: then it is no line of a block that another record began.
    pub(super) is_headed: bool,
    /// What it says, with the spaces before it.
    pub(super) text: &'t str,
}

/// The line as its writer wrote it: without what others put around it.
pub(super) fn unwrapped(line: &str) -> Cow<'_, str> {
    if line.starts_with("{\"")
        && let Some(text) = of_json(line)
    {
        return Cow::Owned(text);
    }
    let mut rest = unboxed(line);
    // Each of them can stand behind another.
    for _ in 0..4 {
        match outer(rest) {
            Some(inner) => rest = inner,
            None => break,
        }
    }
    Cow::Borrowed(rest)
}

/// The message of a line that is a JSON object, as Docker's files and structured loggers have it.
fn of_json(line: &str) -> Option<String> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).ok()?;
    let text = ["log", "msg", "message", "MESSAGE"].iter().find_map(|key| object.get(*key)?.as_str())?;
    Some(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// The text inside a box that a terminal program drew.
fn unboxed(line: &str) -> &str {
    let trimmed = line.trim_start();
    match trimmed.strip_prefix(['│', '┃', '║', '▏']) {
        Some(inside) => {
            let inside = inside.trim_end().trim_end_matches(['│', '┃', '║', '▕']).trim_end();
            inside.strip_prefix(' ').unwrap_or(inside)
        }
        None => line,
    }
}

fn outer(line: &str) -> Option<&str> {
    let first = *line.as_bytes().first()?;
    match first {
        b'0'..=b'9' => of_time(line).or_else(|| of_task(line)),
        b'<' => of_syslog(line),
        b'A'..=b'Z' if is_month(line) => of_journal(line),
        _ => of_container(line),
    }
}

/// `2026-11-29T12:06:21.123456789Z `, and after it `stdout F ` or `host unit[pid]: `.
fn of_time(line: &str) -> Option<&str> {
    let (time, rest) = line.split_once([' ', '\t'])?;
    let bytes = time.as_bytes();
    let is_time = bytes.len() >= 19 && bytes[4] == b'-' && bytes[7] == b'-' && bytes[10] == b'T' && bytes[13] == b':';
    if !is_time {
        return None;
    }
    for stream in ["stdout F ", "stderr F ", "stdout P ", "stderr P "] {
        if let Some(rest) = rest.strip_prefix(stream) {
            return Some(rest);
        }
    }
    Some(of_unit(rest).unwrap_or(rest))
}

/// `3: `, as `srun --label` has it.
fn of_task(line: &str) -> Option<&str> {
    let (number, rest) = line.split_once(": ")?;
    (number.len() <= 4 && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(rest)
}

/// `<30>1 2026-11-29T12:06:21Z host app pid - - `, or `<30>` before another prefix.
fn of_syslog(line: &str) -> Option<&str> {
    let (number, rest) = line.strip_prefix('<')?.split_once('>')?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let Some(rest) = rest.strip_prefix("1 ") else { return Some(rest) };
    rest.splitn(7, ' ').nth(6).map(|text| text.strip_prefix("- ").unwrap_or(text))
}

fn is_month(line: &str) -> bool {
    const MONTHS: [&str; 12] =
        ["Jan ", "Feb ", "Mar ", "Apr ", "May ", "Jun ", "Jul ", "Aug ", "Sep ", "Oct ", "Nov ", "Dec "];
    line.get(..4).is_some_and(|month| MONTHS.contains(&month))
}

/// `Nov 29 12:06:21 host unit[123]: `, also without host and unit.
fn of_journal(line: &str) -> Option<&str> {
    let time = line.get(4..15)?;
    let bytes = time.as_bytes();
    if bytes[5] != b':' || bytes[8] != b':' {
        return None;
    }
    let rest = line.get(15..)?;
    // Microseconds.
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').strip_prefix(' ')?;
    Some(of_unit(rest).unwrap_or(rest))
}

/// `host unit[123]: `.
fn of_unit(rest: &str) -> Option<&str> {
    let (head, text) = rest.split_once("]: ").or_else(|| rest.split_once("]:"))?;
    let (host, unit) = head.split_once(' ')?;
    let (name, pid) = unit.rsplit_once('[')?;
    let is_unit = !host.is_empty()
        && !name.is_empty()
        && !name.contains(['(', ' ', '[']) // A record of an engine is no unit.
        && pid.bytes().all(|byte| byte.is_ascii_digit());
    is_unit.then_some(text)
}

/// `name-1  | `, `[name]     | `, `[pod/name/container] `.
fn of_container(line: &str) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if let Some((name, text)) = line.split_once('|')
        && (name.ends_with(' ') || name.ends_with('\t'))
    {
        let inner = name.trim_end();
        let inner = inner.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(inner);
        // A progress bar has a `|` too, after its percentage.
        if !inner.is_empty() && inner.len() <= 80 && inner.chars().all(plain) {
            return Some(text.strip_prefix(' ').unwrap_or(text));
        }
    }
    let (name, text) = line.strip_prefix("[pod/")?.split_once("] ")?;
    name.chars().all(plain).then_some(text)
}

/// Takes a record apart.
pub(super) fn message(record: &str) -> Message<'_> {
    let mut message = Message { writer: "", level: None, is_headed: false, text: record };
    for _ in 0..6 {
        let Some((level, rest)) = header(message.text) else { break };
        if message.text.starts_with('(') {
            message.writer = &record[..record.len() - rest.len()];
        } else {
            message.is_headed = true;
        }
        message.level = level.or(message.level);
        message.text = rest;
    }
    message
}

/// The first part of a header, and what comes after it.
fn header(text: &str) -> Option<(Option<Level>, &str)> {
    match *text.as_bytes().first()? {
        // `(Worker_TP0 pid=96) `, `(Name pid=1, ip=10.0.0.2) `, `(VllmWorker rank=0 pid=301) `.
        b'(' => {
            let (head, rest) = text.split_once(')')?;
            head.contains(" pid=").then(|| (None, rest.strip_prefix(' ').unwrap_or(rest)))
        }
        b'[' => of_bracket(text),
        // `0.00.147.118 E `.
        b'0'..=b'9' => {
            let (time, rest) = text.split_once(' ')?;
            let dots = time.bytes().filter(|byte| *byte == b'.').count();
            let level = rest.get(..2).and_then(level_letter)?;
            (dots == 3 && time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
                .then(|| (Some(level), &rest[2..]))
        }
        b'A'..=b'Z' => of_level(text),
        _ => None,
    }
}

fn level_letter(letter: &str) -> Option<Level> {
    match letter {
        "I " | "D " | "W " => Some(Level::Quiet),
        "E " => Some(Level::Loud),
        _ => None,
    }
}

/// `[2026-11-01 09:00:11 TP0] `, `[rank26]:`, `[E222 08:31:47.12 file.cpp:616] `.
fn of_bracket(text: &str) -> Option<(Option<Level>, &str)> {
    let (head, rest) = text[1..].split_once(']')?;
    let bytes = head.as_bytes();
    let is_time = bytes.len() >= 19 && bytes[4] == b'-' && bytes[7] == b'-' && bytes[13] == b':';
    let is_rank = head.strip_prefix("rank").or_else(|| head.strip_prefix("default"));
    let is_rank = is_rank.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
    let is_glog = bytes.len() > 5 && bytes[1..4].iter().all(u8::is_ascii_digit) && head.contains(".cpp:");
    let level = match bytes.first() {
        Some(b'W' | b'I') if is_glog => Some(Level::Quiet),
        _ => None,
    };
    if !(is_time || is_rank || is_glog) {
        return None;
    }
    let rest = rest.strip_prefix(':').unwrap_or(rest);
    Some((level, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// `INFO 06-27 19:26:58 [file.py:12] `, `INFO 10-10 10:23:00 file.py:526] `, `INFO:     `.
fn of_level(text: &str) -> Option<(Option<Level>, &str)> {
    let end = text.bytes().position(|byte| !byte.is_ascii_uppercase())?;
    let level = match &text[..end] {
        "DEBUG" | "INFO" | "WARNING" => Level::Quiet,
        "ERROR" | "CRITICAL" => Level::Loud,
        _ => return None,
    };
    let rest = &text[end..];
    if let Some(rest) = rest.strip_prefix(':') {
        return Some((Some(level), rest.trim_start()));
    }
    let is_dated = rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit) && rest.as_bytes().get(3) == Some(&b'-');
    if !is_dated {
        return None;
    }
    let (_, rest) = rest.split_once(']')?;
    Some((Some(level), rest.strip_prefix(' ').unwrap_or(rest)))
}

/// The name of the exception that a line tells, if it is the last line of a traceback: `RuntimeError: text`.
pub(super) fn exception(text: &str) -> Option<&str> {
    let end = text.bytes().position(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.')));
    let name = &text[..end.unwrap_or(text.len())];
    let rest = &text[name.len()..];
    let rest = match rest.strip_prefix('(') {
        Some(inside) => inside.split_once(')')?.1,
        None => rest,
    };
    let last = name.rsplit('.').next()?;
    let is_name = last.starts_with(|c: char| c.is_ascii_uppercase())
        && last.contains(|c: char| c.is_ascii_lowercase())
        && (rest.is_empty() || rest.starts_with(": ") || rest == ":");
    is_name.then_some(last)
}

/// Whether a name is one by which Python calls what went wrong.
pub(super) fn is_error_name(name: &str) -> bool {
    ["Error", "Exception", "Failed", "Failure", "Timeout", "OutOfResources"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_put_in_front_is_taken_away() {
        for (line, inner) in [
            ("[sglang]     | [2026-06-24 11:40:02] x", "[2026-06-24 11:40:02] x"),
            ("vllm-1  |   File \"a.py\", line 3", "  File \"a.py\", line 3"),
            ("Nov 29 12:06:21 gpu-1 serve[71]:   File \"a.py\"", "  File \"a.py\""),
            ("Nov 29 12:06:21 plain", "plain"),
            ("2026-11-29T12:06:21.123456789Z stderr F   x", "  x"),
            ("2026-11-29T12:06:21+0000 gpu-1 python3[9]: KeyError: 'a'", "KeyError: 'a'"),
            ("2026-11-29T12:06:21Z [2026-11-29 12:06:21 TP0] y", "[2026-11-29 12:06:21 TP0] y"),
            ("[pod/llm-0/server] INFO 06-27 19:26:58 [a.py:1] z", "INFO 06-27 19:26:58 [a.py:1] z"),
            ("3: [2026-11-29 12:06:21] y", "[2026-11-29 12:06:21] y"),
            ("<30>1 2026-11-29T12:06:21Z h app 9 - - text", "text"),
            ("│ Capturing: 40%|####      | 14/35 [00:09<]      │", "Capturing: 40%|####      | 14/35 [00:09<]"),
            ("{\"log\":\"  File \\\"a\\\"\\n\",\"stream\":\"stderr\"}", "  File \"a\""),
        ] {
            assert_eq!(unwrapped(line), inner, "{line}");
        }
        for line in [
            "  4%|▍         | 1/23 [00:09<03:27,  9.41s/it]",
            "[2026-11-29 12:06:21 TP0] Decode batch, a | b",
            "0.00.147.118 E llama_model_load: error",
            "slot print_timing: id  0 | task 0 | eval time",
            "Capturing batches (bs=1): 100%|##| 1/1",
            "2026-11-29 no time",
        ] {
            assert_eq!(unwrapped(line), line);
        }
    }

    #[test]
    fn a_record_says_who_wrote_it_how_loud_and_what() {
        let of = |record| {
            let Message { writer, level, is_headed, text } = message(record);
            (writer, level, is_headed, text)
        };
        assert_eq!(
            of("(Worker_TP0 pid=624) ERROR 04-19 16:21:20 [multiproc_executor.py:857]   File \"x\""),
            ("(Worker_TP0 pid=624) ", Some(Level::Loud), true, "  File \"x\"")
        );
        assert_eq!(
            of("(EngineCore_DP0 pid=412) (RayWorkerWrapper pid=4194, ip=10.0.0.2)   run(cmd)"),
            ("(EngineCore_DP0 pid=412) (RayWorkerWrapper pid=4194, ip=10.0.0.2) ", None, false, "  run(cmd)")
        );
        assert_eq!(of("WARNING 10-10 10:22:58 _custom_ops.py:18] Failed"), ("", Some(Level::Quiet), true, "Failed"));
        assert_eq!(of("[2025-03-10 14:17:52 TP6] WARNING: x"), ("", Some(Level::Quiet), true, "x"));
        assert_eq!(of("0.00.147.118 E llama: x"), ("", Some(Level::Loud), true, "llama: x"));
        assert_eq!(of("[rank0]:[W212 09:02:22.0 a.cpp:1538] x"), ("", Some(Level::Quiet), true, "x"));
        assert_eq!(of("KeyError: 'a'"), ("", None, false, "KeyError: 'a'"));
        assert_eq!(of("ERROR in nothing"), ("", None, false, "ERROR in nothing"));
    }

    #[test]
    fn an_exception_is_known_by_its_shape() {
        for (line, name) in [
            ("torch.OutOfMemoryError: CUDA out of memory.", Some("OutOfMemoryError")),
            ("EOFError", Some("EOFError")),
            ("ray.exceptions.RayTaskError(ValueError): ray", Some("RayTaskError")),
            ("Possible solutions:", None),
            ("Killed", Some("Killed")),
            ("INFO: x", None),
            ("ptxas fatal   : Value", None),
            ("1. disable", None),
        ] {
            assert_eq!(exception(line), name, "{line}");
        }
        assert!(is_error_name("PTXASError") && !is_error_name("Killed"));
    }
}
