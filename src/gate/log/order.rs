//! Logs whose newest line stands first, as some dashboards export them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::RawPiece;
use super::split::pieces_of_line;

/// The order of a log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As it was written.
    OldestFirst,
    /// Turned around.
    NewestFirst,
}

impl Order {
    /// Told by the clocks in a log's first lines: they go backwards more often than not.
    pub fn of(head: &str) -> Self {
        let times: Vec<u64> = head.lines().filter_map(clock).collect();
        let (mut forward, mut backward) = (0, 0);
        for pair in times.windows(2) {
            forward += u32::from(pair[0] < pair[1]);
            backward += u32::from(pair[0] > pair[1]);
        }
        if backward >= 2 && backward > 4 * forward { Order::NewestFirst } else { Order::OldestFirst }
    }
}

/// The first clock in a line, `12:06:21`, in seconds, or the time since the start of a llama.cpp line.
fn clock(line: &str) -> Option<u64> {
    if let Some(clock) = wall_clock(line.as_bytes()) {
        return Some(clock);
    }
    let (time, _) = line.split_once(' ')?;
    let parts: Vec<u64> = time.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match parts.as_slice() {
        [minutes, seconds, ms, us] => Some(((minutes * 60 + seconds) * 1000 + ms) * 1000 + us),
        _ => None,
    }
}

/// The first clock in a line, `12:06:21`, in seconds of a day.
pub(super) fn wall_clock(bytes: &[u8]) -> Option<u64> {
    let two = |at: usize| -> Option<u64> {
        let (tens, ones) = (bytes.get(at)?, bytes.get(at + 1)?);
        (tens.is_ascii_digit() && ones.is_ascii_digit()).then(|| u64::from((tens - b'0') * 10 + ones - b'0'))
    };
    let at = (0..bytes.len().min(80)).find(|at| {
        bytes.get(at + 2) == Some(&b':')
            && bytes.get(at + 5) == Some(&b':')
            && two(*at).is_some()
            && two(at + 6).is_some()
    })?;
    Some(two(at)? * 3600 + two(at + 3)? * 60 + two(at + 6)?)
}

/// Gives the pieces of a log whose newest line stands first, oldest line first, with the numbers of their lines.
pub fn newest_first(log: &mut File, mut take: impl FnMut(RawPiece<'_>)) -> io::Result<()> {
    const BLOCK: u64 = 256 << 10;
    let mut line_no = lines(log)?;
    let mut at = log.seek(SeekFrom::End(0))?;
    // The end of a line whose beginning is not read yet.
    let mut tail: Vec<u8> = Vec::new();
    let mut block = Vec::new();
    let mut first = true;
    while at > 0 {
        let from = at.saturating_sub(BLOCK);
        block.clear();
        log.seek(SeekFrom::Start(from))?;
        log.by_ref().take(at - from).read_to_end(&mut block)?;
        at = from;
        let mut end = block.len();
        while let Some(feed) = memchr::memrchr(b'\n', &block[..end]) {
            let begin = &block[feed + 1..end];
            // What stands after the last line feed is a line only if there is something.
            if !(first && begin.is_empty()) {
                if tail.is_empty() {
                    pieces_of_line(line_no, begin, &mut take);
                } else {
                    pieces_of_line(line_no, &[begin, &tail].concat(), &mut take);
                    tail.clear();
                }
                line_no -= 1;
            }
            first = false;
            end = feed;
        }
        let mut line = block[..end].to_vec();
        line.append(&mut tail);
        line.truncate(2 * super::PIECE_BYTES);
        tail = line;
    }
    if !tail.is_empty() {
        pieces_of_line(line_no, &tail, &mut take);
    }
    Ok(())
}

/// How many lines there are, the last one without an end among them.
fn lines(log: &mut File) -> io::Result<u64> {
    log.seek(SeekFrom::Start(0))?;
    let (mut count, mut last) = (0, b'\n');
    let mut block = vec![0; 256 << 10];
    loop {
        let read = log.read(&mut block)?;
        if read == 0 {
            break;
        }
        count += memchr::memchr_iter(b'\n', &block[..read]).count() as u64;
        last = block[read - 1];
    }
    Ok(count + u64::from(last != b'\n'))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_order_is_told_by_the_clocks() {
        let forward = "[2026-01-01 10:00:01] a\n[2026-01-01 10:00:02] b\nx\n[2026-01-01 10:00:03] c\n";
        let backward: String = forward.lines().rev().map(|line| format!("{line}\n")).collect();
        assert_eq!((Order::of(forward), Order::of(&backward)), (Order::OldestFirst, Order::NewestFirst));
        assert_eq!(Order::of("0.09.1.2 I c\n0.08.1.2 I b\n0.07.1.2 I a\n"), Order::NewestFirst);
        assert_eq!(Order::of("no\nclock\n"), Order::OldestFirst);
    }

    #[test]
    fn lines_keep_their_numbers() {
        for text in ["c\nbar 1\rbar 2\na\n", "c\nbar 1\rbar 2\na"] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let mut pieces = Vec::new();
            newest_first(&mut file, |piece| {
                pieces.push((piece.line_no, String::from_utf8_lossy(piece.bytes).into_owned()));
            })
            .unwrap();
            let expected = [(3, "a"), (2, "bar 1"), (2, "bar 2"), (1, "c")];
            assert_eq!(pieces, expected.map(|(line, text)| (line, text.to_owned())));
        }
    }
}
