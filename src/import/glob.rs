//! Shell patterns in `${NAME#pattern}` and `${NAME%pattern}`: `*` and `?`, the rest as it stands.

/// Whether a pattern covers a whole text.
pub(super) fn covers(pattern: &[char], text: &[char]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some(('*', rest)) => (0..=text.len()).any(|skip| covers(rest, &text[skip..])),
        Some(('?', rest)) => !text.is_empty() && covers(rest, &text[1..]),
        Some((c, rest)) => text.first() == Some(c) && covers(rest, &text[1..]),
    }
}

/// The text without its shortest (or longest) beginning (or end) that the pattern covers.
pub(super) fn without(text: &str, pattern: &str, at_end: bool, longest: bool) -> String {
    // A pattern costs time and depth by the length of the text; no path or name is that long.
    if text.len() > 4096 || pattern.matches('*').count() > 4 {
        return text.to_owned();
    }
    let (text, pattern): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
    let part = |length: usize| if at_end { &text[text.len() - length..] } else { &text[..length] };
    let mut fits = (0..=text.len()).filter(|length| covers(&pattern, part(*length)));
    let length = if longest { fits.next_back() } else { fits.next() }.unwrap_or(0);
    let kept = if at_end { &text[..text.len() - length] } else { &text[length..] };
    kept.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_taken_off() {
        assert_eq!(without("Qwen/Qwen3-8B", "*/", false, true), "Qwen3-8B");
        assert_eq!(without("/a/b/c.gguf", "*/", false, false), "a/b/c.gguf");
        assert_eq!(without("/a/b/c.gguf", ".gguf", true, false), "/a/b/c");
        assert_eq!(without("/a/b/c", "/*", true, false), "/a/b");
        assert_eq!(without("abc", "x*", false, true), "abc");
    }
}
