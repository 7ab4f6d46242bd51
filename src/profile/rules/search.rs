//! Contradictions within a search.

use super::super::source::Place;
use super::super::tree::Node;

/// Something that is wrong with it.
pub(crate) struct Slip {
    /// After the name of what searches.
    pub(crate) what: &'static str,
    pub(crate) place: Place,
    pub(crate) label: &'static str,
    pub(crate) help: &'static str,
}

/// What is wrong with a search whose key, or which itself, is at `place`.
pub(crate) fn slips(search: &Node, place: Place) -> Vec<Slip> {
    let mut slips = Vec::new();
    let ends: Vec<&Node> = ["concurrency", "rate"].iter().filter_map(|key| search.get(key)).collect();
    if ends.len() != 1 {
        slips.push(Slip {
            what: "searches neither or both of `concurrency` and `rate`",
            place,
            label: if ends.is_empty() { "neither" } else { "both" },
            help: "for example `search: {concurrency: {from: 1, to: 128}}`",
        });
    }
    for ends in ends {
        let number = |key: &str| ends.get(key).and_then(Node::scalar)?.text.parse::<f64>().ok();
        if let (Some(from), Some(to)) = (number("from"), number("to"))
            && from >= to
        {
            slips.push(Slip {
                what: "has nothing to search",
                place: ends.place,
                label: "`from` is not below `to`",
                help: "the smaller one first",
            });
        }
    }
    slips
}
