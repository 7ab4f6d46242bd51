//! A diagnosis as a person reads it.

use super::{Diagnosis, Other, State, Together};

/// Columns of what is said beside a word.
const WIDTH: usize = 72;

/// The diagnosis in a few lines; `log` is what the log is called.
pub fn for_people(diagnosis: &Diagnosis, log: &str) -> String {
    let engine = diagnosis.engine.as_deref().unwrap_or("of an engine that is not known");
    let version = diagnosis.engine_version.as_deref().map_or_else(String::new, |version| format!(" {version}"));
    let kind =
        diagnosis.failure_kind.as_deref().map_or_else(String::new, |kind| format!(", {}", kind.replace('_', " ")));
    let state = diagnosis.state.word().to_uppercase();
    let mut out = format!("{state}{kind}: {engine}{version}\n");
    let mut say = |word: &str, text: &str| {
        for (number, part) in wrapped(text).into_iter().enumerate() {
            out.push_str(&format!("  {:<4}  {part}\n", if number == 0 { word } else { "" }));
        }
    };
    if let Some(phase) = &diagnosis.phase {
        let counter = diagnosis.progress.as_ref().map(|counter| match &counter.total {
            Some(total) => format!(", {} of {total} {}", counter.done, counter.unit),
            None => format!(", {} {}", counter.done, counter.unit),
        });
        say("at", &format!("phase {phase}{}", counter.unwrap_or_default()));
    }
    if let (Some(line), Some(number)) = (&diagnosis.root_cause_line, diagnosis.root_cause_line_no) {
        say("line", &format!("{log}:{number}  {}", shown(line)));
    }
    for (number, line) in &diagnosis.consequences {
        say("not", &format!("{log}:{number}  {}  (a result)", shown(line)));
    }
    if diagnosis.memory.len() > 1 && diagnosis.state != State::Ready {
        let trail: Vec<String> = diagnosis.memory.iter().map(|(phase, _, free)| format!("{phase} {free}")).collect();
        say("free", &format!("GB, of the rank with the least: {}", trail.join(", ")));
    }
    if let Some(why) = &diagnosis.explanation {
        say("why", why);
    }
    if let Some(remedy) = &diagnosis.remedy {
        say("do", remedy);
    }
    out
}

/// Several logs together: the one with the cause, and a line for each of the others.
pub fn for_people_together(together: &Together) -> String {
    let mut out = for_people(&together.diagnosis, &together.log);
    for Other { log, state, phase, failure_kind, root_cause_line_no } in &together.others {
        let kind = failure_kind.as_deref().map_or_else(String::new, |kind| format!(", {}", kind.replace('_', " ")));
        let line = root_cause_line_no.map_or_else(String::new, |number| format!(" (line {number})"));
        let text = match phase {
            Some(phase) => format!("{log}  {}{kind}{line}, phase {phase}", state.word()),
            None => format!("{log}  nothing was ever said there: its rank never started"),
        };
        out.push_str(&format!("  also  {}\n", shown(&text)));
    }
    out
}

/// Without what could steer a terminal, and not longer than a few lines.
fn shown(line: &str) -> String {
    let plain: String = line.trim().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(400).collect();
    plain
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut();
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
