//! The commands of a shell script, with what the script itself defines filled in. Nothing is run: every command is read
//! as if its turn came, in the order in which it stands, and what only a shell could know stays open.

use indexmap::IndexMap;

use super::lex::{self, Part, Token};
use super::{ImportError, Launch, glob, open};

/// Words of the shell that stand before a command and change nothing about it.
const KEYWORDS: &[&str] = &[
    "if", "then", "elif", "else", "fi", "do", "done", "while", "until", "esac", "{", "}", "!", "time", "exec",
    "command", "builtin",
];

/// How deep scripts may read other scripts.
const DEEPEST: usize = 8;

/// A file by its path, where it can be read.
pub type Files<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The commands of a script. `place` is what messages call it.
pub fn read(text: &str, place: &str, files: Files<'_>) -> Result<Vec<Launch>, ImportError> {
    let mut shell = Shell {
        files,
        variables: IndexMap::new(),
        arrays: IndexMap::new(),
        env: IndexMap::new(),
        folder: None,
        programs: None,
        notes: Vec::new(),
        unread: Vec::new(),
        launches: Vec::new(),
        depth: 0,
    };
    shell.script(&open::clean(text), place)?;
    Ok(shell.launches)
}

/// What a script has said so far.
struct Shell<'a> {
    files: Files<'a>,
    variables: IndexMap<String, String>,
    arrays: IndexMap<String, Vec<String>>,
    /// What is exported.
    env: IndexMap<String, String>,
    folder: Option<String>,
    programs: Option<String>,
    notes: Vec<String>,
    unread: Vec<String>,
    launches: Vec<Launch>,
    depth: usize,
}

impl Shell<'_> {
    fn script(&mut self, text: &str, place: &str) -> Result<(), ImportError> {
        let mut command: Vec<Vec<Part>> = Vec::new();
        for token in lex::tokens(text, place)? {
            match token {
                Token::Word(word) => command.push(word),
                Token::Array { name, append, words } => {
                    let words: Vec<String> = words.iter().flat_map(|word| self.words(word)).collect();
                    let list = self.arrays.entry(name).or_default();
                    if !append {
                        list.clear();
                    }
                    list.extend(words);
                }
                Token::End => self.command(&std::mem::take(&mut command), place)?,
            }
        }
        Ok(())
    }

    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn command(&mut self, command: &[Vec<Part>], place: &str) -> Result<(), ImportError> {
        let mut rest = command;
        while let Some((first, after)) = rest.split_first() {
            match bare(first) {
                Some(word) if KEYWORDS.contains(&word) => {
                    if matches!(word, "if" | "elif" | "while" | "until") {
                        self.note(
                            "the script decides between commands: all of them were read as if they were run".to_owned(),
                        );
                    }
                    rest = after;
                }
                // `for NAME in …`, `case WORD in`: which value it takes is not known, and the commands below are read.
                Some("for" | "case" | "select" | "function") => return Ok(()),
                _ => break,
            }
        }
        let mut own: IndexMap<String, String> = IndexMap::new();
        while let Some((first, after)) = rest.split_first() {
            let Some((name, append, value)) = assignment(first) else { break };
            let before = if append { self.variables.get(name).cloned().unwrap_or_default() } else { String::new() };
            own.insert(name.to_owned(), before + &self.one(&value));
            rest = after;
        }
        if rest.is_empty() {
            for (name, value) in own {
                self.set(&name, value, false);
            }
            return Ok(());
        }
        let words: Vec<String> = rest.iter().flat_map(|word| self.words(word)).collect();
        self.act(words, own, place)
    }

    fn set(&mut self, name: &str, value: String, export: bool) {
        if export || self.env.contains_key(name) {
            self.env.insert(name.to_owned(), value.clone());
        }
        self.variables.insert(name.to_owned(), value);
    }

    fn act(&mut self, words: Vec<String>, own: IndexMap<String, String>, place: &str) -> Result<(), ImportError> {
        let Some(first) = words.first() else { return Ok(()) };
        match first.as_str() {
            "export" | "declare" | "typeset" | "readonly" | "local" => {
                let export = first == "export" || words.iter().any(|word| word == "-x");
                for word in words[1..].iter().filter(|word| !word.starts_with('-')) {
                    let (name, value) = match word.split_once('=') {
                        Some((name, value)) => (name, value.to_owned()),
                        None => {
                            (word.as_str(), self.variables.get(word).cloned().unwrap_or_else(|| open::variable(word)))
                        }
                    };
                    self.set(name, value, export);
                }
            }
            "unset" => {
                for name in &words[1..] {
                    self.env.shift_remove(name);
                    self.variables.shift_remove(name);
                }
            }
            "cd" => self.folder = words.get(1).cloned(),
            "source" | "." => self.source(words.get(1).map_or("", String::as_str), place)?,
            "conda" | "mamba" | "micromamba" | "pyenv"
                if words.get(1).is_some_and(|word| word == "activate" || word == "shell") =>
            {
                let name = words.get(2).cloned().unwrap_or_default();
                self.note(format!(
                    "`{first} activate {name}` chose the Python: set `engine.executable` to the program in it"
                ));
            }
            "module" | "ml" => {
                self.note(format!("`{}` changed the environment, and orch does not run it", words.join(" ")))
            }
            "set" | "ulimit" | "echo" | "printf" | "mkdir" | "sleep" | "trap" | "wait" | "kill" | "pkill" | "rm"
            | "cat" | "tee" | "test" | "[" | "[[" | "exit" | "return" | "true" | "false" | ":" | "shift" | "which"
            | "hash" | "umask" | "chmod" | "tail" | "grep" | "touch" | "pwd" | "nvidia-smi" | "curl" | "ls"
            | "date" | "hostname" | "let" | "eval" => {}
            _ => {
                let mut env = self.env.clone();
                env.extend(own);
                let (folder, programs, notes) = (self.folder.clone(), self.programs.clone(), self.notes.clone());
                let unread = self.unread.clone();
                self.launches.push(Launch { words, env, folder, programs, notes, unread });
            }
        }
        Ok(())
    }

    /// Another script that this one reads: the activation of a Python environment, or a file of settings.
    fn source(&mut self, path: &str, place: &str) -> Result<(), ImportError> {
        if let Some(programs) = path.strip_suffix("/activate") {
            self.programs = Some(programs.to_owned());
            return Ok(());
        }
        if self.depth < DEEPEST
            && !open::is_open(path)
            && let Some(text) = (self.files)(path)
        {
            self.depth += 1;
            let read = self.script(&open::clean(&text), path);
            self.depth -= 1;
            return read;
        }
        let shown = open::shown(path);
        self.unread.push(format!("{place} reads `{shown}`, which is not here: what it sets is not known"));
        Ok(())
    }

    /// A word, filled in: several where a list or an unquoted value has several.
    fn words(&mut self, parts: &[Part]) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut current: Option<String> = None;
        let mut emptied = false;
        for part in parts {
            match part {
                Part::Text { text, quoted } => {
                    // `~/` is the home of whoever runs it.
                    let home = !quoted && current.is_none() && (text == "~" || text.starts_with("~/"));
                    let text = if home { format!("{}{}", self.value("HOME"), &text[1..]) } else { text.clone() };
                    current.get_or_insert_default().push_str(&text);
                }
                Part::Variable { name, rest, .. } if is_list(name, rest) => {
                    let items = self.list(name);
                    emptied |= items.is_empty();
                    for (place, item) in items.into_iter().enumerate() {
                        if place > 0 {
                            words.extend(current.take());
                        }
                        current.get_or_insert_default().push_str(&item);
                    }
                }
                Part::Variable { quoted: true, .. } | Part::Command { .. } => {
                    let value = self.filled(part);
                    current.get_or_insert_default().push_str(&value);
                }
                Part::Variable { .. } => {
                    let value = self.filled(part);
                    if value.starts_with(char::is_whitespace) {
                        words.extend(current.take());
                    }
                    for (place, piece) in value.split_whitespace().enumerate() {
                        if place > 0 {
                            words.extend(current.take());
                        }
                        current.get_or_insert_default().push_str(piece);
                    }
                    if value.ends_with(char::is_whitespace) {
                        words.extend(current.take());
                    }
                }
            }
        }
        // `"$@"` without any is no word, and neither are its quotes.
        words.extend(current.filter(|word| !(emptied && word.is_empty())));
        words
    }

    /// A word that stays one, as the value of a variable does.
    fn one(&mut self, parts: &[Part]) -> String {
        let mut text = String::new();
        for (place, part) in parts.iter().enumerate() {
            match part {
                Part::Text { text: piece, quoted } => match piece.strip_prefix('~') {
                    Some(rest) if place == 0 && !quoted && (rest.is_empty() || rest.starts_with('/')) => {
                        text.push_str(&self.value("HOME"));
                        text.push_str(rest);
                    }
                    _ => text.push_str(piece),
                },
                Part::Variable { name, rest, .. } if is_list(name, rest) => text.push_str(&self.list(name).join(" ")),
                part => text.push_str(&self.filled(part)),
            }
        }
        text
    }

    fn list(&mut self, name: &str) -> Vec<String> {
        match name {
            "@" | "*" => {
                self.note("`$@` stands for what the script is called with, which is not known here".to_owned());
                Vec::new()
            }
            name => match self.arrays.get(name) {
                Some(items) => items.clone(),
                None => self.variables.get(name).cloned().into_iter().collect(),
            },
        }
    }

    fn value(&self, name: &str) -> String {
        let array = || self.arrays.get(name).and_then(|items| items.first());
        self.variables.get(name).or_else(array).cloned().unwrap_or_else(|| open::variable(name))
    }

    fn filled(&mut self, part: &Part) -> String {
        match part {
            Part::Text { text, .. } => text.clone(),
            Part::Command { text } => self.output(text),
            Part::Variable { name, rest, .. } => self.expanded(name, rest),
        }
    }

    fn expanded(&mut self, name: &str, rest: &str) -> String {
        let known = self.variables.get(name).cloned();
        let set = known.clone().filter(|value| !value.is_empty());
        let otherwise = |shell: &mut Self, text: &str| shell.text(text);
        match rest {
            "" => known.unwrap_or_else(|| self.value(name)),
            _ if rest.starts_with(":-") || rest.starts_with(":=") => set.unwrap_or_else(|| otherwise(self, &rest[2..])),
            _ if rest.starts_with(":+") => set.map(|_| otherwise(self, &rest[2..])).unwrap_or_default(),
            _ if rest.starts_with(":?") => set.unwrap_or_else(|| open::variable(name)),
            _ if rest.starts_with(['-', '=']) => known.unwrap_or_else(|| otherwise(self, &rest[1..])),
            _ if rest.starts_with('+') => known.map(|_| otherwise(self, &rest[1..])).unwrap_or_default(),
            _ if rest.starts_with('[') => {
                let index = rest.trim_matches(['[', ']']).parse::<usize>().ok();
                let item = index.and_then(|index| self.arrays.get(name)?.get(index));
                item.cloned().unwrap_or_else(|| open::variable(name))
            }
            _ if rest.starts_with(['#', '%']) => {
                let (at_end, longest) = (rest.starts_with('%'), rest.starts_with("##") || rest.starts_with("%%"));
                let pattern = self.text(&rest[if longest { 2 } else { 1 }..]);
                match known {
                    Some(value) if !open::is_open(&value) => glob::without(&value, &pattern, at_end, longest),
                    _ => open::unknown(),
                }
            }
            _ => open::unknown(),
        }
    }

    /// The text after `:-`, which may name variables itself.
    fn text(&mut self, text: &str) -> String {
        let Ok(tokens) = lex::tokens(text, "") else { return open::unknown() };
        let words = tokens.iter().filter_map(|token| match token {
            Token::Word(word) => Some(word.clone()),
            _ => None,
        });
        let words: Vec<Vec<Part>> = words.collect();
        words.iter().map(|word| self.one(word)).collect::<Vec<_>>().join(" ")
    }

    /// What a command would print, where that follows from its words.
    fn output(&mut self, text: &str) -> String {
        let Ok(tokens) = lex::tokens(text, "") else { return open::unknown() };
        let mut words: Vec<String> = Vec::new();
        for token in &tokens {
            match token {
                Token::Word(word) => words.extend(self.words(word)),
                Token::End if words.is_empty() || tokens.last() == Some(token) => {}
                _ => return open::unknown(),
            }
        }
        let known = |word: &&str| !open::is_open(word);
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["basename", path] if known(path) => {
                path.trim_end_matches('/').rsplit('/').next().unwrap_or(path).to_owned()
            }
            ["basename", path, ending] if known(path) => {
                let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
                name.strip_suffix(ending).unwrap_or(name).to_owned()
            }
            ["echo", rest @ ..] if rest.iter().all(known) => rest.join(" "),
            _ => open::unknown(),
        }
    }
}

fn is_list(name: &str, rest: &str) -> bool {
    matches!(rest, "[@]" | "[*]") || (rest.is_empty() && matches!(name, "@" | "*"))
}

/// A word without anything to fill in and without quotes.
fn bare(parts: &[Part]) -> Option<&str> {
    match parts {
        [Part::Text { text, quoted: false }] => Some(text),
        _ => None,
    }
}

/// `NAME=value` or `NAME+=value`: the name, whether it adds, and the parts of the value.
fn assignment(parts: &[Part]) -> Option<(&str, bool, Vec<Part>)> {
    let (Part::Text { text, quoted: false }, rest) = parts.split_first()? else { return None };
    let (name, value) = text.split_once('=')?;
    let (name, append) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
    if !is_variable(name) {
        return None;
    }
    let first = Part::Text { text: value.to_owned(), quoted: false };
    Some((name, append, std::iter::once(first).chain(rest.iter().cloned()).collect()))
}

/// Whether a word can be a variable's name.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
        && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(script: &str) -> Vec<String> {
        let files = |path: &str| (path == "/etc/llm.env").then(|| "export PORT=31000\n".to_owned());
        let launches = read(script, "serve.sh", &files).unwrap();
        launches.iter().map(|launch| shell_words::join(launch.words.iter().map(|word| open::shown(word)))).collect()
    }

    #[test]
    fn quotes_continuations_comments_and_redirections() {
        let script = "#!/bin/bash\nset -e\nvllm serve \"Qwen/Qwen3 8B\" \\\n  --json '{\"a\": \"$x\"}' \\\n  --port 8000 > log.txt 2>&1 & # later\n";
        assert_eq!(commands(script), [r#"vllm serve 'Qwen/Qwen3 8B' --json '{"a": "$x"}' --port 8000"#]);
        assert_eq!(commands("a b|tee -a x; c d &>> log\ne \\\r\n f"), ["a b", "c d", "e f"]);
        assert_eq!(commands("cat <<'EOF' > x\nvllm serve no\nEOF\nreal x <<< hi"), ["real x"]);
        assert_eq!(commands("a#b 2x 2>/dev/null"), ["'a#b' 2x"]);
    }

    #[test]
    fn variables_of_the_script_are_filled_in() {
        let script = "MODEL=${1:-Qwen/Qwen3-8B}\nNAME=$(basename $MODEL)\nTP=2 ; OPTS=\"--tp $TP --x\"\nARGS=(--a 'b c')\nARGS+=(--d)\n\
                      sglang serve $MODEL --served-model-name \"${MODEL##*/}\" --n $NAME $OPTS \"${ARGS[@]}\" \"$@\" --host ${HOST}\n";
        assert_eq!(
            commands(script),
            [
                "sglang serve Qwen/Qwen3-8B --served-model-name Qwen3-8B --n Qwen3-8B --tp 2 --x --a 'b c' --d --host '$HOST'"
            ]
        );
        assert_eq!(commands("x $(nproc) `date` $UNSET"), ["x '$(…)' '$(…)' '$UNSET'"]);
    }

    #[test]
    fn the_environment_is_what_is_exported_and_what_stands_before() {
        let script = "export A=1 B='2 3'\nC=4\nsource /etc/llm.env\n. /opt/venv/bin/activate\ncd /srv\nNCCL_DEBUG=INFO run --port $PORT $C\n";
        let launch = read(script, "x", &|path| (path == "/etc/llm.env").then(|| "export PORT=31000\n".to_owned()))
            .unwrap()
            .remove(0);
        assert_eq!(launch.words, ["run", "--port", "31000", "4"]);
        let env: Vec<String> = launch.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(env, ["A=1", "B=2 3", "PORT=31000", "NCCL_DEBUG=INFO"]);
        assert_eq!((launch.folder.as_deref(), launch.programs.as_deref()), (Some("/srv"), Some("/opt/venv/bin")));
    }

    #[test]
    fn what_does_not_end_is_told_with_its_line() {
        for (script, line) in [("a\nb 'c\n", 2), ("x \"y", 1), ("a $(b", 1), ("a\n\nX=(1", 3), ("a ${b", 1)] {
            match read(script, "serve.sh", &|_| None) {
                Err(ImportError::Syntax { line: at, .. }) => assert_eq!(at, line, "{script}"),
                other => panic!("{script}: {other:?}"),
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z$(){}'\"\\\\`=;&|<> #~\n*@-]{0,60}") {
            let _ = read(&text, "x", &|_| None);
        }
    }
}
