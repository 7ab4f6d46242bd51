//! Where an engine's counters stand on its page of metrics: data of an engine's definition.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::formula::On;
use super::{Counter, Formula, Page};

/// `counters` of an `engine.yaml`: neutral name to formula, or to several of which the first is taken whose series are on
/// the page; and `alike`, the labels of ranks that count the same work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CounterRules {
    alike: Vec<String>,
    formulas: BTreeMap<Counter, Vec<Formula>>,
}

impl CounterRules {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.formulas.is_empty()
    }

    /// How many of the counters have a series on a page. The rules of the engine that wrote a page have the most.
    pub fn known_on(&self, page: &Page) -> usize {
        // When a process started stands on pages of all sorts.
        let own = self.formulas.iter().filter(|(counter, _)| **counter != Counter::StartedAt);
        own.filter(|(_, formulas)| formulas.iter().any(|formula| formula.is_on(page))).count()
    }

    /// The counters that are known, with their formulas.
    pub(super) fn each(&self) -> impl Iterator<Item = (Counter, &[Formula])> {
        self.formulas.iter().map(|(counter, formulas)| (*counter, formulas.as_slice()))
    }

    pub(super) fn on<'a>(&'a self, page: &'a Page, absent_is_zero: bool) -> On<'a> {
        On { page, alike: &self.alike, absent_is_zero }
    }
}

/// One formula, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    One(String),
    Several(Vec<String>),
}

impl<'de> Deserialize<'de> for CounterRules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> serde::de::Visitor<'de> for Map {
            type Value = CounterRules;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from counters to formulas")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<CounterRules, A::Error> {
                let mut rules = CounterRules::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "alike" {
                        rules.alike = map.next_value()?;
                        continue;
                    }
                    let counter = Counter::deserialize(serde::de::value::StrDeserializer::<A::Error>::new(&key))?;
                    let words = match map.next_value()? {
                        Words::One(word) => vec![word],
                        Words::Several(words) => words,
                    };
                    let formulas = words.iter().map(|word| word.parse()).collect::<Result<_, _>>();
                    rules.formulas.insert(counter, formulas.map_err(A::Error::custom)?);
                }
                Ok(rules)
            }
        }
        deserializer.deserialize_map(Map)
    }
}

impl Serialize for CounterRules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        if !self.alike.is_empty() {
            map.serialize_entry("alike", &self.alike)?;
        }
        for (counter, formulas) in &self.formulas {
            let words: Vec<String> = formulas.iter().map(ToString::to_string).collect();
            map.serialize_entry(counter, &words)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_unknown_names_refused() {
        let rules: CounterRules =
            serde_yaml::from_str("alike: [tp_rank]\nsteps: a_total\noutput_tokens: [new_total, old_total + b]\n")
                .unwrap();
        assert_eq!(rules.alike, ["tp_rank"]);
        assert_eq!(rules.formulas[&Counter::OutputTokens].len(), 2);
        let wrong = |text: &str| serde_yaml::from_str::<CounterRules>(text).unwrap_err().to_string();
        assert!(wrong("step: a").contains("unknown variant `step`"), "{}", wrong("step: a"));
        assert!(wrong("steps: a +").contains("the name of a series is missing"), "{}", wrong("steps: a +"));
        assert!(serde_yaml::from_str::<CounterRules>("steps: 3").is_err());
    }

    #[test]
    fn the_page_shows_whose_it_is() {
        let rules = |prefix: &str| -> CounterRules {
            serde_yaml::from_str(&format!("steps: \"{prefix}:s\"\noutput_tokens: [\"{prefix}:o\", \"{prefix}:p\"]\n"))
                .unwrap()
        };
        let page = Page::read("vllm:p 1\nvllm:s 2\nsglang:x 1\n");
        assert_eq!((rules("vllm").known_on(&page), rules("sglang").known_on(&page)), (2, 0));
    }
}
