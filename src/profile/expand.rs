//! `${NAME}` and `${NAME:-otherwise}` in values. `$${` stands for a literal `${`; every other `$` is itself.

use super::check::is_env_name;
use super::fault::Fault;
use super::source::{Place, SourceId};
use super::tree::{Node, Value};

/// Where names are looked up.
pub(crate) struct Names<'a> {
    pub(crate) env: &'a dyn Fn(&str) -> Option<String>,
    /// Names whose values must not enter a profile, which is stored and shown.
    pub(crate) secrets: Vec<String>,
}

/// Fills in all values below a node. Keys are not touched: one with `${` is a fault.
pub(crate) fn expand(node: &mut Node, names: &Names<'_>, faults: &mut Vec<Fault>) {
    let place = node.place;
    match &mut node.value {
        Value::Null => {}
        Value::List(items) => items.iter_mut().for_each(|item| expand(item, names, faults)),
        Value::Map(map) => {
            for (key, entry) in &mut map.entries {
                if key.contains("${") {
                    faults.push(
                        Fault::new(
                            "expansion_in_key",
                            format!("`{key}` is a key, and `${{NAME}}` stands in values only"),
                        )
                        .at(entry.key, "a key")
                        .help("write the key as it is"),
                    );
                }
                expand(&mut entry.node, names, faults);
            }
        }
        Value::Scalar(scalar) => {
            if !scalar.text.contains("${") {
                return;
            }
            let exact = scalar.exact;
            let at = |start, len| if exact { place.part(start, len) } else { place };
            let before = faults.len();
            let (text, filled) = expand_text(&scalar.text, names, &at, faults);
            scalar.broken = faults.len() > before;
            scalar.expanded |= filled;
            // From here on the text is not what stands in the file.
            scalar.exact = false;
            scalar.text = text;
        }
    }
}

/// The filled-in text, and whether anything was filled in.
fn expand_text(
    text: &str,
    names: &Names<'_>,
    at: &dyn Fn(usize, usize) -> Place,
    faults: &mut Vec<Fault>,
) -> (String, bool) {
    let mut out = String::new();
    let mut filled = false;
    let mut position = 0;
    while let Some(found) = text[position..].find('$') {
        let start = position + found;
        out.push_str(&text[position..start]);
        let rest = &text[start..];
        if rest.starts_with("$${") {
            out.push_str("${");
            position = start + 3;
        } else if rest.starts_with("${") {
            filled = true;
            let Some(end) = rest.find('}') else {
                faults.push(
                    Fault::new("bad_expansion", "`${` without `}`")
                        .at(at(start, rest.len()), "not closed")
                        .help("write `${NAME}`, or `$${` for the two characters themselves"),
                );
                return (out, filled);
            };
            let place = at(start, end + 1);
            match lookup(&rest[2..end], names) {
                Ok(value) => out.push_str(&value),
                Err(fault) => faults.push(fault(place)),
            }
            position = start + end + 1;
        } else {
            out.push('$');
            position = start + 1;
        }
    }
    out.push_str(&text[position..]);
    (out, filled)
}

fn lookup(inner: &str, names: &Names<'_>) -> Result<String, Box<dyn FnOnce(Place) -> Fault>> {
    let (name, otherwise) = match inner.split_once(":-") {
        Some((name, otherwise)) => (name, Some(otherwise)),
        None => (inner, None),
    };
    let name = name.to_owned();
    if !is_env_name(&name) {
        let inner = inner.to_owned();
        return Err(Box::new(move |place| {
            Fault::new("bad_expansion", format!("`${{{inner}}}` names nothing in the environment"))
                .at(place, "not `${NAME}` or `${NAME:-otherwise}`")
                .help("names are letters, digits and `_`; `$${` stands for the two characters themselves")
        }));
    }
    if names.secrets.contains(&name) {
        return Err(Box::new(move |place| {
            Fault::new("secret_in_value", format!("`{name}` is one of `secrets`, and a value is stored and shown"))
                .at(place, "a secret")
                .help(format!("the server finds `{name}` in its environment; leave it out here"))
        }));
    }
    match ((names.env)(&name).filter(|value| !value.is_empty() || otherwise.is_none()), otherwise) {
        (Some(value), _) => Ok(value),
        (None, Some(otherwise)) => Ok(otherwise.to_owned()),
        (None, None) => Err(Box::new(move |place| {
            Fault::new("unset_variable", format!("`{name}` is not set in the environment"))
                .at(place, "not set")
                .help(format!("set it, or write `${{{name}:-otherwise}}`"))
        })),
    }
}

/// A text filled in as far as it can be, where faults are told elsewhere.
pub(crate) fn fill(text: &str, names: &Names<'_>) -> String {
    let nowhere = |_, _| Place { source: SourceId(0), start: 0, len: 0 };
    expand_text(text, names, &nowhere, &mut Vec::new()).0
}

/// A text that expands to `text` whatever the environment holds.
pub(crate) fn escape(text: &str) -> String {
    text.replace("${", "$${")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled_in(text: &str) -> (String, Vec<Fault>) {
        let env = |name: &str| match name {
            "HOME" => Some("/home/ada".to_owned()),
            "EMPTY" => Some(String::new()),
            "TOKEN" => Some("hush".to_owned()),
            _ => None,
        };
        let names = Names { env: &env, secrets: vec!["TOKEN".to_owned()] };
        let place = Place { source: SourceId(0), start: 0, len: text.len() };
        let mut node = Node::plain(text, place);
        let mut faults = Vec::new();
        expand(&mut node, &names, &mut faults);
        (node.scalar().unwrap().text.clone(), faults)
    }

    #[test]
    fn names_are_filled_in() {
        for (text, wanted) in [
            ("${HOME}/models", "/home/ada/models"),
            ("${NOPE:-x y}", "x y"),
            ("${EMPTY:-x}", "x"),
            ("a${EMPTY}b", "ab"),
            ("${NOPE:-}", ""),
            ("$HOME costs $5", "$HOME costs $5"),
            ("$${HOME}", "${HOME}"),
            ("$$${HOME}", "$${HOME}"),
        ] {
            assert_eq!(filled_in(text), (wanted.to_owned(), Vec::new()), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_filled_in_is_told_at_its_place() {
        let (_, faults) = filled_in("a ${NOPE} ${ALSO_NOT}");
        let found: Vec<_> = faults
            .iter()
            .map(|fault| (fault.code.as_ref(), fault.place.as_ref().map(|(place, _)| (place.start, place.len))))
            .collect();
        assert_eq!(found, [("unset_variable", Some((2, 7))), ("unset_variable", Some((10, 11)))]);
        for (text, code) in [
            ("${", "bad_expansion"),
            ("${}", "bad_expansion"),
            ("${A B}", "bad_expansion"),
            ("${A-b}", "bad_expansion"),
            ("${TOKEN}", "secret_in_value"),
            ("${TOKEN:-x}", "secret_in_value"),
        ] {
            assert_eq!(filled_in(text).1[0].code, code, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_text_comes_back(text in "[a-z${}:-]{0,12}") {
            prop_assert_eq!(filled_in(&escape(&text)), (text, Vec::new()));
        }
    }
}
