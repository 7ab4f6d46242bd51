//! Text from elsewhere inside a page: it is text there, whatever it holds.

use std::fmt::Display;

use crate::report::number;

/// So many characters of one text are shown; a page stays a page when a log line has a megabyte.
const MOST: usize = 2000;

/// A text as the content of an element or of an attribute in double quotes. Control characters and those that turn the
/// direction of a line are taken out, and a very long text is cut.
pub(super) fn html(text: impl Display) -> String {
    let text = number::plain(&text.to_string());
    let mut safe = String::with_capacity(text.len());
    for (index, letter) in text.chars().enumerate() {
        if index == MOST {
            safe.push('…');
            break;
        }
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}

/// A text on a line of Markdown: no line of it begins anything, and no markup in it means anything.
pub(super) fn markdown(text: impl Display) -> String {
    let text = number::plain(&text.to_string());
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars().take(MOST) {
        if matches!(letter, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '!' | '~' | '&' | '@') {
            safe.push('\\');
        }
        safe.push(letter);
    }
    safe
}
