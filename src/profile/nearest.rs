//! The known word that someone may have meant.

/// The nearest of `known`, when it is near enough to be offered.
pub(crate) fn nearest<S: AsRef<str>>(word: &str, known: impl IntoIterator<Item = S>) -> Option<String> {
    let plain = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    let mut best: Option<(f64, String)> = None;
    for candidate in known {
        let candidate = candidate.as_ref();
        let other = plain(candidate);
        let edits = strsim::damerau_levenshtein(&word, &other);
        let longer = word.chars().count().max(other.chars().count());
        let near = edits <= 1 + longer / 6 && edits * 2 < longer;
        // A word that was cut short or written out: `ctx_len` for `context_length` stays a miss, `fract` for `fraction` not.
        let begins = word.len() >= 3 && (other.starts_with(&word) || word.starts_with(&other));
        if !(near || begins) {
            continue;
        }
        let score = strsim::jaro_winkler(&word, &other);
        if best.as_ref().is_none_or(|(most, _)| score > *most) {
            best = Some((score, candidate.to_owned()));
        }
    }
    best.map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_understood_and_other_words_are_not() {
        let known = ["tensor", "pipeline", "data", "expert", "nodes", "max_running_requests"];
        assert_eq!(nearest("tensr", known).as_deref(), Some("tensor"));
        assert_eq!(nearest("max-running-requests", known).as_deref(), Some("max_running_requests"));
        assert_eq!(nearest("max_runing_request", known).as_deref(), Some("max_running_requests"));
        assert_eq!(nearest("Nodes", known).as_deref(), Some("nodes"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("x", known), None);
    }
}
