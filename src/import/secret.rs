//! What may not be shown: by the name that a value has, and by what the value looks like.

use std::sync::LazyLock;

use regex::Regex;

/// The last part of a name that says that its value is a secret.
const LAST_PARTS: &[&str] =
    &["KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS", "CREDENTIAL", "PAT"];

/// Whether a variable or a flag of this name holds a secret: `HF_TOKEN`, `--api-key`, `--ssl-keyfile-password`. Names
/// whose values count tokens, or name a file, are none.
pub(super) fn is_name(name: &str) -> bool {
    let name = name.trim_start_matches('-').replace(['-', '.'], "_").to_ascii_uppercase();
    let last = name.rsplit('_').next().unwrap_or_default();
    LAST_PARTS.contains(&last) && !name.ends_with("PUBLIC_KEY") && !name.ends_with("CACHE_KEY")
}

/// What tokens of known makers look like, and credentials in an address or a header.
static LOOKS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"(?x)
        \bhf_[A-Za-z0-9]{8,} | \bsk-[A-Za-z0-9_-]{12,} | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}
        | \bglpat-[\w-]{16,} | \bnvapi-[\w-]{16,} | \bAKIA[A-Z0-9]{12,} | \bxox[abprs]-[\w-]{10,}
        | \beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]* | (?i:\bbearer\s+)[\w.~+/=-]{6,} | ://[^/\s:@]*:[^/\s@]+@",
    )
    .ok()
});

/// Whether a value is one by its look.
pub(super) fn is_value(text: &str) -> bool {
    // Without its pattern nothing can be said to be harmless; it is a constant, and a test compiles it.
    LOOKS.as_ref().is_none_or(|looks| looks.is_match(text))
}

/// A text with the secrets in it replaced, for messages.
pub fn hide(text: &str) -> String {
    let mut hidden: Vec<String> = Vec::new();
    let mut next_is_secret = false;
    for word in text.split_inclusive(char::is_whitespace) {
        let end = word.trim_end().len();
        let (body, space) = word.split_at(end);
        let name = body.split_once('=').map_or(body, |(name, _)| name);
        let bare = name.trim_matches(['"', '\'']);
        let shown = match body.split_once('=') {
            _ if std::mem::take(&mut next_is_secret) && !body.starts_with('-') => "***".to_owned(),
            Some(_) if is_name(bare) => format!("{name}=***"),
            _ => {
                next_is_secret = body.starts_with('-') && !body.contains('=') && is_name(bare);
                body.to_owned()
            }
        };
        hidden.push(shown + space);
    }
    let text = hidden.concat();
    match LOOKS.as_ref() {
        Some(looks) => looks.replace_all(&text, "***").into_owned(),
        None => "***".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_looks_tell_a_secret() {
        for name in
            ["HF_TOKEN", "--api-key", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "--hf-token", "DB_PASSWORD", "x.token"]
        {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "--max-total-tokens",
            "TOKENIZERS_PARALLELISM",
            "--ssl-keyfile",
            "--speculative-token-map",
            "KEYS",
            "--api-key-file",
        ] {
            assert!(!is_name(name), "{name}");
        }
        assert!(LOOKS.is_some());
        for value in
            ["hf_abcdefghijkl", "Authorization: Bearer abcdef123", "http://me:pw@host/x", "x=sk-abcdefghijklmnop"]
        {
            assert!(is_value(value), "{value}");
        }
        for value in ["hf_cache", "Qwen/Qwen3", "http://host:8000/x", "[::]:80"] {
            assert!(!is_value(value), "{value}");
        }
    }

    #[test]
    fn messages_show_none() {
        let text = hide("HF_TOKEN=abc vllm serve m --api-key geheim --port 1 --hf-token=x --h hf_abcdefghijkl");
        assert_eq!(text, "HF_TOKEN=*** vllm serve m --api-key *** --port 1 --hf-token=*** --h ***");
    }
}
