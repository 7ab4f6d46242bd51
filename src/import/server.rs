//! What a running server says of itself, in the words of its own flags: the rows of the definition once more.

use serde_json::Value;

use super::{Draft, ImportError, Launch};
use crate::engine::{Definition, Version, settings};
use crate::record::model::Effective;

/// The command that a page of its settings tells: the server's own words if it keeps them, else one flag for each field
/// that is named as a flag of a row. `None` for a page that has neither.
pub fn launch(page: &Value, definition: &Definition) -> Option<Launch> {
    let program = ["python3", "-m", "sglang.launch_server"].map(str::to_owned);
    if let Some(said) = page.get("launch_command").and_then(Value::as_str).filter(|said| !said.is_empty()) {
        let words = shell_words::split(said).ok()?;
        // Some keep the program too.
        let begin = words.iter().position(|word| word.starts_with('-')).unwrap_or(0);
        return Some(Launch::of(program.into_iter().chain(words[begin..].iter().cloned())));
    }
    let words = words(page, definition);
    if words.is_empty() {
        return None;
    }
    let mut launch = Launch::of(program.into_iter().chain(words));
    launch
        .notes
        .push("as the server reports itself: what it chose by itself stands here beside what it was told".to_owned());
    Some(launch)
}

/// Fields that are named as flags, as words.
fn words(page: &Value, definition: &Definition) -> Vec<String> {
    let mut words = Vec::new();
    let mut known: Vec<&str> = Vec::new();
    for row in definition.settings.values() {
        for spelling in &row.spellings {
            let switches = [&spelling.on, &spelling.off].into_iter().flatten().filter_map(|said| said.first());
            for flag in spelling.flag.iter().chain(switches) {
                let field = flag.trim_start_matches('-').replace('-', "_");
                let Some(value) = page.get(&field).filter(|_| !known.contains(&flag.as_str())) else { continue };
                known.push(flag);
                match value {
                    Value::Null | Value::Bool(false) | Value::Object(_) => {}
                    Value::Bool(true) => words.push(flag.clone()),
                    Value::Array(items) => {
                        words.push(flag.clone());
                        words.extend(items.iter().map(settings::plain));
                    }
                    value => words.extend([flag.clone(), settings::plain(value)]),
                }
            }
        }
    }
    words
}

/// Fields of the page by the names of flags, for flags that no row spells.
pub fn field<'p>(page: &'p Value, flag: &str) -> Option<&'p Value> {
    page.get(flag.trim_start_matches('-').replace('-', "_"))
}

/// A profile of what a server told and nothing more: for one whose command nobody knows.
pub fn draft(
    definition: &Definition,
    told: &[Effective],
    model: Option<String>,
    port: Option<u16>,
    version: Option<Version>,
) -> Result<Draft, ImportError> {
    let mut draft = Draft::of(definition.kind);
    draft.note(
        "as the server reports itself: what it does not tell, such as its other flags and its environment, is not here",
    );
    let served = told.iter().find(|each| each.key == "model.served_name").and_then(|each| each.read.as_ref()?.as_str());
    let Some(model) = model.or_else(|| served.map(str::to_owned)) else {
        return Err(ImportError::NoModel { command: "a server that lists no model".to_owned() });
    };
    draft.settings.insert("model.path".to_owned(), model.clone().into());
    if let Some(served) = served.filter(|served| *served != settings::last_part(&model)) {
        draft.settings.insert("model.served_name".to_owned(), served.into());
    }
    // Of graphs it tells the largest batch over all ranks, which need not be what it was asked for.
    for key in ["context_length", "max_running_requests"] {
        let value = told.iter().find(|each| each.key == key).and_then(|each| each.read.clone());
        if let Some(value) = value.filter(|value| value.as_u64().is_some_and(|value| value > 0)) {
            draft.settings.insert(key.to_owned(), value);
        }
    }
    draft.settings.extend(port.map(|port| ("port".to_owned(), Value::from(port))));
    if told.iter().any(|each| each.key == "speculative.active" && each.read == Some(Value::Bool(true))) {
        draft.note("it drafts tokens, and does not tell how: set `speculative`");
    }
    draft.engine.version = version.map(|version| format!("=={version}"));
    Ok(draft)
}
