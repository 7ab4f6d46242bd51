//! Ids of runs: `20261129-151503-smollm2-0a4f`, and how people name a run.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

/// How long the name in an id may be; file systems carry 255 bytes.
const NAME: usize = 80;

/// The id of a run, which is also the name of its folder: time, name and four hex digits. It never holds a path
/// separator, so that it can be joined to a folder whoever typed it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(String);

impl RunId {
    /// An id from its parts. Characters of `name` that do not belong into a file's name become `-`.
    pub(super) fn new(at: Timestamp, name: &str, digits: u16) -> Self {
        let stamp = at.strftime("%Y%m%d-%H%M%S");
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
        let name: String = name.chars().take(NAME).map(plain).collect();
        let name = if name.is_empty() { "run" } else { &name };
        RunId(format!("{stamp}-{name}-{digits:04x}"))
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `r0a4f`: what screens show and commands take.
    pub fn short(&self) -> String {
        format!("r{}", self.digits())
    }

    /// The second in which it began; `None` if its digits are no time.
    pub fn began_at(&self) -> Option<Timestamp> {
        Timestamp::strptime("%Y%m%d-%H%M%S%z", format!("{}+0000", self.0.get(..15)?)).ok()
    }

    fn digits(&self) -> &str {
        &self.0[self.0.len() - 4..]
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RunId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let not = || NotAnId(text.to_owned());
        let digits = |text: &str, count: usize| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
        let (date, rest) = text.split_once('-').ok_or_else(not)?;
        let (time, rest) = rest.split_once('-').ok_or_else(not)?;
        let (name, hex) = rest.rsplit_once('-').ok_or_else(not)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let good = digits(date, 8)
            && digits(time, 6)
            && !name.is_empty()
            && name.len() <= NAME
            && name.bytes().all(plain)
            && is_hex(hex);
        if good { Ok(RunId(text.to_owned())) } else { Err(not()) }
    }
}

fn is_hex(text: &str) -> bool {
    text.len() == 4 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// It is not the id of a run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the id of a run")]
pub struct NotAnId(String);

/// A run as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest.
    Latest,
    /// By its short name's hex digits.
    Short(String),
    /// By its id.
    Id(RunId),
}

impl Which {
    /// Whether `id` is meant; `latest` is not a question about one id.
    pub fn fits(&self, id: &RunId) -> bool {
        match self {
            Which::Latest => false,
            Which::Short(digits) => id.digits() == digits,
            Which::Id(wanted) => wanted == id,
        }
    }
}

impl FromStr for Which {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        match text.strip_prefix('r') {
            Some(digits) if is_hex(&digits.to_ascii_lowercase()) => Ok(Which::Short(digits.to_ascii_lowercase())),
            _ if text == "latest" => Ok(Which::Latest),
            _ => text.parse().map(Which::Id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_made_of_time_name_and_digits() {
        let id = RunId::new("2026-11-29T15:15:03.9Z".parse().unwrap(), "qwen/mtp 3", 0xa4f);
        assert_eq!((id.as_str(), id.short().as_str()), ("20261129-151503-qwen-mtp-3-0a4f", "r0a4f"));
        assert_eq!(id.to_string().parse(), Ok(id));
        let nameless = RunId::new("2026-11-29T15:15:03Z".parse().unwrap(), "", 1);
        assert_eq!(nameless.as_str(), "20261129-151503-run-0001");
        let long = RunId::new("2026-11-29T15:15:03Z".parse().unwrap(), &"ü".repeat(300), 1);
        assert_eq!(long.as_str().parse(), Ok(long));
    }

    #[test]
    fn what_could_leave_the_folder_is_no_id() {
        for text in [
            "",
            "..",
            "../20261129-151503-a-0a4f",
            "20261129-151503-../../x-0a4f",
            "20261129-151503-a/b-0a4f",
            "20261129-151503-a-0A4F",
            "20261129-151503-0a4f",
            "2026112-151503-a-0a4f",
            "20261129-151503-a\0-0a4f",
            "20261129-151503-a-0a4f\n",
        ] {
            assert!(text.parse::<RunId>().is_err(), "{text:?}");
            assert!(text.parse::<Which>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_run_is_named_in_three_ways() {
        assert_eq!("latest".parse(), Ok(Which::Latest));
        assert_eq!("r0A4f".parse(), Ok(Which::Short("0a4f".into())));
        let id: RunId = "20261129-151503-a-0a4f".parse().unwrap();
        assert_eq!("20261129-151503-a-0a4f".parse(), Ok(Which::Id(id.clone())));
        assert!("r0a4f".parse::<Which>().unwrap().fits(&id));
        assert!(!"r0a4e".parse::<Which>().unwrap().fits(&id));
    }
}
