//! Faults that are found only after a profile was read, shown where a person wrote what they are about.
//!
//! Whoever holds a profile against an engine or a machine knows keys and no files. The merged tree knows for each key
//! which file, or which `--set`, had the last word.

use super::fault::{Fault, ProfileError};
use super::load::Loaded;
use super::source::{Place, Sources};
use super::tree::{Node, Value};

/// A fault that knows which key of the profile it is about, and not where that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// The whole code, such as `orch::render::owned_flag`.
    pub code: String,
    /// The key's path, such as `flags.port`, `bench.single.output` or `args[2]`, counted from 0.
    pub key: String,
    /// What is wrong; a lower-case fragment that names the key.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// The texts that a profile was made of, and where in them its keys stand.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// What was asked for.
    pub(super) asked: String,
    pub(super) sources: Sources,
    /// The merged tree.
    pub(super) root: Node,
}

impl Loaded {
    /// Faults of this profile that were found after it was loaded, drawn like those of the loading itself: at the key,
    /// else at the innermost of the maps around it that the profile has.
    pub fn faults(&self, faults: impl IntoIterator<Item = Misplaced>) -> ProfileError {
        let Places { asked, sources, root } = &self.places;
        let faults = faults.into_iter().map(|Misplaced { code, key, message, help }| {
            let fault = Fault::new(code, message);
            let fault = match (find(root, &key), self.layers.last()) {
                (Some(Spot { place, missing: None }), _) => fault.at(place, "set here"),
                (Some(Spot { place, missing: Some(key) }), _) => fault.at(place, format!("without `{key}`")),
                // The root's own place is that of the uppermost layer, which need not be a file at all.
                (None, Some(file)) => fault.in_file(file, None),
                (None, None) => fault,
            };
            help.into_iter().fold(fault, Fault::help)
        });
        ProfileError::new(asked, sources, faults.collect())
    }
}

/// Where a key stands.
#[derive(Debug, PartialEq)]
pub(super) struct Spot<'k> {
    pub(super) place: Place,
    /// What of the key is not there, so that the place is the one of what is around it.
    missing: Option<&'k str>,
}

/// The innermost place that a tree has on the way to a key.
pub(super) fn find<'k>(root: &Node, key: &'k str) -> Option<Spot<'k>> {
    let (mut node, mut rest) = (root, key);
    let mut place = None;
    while !rest.is_empty() {
        let Some((below, at, len)) = step(node, rest) else { break };
        (node, place) = (below, Some(at));
        rest = &rest[len..];
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    place.map(|place| Spot { place, missing: (!rest.is_empty()).then_some(rest) })
}

/// One step down a path: the value, its place, and how many bytes of the path the step was.
fn step<'n>(node: &'n Node, path: &str) -> Option<(&'n Node, Place, usize)> {
    match &node.value {
        Value::Map(map) => {
            // Names of flags, variables and measurements may have dots of their own: the longest key that fits is it.
            let fits = |key: &&String| {
                path.strip_prefix(key.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            };
            let key = map.entries.keys().filter(fits).max_by_key(|key| key.len())?;
            let entry = &map.entries[key];
            Some((&entry.node, entry.key, key.len()))
        }
        Value::List(items) => {
            let (index, _) = path.strip_prefix('[')?.split_once(']')?;
            let item = items.get(index.parse::<usize>().ok()?)?;
            Some((item, item.place, index.len() + 2))
        }
        Value::Null | Value::Scalar(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::super::source::Sources;
    use super::*;

    const TEXT: &str = "\
flags: {port: 1, a: 2, a.b: 3}
args: [--x, --y=1]
bench:
  one.two: {requests: 8}
";

    /// The text at the place of a key, and what of the key is missing there.
    fn found(key: &str) -> Option<(String, Option<String>)> {
        let mut sources = Sources::default();
        let source = sources.add("a.yaml", TEXT, None);
        let mut faults = Vec::new();
        let root = read::yaml(&sources, source, TEXT, 0, &mut faults).unwrap();
        assert_eq!(faults, []);
        let spot = find(&root, key)?;
        let Place { start, len, .. } = spot.place;
        Some((TEXT[start..start + len].to_owned(), spot.missing.map(str::to_owned)))
    }

    #[test]
    fn a_key_stands_where_it_is_written_whatever_dots_it_has() {
        for (key, text) in [
            ("flags", "flags"),
            ("flags.port", "port"),
            ("flags.a", "a"),
            ("flags.a.b", "a.b"),
            ("args", "args"),
            ("args[0]", "--x"),
            ("args[1]", "--y=1"),
            ("bench.one.two.requests", "requests"),
        ] {
            assert_eq!(found(key), Some((text.to_owned(), None)), "{key}");
        }
    }

    #[test]
    fn a_key_that_is_not_there_is_told_at_what_is_around_it() {
        for (key, text, missing) in [
            ("flags.host", "flags", "host"),
            ("flags.portal", "flags", "portal"),
            ("args[2]", "args", "[2]"),
            ("args[x]", "args", "[x]"),
            ("bench.one.two.output.exact", "one.two", "output.exact"),
            ("bench.one", "bench", "one"),
        ] {
            assert_eq!(found(key), Some((text.to_owned(), Some(missing.to_owned()))), "{key}");
        }
        assert_eq!(found("engine.executable"), None);
        assert_eq!(found(""), None);
    }
}
