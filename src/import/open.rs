//! What a text names and does not define: a variable of the caller, the output of a command that nobody ran. It is
//! carried inside words between two characters of private use, so that words stay plain texts.

const BEGIN: char = '\u{e000}';
const END: char = '\u{e001}';

/// The name of what nobody can look up: the output of a command.
const UNKNOWN: &str = "";

/// A variable that is not defined here.
pub(super) fn variable(name: &str) -> String {
    format!("{BEGIN}{name}{END}")
}

/// Something that cannot be known without running something.
pub(super) fn unknown() -> String {
    variable(UNKNOWN)
}

/// Whether something in a word is open.
pub(super) fn is_open(word: &str) -> bool {
    word.contains(BEGIN)
}

/// Takes out what would be taken for a mark.
pub(super) fn clean(text: &str) -> String {
    text.replace([BEGIN, END], "\u{fffd}")
}

/// The word as a profile writes it, `${NAME}` for what is open; `None` if one of the names is not set where the profile
/// is read, since such a profile could not be loaded.
pub(super) fn in_profile(word: &str, is_set: &dyn Fn(&str) -> bool) -> Option<String> {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(BEGIN) {
        text.push_str(&escaped(&rest[..at]));
        let inner = &rest[at + BEGIN.len_utf8()..];
        let end = inner.find(END)?;
        let name = &inner[..end];
        if name.is_empty() || !is_set(name) {
            return None;
        }
        text.push_str(&format!("${{{name}}}"));
        rest = &inner[end + END.len_utf8()..];
    }
    text.push_str(&escaped(rest));
    Some(text)
}

/// The word for a person: `$NAME`, and `$(…)` for what nobody ran.
pub(super) fn shown(word: &str) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(BEGIN) {
        text.push_str(&rest[..at]);
        let inner = &rest[at + BEGIN.len_utf8()..];
        let end = inner.find(END).unwrap_or(inner.len());
        match &inner[..end] {
            UNKNOWN => text.push_str("$(…)"),
            name => text.push_str(&format!("${name}")),
        }
        rest = inner[end..].strip_prefix(END).unwrap_or("");
    }
    text + rest
}

/// A `${` that is meant as it stands.
fn escaped(text: &str) -> String {
    crate::profile::escape(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_named_where_it_can_be_filled_in() {
        let word = format!("{}/models/{{x}}", variable("HOME"));
        assert_eq!(in_profile(&word, &|name| name == "HOME").unwrap(), "${HOME}/models/{x}");
        assert_eq!(in_profile(&word, &|_| false), None);
        assert_eq!(in_profile(&unknown(), &|_| true), None);
        assert_eq!(in_profile("a${b}", &|_| false).unwrap(), "a$${b}");
        assert_eq!(shown(&format!("{word} {}", unknown())), "$HOME/models/{x} $(…)");
    }
}
