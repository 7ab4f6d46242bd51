//! The JSON Schema of a profile, made from the field table, for editors.
//!
//! It describes what a person writes, short forms and units included, and is no stricter than the reading itself: a
//! value with `${NAME}` may become anything, and contradictions between keys are beyond it.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map as JsonMap, Value as Json, json};

use super::fields::{Field, KeyRule, PHASES, PROFILE, Presence, Shape, ShortForm, Struct, TextRule};
use super::model::Profile;

/// The JSON Schema (draft 2020-12) of a profile's file.
pub fn schema() -> Schema {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Profile>()
}

impl JsonSchema for Profile {
    fn schema_name() -> Cow<'static, str> {
        "Profile".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = structure(&PROFILE);
        // A file may be a layer, or have layers that say the rest.
        schema.remove("required");
        schema.insert("title".to_owned(), json!("Profile of orch"));
        schema.into()
    }
}

fn structure(table: &Struct) -> JsonMap<String, Json> {
    let mut properties = JsonMap::new();
    let mut required = Vec::new();
    for field in table.fields {
        properties.insert(field.key.to_owned(), property(field));
        if field.presence == Presence::Required {
            required.push(field.key);
        }
    }
    let mut schema = JsonMap::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("additionalProperties".to_owned(), json!(false));
    schema.insert("properties".to_owned(), Json::Object(properties));
    if !required.is_empty() {
        schema.insert("required".to_owned(), json!(required));
    }
    schema
}

fn property(field: &Field) -> Json {
    let mut schema = value(&field.shape);
    if let Json::Object(map) = &mut schema {
        map.insert("description".to_owned(), json!(field.doc));
        if let Presence::Default(text) = field.presence
            && !matches!(text, "{}" | "[]")
        {
            map.insert("default".to_owned(), super::check::to_json(&super::check::default_node(text, NOWHERE)));
        }
    }
    // In any layer, `null` takes a key away again.
    json!({"anyOf": [{"type": "null"}, schema], "description": field.doc})
}

const NOWHERE: super::source::Place = super::source::Place { source: super::source::SourceId(0), start: 0, len: 0 };

/// Text that is filled in from the environment may become anything.
fn or_expanded(schema: Json) -> Json {
    json!({"anyOf": [schema, {"type": "string", "pattern": "\\$\\{"}]})
}

fn value(shape: &Shape) -> Json {
    match shape {
        Shape::Text(rule) => text(*rule),
        Shape::Word(words) => or_expanded(json!({"enum": words})),
        // Those of the folder that the schema is printed in.
        Shape::Kind => or_expanded(json!({"enum": super::kinds::known(&crate::engine::default_folders())})),
        Shape::WordOr(words, other) => json!({"anyOf": [{"enum": words}, value(other)]}),
        // `on` and its kin are booleans to some readers and words to others.
        Shape::Switch => or_expanded(json!({"anyOf": [
            {"type": "boolean"},
            {"type": "string", "pattern": "^([Oo]n|ON|[Oo]ff|OFF|[Yy]es|YES|[Nn]o|NO)$"},
        ]})),
        Shape::Whole(min, max) => or_expanded(json!({"anyOf": [
            {"type": "integer", "minimum": min, "maximum": max},
            {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?[kKM]$"},
        ]})),
        Shape::Positive => or_expanded(json!({"type": "number", "exclusiveMinimum": 0})),
        Shape::NotNegative => or_expanded(json!({"type": "number", "minimum": 0})),
        Shape::Share { zero } => {
            let number = if *zero {
                json!({"type": "number", "minimum": 0, "maximum": 1})
            } else {
                json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
            };
            or_expanded(json!({"anyOf": [number, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?%$"}]}))
        }
        Shape::Duration => or_expanded(json!({"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"})),
        Shape::Amount => or_expanded(json!({"anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(%|us|ms|s|m|h|[KMGT]?i?B|kB)$"},
        ]})),
        Shape::List(item) => json!({"type": "array", "items": value(item)}),
        Shape::OneOrMany(item) => json!({"anyOf": [value(item), {"type": "array", "items": value(item)}]}),
        Shape::Map(rule, item) => {
            let item = json!({"anyOf": [{"type": "null"}, value(item)]});
            json!({"type": "object", "propertyNames": key(*rule), "additionalProperties": item})
        }
        Shape::Struct(table) => inner(table),
        Shape::Either(tables) => json!({"anyOf": tables.iter().map(|table| inner(table)).collect::<Vec<_>>()}),
        Shape::Or(scalar, tables) => {
            let all: Vec<Json> =
                std::iter::once(value(scalar)).chain(tables.iter().map(|table| inner(table))).collect();
            json!({"anyOf": all})
        }
        Shape::Short(form, table) => {
            let short = match form {
                ShortForm::Engine | ShortForm::Model => json!({"type": "string", "minLength": 1}),
                ShortForm::Hook => json!({"anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "items": text(TextRule::Free)},
                ]}),
                ShortForm::Tolerance => value(&Shape::Share { zero: true }),
            };
            json!({"anyOf": [short, inner(table)]})
        }
        Shape::Flag => json!({"anyOf": [
            {"type": ["string", "number", "boolean"]},
            {"type": "array", "items": {"type": ["string", "number", "boolean"]}},
        ]}),
        Shape::Expectation => json!({"type": ["string", "number", "boolean"]}),
        Shape::Any => json!({}),
    }
}

/// A map inside a profile: what it requires may stand in another layer.
fn inner(table: &Struct) -> Json {
    let mut schema = structure(table);
    schema.remove("required");
    Json::Object(schema)
}

fn text(rule: TextRule) -> Json {
    // A plain `0.10` or `no` is text to orch and a number or a boolean to the reader of an editor.
    let any = json!({"type": ["string", "number", "boolean"]});
    match rule {
        TextRule::Free => any,
        TextRule::Filled | TextRule::Path | TextRule::Pattern | TextRule::Requirement => {
            json!({"type": ["string", "number", "boolean"], "minLength": 1})
        }
        TextRule::Name => {
            json!({"type": ["string", "number", "boolean"], "pattern": r"^([A-Za-z0-9][A-Za-z0-9._+-]{0,99}|.*\$\{.*)$"})
        }
        TextRule::EnvName => json!({"type": "string", "pattern": r"^([A-Za-z_][A-Za-z0-9_]*|.*\$\{.*)$"}),
        TextRule::HttpPath => json!({"type": "string", "pattern": r"^(/\S*|.*\$\{.*)$"}),
        // Sixty-four digits without a letter are a number to other readers.
        TextRule::Sha256 => json!({"type": ["string", "number"], "pattern": r"^([0-9a-f]{64}|.*\$\{.*)$"}),
    }
}

fn key(rule: KeyRule) -> Json {
    match rule {
        KeyRule::Free => json!({"type": "string"}),
        KeyRule::Flag => json!({"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"}),
        KeyRule::EnvName => json!({"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}),
        KeyRule::Name => json!({"pattern": "^[A-Za-z0-9][A-Za-z0-9_+-]*$"}),
        KeyRule::Phase => json!({"enum": PHASES}),
        KeyRule::Metric | KeyRule::Expectable => {
            let words: Vec<String> = super::metrics::words(rule == KeyRule::Expectable).collect();
            json!({"enum": words})
        }
    }
}
