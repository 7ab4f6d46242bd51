//! The flags that one version of an engine knows: from its own `--help`, or from a list that is kept of it under
//! `templates/<kind>/flags/<version>.txt`.
//!
//! A kept list has an option a line: all its names, then how it is used.
//!
//! ```text
//! --enable-metrics !                       a switch
//! --dtype =auto,half,float16               one value, of these if some are named
//! --cuda-graph-bs-decode *                 several values
//! --override-kv                            not known
//! --draft --draft-max removed use --spec-draft-n-max
//! ```

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::Version;

/// How an option is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Takes {
    /// Not known.
    #[default]
    Unknown,
    /// No value.
    Nothing,
    /// One value; of these, unless there are none.
    One(Vec<String>),
    /// Several values after it.
    Many,
}

/// An option by all its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// With their dashes.
    pub names: Vec<String>,
    /// How it is used.
    pub takes: Takes,
    /// The parser knows it only to refuse it: what it says then.
    pub removed: Option<String>,
}

/// The flags of one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct FlagList {
    options: Vec<Named>,
}

impl From<Vec<String>> for FlagList {
    fn from(lines: Vec<String>) -> Self {
        FlagList { options: lines.iter().filter_map(|line| kept_line(line)).collect() }
    }
}

impl From<FlagList> for Vec<String> {
    fn from(list: FlagList) -> Self {
        list.options.iter().map(Named::line).collect()
    }
}

impl FlagList {
    /// Reads a kept list.
    pub fn kept(text: &str) -> Self {
        FlagList { options: text.lines().filter_map(kept_line).collect() }
    }

    /// Reads what a program says when it is asked for help, as argparse, click and llama.cpp write it.
    pub fn of_help(text: &str) -> Self {
        let mut options: Vec<Named> = Vec::new();
        let mut goes_on = false;
        for line in text.lines() {
            if let Some(option) = help_line(line) {
                goes_on = option.removed.is_some();
                options.push(option);
                continue;
            }
            // What it says of the option goes on below, up to the variable of the environment.
            let Some(last) = options.last_mut() else { continue };
            let said = line.trim();
            goes_on &= !said.is_empty() && !said.starts_with('(');
            match &mut last.removed {
                Some(before) if goes_on => *before = format!("{before} {said}").trim().to_owned(),
                Some(_) => {}
                None => {
                    last.removed = removal(line);
                    goes_on = last.removed.is_some();
                }
            }
        }
        FlagList { options }
    }

    /// A list as it is kept.
    pub fn text(&self) -> String {
        self.options.iter().map(|option| option.line() + "\n").collect()
    }

    /// Whether it names nothing.
    pub fn is_empty(&self) -> bool {
        self.options.is_empty()
    }

    /// The option of a name.
    pub fn find(&self, name: &str) -> Option<&Named> {
        self.options.iter().find(|option| option.names.iter().any(|known| known == name))
    }

    /// All names but those that are only there to be refused.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.options
            .iter()
            .filter(|option| option.removed.is_none())
            .flat_map(|option| &option.names)
            .map(String::as_str)
    }

    /// The names that begin with a word.
    pub fn beginning_with(&self, word: &str) -> Vec<&str> {
        self.names().filter(|name| name.starts_with(word)).collect()
    }
}

impl Named {
    fn line(&self) -> String {
        let mut line = self.names.join(" ");
        match &self.takes {
            Takes::Unknown => {}
            Takes::Nothing => line.push_str(" !"),
            Takes::One(choices) => {
                line.push_str(" =");
                line.push_str(&choices.join(","));
            }
            Takes::Many => line.push_str(" *"),
        }
        if let Some(said) = &self.removed {
            line.push_str(" removed ");
            line.push_str(said);
        }
        line
    }
}

fn kept_line(line: &str) -> Option<Named> {
    let line = line.trim();
    let (line, removed) = match line.split_once(" removed") {
        Some((line, said)) => (line, Some(said.trim().to_owned())),
        None => (line, None),
    };
    let mut option = Named { names: Vec::new(), takes: Takes::Unknown, removed };
    for word in line.split_whitespace() {
        match word.strip_prefix('=') {
            Some(choices) => option.takes = Takes::One(split_choices(choices, ',')),
            None if word == "!" => option.takes = Takes::Nothing,
            None if word == "*" => option.takes = Takes::Many,
            None if is_flag(word) => option.names.push(word.to_owned()),
            // A comment.
            None => return None,
        }
    }
    (!option.names.is_empty()).then_some(option)
}

fn split_choices(text: &str, by: char) -> Vec<String> {
    text.split(by).map(str::trim).filter(|choice| !choice.is_empty()).map(str::to_owned).collect()
}

fn is_flag(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    (1..=2).contains(&(word.len() - name.len()))
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Options stand further left than what they mean, which may begin with a flag too.
const MOST_INDENT: usize = 12;

/// `  -sm,   --split-mode {none,layer}      how to split …`: names with commas between them, each perhaps with a sign for
/// its value, and after two blanks what it means.
fn help_line(line: &str) -> Option<Named> {
    let indent = line.len() - line.trim_start().len();
    let line = line.trim_start();
    if !line.starts_with('-') || indent > MOST_INDENT {
        return None;
    }
    let (head, meaning) = split_head(line);
    let mut option = Named { names: Vec::new(), takes: Takes::Nothing, removed: removal(meaning) };
    for piece in head.split(", ").map(|piece| piece.trim().trim_end_matches(',')) {
        let end = piece.find([' ', '=', '[']).unwrap_or(piece.len());
        let (name, value) = piece.split_at(end);
        if !is_flag(name) {
            continue;
        }
        option.names.push(name.to_owned());
        if let Some(takes) = value_sign(value.trim_start_matches('=').trim()) {
            option.takes = takes;
        }
    }
    (!option.names.is_empty()).then_some(option)
}

/// What stands before the meaning: the first two blanks that follow no comma.
fn split_head(line: &str) -> (&str, &str) {
    let mut from = 0;
    while let Some(found) = line[from..].find("  ") {
        let at = from + found;
        if !line[..at].trim_end().ends_with(',') {
            return (&line[..at], line[at..].trim());
        }
        from = at + 1;
        while line[from..].starts_with(' ') {
            from += 1;
        }
    }
    (line, "")
}

/// `N`, `{a,b}`, `FILE [FILE ...]`.
fn value_sign(sign: &str) -> Option<Takes> {
    if sign.is_empty() {
        return None;
    }
    if sign.ends_with("...]") {
        return Some(Takes::Many);
    }
    let choices = sign.strip_prefix('{').and_then(|sign| sign.strip_suffix('}'));
    Some(Takes::One(choices.map(|choices| split_choices(choices, ',')).unwrap_or_default()))
}

/// What llama.cpp writes of an option that it only knows to refuse.
fn removal(meaning: &str) -> Option<String> {
    let (_, said) = meaning.split_once("the argument has been removed")?;
    Some(said.trim_start_matches(['.', ' ']).to_owned())
}

/// The lists that are kept of an engine, by version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagLists(pub Vec<(Version, Cow<'static, str>)>);

/// What the lists of other versions tell of a flag that this version does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past<'l> {
    /// The newest of the earlier versions that has it.
    pub until: Option<&'l Version>,
    /// The oldest of the later versions that has it.
    pub from: Option<&'l Version>,
}

impl FlagLists {
    /// The list of a version.
    pub fn of(&self, version: &Version) -> Option<FlagList> {
        let (_, text) = self.0.iter().find(|(kept, _)| kept.compare(version) == Some(std::cmp::Ordering::Equal))?;
        Some(FlagList::kept(text))
    }

    /// Since when a flag is gone, or when it came.
    pub fn past(&self, flag: &str, version: &Version) -> Past<'_> {
        let mut past = Past::default();
        for (kept, text) in &self.0 {
            if !text.contains(flag) || FlagList::kept(text).find(flag).is_none_or(|option| option.removed.is_some()) {
                continue;
            }
            if kept.is_before(version) && past.until.is_none_or(|until| until.is_before(kept)) {
                past.until = Some(kept);
            } else if version.is_before(kept) && past.from.is_none_or(|from| kept.is_before(from)) {
                past.from = Some(kept);
            }
        }
        past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str], takes: Takes) -> Named {
        Named { names: names.iter().map(|name| (*name).to_owned()).collect(), takes, removed: None }
    }

    fn one(choices: &[&str]) -> Takes {
        Takes::One(choices.iter().map(|choice| (*choice).to_owned()).collect())
    }

    #[test]
    fn a_kept_list_is_read_and_written() {
        let text = "--enable-metrics !\n--dtype =auto,half\n--port -p =\n--bs *\n--override-kv\n--draft --draft-max removed use --spec-draft-n-max\n";
        let list = FlagList::kept(text);
        assert_eq!(list.text(), text);
        assert_eq!(list.find("-p"), Some(&named(&["--port", "-p"], one(&[]))));
        assert_eq!(list.find("--dtype").unwrap().takes, one(&["auto", "half"]));
        assert_eq!(list.find("--draft-max").unwrap().removed.as_deref(), Some("use --spec-draft-n-max"));
        assert!(list.names().all(|name| !name.contains("draft")), "removed ones are offered to nobody");
        let json = serde_json::to_string(&list).unwrap();
        assert_eq!(serde_json::from_str::<FlagList>(&json).unwrap(), list);
    }

    #[test]
    fn help_as_argparse_writes_it() {
        let help = "usage: server [-h] --model-path MODEL_PATH\n              [--bs BS [BS ...]]\n\noptions:\n  -h, --help            show this help message and exit\n  \
                    --model-path MODEL_PATH, --model MODEL_PATH\n                        The path of the weights. It can be -- or --not-a-flag.\n  \
                    --dtype {auto,half,float16}\n                        Data type.\n  --bs BS [BS ...]      Sizes.\n  \
                    --trust-remote-code   Whether.\n  --tp, --tp-size TP_SIZE\n                        Ranks.\n  --enable-x, --no-enable-x\n                        Whether or not.\n";
        let list = FlagList::of_help(help);
        assert_eq!(
            list.options,
            [
                named(&["-h", "--help"], Takes::Nothing),
                named(&["--model-path", "--model"], one(&[])),
                named(&["--dtype"], one(&["auto", "half", "float16"])),
                named(&["--bs"], Takes::Many),
                named(&["--trust-remote-code"], Takes::Nothing),
                named(&["--tp", "--tp-size"], one(&[])),
                named(&["--enable-x", "--no-enable-x"], Takes::Nothing),
            ]
        );
    }

    #[test]
    fn help_as_llama_server_writes_it() {
        let help = "----- common params -----\n\n-h,    --help, --usage                  print usage and exit\n\
                    -t,    --threads N                      number of CPU threads (default: -1)\n                                        (env: LLAMA_ARG_THREADS)\n\
                    -sm,   --split-mode {none,layer,row}    how to split the model, one of:\n                                        - none: use one GPU only\n\
                    --draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max or\n                                        --spec-ngram-mod-n-max\n\
                    --mmap, --no-mmap                       whether to map\n--poll <0...100>                        polling level\n--port PORT                             port to listen on\n";
        let list = FlagList::of_help(help);
        assert_eq!(list.find("--usage").unwrap().takes, Takes::Nothing);
        assert_eq!(list.find("-t"), Some(&named(&["-t", "--threads"], one(&[]))));
        assert_eq!(list.find("-sm").unwrap().takes, one(&["none", "layer", "row"]));
        let said = list.find("--draft-n").unwrap().removed.as_deref();
        assert_eq!(said, Some("use --spec-draft-n-max or --spec-ngram-mod-n-max"));
        assert_eq!(list.find("--spec-ngram-mod-n-max"), None, "it is only spoken of");
        assert_eq!(list.find("--poll").unwrap().takes, one(&[]));
        assert_eq!(list.find("--no-mmap").unwrap().takes, Takes::Nothing);
        assert!(list.find("--port").is_some() && list.find("-----").is_none());
    }

    /// How a kept list is made: `SERVER --help > help.txt`, then `ORCH_HELP=help.txt cargo test --lib a_list_is_made`;
    /// it is then in `flags.txt`.
    #[test]
    fn a_list_is_made_of_help() {
        let Ok(file) = std::env::var("ORCH_HELP") else { return };
        let list = FlagList::of_help(&std::fs::read_to_string(file).unwrap());
        std::fs::write("flags.txt", list.text()).unwrap();
    }

    #[test]
    fn other_versions_tell_since_when() {
        let list = |version: &str, text: &'static str| (Version::from(version), Cow::Borrowed(text));
        let lists = FlagLists(vec![
            list("0.5.23", "--new =\n"),
            list("0.5.14", "--old =\n--new =\n"),
            list("0.5.5", "--old =\n"),
            list("0.5.9", "--old =\n"),
        ]);
        let past = lists.past("--old", &"0.5.23".into());
        assert_eq!((past.until, past.from), (Some(&Version::from("0.5.14")), None));
        let past = lists.past("--new", &"0.5.9".into());
        assert_eq!((past.until, past.from), (None, Some(&Version::from("0.5.14"))));
        assert_eq!(lists.past("--other", &"0.5.9".into()), Past::default());
        assert!(lists.of(&"0.5.9".into()).is_some() && lists.of(&"0.5.10".into()).is_none());
    }
}
