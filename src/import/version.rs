//! For which version a command was written: what somebody said, what the image's tag says, or what its spellings tell.

use super::Draft;
use crate::engine::{Choice, Definition, Spelling, Version};

/// Sets the condition on the version, if there is something to say.
pub(super) fn choose(draft: &mut Draft, seen: &[(&str, &Spelling)], definition: &Definition, said: Option<Version>) {
    if let Some(version) = said {
        draft.engine.version = Some(format!("=={version}"));
        return;
    }
    let Some(preferred) = definition.verified.first() else { return };
    let fits = |version: &Version, (key, spelling): &(&str, &Spelling)| {
        let Some(row) = definition.settings.get(*key) else { return true };
        match row.choose(version, &draft.settings) {
            // Another name of the same flag is as good, and one without flags of its own has nothing to tell.
            Choice::Known(chosen) => {
                let mut names = spelling.names().peekable();
                names.peek().is_none() || names.any(|name| chosen.names().any(|other| other == name))
            }
            _ => false,
        }
    };
    let Some(other) = seen.iter().find(|seen| !fits(preferred, seen)) else { return };
    let (_, spelling) = other;
    let words = spelling.flag.first().or_else(|| spelling.off.as_ref()?.first()).cloned().unwrap_or_default();
    let verified = definition.verified.iter().find(|version| seen.iter().all(|seen| fits(version, seen)));
    let (bound, text) = match (&spelling.until, &spelling.from) {
        (Some(until), _) => (until, format!("up to {until}")),
        (None, Some(from)) => (from, format!("from {from} on")),
        (None, None) => return,
    };
    let requirement = match (verified, spelling.until.is_some()) {
        (Some(_), true) => format!("<={bound}"),
        (Some(_), false) => format!(">={bound}"),
        // None of the versions that orch knows spells it so: then the one at the limit is named.
        (None, _) => format!("=={bound}"),
    };
    draft.engine.version = Some(requirement);
    draft.note_on("engine", format!("`{words}` is written so {text}: name the version that you have"));
}
