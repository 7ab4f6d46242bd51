//! Whose log it is, by words that only one engine has.

use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::engine::EngineFacts;
use crate::profile::EngineKind;

/// An engine and the words that are its own.
#[derive(Clone, Debug)]
pub struct Known {
    kind: EngineKind,
    signs: RegexSet,
}

impl Known {
    /// An engine by its definition; a pattern that is no regular expression is its own fault, told elsewhere.
    pub fn of(facts: &EngineFacts) -> Option<Self> {
        let signs = RegexSetBuilder::new(&facts.log.signs).unicode(false).build().ok()?;
        (!signs.is_empty()).then_some(Known { kind: facts.kind, signs })
    }
}

/// The engine whose words a log's beginning holds most, line by line.
pub fn recognise(head: &str, known: &[Known]) -> Option<EngineKind> {
    let count = |engine: &Known| {
        head.split(['\n', '\r']).map(|line| engine.signs.matches(line.as_bytes()).iter().count()).sum::<usize>()
    };
    let counted = known.iter().map(|engine| (count(engine), engine.kind));
    let (most, kind) = counted.max_by_key(|(count, _)| *count)?;
    (most > 0).then_some(kind)
}
