//! The small tree that a YAML text becomes: values with their places, scalars with the text as it was written.
//!
//! A typeless YAML reader turns the country `no` into false and the version `0.10` into 0.1. Here a scalar stays text
//! until the field table says what it should be.

use std::fmt;

use indexmap::IndexMap;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_yaml::{Location, Spanned};

use super::fault::Fault;
use super::source::{Place, SourceId};

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Place,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `null`, `~` or nothing. In a layer: what the layers below said is dropped.
    Null,
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Map),
}

/// A scalar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scalar {
    /// As written for a plain scalar; unescaped for a quoted one.
    pub(crate) text: String,
    /// Whether it stood without quotes, so that `true` or `16` may mean more than text.
    pub(crate) plain: bool,
    /// Whether the place holds exactly this text, so that a part of the text is a part of the place.
    pub(crate) exact: bool,
    /// Whether a `${NAME}` was filled in.
    pub(crate) expanded: bool,
    /// Whether a `${NAME}` could not be filled in, which is told already; the text means nothing.
    pub(crate) broken: bool,
}

/// A map, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Map {
    pub(crate) entries: IndexMap<String, Entry>,
    /// Whether it stands above something that is not a map (or above a `null`), so that it replaces what is below it.
    pub(crate) replaces: bool,
}

/// A value of a map, with the place of its key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: Place,
    pub(crate) node: Node,
}

impl Node {
    /// A scalar that stands at `place` as it is.
    pub(crate) fn plain(text: impl Into<String>, place: Place) -> Node {
        Node {
            value: Value::Scalar(Scalar {
                text: text.into(),
                plain: true,
                exact: true,
                expanded: false,
                broken: false,
            }),
            place,
        }
    }

    pub(crate) fn map(entries: impl IntoIterator<Item = (String, Entry)>, place: Place) -> Node {
        Node { value: Value::Map(Map { entries: entries.into_iter().collect(), replaces: false }), place }
    }

    pub(crate) fn scalar(&self) -> Option<&Scalar> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    pub(crate) fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    pub(crate) fn as_map_mut(&mut self) -> Option<&mut Map> {
        match &mut self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The value under a key, when this is a map that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.as_map()?.entries.get(key).map(|entry| &entry.node)
    }

    /// The value at a path of keys.
    pub(crate) fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The text of the scalar at a path.
    pub(crate) fn text_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.scalar().map(|scalar| scalar.text.as_str())
    }

    /// What a person would call it.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Scalar(scalar) if !scalar.plain => "a text in quotes",
            Value::Scalar(_) => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// A tree as serde hands it over, before scalars get their text back.
#[derive(Debug)]
pub(super) enum Raw {
    Null,
    /// A plain scalar that the reader took for a boolean or a number: its text is in the source.
    Typed(String),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a map")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}

/// Gives scalars their text and everything its place.
pub(super) struct Planter<'a> {
    pub(super) text: &'a str,
    pub(super) source: SourceId,
    /// Where `text` begins in the source.
    pub(super) offset: usize,
    pub(super) faults: &'a mut Vec<Fault>,
}

impl Planter<'_> {
    pub(super) fn node(&mut self, raw: Spanned<Raw>) -> Node {
        let place = self.place(raw.referenced);
        let value = match raw.value {
            Raw::Null => Value::Null,
            Raw::Typed(read) => {
                let written = self.written(raw.defined);
                // A tag before a quoted scalar can make a number of it; then the reader's own text has to do.
                let plain = !written.is_empty() && !written.starts_with(['"', '\'', '|', '>', '!', '&']);
                let text = if plain { written.to_owned() } else { read };
                let exact = plain && raw.defined == raw.referenced;
                Value::Scalar(Scalar { text, plain: true, exact, expanded: false, broken: false })
            }
            Raw::Text(text) => {
                let written = self.written(raw.defined);
                // The span of a block scalar is its content alone, so line breaks tell it.
                let plain = !written.starts_with(['"', '\'']) && !text.contains('\n');
                let exact = written == text && raw.defined == raw.referenced;
                Value::Scalar(Scalar { text, plain, exact, expanded: false, broken: false })
            }
            Raw::List(items) => Value::List(items.into_iter().map(|item| self.node(item)).collect()),
            Raw::Map(entries) => Value::Map(self.map(entries)),
        };
        Node { value, place }
    }

    fn map(&mut self, raw: Vec<(Spanned<String>, Spanned<Raw>)>) -> Map {
        let mut map = Map::default();
        for (key, value) in raw {
            let place = self.place(key.referenced);
            let node = self.node(value);
            if let Some(first) = map.entries.get(&key.value) {
                self.faults.push(
                    Fault::new("duplicate_key", format!("key `{}` stands here twice", key.value))
                        .at(place, "again here")
                        .and(first.key, "first here")
                        .help("keep one of the two"),
                );
                continue;
            }
            map.entries.insert(key.value, Entry { key: place, node });
        }
        map
    }

    fn written(&self, location: Location) -> &str {
        let span = location.span();
        let start = usize::try_from(span.byte_offset().unwrap_or(0)).unwrap_or(0);
        let len = usize::try_from(span.byte_len().unwrap_or(0)).unwrap_or(0);
        self.text.get(start..start.saturating_add(len)).unwrap_or("")
    }

    fn place(&self, location: Location) -> Place {
        let span = location.span();
        let start = usize::try_from(span.byte_offset().unwrap_or(0)).unwrap_or(0).min(self.text.len());
        let len = usize::try_from(span.byte_len().unwrap_or(0)).unwrap_or(0).min(self.text.len() - start);
        Place { source: self.source, start: self.offset + start, len }
    }
}
