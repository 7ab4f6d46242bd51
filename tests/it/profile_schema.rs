//! An editor is given the schema of a profile, and agrees with orch.

use std::process::Command;

use serde_json::{Value, json};

use crate::profile_layers::{is_profile, orch_profiles};

fn schema() -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_orch")).arg("schema").output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a value breaks; the part of JSON Schema that orch's schema uses, and nothing passes that it does not know.
fn breaks(schema: &Value, value: &Value, at: &str, out: &mut Vec<String>) {
    for (word, rule) in schema.as_object().unwrap() {
        let fits = match word.as_str() {
            "$schema" | "title" | "description" | "default" => true,
            "type" => {
                let types = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                types.iter().any(|kind| match kind.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "number" => value.is_number(),
                    "integer" => value.is_u64() || value.is_i64(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    other => panic!("type {other}"),
                })
            }
            "enum" => rule.as_array().unwrap().contains(value),
            "pattern" => {
                value.as_str().is_none_or(|text| regex::Regex::new(rule.as_str().unwrap()).unwrap().is_match(text))
            }
            "minLength" => value.as_str().is_none_or(|text| text.len() as u64 >= rule.as_u64().unwrap()),
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
            "exclusiveMinimum" => value.as_f64().is_none_or(|number| number > rule.as_f64().unwrap()),
            "anyOf" => {
                let tries: Vec<Vec<String>> = rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|schema| {
                        let mut out = Vec::new();
                        breaks(schema, value, at, &mut out);
                        out
                    })
                    .collect();
                let fits = tries.iter().any(Vec::is_empty);
                if !fits {
                    out.extend(tries.into_iter().flatten());
                }
                fits
            }
            "items" => {
                value.as_array().into_iter().flatten().for_each(|item| breaks(rule, item, &format!("{at}[]"), out));
                true
            }
            "properties" => {
                for (key, schema) in rule.as_object().unwrap() {
                    if let Some(inner) = value.get(key) {
                        breaks(schema, inner, &format!("{at}.{key}"), out);
                    }
                }
                true
            }
            "propertyNames" => {
                value
                    .as_object()
                    .into_iter()
                    .flatten()
                    .for_each(|(key, _)| breaks(rule, &json!(key), &format!("{at}.{key}"), out));
                true
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                for (key, inner) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.contains_key(key)) {
                        continue;
                    }
                    match rule {
                        Value::Bool(false) => out.push(format!("{at}: unknown key {key}")),
                        rule => breaks(rule, inner, &format!("{at}.{key}"), out),
                    }
                }
                true
            }
            other => panic!("the schema uses `{other}`, which this test does not know"),
        };
        if !fits {
            out.push(format!("{at}: {value} breaks {word} {rule}"));
        }
    }
}

fn check(schema: &Value, yaml: &str) -> Vec<String> {
    let value: Value = serde_yaml::from_str(yaml).unwrap();
    let mut out = Vec::new();
    breaks(schema, &value, "", &mut out);
    out
}

#[test]
fn it_is_a_schema_of_draft_2020_12() {
    let schema = schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["additionalProperties"], false);
    for key in ["engine", "model", "speculative", "bench", "expect", "hooks"] {
        assert!(schema["properties"][key]["description"].is_string(), "{key}");
    }
}

#[test]
fn every_profile_and_layer_of_the_repository_meets_it() {
    let schema = schema();
    let mut seen = 0;
    for path in orch_profiles() {
        let is_layer = path.parent().is_some_and(|folder| folder.ends_with("layers"));
        if is_profile(&path) || is_layer {
            let broken = check(&schema, &std::fs::read_to_string(&path).unwrap());
            assert_eq!(broken, Vec::<String>::new(), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 0, "no profile was tried");
}

#[test]
fn it_refuses_what_orch_refuses_at_sight() {
    let schema = schema();
    for yaml in [
        "paralel: {tensor: 2}",
        "parallel: {tensr: 2}",
        "parallel: {tensor: two}",
        "port: 0",
        "memory: {fraction: 1.2}",
        "launch: {abandon: 20}",
        "launch: {via: docker}",
        "engine: {kind: sglnag}",
        "flags: {--x: 1}",
        "expect: {acceptance_lenght: 2}",
        "tolerance: {ttft_ms: 3%}",
        "gate: {patience: {lunch: 3m}}",
        "bench: {a: {use: chat, concurrncy: 1}}",
        "secrets: HF_TOKEN",
        "engine: {install: {packages: [{name: a, version: 1, sha256: xyz}]}}",
    ] {
        assert!(!check(&schema, yaml).is_empty(), "{yaml}");
    }
    for yaml in [
        "engine: sglang >=0.5.9\nmodel: {path: a, revision: 0.10}",
        "port: ${PORT}",
        "instrument: off",
        "context_length: 128k",
        "hooks: {before_launch: ./x --all, after_stop: {command: [y], timeout: 2m}}",
        "flags: {a: null, b: true, c: [1, x]}",
        "speculative: null",
        "tolerance: {output_tokens_per_s: 3%, ttft_ms.p90: {absolute: 20ms}}",
        "expect: {effective.max_running_requests: 16, ttft_ms.p99: '< 500ms'}",
    ] {
        assert_eq!(check(&schema, yaml), Vec::<String>::new(), "{yaml}");
    }
}
