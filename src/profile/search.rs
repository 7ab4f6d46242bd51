//! The keys of a search by themselves, as the command line takes them: in the words of a profile, and with its checks.

use super::check;
use super::expand::{self, Names};
use super::fault::{Fault, ProfileError};
use super::fields::SEARCH;
use super::merge;
use super::model::SearchKeys;
use super::read;
use super::rules;
use super::source::Sources;

/// Reads a search from text that has a name.
pub fn search_text(name: &str, text: &str) -> Result<SearchKeys, ProfileError> {
    let mut sources = Sources::default();
    let source = sources.add(name, text, None);
    let mut faults = Vec::new();
    let keys = read::yaml(&sources, source, text, 0, &mut faults).and_then(|mut node| {
        // What a command line is to fill in, its shell has.
        expand::expand(&mut node, &Names { env: &|_| None, secrets: Vec::new() }, &mut faults);
        check::unknown_nulls(&SEARCH, &node, &mut faults);
        merge::settle(&mut node);
        let json = check::check(&SEARCH, &node, &mut faults);
        for slip in rules::search::slips(&node, node.place) {
            let fault = Fault::new("contradiction", format!("it {}", slip.what)).at(slip.place, slip.label);
            faults.push(fault.help(slip.help));
        }
        serde_json::from_value(json?).ok()
    });
    match keys {
        Some(keys) if faults.is_empty() => Ok(keys),
        _ => Err(ProfileError::of_search(name, &sources, faults)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Bounds;

    #[test]
    fn a_search_is_read_in_the_words_of_a_profile() {
        let keys = search_text("--search", "{concurrency: {from: 1, to: 128}, within: 10%}").unwrap();
        let bounds = Some(Bounds { from: 1.0, to: 128.0 });
        assert_eq!(keys, SearchKeys { concurrency: bounds, rate: None, share: 0.95, within: 0.1 });
        let keys = search_text("--search", "rate: {from: 0.5, to: 64}").unwrap();
        assert_eq!(keys.rate, Some(Bounds { from: 0.5, to: 64.0 }));
    }

    #[test]
    fn every_slip_is_told_at_once() {
        for (text, words) in [
            ("{concurency: {from: 1, to: 8}}", &["`concurency`", "did you mean `concurrency`?"][..]),
            ("{}", &["searches neither or both"]),
            ("{concurrency: {from: 1, to: 8}, rate: {from: 1, to: 8}}", &["searches neither or both"]),
            ("{rate: {from: 8, to: 8}, shar: 1}", &["has nothing to search", "`shar`"]),
            ("concurrency", &["a map"]),
            ("{concurrency: {from: 1}}", &["`concurrency.to` is missing"]),
        ] {
            let error = search_text("--search", text).unwrap_err();
            let told: String = error.faults().map(|fault| serde_json::to_string(&fault).unwrap()).collect();
            assert!(words.iter().all(|word| told.contains(word)), "{text}: {told}");
        }
    }
}
