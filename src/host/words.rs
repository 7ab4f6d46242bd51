//! Commands as lists of words, and the one function that quotes a word for a shell.

use super::HostError;

/// A command: a program and its arguments, none of which holds a NUL byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words(Vec<String>);

impl Words {
    /// A command from its words; the first is the program.
    pub fn new<W: Into<String>>(words: impl IntoIterator<Item = W>) -> Result<Self, HostError> {
        let words: Vec<String> = words.into_iter().map(Into::into).collect();
        if words.is_empty() {
            return Err(HostError::NoWords);
        }
        match words.iter().find(|word| word.contains('\0')) {
            Some(word) => Err(HostError::Nul { word: word.clone() }),
            None => Ok(Words(words)),
        }
    }

    /// The program.
    pub fn program(&self) -> &str {
        &self.0[0]
    }

    /// What follows the program.
    pub fn arguments(&self) -> &[String] {
        &self.0[1..]
    }

    /// All words.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

impl std::fmt::Display for Words {
    /// As a person may paste it into a shell.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&quote_all(&self.0))
    }
}

/// The word as a POSIX shell must be given it to see exactly this word. Plain words stay as they are.
///
/// Everything in single quotes is literal to every POSIX shell; a single quote itself is closed, escaped and opened
/// again. Nothing cleverer: `$'…'` and double quotes mean different things to different shells.
pub fn quote(word: &str) -> String {
    // `=` and `~` are left out on purpose: `a=b` as a first word is an assignment, and `~` is expanded.
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+:,./-_".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// All words quoted, with a space between.
pub fn quote_all<W: AsRef<str>>(words: &[W]) -> String {
    words.iter().map(|word| quote(word.as_ref())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_words_stay_readable() {
        assert_eq!(quote_all(&["vllm", "serve", "--port", "30000", "a/b.c:d@e"]), "vllm serve --port 30000 a/b.c:d@e");
    }

    #[test]
    fn anything_else_is_put_in_single_quotes() {
        assert_eq!(quote(""), "''");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote("A=1"), "'A=1'");
        assert_eq!(quote("~root"), "'~root'");
        assert_eq!(quote("$(rm -rf /)\n;`x`"), "'$(rm -rf /)\n;`x`'");
    }

    #[test]
    fn a_command_needs_a_program_and_no_nul() {
        assert!(matches!(Words::new(Vec::<String>::new()), Err(HostError::NoWords)));
        assert!(matches!(Words::new(["a", "b\0c"]), Err(HostError::Nul { word }) if word == "b\0c"));
    }

    /// What a real shell makes of the words, one NUL after each.
    fn shell_sees(words: &[String]) -> Vec<String> {
        let script = format!(r#"printf '%s\0' {}"#, quote_all(words));
        let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_shell_sees_exactly_the_words(words in prop::collection::vec("[^\\x00]{0,12}", 1..5)) {
            prop_assert_eq!(shell_sees(&words), words);
        }
    }
}
