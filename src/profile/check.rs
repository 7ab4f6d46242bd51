//! Holds a tree against the field table. What comes out is the same tree as JSON with every quantity in its one
//! canonical form and defaults filled in; whatever does not fit is a fault, and the reading goes on.

mod keys;
mod scalar;
mod words;

use serde_json::{Map as JsonMap, Value as Json, json};

use crate::units::Measure;

use super::fault::Fault;
use super::fields::{Field, KeyRule, Presence, Shape, Struct};
use super::tree::{Entry, Map, Node, Value};

pub(crate) use keys::key_help;
pub(crate) use words::{is_env_name, is_name};

/// Holds `node` against a table.
pub(crate) fn check(table: &'static Struct, node: &Node, faults: &mut Vec<Fault>) -> Option<Json> {
    Checker { faults, path: Vec::new(), example: None, measure: Measure::Number }.structure(table, node)
}

/// Holds one key's value against its field.
#[cfg(test)]
pub(crate) fn check_field(field: &'static Field, node: &Node, faults: &mut Vec<Fault>) -> Option<Json> {
    // The amount of the examples is one of time.
    Checker { faults, path: Vec::new(), example: None, measure: Measure::Milliseconds }.field(field, node)
}

/// Unknown keys that are set to `null`: they would vanish with what they remove, and the slip with them.
pub(crate) fn unknown_nulls(table: &'static Struct, node: &Node, faults: &mut Vec<Fault>) {
    Checker { faults, path: Vec::new(), example: None, measure: Measure::Number }
        .unknown_nulls(&Shape::Struct(table), node);
}

struct Checker<'a> {
    faults: &'a mut Vec<Fault>,
    path: Vec<String>,
    /// The key that is being read and how it could look.
    example: Option<(&'static str, &'static str)>,
    /// The unit of the metric whose tolerance is being read.
    measure: Measure,
}

impl Checker<'_> {
    fn path(&self) -> String {
        self.path.join(".")
    }

    fn unknown_nulls(&mut self, shape: &Shape, node: &Node) {
        let Value::Map(map) = &node.value else { return };
        for (key, entry) in &map.entries {
            let inner = match shape {
                Shape::Struct(table) | Shape::Short(_, table) => match table.field(key) {
                    Some(field) => &field.shape,
                    None if entry.node.value == Value::Null => {
                        self.unknown_key(table, key, entry);
                        continue;
                    }
                    // What is unknown and stays is told when the settled tree is read.
                    None => continue,
                },
                Shape::Map(_, inner) => inner,
                _ => return,
            };
            self.path.push(key.clone());
            self.unknown_nulls(inner, &entry.node);
            self.path.pop();
        }
    }

    fn value(&mut self, shape: &Shape, node: &Node) -> Option<Json> {
        if node.scalar().is_some_and(|scalar| scalar.broken) {
            return None;
        }
        match shape {
            Shape::Text(rule) => self.text(*rule, node),
            Shape::Word(words) => self.word(words, node),
            Shape::WordOr(words, other) => match node.scalar() {
                Some(scalar) if words.contains(&scalar.text.as_str()) => Some(json!(scalar.text)),
                Some(_) if matches!(other, Shape::Struct(_)) => self.word(words, node),
                _ => self.value(other, node),
            },
            Shape::Kind => self.kind(node),
            Shape::Switch => self.switch(node),
            Shape::Whole(min, max) => self.whole(*min, *max, node),
            Shape::Positive => self.number(false, node),
            Shape::NotNegative => self.number(true, node),
            Shape::Share { zero } => self.share(*zero, node),
            Shape::Duration => self.duration(node),
            Shape::Amount => self.amount(node),
            Shape::Flag => self.flag(node),
            Shape::Expectation => self.expectation(node),
            Shape::Any => Some(to_json(node)),
            Shape::List(item) => match &node.value {
                Value::List(items) => self.items(item, items),
                Value::Scalar(_) if self.path.last().is_some_and(|key| key == "command" || key == "args") => {
                    self.wrong_type(node, "a list of words")
                }
                _ => self.wrong_type(node, "a list"),
            },
            Shape::OneOrMany(item) => match &node.value {
                Value::List(items) => self.items(item, items),
                _ => self.value(item, node).map(|one| json!([one])),
            },
            Shape::Map(rule, item) => self.free_map(*rule, item, node),
            Shape::Struct(table) | Shape::Short(_, table) => self.structure(table, node),
            Shape::Either(tables) => self.either(tables, node),
            Shape::Or(scalar, tables) => match &node.value {
                Value::Map(_) => self.either(tables, node),
                _ => self.value(scalar, node),
            },
        }
    }

    fn items(&mut self, shape: &Shape, items: &[Node]) -> Option<Json> {
        let mut all = Some(Vec::new());
        for (index, item) in items.iter().enumerate() {
            self.path.push((index + 1).to_string());
            let value = match item.value {
                Value::Null => self.wrong_type(item, "anything: write it in quotes, or remove it"),
                _ => self.value(shape, item),
            };
            self.path.pop();
            match (value, &mut all) {
                (Some(value), Some(all)) => all.push(value),
                _ => all = None,
            }
        }
        all.map(Json::Array)
    }

    fn structure(&mut self, table: &'static Struct, node: &Node) -> Option<Json> {
        let Value::Map(map) = &node.value else {
            return self.wrong_type(node, "a map");
        };
        let mut whole = true;
        let mut read = JsonMap::new();
        for (key, entry) in &map.entries {
            let Some(field) = table.field(key) else {
                self.unknown_key(table, key, entry);
                whole = false;
                continue;
            };
            match self.field(field, &entry.node) {
                Some(value) => {
                    read.insert(key.clone(), value);
                }
                None => whole = false,
            }
        }
        for field in table.fields.iter().filter(|field| !map.entries.contains_key(field.key)) {
            match field.presence {
                Presence::Optional | Presence::Derived(_) => {}
                Presence::Required => {
                    self.path.push(field.key.to_owned());
                    self.faults.push(
                        Fault::new("missing_key", format!("`{}` is missing", self.path()))
                            .at(node.place, format!("without `{}`", field.key))
                            .help(format!("for example `{}: {}`", field.key, field.example)),
                    );
                    self.path.pop();
                    whole = false;
                }
                Presence::Default(text) => match self.field(field, &default_node(text, node.place)) {
                    Some(value) => {
                        read.insert(field.key.to_owned(), value);
                    }
                    None => whole = false,
                },
            }
        }
        whole.then_some(Json::Object(read))
    }

    fn field(&mut self, field: &'static Field, node: &Node) -> Option<Json> {
        self.path.push(field.key.to_owned());
        let outer = self.example.replace((field.key, field.example));
        let value = self.value(&field.shape, node);
        self.example = outer;
        self.path.pop();
        value
    }

    fn unknown_key(&mut self, table: &'static Struct, key: &str, entry: &Entry) {
        self.path.push(key.to_owned());
        let path = self.path();
        self.path.pop();
        let of = if self.path.is_empty() { table.title() } else { format!("`{}`", self.path()) };
        let fault =
            Fault::new("unknown_key", format!("unknown key `{path}`")).at(entry.key, format!("not a key of {of}"));
        self.faults.push(fault.help(key_help(table, key, self.path.is_empty())));
    }

    fn either(&mut self, tables: &'static [&'static Struct], node: &Node) -> Option<Json> {
        let known = |table: &Struct| match &node.value {
            Value::Map(map) => map.entries.keys().filter(|key| table.field(key).is_some()).count(),
            _ => 0,
        };
        // The first of those that know the most of its keys.
        let best = tables.iter().rev().max_by_key(|table| known(table))?;
        self.structure(best, node)
    }

    fn free_map(&mut self, rule: KeyRule, shape: &Shape, node: &Node) -> Option<Json> {
        let Value::Map(map) = &node.value else {
            return self.wrong_type(node, "a map");
        };
        let mut whole = true;
        let mut read = JsonMap::new();
        for (key, entry) in &map.entries {
            self.path.push(key.clone());
            let key_fits = self.key(rule, key, entry.key);
            let outer = self.example.take();
            // What a value of an unknown metric should be is unknown too.
            let is_of_metric = matches!(rule, KeyRule::Metric | KeyRule::Expectable);
            let value = if key_fits || !is_of_metric { self.value(shape, &entry.node) } else { None };
            self.example = outer;
            self.path.pop();
            match value {
                Some(value) if key_fits => {
                    read.insert(key.clone(), value);
                }
                _ => whole = false,
            }
        }
        whole.then_some(Json::Object(read))
    }
}

/// What a default of the table stands for.
pub(crate) fn default_node(text: &str, place: super::source::Place) -> Node {
    match text {
        "{}" => Node { value: Value::Map(Map::default()), place },
        "[]" => Node { value: Value::List(Vec::new()), place },
        text => Node::plain(text, place),
    }
}

/// Anything as JSON, plain scalars by YAML's core rules.
pub(crate) fn to_json(node: &Node) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::List(items) => Json::Array(items.iter().map(to_json).collect()),
        Value::Map(map) => {
            Json::Object(map.entries.iter().map(|(key, entry)| (key.clone(), to_json(&entry.node))).collect())
        }
        Value::Scalar(scalar) if !scalar.plain => json!(scalar.text),
        Value::Scalar(scalar) => match scalar.text.as_str() {
            "true" | "True" | "TRUE" => json!(true),
            "false" | "False" | "FALSE" => json!(false),
            text => {
                let digits = text.strip_prefix('-').unwrap_or(text);
                // `1e3`, `.5` and `0x10` differ from reader to reader; `007` and `inf` are words.
                let number = digits.starts_with(|c: char| c.is_ascii_digit())
                    && (!digits.starts_with('0') || digits == "0" || digits.starts_with("0."));
                match number.then(|| serde_json::from_str::<serde_json::Number>(text)) {
                    Some(Ok(number)) => Json::Number(number),
                    _ => json!(text),
                }
            }
        },
    }
}
