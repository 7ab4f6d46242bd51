//! From bytes to pieces: what stands between two line ends of either kind. Most pieces of a long log are never decoded.

use std::borrow::Cow;

/// More of a piece than this is not kept: a server that writes gigabytes without a line end costs no more memory.
pub const PIECE_BYTES: usize = 64 << 10;

/// What begins a terminal sequence.
pub(super) const ESCAPE: u8 = 0x1b;

/// What stands between two line feeds or carriage returns, colours taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of its line, from 1; only line feeds count, so that the pieces of a progress bar share one.
    pub line_no: u64,
    /// Its text. Bytes that are no UTF-8 stand as U+FFFD.
    pub text: String,
    /// Whether its end was cut off at [`PIECE_BYTES`].
    pub cut: bool,
}

/// A piece as it stands in the log: not decoded yet, and with its colours.
#[derive(Clone, Copy, Debug)]
pub struct RawPiece<'b> {
    /// The number of its line, from 1.
    pub line_no: u64,
    /// Its bytes, at least one.
    pub bytes: &'b [u8],
    /// Whether its end was cut off at [`PIECE_BYTES`].
    pub cut: bool,
}

impl RawPiece<'_> {
    /// Its text; `None` if nothing is left without terminal sequences.
    pub fn decode(&self) -> Option<Piece> {
        let text = plain(String::from_utf8_lossy(self.bytes));
        (!text.is_empty()).then_some(Piece { line_no: self.line_no, text, cut: self.cut })
    }
}

/// Splits a log that comes in blocks of any size.
#[derive(Debug)]
pub struct Splitter {
    line_no: u64,
    kept: Vec<u8>,
    cut: bool,
}

impl Default for Splitter {
    fn default() -> Self {
        Splitter { line_no: 1, kept: Vec::new(), cut: false }
    }
}

impl Splitter {
    /// Takes a block and gives every piece that is complete.
    pub fn feed(&mut self, block: &[u8], mut take: impl FnMut(Piece)) {
        self.feed_raw(block, |raw| raw.decode().into_iter().for_each(&mut take));
    }

    /// [`Splitter::feed`], without a look into the pieces.
    pub fn feed_raw(&mut self, block: &[u8], mut take: impl FnMut(RawPiece<'_>)) {
        let mut from = 0;
        for end in memchr::memchr2_iter(b'\n', b'\r', block) {
            let bytes = &block[from..end];
            // A piece that lies in this block as a whole is not copied.
            if self.kept.is_empty() && bytes.len() <= PIECE_BYTES {
                if !bytes.is_empty() {
                    take(RawPiece { line_no: self.line_no, bytes, cut: false });
                }
            } else {
                self.keep(bytes);
                self.flush(&mut take);
            }
            self.line_no += u64::from(block[end] == b'\n');
            from = end + 1;
        }
        self.keep(&block[from..]);
    }

    /// Gives what stands after the last line end: the last words of a process that was killed.
    pub fn finish(&mut self, mut take: impl FnMut(Piece)) {
        self.finish_raw(|raw| raw.decode().into_iter().for_each(&mut take));
    }

    /// [`Splitter::finish`], without a look into the piece.
    pub fn finish_raw(&mut self, mut take: impl FnMut(RawPiece<'_>)) {
        self.flush(&mut take);
    }

    /// What stands after the last line end so far: a progress bar draws its place first and ends it with the next one.
    pub fn open_end(&self) -> Option<Piece> {
        self.kept_piece().decode()
    }

    /// How many line feeds were seen.
    pub fn lines(&self) -> u64 {
        self.line_no - 1
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = PIECE_BYTES - self.kept.len();
        self.cut |= bytes.len() > room;
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn kept_piece(&self) -> RawPiece<'_> {
        RawPiece { line_no: self.line_no, bytes: &self.kept, cut: self.cut }
    }

    fn flush(&mut self, take: &mut impl FnMut(RawPiece<'_>)) {
        if !self.kept.is_empty() {
            take(self.kept_piece());
        }
        self.kept.clear();
        self.cut = false;
    }
}

/// The pieces of one line, which is there as a whole.
pub(super) fn pieces_of_line(line_no: u64, line: &[u8], mut take: impl FnMut(RawPiece<'_>)) {
    for piece in line.split(|byte| *byte == b'\r').filter(|piece| !piece.is_empty()) {
        let cut = piece.len() > PIECE_BYTES;
        take(RawPiece { line_no, bytes: &piece[..piece.len().min(PIECE_BYTES)], cut });
    }
}

/// The text without terminal sequences: colours and cursor movements (`ESC [ … letter`), titles (`ESC ] … BEL`), and
/// the short ones (`ESC` and one character).
fn plain(text: Cow<'_, str>) -> String {
    if memchr::memchr(ESCAPE, text.as_bytes()).is_none() {
        return text.into_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != char::from(ESCAPE) {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('[') => while chars.next().is_some_and(|c| !('\x40'..='\x7e').contains(&c)) {},
            Some(']') => {
                while let Some(c) = chars.next() {
                    if c == '\x07' || (c == '\x1b' && chars.next_if_eq(&'\\').is_some()) {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(blocks: &[&[u8]]) -> Vec<(u64, String)> {
        let mut splitter = Splitter::default();
        let mut pieces = Vec::new();
        for block in blocks {
            splitter.feed(block, |piece| pieces.push((piece.line_no, piece.text)));
        }
        splitter.finish(|piece| pieces.push((piece.line_no, piece.text)));
        pieces
    }

    #[test]
    fn a_bar_is_many_pieces_of_one_line() {
        let pieces = split(&[b"loading\n\r  0%\r 50%\r100%\ndone\r\nlast words"]);
        let expected = [(1, "loading"), (2, "  0%"), (2, " 50%"), (2, "100%"), (3, "done"), (4, "last words")];
        assert_eq!(pieces, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn empty_lines_are_counted_and_not_given() {
        assert_eq!(split(&[b"\n\na\n\n"]), [(3, "a".to_owned())]);
    }

    #[test]
    fn colours_and_titles_are_taken_out() {
        let pieces = split(&[b"\x1b[1;33mwarning\x1b[0m: \x1b]0;title\x07x\x1b]8;;u\x1b\\y\x1b(Bz\n\x1b[0m\n"]);
        assert_eq!(pieces, [(1, "warning: xyBz".to_owned())]);
    }

    #[test]
    fn bytes_that_are_no_text_do_not_stop_it() {
        assert_eq!(split(&[b"a\xff\xfeb\n"]), [(1, "a\u{fffd}\u{fffd}b".to_owned())]);
        let bar = "100%|██████|\n".as_bytes();
        // In the middle of a character.
        assert_eq!(split(&[&bar[..7], &bar[7..]]), [(1, "100%|██████|".to_owned())]);
    }

    #[test]
    fn a_line_without_an_end_is_cut_and_what_follows_is_whole() {
        let mut splitter = Splitter::default();
        let mut pieces = Vec::new();
        for _ in 0..100 {
            splitter.feed(&[b'x'; 10_000], |piece| pieces.push(piece));
        }
        assert!(splitter.kept.capacity() <= 2 * PIECE_BYTES);
        splitter.feed(b"\nnext\n", |piece| pieces.push(piece));
        assert_eq!((pieces[0].text.len(), pieces[0].cut), (PIECE_BYTES, true));
        assert_eq!((pieces[1].text.as_str(), pieces[1].cut, pieces[1].line_no), ("next", false, 2));
    }

    proptest! {
        #[test]
        fn where_the_blocks_end_makes_no_difference(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(0x1b), Just(b'['), any::<u8>()], 0..200),
            at in prop::collection::vec(0_usize..200, 0..4),
        ) {
            let mut cuts: Vec<usize> = at.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let blocks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(split(&blocks), split(&[&bytes]));
        }
    }
}
