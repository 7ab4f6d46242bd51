//! The field table against itself, the reading, the schema and the reference page.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::check;
use super::super::load::{Request, load};
use super::super::merge;
use super::super::read;
use super::super::short;
use super::super::source::Sources;
use super::super::tree::Node;
use super::*;

/// All tables that can be reached, each with the path of keys that leads to it.
fn tables() -> Vec<(String, &'static Struct)> {
    tables_of(&PROFILE)
}

fn tables_of(root: &'static Struct) -> Vec<(String, &'static Struct)> {
    let mut found = vec![(String::new(), root)];
    let mut next = 0;
    while let Some((path, table)) = found.get(next).cloned() {
        for field in table.fields {
            let path = if path.is_empty() { field.key.to_owned() } else { format!("{path}.{}", field.key) };
            for (suffix, inner) in inner_tables(&field.shape) {
                let path = format!("{path}{suffix}");
                if !found.iter().any(|(_, known)| std::ptr::eq(*known, inner)) {
                    found.push((path, inner));
                }
            }
        }
        next += 1;
    }
    found
}

fn inner_tables(shape: &Shape) -> Vec<(&'static str, &'static Struct)> {
    match shape {
        Shape::Struct(table) | Shape::Short(_, table) => vec![("", *table)],
        Shape::Either(tables) | Shape::Or(_, tables) => tables.iter().map(|table| ("", *table)).collect(),
        Shape::WordOr(_, inner) | Shape::OneOrMany(inner) => inner_tables(inner),
        Shape::List(inner) => inner_tables(inner).into_iter().map(|(_, table)| ("[]", table)).collect(),
        Shape::Map(_, inner) => inner_tables(inner).into_iter().map(|(_, table)| (".NAME", table)).collect(),
        _ => Vec::new(),
    }
}

fn parse(yaml: &str) -> Node {
    let mut sources = Sources::default();
    let source = sources.add("example", yaml, None);
    let mut faults = Vec::new();
    let node = read::yaml(&sources, source, yaml, 0, &mut faults);
    assert_eq!(faults, [], "{yaml}");
    node.unwrap()
}

#[test]
fn every_key_is_told_from_the_others_and_described() {
    for (path, table) in tables() {
        let keys: BTreeSet<_> = table.fields.iter().map(|field| field.key).collect();
        assert_eq!(keys.len(), table.fields.len(), "{path}");
        for field in table.fields {
            let at = format!("{path}.{}", field.key);
            assert!(field.doc.ends_with('.'), "{at}");
            assert!(field.doc.chars().count() > 8, "{at}");
            assert!(field.key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{at}");
        }
    }
}

#[test]
fn every_example_and_every_default_is_accepted() {
    for (path, table) in tables() {
        for field in table.fields {
            let default = match field.presence {
                Presence::Default(text) => Some(text),
                _ => None,
            };
            for text in [Some(field.example), default].into_iter().flatten() {
                let mut node = parse(&format!("{}: {text}", field.key));
                let mut faults = Vec::new();
                short::write_out(table, &mut node, &mut faults);
                merge::settle(&mut node);
                let value = check::check_field(field, node.get(field.key).unwrap(), &mut faults);
                assert_eq!(faults, [], "{path}.{}: {text}", field.key);
                assert!(value.is_some());
            }
        }
    }
}

#[test]
fn the_schema_has_the_keys_of_the_table_and_no_others() {
    fn keys(schema: &serde_json::Value, out: &mut BTreeSet<String>) {
        match schema {
            serde_json::Value::Object(map) => {
                if let Some(properties) = map.get("properties").and_then(|value| value.as_object()) {
                    out.extend(properties.keys().cloned());
                }
                map.values().for_each(|value| keys(value, out));
            }
            serde_json::Value::Array(items) => items.iter().for_each(|value| keys(value, out)),
            _ => {}
        }
    }
    let mut in_schema = BTreeSet::new();
    keys(&serde_json::to_value(super::super::schema()).unwrap(), &mut in_schema);
    let in_table: BTreeSet<String> =
        tables().iter().flat_map(|(_, table)| table.fields.iter().map(|field| field.key.to_owned())).collect();
    assert_eq!(in_schema, in_table);
}

/// Some of the profile's keys with their examples, some of them spoiled.
fn profiles() -> impl Strategy<Value = (String, bool)> {
    let optional: Vec<&'static Field> = PROFILE
        .fields
        .iter()
        .filter(|field| !matches!(field.key, "extends" | "quality" | "engine" | "model"))
        .collect();
    let count = optional.len();
    (
        proptest::sample::subsequence(optional, 0..=count),
        proptest::option::weighted(0.3, (any::<prop::sample::Index>(), 0_usize..5)),
    )
        .prop_map(|(fields, spoil)| {
            let mut lines: Vec<String> =
                fields.iter().map(|field| format!("{}: {}", field.key, field.example)).collect();
            if let Some((index, how)) = spoil
                && !lines.is_empty()
            {
                let line = index.get_mut(&mut lines);
                let key = line.split(':').next().unwrap_or_default().to_owned();
                *line = match how {
                    0 => line.replacen(':', "x:", 1),
                    1 => format!("{key}: [[]]"),
                    2 => format!("{key}: {{a: {{b: c}}}}"),
                    3 => format!("{key}: ${{ORCH_NOT_SET}}"),
                    _ => format!("{key}: null"),
                };
            }
            lines.push("engine: sglang >=0.5.9".to_owned());
            lines.push("model: Qwen/Qwen3-8B@main".to_owned());
            (lines.join("\n"), spoil.is_some())
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The table lets nothing through that the model does not take, and what it takes is written and read back the same.
    #[test]
    fn what_the_table_accepts_the_model_takes((yaml, spoiled) in profiles()) {
        let folder = tempfile::tempdir().unwrap();
        let load = |text: &str| {
            let path = folder.path().join("p.yaml");
            std::fs::write(&path, text).unwrap();
            let none = |_: &str| None;
            load(&Request { profile: path.to_str().unwrap(), set: &[], folders: &[], env: &none })
        };
        match load(&yaml) {
            Ok(first) => {
                let again = load(&first.yaml).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
                prop_assert_eq!(&again.profile, &first.profile);
                prop_assert_eq!(&again.yaml, &first.yaml);
            }
            Err(error) => {
                let codes: Vec<_> = error.faults().map(|fault| fault.code).collect();
                prop_assert!(!codes.iter().any(|code| code.ends_with("::own")), "{:?}", error);
                // The examples contradict each other in one way only: two places to run.
                prop_assert!(spoiled || codes.iter().all(|code| code.ends_with("::contradiction")), "{:?}", error);
            }
        }
    }
}

/// The tables of `docs/profiles.md`; scenarios have a page of their own.
fn reference() -> String {
    reference_of("A profile", tables().into_iter().filter(|(path, _)| !path.starts_with("engine.scenario")))
}

fn reference_of(name: &str, tables: impl Iterator<Item = (String, &'static Struct)>) -> String {
    let mut out = String::new();
    for (path, table) in tables {
        let title = if path.is_empty() { name.to_owned() } else { format!("`{path}`") };
        out.push_str(&format!("### {title}\n\n| key | value | when absent | example |\n| --- | --- | --- | --- |\n"));
        for field in table.fields {
            let absent = match field.presence {
                Presence::Optional => "not set".to_owned(),
                Presence::Required => "a fault".to_owned(),
                Presence::Default("{}" | "[]") => "empty".to_owned(),
                Presence::Default(text) => format!("`{text}`"),
                Presence::Derived(words) => words.to_owned(),
            };
            // Sixty-four digits make no table better.
            let example = field.example.replace(&"0".repeat(64), "0123…");
            out.push_str(&format!(
                "| `{}` | {}. {} | {absent} | `{example}` |\n",
                field.key,
                words(&field.shape),
                field.doc
            ));
        }
        out.push('\n');
    }
    out
}

/// What a value looks like, in words.
fn words(shape: &Shape) -> String {
    let quoted = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    match shape {
        Shape::Text(TextRule::Path) => "A path".to_owned(),
        Shape::Text(TextRule::Name) => "A name".to_owned(),
        Shape::Text(TextRule::Pattern) => "A regular expression".to_owned(),
        Shape::Text(_) => "Text".to_owned(),
        Shape::Word(list) => quoted(list),
        Shape::Kind => format!("{}, or a folder under `templates/`", quoted(super::super::kinds::BUILT_IN)),
        Shape::WordOr(list, other) => format!("{}, or {}", quoted(list), lower(&words(other))),
        Shape::Switch => "`true` or `false`".to_owned(),
        Shape::Whole(min, max) if *max >= u64::from(u32::MAX) => format!("A whole number from {min}"),
        Shape::Whole(min, max) => format!("A whole number, {min} to {max}"),
        Shape::Positive => "A number above 0".to_owned(),
        Shape::NotNegative => "A number from 0".to_owned(),
        Shape::Share { zero: true } => "A share, 0 to 1".to_owned(),
        Shape::Share { zero: false } => "A share above 0, up to 1".to_owned(),
        Shape::Duration => "A duration".to_owned(),
        Shape::Amount => "An amount".to_owned(),
        Shape::List(item) => format!("A list; each {}", lower(&words(item))),
        Shape::OneOrMany(item) => format!("{}, or a list", words(item)),
        Shape::Map(_, item) => format!("A map; each {}", lower(&words(item))),
        Shape::Struct(_) | Shape::Either(_) => "A map".to_owned(),
        Shape::Or(scalar, _) => format!("{}, or a map", words(scalar)),
        Shape::Short(ShortForm::Hook, _) => "The words of a command, or a map".to_owned(),
        Shape::Short(ShortForm::Tolerance, _) => "A share, or a map".to_owned(),
        Shape::Short(_, _) => "Text, or a map".to_owned(),
        Shape::Flag => "a value, `true`, a list or `null`".to_owned(),
        Shape::Expectation => "a value or a comparison".to_owned(),
        Shape::Any => "Anything".to_owned(),
    }
}

fn lower(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// The pages are written by hand around the tables; `ORCH_WRITE_DOCS=1` puts new ones in.
#[test]
fn the_reference_pages_hold_the_tables() {
    holds("docs/profiles.md", &reference());
    holds("docs/simulated.md", &reference_of("A scenario", tables_of(&SCENARIO).into_iter()));
}

fn holds(name: &str, reference: &str) {
    let path = format!("{}/{name}", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- keys: begin -->\n\n", "<!-- keys: end -->");
    let (head, rest) = page.split_once(begin).unwrap();
    let (tables, tail) = rest.split_once(end).unwrap();
    if std::env::var_os("ORCH_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{head}{begin}{reference}{end}{tail}")).unwrap();
        return;
    }
    assert!(tables == reference, "{name} is not as the field table: run this test with ORCH_WRITE_DOCS=1");
}

/// What the page says of an absent key is what the simulated engine takes.
#[test]
fn what_a_scenario_leaves_out_is_as_the_table_says() {
    let json = |text: &str| {
        let scenario = crate::sim::Scenario::parse("example", text).unwrap();
        serde_json::to_value(scenario).unwrap()
    };
    let mut checked = 0;
    for (path, table) in tables_of(&SCENARIO) {
        for field in table.fields {
            let Presence::Derived(words) = field.presence else { continue };
            let Some(value) = words.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) else { continue };
            // A map that is there for another key's sake, and the same with this key written out.
            let keys: Vec<&str> = path.split('.').filter(|key| !key.is_empty()).collect();
            if keys.iter().any(|key| key.ends_with("[]")) || matches!(field.key, "as" | "ranks") {
                continue;
            }
            let beside =
                table.fields.iter().filter(|other| other.presence == Presence::Required || other.key == "after");
            let beside: Vec<String> = beside
                .filter(|other| other.key != field.key)
                .map(|other| format!("{}: {}", other.key, other.example))
                .collect();
            let wrap = |inner: String| keys.iter().rev().fold(inner, |inner, key| format!("{key}: {{{inner}}}"));
            let without = json(&wrap(beside.join(", ")));
            let with = json(&wrap([beside, vec![format!("{}: {value}", field.key)]].concat().join(", ")));
            assert_eq!(without, with, "{path}.{}", field.key);
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
}

/// Every block of the page that begins with a path is a file, and the files together load.
#[test]
fn the_examples_of_the_reference_page_load() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/profiles.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for block in page.split("```yaml\n# profiles/").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        let text = rest.split("```").next().unwrap();
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        if let Some(name) = name.strip_suffix(".yaml").filter(|name| !name.contains('/')) {
            names.push(name.to_owned());
        }
    }
    assert!(names.len() >= 2);
    let env = |name: &str| (name == "MODELS").then(|| "/models".to_owned());
    for name in names {
        let folders = [folder.path().to_owned()];
        load(&Request { profile: &name, set: &[], folders: &folders, env: &env })
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
    }
}
