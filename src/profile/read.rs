//! From a file to a tree. Whatever the file holds, reading it costs little: size is checked first, depth, aliases and
//! the number of values are limited.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_yaml::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_yaml::{Spanned, budget, options};

use super::fault::Fault;
use super::source::{Place, SourceId, Sources};
use super::tree::{Node, Planter, Raw, Value};

/// The largest file that is read as YAML.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads a text file that a person wrote. `Err` is a fault without a place, or with one when the text was readable.
pub(crate) fn text(path: &Path, limit_bytes: u64) -> Result<String, Fault> {
    let name = path.display();
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Fault::new("not_found", format!("there is no file `{name}`")).in_file(path, None),
        _ => Fault::new("unreadable", format!("cannot read `{name}`: {error}")).in_file(path, None),
    };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(Fault::new("not_a_file", format!("`{name}` is a folder, not a file")).in_file(path, None));
    }
    // A pipe or a device may never end, or never begin.
    if !metadata.is_file() {
        return Err(Fault::new("not_a_file", format!("`{name}` is not an ordinary file")).in_file(path, None));
    }
    let too_large = || {
        Fault::new("too_large", format!("`{name}` is larger than {}", crate::units::bytes_text(limit_bytes)))
            .in_file(path, None)
            .help("is it the right file?")
    };
    if metadata.len() > limit_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // Files of /proc say that they are empty and are not, and any file may grow meanwhile.
    File::open(path).and_then(|file| file.take(limit_bytes + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > limit_bytes {
        return Err(too_large());
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Err(Fault::new("not_text", format!("`{name}` is binary: byte {at} is zero"))
            .in_file(path, None)
            .help("a file that a person writes is UTF-8 text"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        Fault::new("not_text", format!("`{name}` is not UTF-8: byte {at}, in line {line}"))
            .in_file(path, Some(line))
            .help("save the file as UTF-8")
    })
}

/// Reads YAML into a tree. `text` begins at byte `offset` of the source; `None` means that a fault says why not.
pub(crate) fn yaml(
    sources: &Sources,
    source: SourceId,
    text: &str,
    offset: usize,
    faults: &mut Vec<Fault>,
) -> Option<Node> {
    let options = options! {
        budget: budget! {
            max_depth: 32,
            max_nodes: 20_000,
            max_events: 50_000,
            max_aliases: 200,
            max_total_scalar_bytes: 1 << 20,
        },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        // `<<` would be a second way to say `extends`, with rules of its own.
        merge_keys: MergeKeyPolicy::AsOrdinary,
        reject_unsupported_tags: true,
        // Whether `.inf` makes sense is for the key to say.
        non_finite_float_policy: serde_yaml::options::NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    match serde_yaml::from_str_with_options::<Spanned<Raw>>(text, options) {
        Ok(raw) => {
            let mut node = Planter { text, source, offset, faults }.node(raw);
            if node.value == Value::Null {
                node.place = Place { source, start: offset, len: text.len() };
            }
            Some(node)
        }
        Err(error) => {
            faults.push(syntax_fault(sources, source, text, offset, &error));
            None
        }
    }
}

fn syntax_fault(sources: &Sources, source: SourceId, text: &str, offset: usize, error: &serde_yaml::Error) -> Fault {
    let place = error.location().map(|location| {
        let start = byte_of(text, location);
        let len = text[start..].chars().next().map_or(0, char::len_utf8);
        Place { source, start: offset + start, len }
    });
    let mut error = error.without_snippet();
    while let serde_yaml::Error::AliasError { error: inner, .. } = error {
        error = inner;
    }
    let costly = match error {
        serde_yaml::Error::Budget { breach, .. } => Some(breach_text(breach)),
        serde_yaml::Error::AliasReplayLimitExceeded { .. }
        | serde_yaml::Error::AliasExpansionLimitExceeded { .. }
        | serde_yaml::Error::AliasReplayStackDepthExceeded { .. } => Some("aliases multiply its values".to_owned()),
        // The parser has a limit of its own below ours, and no variant for it.
        error if error.render().contains("recursion limit") => Some("it is nested too deep".to_owned()),
        _ => None,
    };
    if let Some(why) = costly {
        let fault = Fault::new("too_costly", format!("this YAML costs too much to read: {why}"))
            .help("a profile is small and flat; this looks damaged or hostile");
        return with_place(fault, place, "here the limit is passed");
    }
    let said = syntax_text(error);
    let line = place.map_or(1, |place| sources.line_column(place).0);
    // A tab that continues a value is told at the value's first line, any other one at its own or the next.
    let (first, last) = if said.contains("tab") { (line, usize::MAX) } else { (line.saturating_sub(1), line) };
    if let Some(tab) = tab_in_indentation(text, first, last) {
        let place = Place { source, start: offset + tab.start, len: tab.len() };
        return Fault::new("tab", "a tab in the indentation")
            .at(place, "a tab")
            .help("YAML is indented by spaces; write two spaces for the tab");
    }
    let fault = with_place(Fault::new("syntax", format!("not valid YAML: {said}")), place, "here");
    match text.lines().nth(line.saturating_sub(1)) {
        Some(line) if said.contains("flow") && line.contains("${") => {
            fault.help("inside `{…}` and `[…]`, put a value with `${NAME}` in quotes: \"${NAME}\"")
        }
        _ if said == SECOND_DOCUMENT => {
            fault.help("take the line `---` out, or put what follows into a file of its own")
        }
        _ => match left_open(text, line) {
            Some((number, bracket)) => fault.help(format!("line {number} opens `{bracket}` and does not close it")),
            None => fault,
        },
    }
}

/// The last line before one (from 1) that opens a bracket without closing it: readers stumble over what comes after.
/// Brackets in quotes and comments open nothing.
fn left_open(text: &str, before: usize) -> Option<(usize, char)> {
    let mut open: Vec<(usize, char)> = Vec::new();
    for (number, line) in text.lines().enumerate().take(before.saturating_sub(1)) {
        let (mut quote, mut last) = (None, ' ');
        for letter in line.chars() {
            match (quote, letter) {
                (Some(known), _) if known == letter => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => quote = Some(letter),
                (None, '#') if last.is_whitespace() => break,
                (None, '[' | '{') => open.push((number + 1, letter)),
                (None, ']' | '}') => {
                    open.pop();
                }
                _ => {}
            }
            last = letter;
        }
    }
    open.pop()
}

/// Where the reader stumbled; it knows bytes for values only, else line and column.
fn byte_of(text: &str, location: serde_yaml::Location) -> usize {
    if let Some(byte) = location.span().byte_offset().filter(|byte| *byte > 0) {
        return usize::try_from(byte).unwrap_or(usize::MAX).min(text.len());
    }
    let (line, column) = (location.line().max(1) as usize, location.column().max(1) as usize);
    let mut start = 0;
    for (number, text) in text.split_inclusive('\n').enumerate() {
        if number + 1 == line {
            let within = text.trim_end_matches('\n').char_indices().nth(column - 1);
            return start + within.map_or(text.trim_end_matches('\n').len(), |(at, _)| at);
        }
        start += text.len();
    }
    text.len()
}

fn with_place(fault: Fault, place: Option<Place>, label: &str) -> Fault {
    match place {
        Some(place) => fault.at(place, label),
        None => fault,
    }
}

fn breach_text(breach: &serde_yaml::budget::BudgetBreach) -> String {
    use serde_yaml::budget::BudgetBreach;
    match breach {
        BudgetBreach::Depth { .. } => "it is nested too deep".to_owned(),
        BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => "it holds more than 20,000 values".to_owned(),
        BudgetBreach::Aliases { .. } | BudgetBreach::AliasAnchorRatio { .. } | BudgetBreach::Anchors { .. } => {
            "it holds too many aliases".to_owned()
        }
        BudgetBreach::RecordedAnchorEvents { .. } | BudgetBreach::RecordedAnchorBytes { .. } => {
            "its anchors hold too much".to_owned()
        }
        other => format!("{other:?}"),
    }
}

const SECOND_DOCUMENT: &str = "a second document begins (`---`), and one file holds one";

/// The reader's words, without the position that the drawing shows anyway.
fn syntax_text(error: &serde_yaml::Error) -> String {
    match error {
        serde_yaml::Error::MultipleDocuments { .. } => {
            return SECOND_DOCUMENT.to_owned();
        }
        serde_yaml::Error::NullIntoString { .. } => return "a key is empty".to_owned(),
        serde_yaml::Error::Unexpected { expected: "string scalar", .. } => {
            return "a key is a list or a map, and keys are words".to_owned();
        }
        _ => {}
    }
    let text = error.render();
    let text = text.lines().next().unwrap_or_default();
    let cut = text.split(" at line ").next().unwrap_or(text);
    cut.split(" (line ").next().unwrap_or(cut).trim_end_matches('.').to_owned()
}

/// The first tab among the blanks that begin a line, between two lines (from 1, both included): readers complain about
/// what the tab did to a later line, not about the tab.
fn tab_in_indentation(text: &str, first: usize, last: usize) -> Option<std::ops::Range<usize>> {
    let mut start = 0;
    for (number, line) in text.split_inclusive('\n').enumerate().take(last) {
        let blanks = line.len() - line.trim_start_matches([' ', '\t']).len();
        let has_content = number + 1 >= first && !line.trim().is_empty();
        if let Some(at) = line[..blanks].find('\t').filter(|_| has_content) {
            let tabs = line[at..blanks].bytes().take_while(|byte| *byte == b'\t').count();
            return Some(start + at..start + at + tabs);
        }
        start += line.len();
    }
    None
}
