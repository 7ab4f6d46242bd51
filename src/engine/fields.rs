//! What a launch template can name.

use std::collections::BTreeMap;

use super::settings;

/// What stands behind a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A text, a number, or on and off.
    Scalar,
    /// Several of one kind.
    List(Box<Shape>),
    /// Fields by name.
    Map(BTreeMap<String, Shape>),
}

fn list(of: Shape) -> Shape {
    Shape::List(Box::new(of))
}

fn map(fields: impl IntoIterator<Item = (&'static str, Shape)>) -> Shape {
    Shape::Map(fields.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect())
}

/// All fields of a template. Those that a profile leaves unset are refused when written outside an `if`.
pub(super) fn root() -> Shape {
    let spelled = |name: &'static str| map([(name, Shape::Scalar), ("words", list(Shape::Scalar))]);
    let Shape::Map(mut root) = map([
        // The program.
        ("executable", Shape::Scalar),
        // The profile's name.
        ("name", Shape::Scalar),
        // Kind and version.
        ("engine", map([("kind", Shape::Scalar), ("version", Shape::Scalar)])),
        // Settings in this version's spelling, in the order of `engine.yaml`.
        ("settings", list(spelled("key"))),
        // `defaults` of `engine.yaml`.
        ("defaults", list(spelled("flag"))),
        // `flags` of the profile.
        ("flags", list(spelled("name"))),
        // `args` of the profile.
        ("args", list(Shape::Scalar)),
        // `engine.command`, filled in.
        ("command", list(Shape::Scalar)),
    ]) else {
        unreachable!("made as a map")
    };
    for key in settings::KEYS {
        let shape = if *key == "graphs.batches" { list(Shape::Scalar) } else { Shape::Scalar };
        match key.split_once('.') {
            None => {
                root.insert((*key).to_owned(), shape);
            }
            Some((group, field)) => {
                let group = root.entry(group.to_owned()).or_insert_with(|| Shape::Map(BTreeMap::new()));
                if let Shape::Map(fields) = group {
                    fields.insert(field.to_owned(), shape);
                }
            }
        }
    }
    Shape::Map(root)
}
