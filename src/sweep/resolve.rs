//! What a point is called: the hash of its resolved profile. Whoever writes the same settings in another way, or resumes
//! with other flags, comes to the same name.
//!
//! Ten thousand profiles are not read for that. One combination is, and each value of each axis beside it; what a value
//! changes in the resolved profile is laid over the one that was read.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The resolved profile with one axis at another value, or, where that cannot be read, the value as it is written.
#[derive(Clone, Debug)]
pub enum Variant {
    /// Read.
    Read(Value),
    /// Not readable beside the other values of the reference.
    Raw(String),
}

/// What a value changes: at a path in the resolved profile, another value or none.
type Patch = Vec<(Vec<String>, Option<Value>)>;

/// Names points.
#[derive(Debug)]
pub struct Ids {
    /// What the parts of the profile that no axis acts on come to.
    untouched: Hash,
    reference: Value,
    /// By axis, by level.
    patches: Vec<Vec<Patch>>,
    /// Keys of the profile that axes act on, with those axes.
    touched: Vec<(String, Vec<usize>)>,
    /// What such a key comes to, by the levels of its axes.
    known: RefCell<Vec<HashMap<Vec<usize>, Hash>>>,
}

type Hash = [u8; 32];

impl Ids {
    /// From the reference's resolved profile and, by axis and level, what it is with that value alone changed.
    pub fn new(reference: Value, variants: &[(String, Vec<Variant>)]) -> Self {
        let patches: Vec<Vec<Patch>> = variants
            .iter()
            .map(|(path, levels)| levels.iter().map(|variant| patch(&reference, path, variant)).collect())
            .collect();
        let mut touched: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (axis, levels) in patches.iter().enumerate() {
            for (path, _) in levels.iter().flatten() {
                let axes = touched.entry(path[0].clone()).or_default();
                if !axes.contains(&axis) {
                    axes.push(axis);
                }
            }
        }
        let entries = reference.as_object().into_iter().flatten().filter(|(key, _)| !touched.contains_key(*key));
        let untouched = entries.map(|(key, value)| hash(key, value)).fold([0; 32], both);
        let known = RefCell::new(vec![HashMap::new(); touched.len()]);
        Ids { untouched, reference, patches, touched: touched.into_iter().collect(), known }
    }

    /// The name of the point with these levels.
    pub fn id(&self, levels: &[usize]) -> String {
        let parts = (0..self.touched.len()).map(|place| self.part(place, levels));
        hex(&parts.fold(self.untouched, both)[..6])
    }

    fn part(&self, place: usize, levels: &[usize]) -> Hash {
        let (key, axes) = &self.touched[place];
        let which: Vec<usize> = axes.iter().map(|axis| levels[*axis]).collect();
        let mut known = self.known.borrow_mut();
        *known[place].entry(which).or_insert_with(|| {
            let mut value = self.reference.get(key).cloned();
            let patches = axes.iter().flat_map(|axis| &self.patches[*axis][levels[*axis]]);
            let own = patches.filter(|(path, _)| path[0] == *key);
            // What one axis takes away as a whole no other puts back: `speculative.steps: 0` is off.
            let (sets, removals): (Vec<_>, Vec<_>) = own.partition(|(_, value)| value.is_some());
            for (path, change) in sets.into_iter().chain(removals) {
                lay(&mut value, &path[1..], change.as_ref());
            }
            value.as_ref().map_or([0; 32], |value| hash(key, value))
        })
    }
}

/// The hashes of two parts as that of both, in whatever order: a point has the same name whichever of its parts are axes.
fn both(one: Hash, other: Hash) -> Hash {
    std::array::from_fn(|at| one[at] ^ other[at])
}

fn patch(reference: &Value, path: &str, variant: &Variant) -> Patch {
    match variant {
        Variant::Read(value) => {
            let mut patch = Vec::new();
            differences(Some(reference), Some(value), &mut Vec::new(), &mut patch);
            patch
        }
        Variant::Raw(text) => {
            let head = path.split('.').next().unwrap_or(path);
            vec![(vec![head.to_owned(), format!("{path} as written")], Some(Value::from(text.as_str())))]
        }
    }
}

fn differences(was: Option<&Value>, now: Option<&Value>, path: &mut Vec<String>, patch: &mut Patch) {
    match (was, now) {
        (Some(Value::Object(was)), Some(Value::Object(now))) => {
            for key in was.keys().chain(now.keys().filter(|key| !was.contains_key(*key))) {
                path.push(key.clone());
                differences(was.get(key), now.get(key), path, patch);
                path.pop();
            }
        }
        (was, now) if was != now && !path.is_empty() => patch.push((path.clone(), now.cloned())),
        _ => {}
    }
}

fn lay(value: &mut Option<Value>, path: &[String], change: Option<&Value>) {
    let Some((key, rest)) = path.split_first() else {
        *value = change.cloned();
        return;
    };
    if !matches!(value, Some(Value::Object(_))) {
        if change.is_none() {
            return;
        }
        *value = Some(Value::Object(serde_json::Map::new()));
    }
    let Some(Value::Object(map)) = value else { return };
    let mut inner = map.remove(key);
    lay(&mut inner, rest, change);
    if let Some(inner) = inner {
        map.insert(key.clone(), inner);
    }
}

fn hash(key: &str, value: &Value) -> Hash {
    let mut text = format!("{}:", Value::from(key));
    canonical(value, &mut text);
    Sha256::digest(text.as_bytes()).into()
}

/// JSON whose keys are sorted: the order in which flags are written is no setting.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for key in keys {
                let _ = write!(out, "{}:", Value::from(key.as_str()));
                canonical(&map[key], out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of one resolved profile, as [`Ids::id`] gives it.
pub fn id_of(profile: &Value) -> String {
    Ids::new(profile.clone(), &[]).id(&[])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_point_is_called_by_what_it_resolves_to() {
        let reference = json!({"name": "a", "memory": {"fraction": 0.8}, "speculative": {"method": "mtp", "steps": 1}});
        let with = |value: Value| Variant::Read(value);
        let ids = Ids::new(
            reference.clone(),
            &[
                (
                    "memory.fraction".into(),
                    vec![
                        with(reference.clone()),
                        with(
                            json!({"name": "a", "memory": {"fraction": 0.9}, "speculative": {"method": "mtp", "steps": 1}}),
                        ),
                    ],
                ),
                (
                    "speculative.steps".into(),
                    vec![with(reference.clone()), with(json!({"name": "a", "memory": {"fraction": 0.8}}))],
                ),
                (
                    "speculative.topk".into(),
                    vec![
                        with(reference.clone()),
                        with(
                            json!({"name": "a", "memory": {"fraction": 0.8}, "speculative": {"method": "mtp", "steps": 1, "topk": 4}}),
                        ),
                    ],
                ),
            ],
        );
        assert_eq!(ids.id(&[0, 0, 0]), id_of(&reference));
        assert_eq!(ids.id(&[1, 1, 0]), id_of(&json!({"memory": {"fraction": 0.9}, "name": "a"})));
        assert_eq!(ids.id(&[0, 1, 0]), ids.id(&[0, 1, 1]), "off is off, whatever else is said of it");
        assert_ne!(ids.id(&[0, 0, 0]), ids.id(&[0, 0, 1]));
    }

    #[test]
    fn ten_thousand_are_named_in_a_moment() {
        let base: serde_json::Map<String, Value> =
            (0..40).map(|key| (format!("key{key}"), json!({"a": key, "b": vec!["x"; 20]}))).collect();
        let base = Value::Object(base);
        let axis = |key: usize| {
            let variant = |level: usize| {
                let mut value = base.clone();
                value[format!("key{key}")]["a"] = json!(level + 100);
                Variant::Read(value)
            };
            (format!("key{key}.a"), (0..10).map(variant).collect())
        };
        let ids = Ids::new(base.clone(), &[axis(0), axis(1), axis(2), axis(3)]);
        let begun = std::time::Instant::now();
        let names: std::collections::HashSet<String> =
            (0..10_000).map(|n| ids.id(&[n / 1000, n / 100 % 10, n / 10 % 10, n % 10])).collect();
        assert_eq!(names.len(), 10_000);
        assert!(begun.elapsed().as_secs_f64() < 1.0, "{:?}", begun.elapsed());
    }
}
