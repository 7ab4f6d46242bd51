//! What a person wrote, and where: the texts that a profile is made of, and places in them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of a text among [`Sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SourceId(pub(crate) u32);

/// A stretch of a text, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) source: SourceId,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Place {
    /// A part of this place; for texts that stand in the source as they are read.
    pub(crate) fn part(self, start: usize, len: usize) -> Place {
        Place { source: self.source, start: self.start + start, len }
    }
}

/// One text.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// What a person calls it: a path as it was given, `--set #2`, or a name with `builtin:` before it.
    pub(crate) name: String,
    pub(crate) text: Arc<str>,
    /// Where relative paths in it begin; `None` for `--set` and for what is built in.
    pub(crate) folder: Option<PathBuf>,
}

/// The texts of one loading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(Vec<Source>);

impl Sources {
    pub(crate) fn add(&mut self, name: impl Into<String>, text: &str, folder: Option<&Path>) -> SourceId {
        let id = SourceId(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        self.0.push(Source { name: name.into(), text: text.into(), folder: folder.map(Path::to_owned) });
        id
    }

    pub(crate) fn get(&self, id: SourceId) -> &Source {
        &self.0[id.0 as usize]
    }

    /// Line and column of a place, both from 1, the column in characters.
    pub(crate) fn line_column(&self, place: Place) -> (usize, usize) {
        let text = &self.get(place.source).text;
        let before = &text.as_bytes()[..place.start.min(text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let column = String::from_utf8_lossy(&before[line_start..]).chars().count() + 1;
        (line, column)
    }

    /// Whether the lines around a place are short enough to be shown to a person.
    pub(crate) fn is_drawable(&self, place: Place) -> bool {
        const LONGEST: usize = 400;
        let text = self.get(place.source).text.as_bytes();
        let start = place.start.min(text.len());
        let end = (start + place.len).min(text.len());
        // A drawing has the line before and the line after it too.
        let before: Vec<_> = text[..start].rsplitn(3, |byte| *byte == b'\n').take(2).collect();
        let after: Vec<_> = text[end..].splitn(3, |byte| *byte == b'\n').take(2).collect();
        let own = before[0].len() + (end - start) + after[0].len();
        own <= LONGEST && before.iter().chain(&after).all(|line| line.len() <= LONGEST)
    }

    /// `profiles/a.yaml:9:13`.
    pub(crate) fn describe(&self, place: Place) -> String {
        let (line, column) = self.line_column(place);
        format!("{}:{line}:{column}", self.get(place.source).name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_not_bytes() {
        let mut sources = Sources::default();
        let source = sources.add("a.yaml", "x: 1\nnäme: 2\n", None);
        let start = "x: 1\nnäme: ".len();
        assert_eq!(sources.line_column(Place { source, start, len: 1 }), (2, 7));
        assert_eq!(sources.describe(Place { source, start: 0, len: 1 }), "a.yaml:1:1");
    }
}
