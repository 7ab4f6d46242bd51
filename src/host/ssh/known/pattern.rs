//! Patterns of host names, as `ssh` has them: `*`, `?`, and `!` for what is not meant.

/// Whether a pattern fits the whole text. Neither is case-sensitive.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().flat_map(char::to_lowercase).collect();
    let text: Vec<char> = text.chars().flat_map(char::to_lowercase).collect();
    // Where to go on when a guess of what a `*` covers was wrong: only the last one matters.
    let (mut p, mut t, mut again) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                again = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match again {
                Some((star, from)) => {
                    again = Some((star, from + 1));
                    (p, t) = (star + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Whether a list of patterns means this name: one fits, and none behind a `!` does.
pub(crate) fn list<P: AsRef<str>>(patterns: &[P], name: &str) -> bool {
    let mut meant = false;
    for pattern in patterns {
        match pattern.as_ref().strip_prefix('!') {
            Some(not) if fits(not, name) => return false,
            Some(_) => {}
            None => meant |= fits(pattern.as_ref(), name),
        }
    }
    meant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_ssh_says() {
        for (pattern, text, expected) in [
            ("gpu-*", "gpu-17", true),
            ("gpu-?", "gpu-17", false),
            ("GPU-1?", "gpu-17", true),
            ("*.a.b", "x.a.a.b", true),
            ("a*b*c", "a-b-b-d", false),
            ("*", "", true),
            ("", "", true),
            ("[10.0.0.*]:22", "[10.0.0.7]:22", true),
            ("[ab]", "a", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
        assert!(list(&["*.x", "!bad.x"], "good.x"));
        assert!(!list(&["*.x", "!bad.x"], "bad.x"));
        assert!(!list(&["!bad.x"], "good.x"), "what is only excluded is not meant");
    }
}
