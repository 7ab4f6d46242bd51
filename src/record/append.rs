//! Files of whole lines that only ever grow: the journal of a run, and the baselines.
//!
//! A kill or a full disk may leave half a line. A line counts when its newline is there, so half a line is known by
//! its want of one, and it is cut off before anything more is written.

use std::fs::File;
use std::io::{self, Write};

/// How much of `bytes` is whole lines.
pub(super) fn whole(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1)
}

/// The end of a file of lines, where the next one goes.
#[derive(Debug)]
pub(super) struct Tail {
    file: File,
    /// Bytes of whole lines.
    len: u64,
    /// Whether there may be half a line behind them.
    torn: bool,
}

impl Tail {
    /// The end of `file`, opened for appending, whose first `len` bytes are whole lines. Cuts off what is behind them.
    pub(super) fn new(file: File, len: u64) -> io::Result<Self> {
        let torn = file.metadata()?.len() != len;
        let mut tail = Tail { file, len, torn };
        tail.mend()?;
        Ok(tail)
    }

    /// Writes `line`, which ends with its newline, and syncs it to disk if asked. After an error the file is as before,
    /// or is made so before the next line.
    pub(super) fn push(&mut self, line: &[u8], sync: bool) -> io::Result<()> {
        self.mend()?;
        let written = self.file.write_all(line).and_then(|()| if sync { self.file.sync_data() } else { Ok(()) });
        match written {
            Ok(()) => {
                self.len += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.torn = true;
                // Should this fail as well, `torn` stays and the next line tries again before it is written. The first
                // error is the one that tells.
                let _ = self.mend();
                Err(error)
            }
        }
    }

    fn mend(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.len)?;
            self.torn = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_cut_off_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        std::fs::write(&path, "one\ntw").unwrap();
        let file = File::options().append(true).open(&path).unwrap();
        let mut tail = Tail::new(file, whole(b"one\ntw") as u64).unwrap();
        tail.push(b"three\n", true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\nthree\n");
    }
}
