//! Small pieces of text that every screen shares: marks, spans, lines that fit.

use super::number::plain;
use crate::record::RunId;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What stands before a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Done, and as it should be.
    Ok,
    /// Going on.
    Live,
    /// Worth knowing.
    Warn,
    /// Not understood, or a suspicion.
    Odd,
    /// Failed.
    Bad,
}

impl Mark {
    /// Its two characters.
    pub fn text(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Live => "..",
            Mark::Warn => " !",
            Mark::Odd => "??",
            Mark::Bad => "XX",
        }
    }
}

/// `r0420` of `20261129-150000-qwen-mtp3-0420`.
pub fn short_id(id: &str) -> String {
    id.parse::<RunId>().map_or_else(|_| id.to_owned(), |id| id.short())
}

/// A span for people: `240 ms`, `8.9 s`, `42 s`, `11 min 24 s`, `1 h 5 min`.
pub fn seconds(s: f64) -> String {
    if !s.is_finite() {
        return "-".to_owned();
    }
    if s < 0.9995 {
        return format!("{:.0} ms", s * 1000.0);
    }
    if s < 99.95 {
        return format!("{s:.1} s");
    }
    let whole = s.round() as u64;
    match whole {
        0..=3599 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `left` and `right` in one line of at most `width` columns; `left` gives way where both do not fit. What might move
/// the cursor or hide text is made visible first: some of it comes from servers.
pub fn fit(left: &str, right: &str, width: usize) -> String {
    let left = plain(left);
    let room = width.saturating_sub(if right.is_empty() { 0 } else { right.width() + 1 });
    let left = cut(&left, room);
    if right.is_empty() {
        return left.trim_end().to_owned();
    }
    let gap = width.saturating_sub(left.width() + right.width()).max(1);
    format!("{left}{}{right}", " ".repeat(gap))
}

/// At most `width` columns of `text`, with `…` where something was cut.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut taken = String::new();
    let mut used = 0;
    for c in text.chars() {
        let columns = c.width().unwrap_or(0);
        if used + columns + 1 > width {
            break;
        }
        used += columns;
        taken.push(c);
    }
    taken.push('…');
    taken
}

/// Words broken into lines; the first is led by `lead`, the others by as much room.
pub fn wrap(text: &str, lead: &str, width: usize) -> Vec<String> {
    let room = width.saturating_sub(lead.width()).max(20);
    let mut lines: Vec<String> = Vec::new();
    for part in text.lines() {
        let mut line = String::new();
        for word in plain(part).split_whitespace() {
            if !line.is_empty() && line.width() + 1 + word.width() > room {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    let indent = " ".repeat(lead.width());
    lines.iter().enumerate().map(|(at, line)| format!("{}{line}", if at == 0 { lead } else { &indent })).collect()
}

/// At most `width` columns of `text` with its beginning and its end: the ends of a path tell the most.
pub fn cut_middle(text: &str, width: usize) -> String {
    let text = plain(text);
    if text.width() <= width {
        return text;
    }
    let tail_room = width.saturating_sub(1) * 2 / 3;
    let mut tail: Vec<char> = Vec::new();
    let mut used = 0;
    for c in text.chars().rev() {
        used += c.width().unwrap_or(0);
        if used > tail_room {
            break;
        }
        tail.push(c);
    }
    let tail: String = tail.into_iter().rev().collect();
    format!("{}{tail}", cut(&text, width.saturating_sub(tail.width())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_say_them() {
        let shown: Vec<String> = [0.0004, 0.24, 8.91, 99.9, 684.0, 3900.0].into_iter().map(seconds).collect();
        assert_eq!(shown, ["0 ms", "240 ms", "8.9 s", "99.9 s", "11 min 24 s", "1 h 5 min"]);
    }

    #[test]
    fn a_line_keeps_its_right_side_and_its_width() {
        assert_eq!(fit("ready", "41.6 s", 20), "ready         41.6 s");
        assert_eq!(fit("a very long text that does not fit", "9 s", 20), "a very long tex… 9 s");
        assert_eq!(fit("left", "", 20), "left");
    }

    #[test]
    fn a_path_keeps_its_ends() {
        assert_eq!(cut_middle("/home/a/.local/state/orch/envs/0123/bin/llama-server", 24), "/home/a/…in/llama-server");
        assert_eq!(cut_middle("/usr/bin/x", 24), "/usr/bin/x");
    }

    #[test]
    fn a_long_text_is_wrapped_and_nothing_of_it_is_lost() {
        let lines = wrap("one two three four five six", "  !  note  ", 31);
        assert_eq!(lines, ["  !  note  one two three four", "           five six"]);
    }
}
