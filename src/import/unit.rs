//! The command of a systemd unit, read as systemd reads it: drop-ins laid over it, lists that an empty value empties,
//! its own quotes, specifiers, and variables.

use indexmap::IndexMap;

use super::shell::{Files, is_variable};
use super::{ImportError, Launch, open};

/// What `%` letters stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manager {
    /// The unit's name, such as `sglang@qwen.service`.
    pub unit: String,
    /// The home of the user whose manager it is.
    pub home: Option<String>,
    /// That user's name.
    pub user: Option<String>,
    /// The machine's name.
    pub machine: Option<String>,
    /// Whether it is a user's own manager and not the system's.
    pub of_user: bool,
}

/// Variables that the manager sets itself, by the user that the unit names.
const OF_MANAGER: &[&str] =
    &["HOME", "USER", "LOGNAME", "SHELL", "PATH", "XDG_RUNTIME_DIR", "INVOCATION_ID", "MAINPID"];

/// Reads a unit. `drop_ins` are laid over it in their order.
pub fn read(text: &str, drop_ins: &[String], manager: &Manager, files: Files<'_>) -> Result<Launch, ImportError> {
    let place = if manager.unit.is_empty() { "the unit" } else { manager.unit.as_str() };
    let mut service = Service::default();
    for text in std::iter::once(text).chain(drop_ins.iter().map(String::as_str)) {
        service.lay(&open::clean(text));
    }
    let unit = Reader { manager, place };
    let (mut notes, mut unread) = (Vec::new(), Vec::new());
    let mut env: IndexMap<String, String> = IndexMap::new();
    for line in &service.environment {
        for word in unit.split(line)? {
            if let Some((name, value)) = word.text.split_once('=').filter(|(name, _)| is_variable(name)) {
                env.insert(name.to_owned(), value.to_owned());
            }
        }
    }
    for file in &service.files {
        let optional = file.starts_with('-');
        let path = unit.specified(file.trim_start_matches('-'));
        match files(&path) {
            Some(text) => env.extend(environment_file(&text)),
            // Also a file that need not be there may be there and not be readable for who asks.
            None if optional => {
                unread.push(format!("{place} reads `{path}` if it is there: it is not, or may not be read"))
            }
            None => unread.push(format!("{place} reads `{path}`, which is not here: what it sets is not known")),
        }
    }
    for name in service.unset.iter().flat_map(|line| line.split_whitespace()) {
        env.shift_remove(name);
    }
    for name in service.pass.iter().flat_map(|line| line.split_whitespace()) {
        env.entry(name.to_owned()).or_insert_with(|| open::variable(name));
    }
    let command = match service.commands.as_slice() {
        [] => return Err(ImportError::Empty { place: place.to_owned() }),
        [one] => one,
        several => {
            let commands = several.iter().map(|command| super::hide(command)).collect();
            return Err(ImportError::Several { place: place.to_owned(), commands });
        }
    };
    let (prefix, command) = command.split_at(command.find(|c| !"-@:+!|".contains(c)).unwrap_or(command.len()));
    let mut words = unit.command(command, &env, !prefix.contains(':'), &mut notes)?;
    // The second word is only the name that the process has.
    if prefix.contains('@') && words.len() > 1 {
        words.remove(1);
    }
    let folder = service.folder.as_deref().map(|folder| unit.specified(folder.trim_start_matches('-')));
    let folder = folder.map(|folder| if folder == "~" { open::variable("HOME") } else { folder });
    if let Some(user) = service.user.filter(|user| user != "root") {
        notes.push(format!("the unit runs it as the user `{user}`: orch runs it as you"));
    }
    Ok(Launch { words, env, folder, programs: None, notes, unread })
}

/// `[Service]`, as far as it matters here.
#[derive(Default)]
struct Service {
    commands: Vec<String>,
    environment: Vec<String>,
    files: Vec<String>,
    unset: Vec<String>,
    pass: Vec<String>,
    folder: Option<String>,
    user: Option<String>,
}

impl Service {
    fn lay(&mut self, text: &str) {
        let mut in_service = false;
        for line in logical_lines(text) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                in_service = section == "Service";
                continue;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| in_service) else { continue };
            let value = value.trim();
            let one = || Some(value.to_owned()).filter(|value| !value.is_empty());
            let list = match key.trim_end() {
                "ExecStart" => &mut self.commands,
                "Environment" => &mut self.environment,
                "EnvironmentFile" => &mut self.files,
                "UnsetEnvironment" => &mut self.unset,
                "PassEnvironment" => &mut self.pass,
                "WorkingDirectory" => {
                    self.folder = one();
                    continue;
                }
                "User" => {
                    self.user = one();
                    continue;
                }
                _ => continue,
            };
            match value {
                "" => list.clear(),
                value => list.push(value.to_owned()),
            }
        }
    }
}

/// Lines with what a backslash joins to them; comments are left out, also in the middle of a joined line.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut joined: Option<String> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with(['#', ';']) || (joined.is_none() && trimmed.is_empty()) {
            continue;
        }
        let line = joined.take().unwrap_or_default() + trimmed;
        match line.strip_suffix('\\') {
            Some(head) => joined = Some(format!("{head} ")),
            None => lines.push(line),
        }
    }
    lines.extend(joined);
    lines
}

/// A file of `NAME=value` lines, as systemd reads it: no variables are filled in.
fn environment_file(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in logical_lines(text) {
        let line = line.strip_prefix("export ").unwrap_or(&line);
        let Some((name, value)) = line.split_once('=').filter(|(name, _)| is_variable(name.trim())) else { continue };
        let value = value.trim();
        let quoted = |quote: char| value.len() > 1 && value.starts_with(quote) && value.ends_with(quote);
        let value = match (quoted('"'), quoted('\'')) {
            (true, _) => unescaped(&value[1..value.len() - 1]),
            (_, true) => value[1..value.len() - 1].to_owned(),
            _ => value.to_owned(),
        };
        found.push((name.trim().to_owned(), value));
    }
    found
}

/// In double quotes a backslash takes its meaning from quotes and backslashes only.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match chars.peek() {
            Some(next) if c == '\\' && "\"\\$`".contains(*next) => {}
            _ => out.push(c),
        }
    }
    out
}

/// A word, and whether it was written without quotes, so that `$NAME` alone may become several.
struct Word {
    text: String,
    bare: bool,
}

impl Word {
    fn begun() -> Self {
        Word { text: String::new(), bare: true }
    }
}

struct Reader<'a> {
    manager: &'a Manager,
    place: &'a str,
}

impl Reader<'_> {
    fn command(
        &self,
        text: &str,
        env: &IndexMap<String, String>,
        variables: bool,
        notes: &mut Vec<String>,
    ) -> Result<Vec<String>, ImportError> {
        let mut words = Vec::new();
        for (place, word) in self.split(text)?.into_iter().enumerate() {
            if !variables || place == 0 {
                words.push(word.text);
                continue;
            }
            let name = word.text.strip_prefix('$').filter(|name| word.bare && is_variable(name));
            match name {
                Some(name) => words.extend(value(name, env, notes).split_whitespace().map(str::to_owned)),
                None => words.push(filled(&word.text, env, notes)),
            }
        }
        Ok(words)
    }

    /// Words by systemd's own quotes and escapes, with specifiers filled in.
    fn split(&self, text: &str) -> Result<Vec<Word>, ImportError> {
        let mut words = Vec::new();
        let mut word: Option<Word> = None;
        let mut quote: Option<char> = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match (c, quote) {
                (c, None) if c.is_whitespace() => words.extend(word.take()),
                ('"' | '\'', None) => {
                    quote = Some(c);
                    word.get_or_insert_with(Word::begun).bare = false;
                }
                (c, Some(open)) if c == open => quote = None,
                ('\\', _) => {
                    let text = escape(&mut chars);
                    word.get_or_insert_with(Word::begun).text.push_str(&text);
                }
                ('%', _) => {
                    let letter = chars.next().unwrap_or('%');
                    let text = self.specifier(letter);
                    word.get_or_insert_with(Word::begun).text.push_str(&text);
                }
                (c, _) => word.get_or_insert_with(Word::begun).text.push(c),
            }
        }
        if quote.is_some() {
            let why = format!("a quote does not close in `{}`", super::hide(text));
            return Err(ImportError::Syntax { place: self.place.to_owned(), line: 1, why });
        }
        words.extend(word);
        Ok(words)
    }

    fn specified(&self, text: &str) -> String {
        let mut out = String::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                '%' => out.push_str(&self.specifier(chars.next().unwrap_or('%'))),
                c => out.push(c),
            }
        }
        out
    }

    fn specifier(&self, letter: char) -> String {
        let Manager { unit, home, user, machine, of_user } = self.manager;
        let stem = unit.rsplit_once('.').map_or(unit.as_str(), |(stem, _)| stem);
        let (prefix, instance) = stem.split_once('@').unwrap_or((stem, ""));
        let or_open = |known: &Option<String>, name: &str| known.clone().unwrap_or_else(|| open::variable(name));
        let home = || or_open(home, "HOME");
        let at = |system: &str, own: &str| if *of_user { format!("{}/{own}", home()) } else { system.to_owned() };
        match letter {
            '%' => "%".to_owned(),
            'n' => unit.clone(),
            'N' => stem.to_owned(),
            'p' => prefix.to_owned(),
            'P' => plain_path(prefix),
            'j' => prefix.rsplit('-').next().unwrap_or(prefix).to_owned(),
            'i' => instance.to_owned(),
            'I' => plain_path(instance),
            'h' => home(),
            'u' => or_open(user, "USER"),
            'H' | 'l' => or_open(machine, "HOSTNAME"),
            't' => {
                if *of_user {
                    open::variable("XDG_RUNTIME_DIR")
                } else {
                    "/run".to_owned()
                }
            }
            'S' => at("/var/lib", ".local/state"),
            'C' => at("/var/cache", ".cache"),
            'L' => at("/var/log", ".local/state/log"),
            'E' => at("/etc", ".config"),
            'T' => "/tmp".to_owned(),
            'V' => "/var/tmp".to_owned(),
            _ => open::unknown(),
        }
    }
}

/// `-` is `/` in an escaped name, and `\x2d` a dash.
fn plain_path(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '-' => out.push('/'),
            '\\' => out.push_str(&escape(&mut chars)),
            c => out.push(c),
        }
    }
    out
}

/// What a backslash and the letters after it stand for.
fn escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let digits = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>, base: u32, most: usize| {
        let mut code = 0_u32;
        for _ in 0..most {
            let Some(digit) = chars.peek().and_then(|c| c.to_digit(base)) else { break };
            code = code.saturating_mul(base).saturating_add(digit);
            chars.next();
        }
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).to_string()
    };
    match chars.next() {
        Some('n') => "\n".to_owned(),
        Some('t') => "\t".to_owned(),
        Some('r') => "\r".to_owned(),
        Some('s') => " ".to_owned(),
        Some('a') => "\u{7}".to_owned(),
        Some('x') => digits(chars, 16, 2),
        Some('u') => digits(chars, 16, 4),
        Some(c @ '0'..='7') => {
            let first = c.to_digit(8).unwrap_or(0);
            let rest = digits(chars, 8, 2);
            let code = rest.chars().next().map_or(first, |rest| first * 64 + u32::from(rest));
            char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).to_string()
        }
        Some(c @ ('"' | '\'' | '\\')) => c.to_string(),
        Some(c) => format!("\\{c}"),
        None => "\\".to_owned(),
    }
}

/// `${NAME}` anywhere in a word; `$$` is one `$`.
fn filled(word: &str, env: &IndexMap<String, String>, notes: &mut Vec<String>) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let name =
            after.strip_prefix('{').and_then(|after| after.split_once('}')).filter(|(name, _)| is_variable(name));
        match name {
            Some((name, after)) => {
                out.push_str(&value(name, env, notes));
                rest = after;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out + rest
}

/// A variable that nothing sets is nothing, as for systemd.
fn value(name: &str, env: &IndexMap<String, String>, notes: &mut Vec<String>) -> String {
    match env.get(name) {
        Some(value) => value.clone(),
        None if OF_MANAGER.contains(&name) => open::variable(name),
        None => {
            notes.push(format!("the unit uses `${name}`, which nothing that was read sets: it stands for nothing"));
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(text: &str, drop_ins: &[&str]) -> Launch {
        let manager =
            Manager { unit: "sglang@qwen-27b.service".into(), home: Some("/root".into()), ..Manager::default() };
        let drop_ins: Vec<String> = drop_ins.iter().map(|text| (*text).to_owned()).collect();
        let files = |path: &str| {
            (path == "/etc/sglang/qwen-27b.env").then(|| "# x\nTP=2\nEXTRA=\"--a b\"\nQ='it is'\n".to_owned())
        };
        read(text, &drop_ins, &manager, &files).unwrap()
    }

    #[test]
    fn a_unit_is_read_as_systemd_reads_it() {
        let unit = "[Unit]\nDescription=x\n[Service]\nEnvironment=A=1 \"B=2 3\" 'C=%%x'\nEnvironmentFile=/etc/sglang/%i.env\nEnvironmentFile=-/none\n\
                    WorkingDirectory=%h/srv\nUser=llm\n# a comment\nExecStart=-/opt/bin/python -m sglang.launch_server \\\n  --tp-size ${TP} $EXTRA \\\n# inside\n  \
                    --json \"{\\\"a\\\": \\\"50%%\\\"}\" --q \"$EXTRA\" --cost $$5 --name %p-%i\n[Install]\nExecStart=no\n";
        let launch = launch(unit, &[]);
        assert_eq!(
            launch.words,
            [
                "/opt/bin/python",
                "-m",
                "sglang.launch_server",
                "--tp-size",
                "2",
                "--a",
                "b",
                "--json",
                "{\"a\": \"50%\"}",
                "--q",
                "$EXTRA",
                "--cost",
                "$5",
                "--name",
                "sglang-qwen-27b"
            ]
        );
        let env: Vec<String> = launch.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(env, ["A=1", "B=2 3", "C=%x", "TP=2", "EXTRA=--a b", "Q=it is"]);
        assert_eq!(launch.folder.as_deref(), Some("/root/srv"));
        assert_eq!(launch.notes, ["the unit runs it as the user `llm`: orch runs it as you"]);
    }

    #[test]
    fn drop_ins_lie_over_it_and_an_empty_value_empties_a_list() {
        let unit = "[Service]\nEnvironment=A=1 B=2\nExecStart=/bin/a --old\n";
        let launch = launch(
            unit,
            &[
                "[Service]\nExecStart=\nExecStart=@/bin/a other --new\n",
                "[Service]\nEnvironment=\nEnvironment=C=3\nUnsetEnvironment=D\n",
            ],
        );
        assert_eq!(launch.words, ["/bin/a", "--new"]);
        assert_eq!(launch.env.keys().collect::<Vec<_>>(), ["C"]);
    }

    #[test]
    fn two_commands_or_none_are_refused() {
        let of = |text: &str| read(text, &[], &Manager::default(), &|_| None);
        assert!(
            matches!(of("[Service]\nExecStart=/a\nExecStart=/b\n"), Err(ImportError::Several { commands, .. }) if commands.len() == 2)
        );
        assert!(matches!(of("[Unit]\nExecStart=/a\n"), Err(ImportError::Empty { .. })));
        assert!(matches!(of("[Service]\nExecStart=/a 'b\n"), Err(ImportError::Syntax { .. })));
    }

    #[test]
    fn what_nothing_sets_is_nothing_and_is_told() {
        let launch = launch("[Service]\nExecStart=:/a ${X}\n", &[]);
        assert_eq!(launch.words, ["/a", "${X}"]);
        let launch = self::launch("[Service]\nExecStart=/a ${X}b $Y ${HOME}\n", &[]);
        assert_eq!(launch.words[..2], ["/a", "b"]);
        assert_eq!(launch.notes.len(), 2);
    }
}
