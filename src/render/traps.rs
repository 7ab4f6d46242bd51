//! What is allowed and seldom meant, on any engine.

use super::{Rank, Warning};
use crate::engine::Definition;
use crate::profile::Profile;

/// Addresses that stand for all of a machine's.
const EVERYWHERE: &[&str] = &["0.0.0.0", "::", "[::]"];

/// The warnings of a plan's ranks.
pub(super) fn of(profile: &Profile, definition: &Definition, ranks: &[Rank]) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = profile
        .env
        .keys()
        .filter_map(|name| Some((name, definition.stray.iter().find(|stray| stray.always && stray.is(name))?)))
        .map(|(name, stray)| Warning::new("stray_environment", format!("`env.{name}`: {}", stray.say)))
        .collect();
    if let Some(rank) = ranks.iter().find(|rank| open_to_all(&rank.argv) && !has_key(profile, &rank.argv)) {
        let word = rank.argv.first().map_or("the server", String::as_str);
        let text = format!(
            "{word} listens on every address of the machine and asks for no key: whoever reaches the port can use it; \
             bind it to 127.0.0.1, or give it a key"
        );
        warnings.push(Warning::new("open_to_all", text));
    }
    warnings
}

fn open_to_all(argv: &[String]) -> bool {
    argv.iter().zip(argv.iter().skip(1)).any(|(flag, value)| {
        matches!(flag.as_str(), "--host" | "--bind" | "--listen") && EVERYWHERE.contains(&value.as_str())
    }) || argv.iter().any(|word| {
        word.split_once('=').is_some_and(|(flag, value)| {
            matches!(flag, "--host" | "--bind" | "--listen") && EVERYWHERE.contains(&value)
        })
    })
}

/// A key among its words, or a secret that is called one.
fn has_key(profile: &Profile, argv: &[String]) -> bool {
    argv.iter().any(|word| word.starts_with("--api-key"))
        || profile.secrets.iter().any(|name| name.ends_with("API_KEY"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_all_is_found_in_both_spellings() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        assert!(open_to_all(&words("serve --host 0.0.0.0 --port 1")) && open_to_all(&words("serve --host=::")));
        assert!(!open_to_all(&words("serve --host 127.0.0.1")) && !open_to_all(&words("serve --name 0.0.0.0")));
    }
}
