//! Versions of engines: `0.5.9`, `0.5.9.post1`, `0.6.0rc2`, `b10434`, and conditions on them.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A version, kept as it was written and ordered number by number.
///
/// Two schemes are known: numbers with dots, as Python packages have them, and build numbers such as `b10434`. Versions
/// of two schemes have no order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub String);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Version {
    fn from(text: &str) -> Self {
        Version(text.to_owned())
    }
}

/// What a version's text means. The order of the fields is the order of comparison.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Release {
    numbers: Vec<u64>,
    /// Before the release proper (`dev`, `a`, `b`, `rc`) or not.
    stage: (Stage, u64),
    post: Option<u64>,
    /// `1.0rc1.dev2` and `1.0.post1.dev2` come before `1.0rc1` and `1.0.post1`.
    dev: Dev,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Dev,
    Alpha,
    Beta,
    Candidate,
    Final,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Dev {
    Before(u64),
    No,
}

#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Build(u64),
    Release(Release),
    /// Anything else is equal to itself and has no order.
    Word,
}

impl Version {
    /// The order of two versions; `None` when there is none, as between `b10434` and `0.5.9`.
    pub fn compare(&self, other: &Version) -> Option<Ordering> {
        match (self.parse(), other.parse()) {
            (Parsed::Build(one), Parsed::Build(two)) => Some(one.cmp(&two)),
            (Parsed::Release(one), Parsed::Release(two)) => Some(one.cmp(&two)),
            _ => (self.0 == other.0).then_some(Ordering::Equal),
        }
    }

    /// Whether this one comes before the other. False when they have no order.
    pub fn is_before(&self, other: &Version) -> bool {
        self.compare(other) == Some(Ordering::Less)
    }

    fn parse(&self) -> Parsed {
        if let Some(Ok(build)) = self.0.strip_prefix('b').map(str::parse) {
            return Parsed::Build(build);
        }
        release(&self.0).map_or(Parsed::Word, Parsed::Release)
    }
}

/// Reads numbers with dots and what may follow them. What is after `+` says how it was built, not which version it is.
fn release(text: &str) -> Option<Release> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let text = text.split_once('+').map_or(text, |(public, _)| public).to_ascii_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (numbers, mut rest) = text.split_at(end);
    let mut numbers: Vec<u64> =
        numbers.trim_end_matches('.').split('.').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    // `0.5` and `0.5.0` are one version.
    while numbers.len() > 1 && numbers.last() == Some(&0) {
        numbers.pop();
    }
    let mut release = Release { numbers, stage: (Stage::Final, 0), post: None, dev: Dev::No };
    while !rest.is_empty() {
        let word_at = rest.find(|c: char| c.is_ascii_alphabetic())?;
        // Between the parts there are only `.`, `-` and `_`.
        if !rest[..word_at].chars().all(|c| matches!(c, '.' | '-' | '_')) {
            return None;
        }
        let word_end = rest[word_at..].find(|c: char| !c.is_ascii_alphabetic()).map_or(rest.len(), |at| word_at + at);
        let word = &rest[word_at..word_end];
        let after = &rest[word_end..];
        let digits = after.trim_start_matches(['.', '-', '_']);
        let length = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let (number, next) = if length == 0 { (0, after) } else { (digits[..length].parse().ok()?, &digits[length..]) };
        match word {
            "a" | "alpha" => release.stage = (Stage::Alpha, number),
            "b" | "beta" => release.stage = (Stage::Beta, number),
            "rc" | "c" | "pre" | "preview" => release.stage = (Stage::Candidate, number),
            "post" | "rev" | "r" => release.post = Some(number),
            "dev" if release.stage.0 == Stage::Final && release.post.is_none() => release.stage = (Stage::Dev, number),
            "dev" => release.dev = Dev::Before(number),
            _ => return None,
        }
        rest = next;
    }
    Some(release)
}

/// Conditions on a version, all of which must hold: `>=0.5.9`, `==b10434`, `>=0.5.9,<0.6`; a bare version is that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    text: String,
    conditions: Vec<(Operator, Version)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    AtLeast,
    AtMost,
    Above,
    Below,
    Compatible,
}

/// A text that is no condition on a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a condition on a version, such as `>=0.5.9`, `==b10434` or `>=0.5.9,<0.6`")]
pub struct RequirementError(pub String);

impl FromStr for Requirement {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || RequirementError(text.to_owned());
        let mut conditions = Vec::new();
        for part in text.split(',').map(str::trim) {
            let known = [
                ("==", Operator::Equal),
                ("!=", Operator::NotEqual),
                (">=", Operator::AtLeast),
                ("<=", Operator::AtMost),
                ("~=", Operator::Compatible),
                (">", Operator::Above),
                ("<", Operator::Below),
            ];
            let (operator, version) = known
                .iter()
                .find_map(|(sign, operator)| Some((*operator, part.strip_prefix(sign)?.trim())))
                .unwrap_or((Operator::Equal, part));
            let version = Version::from(version);
            if version.parse() == Parsed::Word {
                return Err(fail());
            }
            conditions.push((operator, version));
        }
        Ok(Requirement { text: text.to_owned(), conditions })
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Requirement {
    /// Whether a version meets all conditions. One of another scheme meets none.
    pub fn allows(&self, version: &Version) -> bool {
        self.conditions.iter().all(|(operator, wanted)| {
            let Some(order) = version.compare(wanted) else { return false };
            match operator {
                Operator::Equal => order.is_eq(),
                Operator::NotEqual => order.is_ne(),
                Operator::AtLeast => order.is_ge(),
                Operator::AtMost => order.is_le(),
                Operator::Above => order.is_gt(),
                Operator::Below => order.is_lt(),
                Operator::Compatible => order.is_ge() && same_series(version, wanted),
            }
        })
    }

    /// The version, where only one is allowed.
    pub fn exact(&self) -> Option<&Version> {
        match self.conditions.as_slice() {
            [(Operator::Equal, version)] => Some(version),
            _ => None,
        }
    }
}

/// `~=0.5.9` stays within `0.5`: all numbers but the last as written are the same.
fn same_series(version: &Version, wanted: &Version) -> bool {
    let numbers = |version: &Version| -> Vec<u64> {
        version.0.split(['.', '+', '-']).map_while(|number| number.parse().ok()).collect()
    };
    let wanted = numbers(wanted);
    let series = &wanted[..wanted.len().saturating_sub(1)];
    let mut version = numbers(version);
    version.resize(version.len().max(series.len()), 0);
    version.starts_with(series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_number_by_number() {
        let ordered = [
            "0.5.9.dev3",
            "0.5.9a1",
            "0.5.9b2",
            "0.5.9rc1.dev4",
            "0.5.9rc1",
            "0.5.9rc2",
            "0.5.9",
            "0.5.9.post1.dev1",
            "0.5.9.post1",
            "0.5.9.post10",
            "0.5.10",
            "0.6.0rc1",
            "0.6",
            "1.0",
        ];
        for (place, one) in ordered.iter().enumerate() {
            for (other_place, other) in ordered.iter().enumerate() {
                let order = Version::from(*one).compare(&Version::from(*other));
                assert_eq!(order, Some(place.cmp(&other_place)), "{one} and {other}");
            }
        }
    }

    #[test]
    fn build_numbers_are_numbers() {
        assert!(Version::from("b9999").is_before(&Version::from("b10434")));
        assert_eq!(Version::from("b10434").compare(&Version::from("0.5.9")), None);
        assert!(!Version::from("b10434").is_before(&Version::from("0.5.9")));
    }

    #[test]
    fn the_same_version_in_two_spellings_is_equal() {
        for (one, other) in [("0.5", "0.5.0"), ("v1.2", "1.2"), ("0.32.0+cpu", "0.32.0"), ("1.0-rc.1", "1.0rc1")] {
            assert_eq!(Version::from(one).compare(&Version::from(other)), Some(Ordering::Equal), "{one} and {other}");
        }
        assert_eq!(Version::from("main").compare(&Version::from("main")), Some(Ordering::Equal));
        assert_eq!(Version::from("main").compare(&Version::from("0.5")), None);
    }

    #[test]
    fn requirements_say_which_versions_they_allow() {
        let allows = |requirement: &str, version: &str| {
            requirement.parse::<Requirement>().unwrap().allows(&Version::from(version))
        };
        assert!(allows(">=0.5.9", "0.5.10") && !allows(">=0.5.9", "0.5.9rc1"));
        assert!(allows("b10434", "b10434") && !allows("b10434", "b10435"));
        assert!(allows("==b10434", "b10434"));
        assert!(allows(">=0.5.9, <0.6", "0.5.23") && !allows(">=0.5.9, <0.6", "0.6.0"));
        assert!(allows("~=0.5.9", "0.5.23") && !allows("~=0.5.9", "0.6.0") && !allows("~=0.5.9", "0.5.8"));
        assert!(allows("!=0.5.9", "0.5.10") && !allows("!=0.5.9", "0.5.9"));
        assert!(!allows(">=0.5.9", "b10434"));
        for bad in ["", ">=", "=>0.5", "latest", ">=0.5,", "0.5.x"] {
            assert!(bad.parse::<Requirement>().is_err(), "{bad}");
        }
        assert_eq!("b10434".parse::<Requirement>().unwrap().exact(), Some(&Version::from("b10434")));
        assert_eq!(">=1".parse::<Requirement>().unwrap().exact(), None);
    }
}
