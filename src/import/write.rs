//! A draft as the text of a profile: short, in the profile's own order, with comments only where a person must look.

use indexmap::IndexMap;
use serde_json::Value;

use super::{Draft, open};
use crate::engine::settings::{KEYS, plain};
use crate::profile::Flag;

/// A line longer than this is broken.
const WIDTH: usize = 110;

impl Draft {
    /// The profile as YAML. `from` says where it comes from.
    pub fn yaml(&self, from: &str) -> String {
        let mut page = Page { draft: self, text: String::new(), told: Vec::new() };
        page.comment(&format!("Imported from {}.", one_line(from)));
        for note in self.notes.iter().filter(|note| note.key.is_none()) {
            page.comment(&note.text);
        }
        page.engine();
        page.model();
        page.scalar("port");
        page.group("parallel");
        page.group("speculative");
        page.group("memory");
        page.scalar("context_length");
        page.scalar("max_running_requests");
        page.group("graphs");
        page.scalar("attention_backend");
        page.flags();
        let args: Vec<String> = self.args.iter().map(|word| scalar(word)).collect();
        page.list("args", &args);
        let env = self.env.iter().map(|(name, value)| (name.clone(), quoted_number(value))).collect();
        page.map("env", &env);
        page.list("secrets", &self.secrets);
        page.instrument();
        page.launch();
        page.rest();
        page.text
    }
}

struct Page<'a> {
    draft: &'a Draft,
    text: String,
    /// Keys whose notes are written.
    told: Vec<&'a str>,
}

impl<'a> Page<'a> {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn comment(&mut self, text: &str) {
        let mut line = String::from("#");
        for word in one_line(text).split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > WIDTH && line.len() > 1 {
                self.line(&line);
                line = String::from("#  ");
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(&line);
    }

    /// What is to be said of a key, above it.
    fn notes(&mut self, key: &str) {
        let draft = self.draft;
        for note in draft.notes.iter().filter(|note| note.key.as_deref() == Some(key)) {
            self.comment(&note.text);
            self.told.extend(note.key.as_deref());
        }
    }

    /// What is said of keys that are not there after all.
    fn rest(&mut self) {
        let draft = self.draft;
        for note in draft
            .notes
            .iter()
            .filter(|note| note.key.as_deref().is_some_and(|key| !self.told.contains(&key)))
            .collect::<Vec<_>>()
        {
            self.comment(&note.text);
        }
    }

    fn setting(&self, key: &str) -> Option<String> {
        self.draft.settings.get(key).map(|value| setting(key, value))
    }

    fn engine(&mut self) {
        self.notes("engine");
        let engine = &self.draft.engine;
        let kind = engine.kind.word();
        if let Some(scenario) = &engine.scenario {
            return self.line(&format!("engine: {{kind: {kind}, scenario: {}}}", json(scenario)));
        }
        if !engine.command.is_empty() {
            let words: Vec<String> = engine.command.iter().map(|word| scalar(word)).collect();
            self.line("engine:");
            self.line(&format!("  kind: {kind}"));
            return self.items("  command", &words);
        }
        match (&engine.version, &engine.executable) {
            (None, None) => self.line(&format!("engine: {kind}")),
            (Some(version), None) => self.line(&format!("engine: {kind} {version}")),
            (version, Some(executable)) => {
                let version = version.as_ref().map_or_else(String::new, |version| format!(", version: \"{version}\""));
                self.line(&format!("engine: {{kind: {kind}{version}, executable: {}}}", scalar(executable)));
            }
        }
    }

    fn model(&mut self) {
        self.notes("model");
        let keys = KEYS.iter().filter_map(|key| Some((key.strip_prefix("model.")?, self.setting(key)?)));
        let fields: IndexMap<String, String> = keys.map(|(key, value)| (key.to_owned(), value)).collect();
        let local = |path: &str| path.starts_with(['/', '.', '~', '"', '$']) || path.contains('@');
        match (fields.get("path"), fields.get("revision"), fields.len()) {
            (None, ..) => {}
            (Some(path), None, 1) if !path.contains('@') => self.line(&format!("model: {path}")),
            (Some(path), Some(revision), 2)
                if !local(path) && !revision.starts_with('"') && !revision.contains('@') =>
            {
                self.line(&format!("model: {path}@{revision}"));
            }
            _ => self.map("model", &fields),
        }
    }

    fn scalar(&mut self, key: &str) {
        let Some(value) = self.setting(key) else { return };
        self.notes(key);
        self.line(&format!("{key}: {value}"));
    }

    fn group(&mut self, group: &str) {
        let fields: IndexMap<String, String> = KEYS
            .iter()
            .filter_map(|key| Some((key.strip_prefix(group)?.strip_prefix('.')?.to_owned(), self.setting(key)?)))
            .collect();
        self.map(group, &fields);
    }

    fn flags(&mut self) {
        let flags = self.draft.flags.iter().map(|(name, value)| {
            let value = match value {
                Flag::Switch(on) => on.to_string(),
                Flag::Value(value) => scalar(value),
                Flag::List(values) => {
                    format!("[{}]", values.iter().map(|value| scalar(value)).collect::<Vec<_>>().join(", "))
                }
            };
            (scalar(name), value)
        });
        let flags: IndexMap<String, String> = flags.collect();
        if flags.is_empty() {
            return;
        }
        self.notes("flags");
        self.line("flags:");
        for (name, value) in flags {
            self.line(&format!("  {name}: {value}"));
        }
    }

    /// On one line if it fits.
    fn map(&mut self, key: &str, fields: &IndexMap<String, String>) {
        if fields.is_empty() {
            return;
        }
        self.notes(key);
        let one = fields.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ");
        if key.len() + one.len() + 4 <= WIDTH {
            return self.line(&format!("{key}: {{{one}}}"));
        }
        self.line(&format!("{key}:"));
        for (name, value) in fields {
            self.line(&format!("  {name}: {value}"));
        }
    }

    fn list(&mut self, key: &str, items: &[String]) {
        if items.is_empty() {
            return;
        }
        self.notes(key);
        self.items(key, items);
    }

    fn items(&mut self, key: &str, items: &[String]) {
        let one = items.join(", ");
        if key.len() + one.len() + 4 <= WIDTH {
            return self.line(&format!("{key}: [{one}]"));
        }
        let indent = " ".repeat(key.len() - key.trim_start().len() + 2);
        self.line(&format!("{key}:"));
        for item in items {
            self.line(&format!("{indent}- {item}"));
        }
    }

    fn instrument(&mut self) {
        if self.draft.settings.get("instrument") == Some(&Value::Bool(false)) {
            self.notes("instrument");
            self.line("instrument: off");
        }
    }

    fn launch(&mut self) {
        let Some((image, options)) = &self.draft.container else { return };
        self.notes("launch");
        self.line("launch:");
        self.line("  via:");
        self.line("    docker:");
        self.line(&format!("      image: {}", scalar(image)));
        let options: Vec<String> = options.iter().map(|word| scalar(word)).collect();
        if !options.is_empty() {
            self.items("      options", &options);
        }
    }
}

/// The value of a setting; counts of whole 1,024s as people write them.
fn setting(key: &str, value: &Value) -> String {
    match (key, value) {
        ("context_length", Value::Number(number)) => match number.as_u64() {
            Some(tokens) if tokens >= 8192 && tokens.is_multiple_of(1024) => format!("{}k", tokens / 1024),
            _ => number.to_string(),
        },
        (_, Value::Array(items)) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(", ")),
        (_, Value::String(text)) => scalar(text),
        (_, value) => plain(value),
    }
}

/// JSON is YAML, but for `${`, which a profile would fill in.
fn json(value: &Value) -> String {
    match value {
        Value::String(text) => scalar_quoted(&crate::profile::escape(text)),
        Value::Array(items) => format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{}: {}", scalar_quoted(name), json(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// What is open is set where the profile is read: that was looked at when the draft was made.
fn in_profile(text: &str) -> String {
    open::in_profile(text, &|_| true).unwrap_or_default()
}

/// A text as a scalar that means just this text: plain where nothing could be taken for something else.
fn scalar(text: &str) -> String {
    let text = in_profile(text);
    let inner = |c: char| c.is_ascii_alphanumeric() || "_./+=-".contains(c);
    let first = |c: char| c.is_ascii_alphanumeric() || "_./".contains(c);
    let lower = text.to_ascii_lowercase();
    let word_of_yaml = matches!(lower.as_str(), "true" | "false" | "null" | "." | "..")
        || lower.starts_with(".inf")
        || lower == ".nan";
    if text.starts_with(first) && text.chars().all(inner) && !word_of_yaml { text } else { scalar_quoted(&text) }
}

/// An environment has texts only: a number, or a word that YAML had other plans for, is quoted so that it looks like one.
fn quoted_number(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    match text.parse::<f64>().is_ok() || matches!(lower.as_str(), "on" | "off" | "yes" | "no" | "y" | "n") {
        true => scalar_quoted(text),
        false => scalar(text),
    }
}

fn scalar_quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)))
            }
            c => out.push(c),
        }
    }
    out + "\""
}

/// Nothing in a comment may end it.
fn one_line(text: &str) -> String {
    open::shown(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
