//! Taking out of a text what nobody else may read: the values of secrets, what looks like one, and whose machine it was.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

/// A value that is shorter stands in words that have nothing to do with it.
const SHORTEST: usize = 4;

/// What is put in the place of something that only looks like a secret.
const HIDDEN: &str = "***";

/// Words that stand before a secret in a command, an environment or a header.
static NAMED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r#"(?i)((?:[\w-]*(?:api[_-]?key|access[_-]?key|secret|passwo?r?d|passwd|(?:auth|access|hub|hf|bearer)[_-]?token)[\w-]*|[A-Z0-9_]*_(?:TOKEN|KEY|SECRET|PASSWORD)|authorization)["']?\s*[=: ]\s*["']?(?:bearer\s+|basic\s+)?)([^\s"',;\\}\]]+)"#,
    )
    .ok()
});
/// Shapes that only tokens have, whatever stands before them.
static SHAPED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,})|(?:https?://)[^\s/@:]+:[^\s/@]+@",
    )
    .ok()
});

/// Masks texts.
#[derive(Clone, Debug, Default)]
pub struct Mask {
    exact: Vec<(String, String)>,
}

impl Mask {
    /// With the values of secrets by name; each is written as `${NAME}`.
    pub fn new(secrets: &BTreeMap<String, String>) -> Self {
        let mut exact = Vec::new();
        for (name, value) in secrets.iter().filter(|(_, value)| value.len() >= SHORTEST) {
            exact.push((value.clone(), format!("${{{name}}}")));
            // As JSON writes it.
            if let Ok(quoted) = serde_json::to_string(value) {
                let inside = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
                exact.extend(inside.map(|inside| (inside.to_owned(), format!("${{{name}}}"))));
            }
        }
        // One that holds another is replaced before it.
        exact.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        exact.dedup();
        Mask { exact }
    }

    /// Also replaces this text, such as a home folder or a host's name.
    pub fn with(mut self, text: &str, by: &str) -> Self {
        if text.len() >= SHORTEST {
            self.exact.push((text.to_owned(), by.to_owned()));
        }
        self
    }

    /// The text without what it hides.
    pub fn text(&self, text: &str) -> String {
        let exact = self.exact.iter().fold(text.to_owned(), |text, (value, name)| text.replace(value, name));
        let named = match NAMED.as_ref() {
            Some(named) => named.replace_all(&exact, |found: &regex::Captures<'_>| {
                // What is masked by name already says more.
                if found[2].starts_with("${") { found[0].to_owned() } else { format!("{}{HIDDEN}", &found[1]) }
            }),
            None => exact.into(),
        };
        match SHAPED.as_ref() {
            Some(shaped) => shaped.replace_all(&named, HIDDEN).into_owned(),
            None => named.into_owned(),
        }
    }

    /// The value of a variable: hidden as a whole where its name says that it is a secret.
    pub fn variable(&self, name: &str, value: &str) -> String {
        let upper = name.to_uppercase();
        let secret =
            ["TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"].iter().any(|word| upper.contains(word));
        let masked = self.text(value);
        if secret && !masked.starts_with("${") { HIDDEN.to_owned() } else { masked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask() -> Mask {
        let secrets = BTreeMap::from([
            ("HF_TOKEN".to_owned(), "s3cret-value".to_owned()),
            ("LONGER".to_owned(), "s3cret-value-and-more".to_owned()),
            ("QUOTED".to_owned(), "with \"quotes\"".to_owned()),
            ("SHORT".to_owned(), "on".to_owned()),
        ]);
        Mask::new(&secrets).with("/home/ann", "~")
    }

    #[test]
    fn values_are_replaced_by_their_names_wherever_they_stand() {
        let mask = mask();
        assert_eq!(mask.text("got s3cret-value, and s3cret-value-and-more"), "got ${HF_TOKEN}, and ${LONGER}");
        assert_eq!(mask.text(r#"{"a": "with \"quotes\""}"#), r#"{"a": "${QUOTED}"}"#);
        assert_eq!(mask.text("/home/ann/models is on"), "~/models is on");
    }

    #[test]
    fn what_only_looks_like_a_secret_is_hidden() {
        let mask = mask();
        for (text, expected) in [
            ("--api-key abc123 --port 1", "--api-key *** --port 1"),
            ("OPENAI_API_KEY=abc123", "OPENAI_API_KEY=***"),
            ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
            ("'api_key': 'abc', 'tp_size': 2", "'api_key': '***', 'tp_size': 2"),
            ("token is hf_abcdefghijklmnopqrstuv", "token is ***"),
            ("https://ann:pw@host/x", "***host/x"),
        ] {
            assert_eq!(mask.text(text), expected);
        }
    }

    #[test]
    fn words_of_a_log_are_no_secrets() {
        let mask = mask();
        for text in [
            "KV Cache is allocated. #tokens: 196608, K size: 3.5 GB",
            "KeyError: 'model.layers.0'",
            "gen throughput (token/s): 70.2, #queue-req: 0",
            "max_total_num_tokens=262144, context_len=131072",
        ] {
            assert_eq!(mask.text(text), text);
        }
        assert_eq!(mask.variable("MY_KEY", "abc"), "***");
        assert_eq!(mask.variable("NCCL_DEBUG", "INFO"), "INFO");
        assert_eq!(mask.variable("HF_TOKEN", "s3cret-value"), "${HF_TOKEN}");
    }
}
