//! Layers laid over each other: maps merge by key, lists and single values replace, `null` removes.
//!
//! A `null`, and a map that stands above something else than a map, stay marked while layers are merged, so that it
//! makes no difference which of them are merged first.

use super::tree::{Map, Node, Value};

/// `upper` laid over `lower`.
pub(crate) fn merge(lower: Node, upper: Node) -> Node {
    let place = upper.place;
    let value = match (lower.value, upper.value) {
        (Value::Map(lower), Value::Map(upper)) if !upper.replaces => Value::Map(merge_maps(lower, upper)),
        (_, Value::Map(upper)) => Value::Map(Map { replaces: true, ..upper }),
        (_, upper) => upper,
    };
    Node { value, place }
}

fn merge_maps(mut lower: Map, upper: Map) -> Map {
    for (key, entry) in upper.entries {
        match lower.entries.get_mut(&key) {
            Some(below) => {
                let old = std::mem::replace(&mut below.node, Node { value: Value::Null, place: entry.node.place });
                below.node = merge(old, entry.node);
                below.key = entry.key;
            }
            None => {
                lower.entries.insert(key, entry);
            }
        }
    }
    lower
}

/// Removes what a `null` removed, and forgets the marks.
pub(crate) fn settle(node: &mut Node) {
    match &mut node.value {
        Value::Map(map) => {
            map.replaces = false;
            map.entries.retain(|_, entry| entry.node.value != Value::Null);
            map.entries.values_mut().for_each(|entry| settle(&mut entry.node));
        }
        Value::List(items) => items.iter_mut().for_each(settle),
        Value::Null | Value::Scalar(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::source::{Place, SourceId};
    use super::super::tree::Entry;
    use super::*;

    const HERE: Place = Place { source: SourceId(0), start: 0, len: 0 };

    fn map(entries: impl IntoIterator<Item = (String, Node)>) -> Node {
        Node::map(entries.into_iter().map(|(key, node)| (key, Entry { key: HERE, node })), HERE)
    }

    fn node() -> impl Strategy<Value = Node> {
        let leaf = prop_oneof![
            Just(Node { value: Value::Null, place: HERE }),
            "[a-c]".prop_map(|text| Node::plain(text, HERE)),
            vec("[a-c]", 0..3).prop_map(|texts| Node {
                value: Value::List(texts.into_iter().map(|text| Node::plain(text, HERE)).collect()),
                place: HERE
            }),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| vec(("[a-d]", inner), 0..4).prop_map(map))
    }

    fn maps() -> impl Strategy<Value = Node> {
        vec(("[a-d]", node()), 0..4).prop_map(map)
    }

    fn settled(mut node: Node) -> Node {
        settle(&mut node);
        node
    }

    fn holds_null(node: &Node) -> bool {
        match &node.value {
            Value::Null => true,
            Value::Map(map) => map.entries.values().any(|entry| holds_null(&entry.node)),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn an_empty_layer_changes_nothing(layer in maps()) {
            prop_assert_eq!(merge(layer.clone(), map([])), layer.clone());
            prop_assert_eq!(merge(map([]), layer.clone()), layer);
        }

        #[test]
        fn it_makes_no_difference_which_layers_are_merged_first(a in maps(), b in maps(), c in maps()) {
            let left = merge(merge(a.clone(), b.clone()), c.clone());
            let right = merge(a, merge(b, c));
            prop_assert_eq!(left, right);
        }

        #[test]
        fn a_layer_over_itself_is_itself(layer in maps()) {
            prop_assert_eq!(settled(merge(layer.clone(), layer.clone())), settled(layer));
        }

        #[test]
        fn null_removes_whatever_was_there(layer in maps(), key in "[a-d]") {
            let null = map([(key.clone(), Node { value: Value::Null, place: HERE })]);
            let merged = settled(merge(layer, null));
            prop_assert!(merged.get(&key).is_none());
            prop_assert!(!holds_null(&merged));
        }

        #[test]
        fn the_upper_value_wins_unless_both_are_maps(lower in maps(), key in "[a-d]", value in node()) {
            let merged = merge(lower.clone(), map([(key.clone(), value.clone())]));
            let below = lower.get(&key).and_then(Node::as_map);
            match (&value.value, below) {
                (Value::Map(upper), Some(below)) => {
                    let found = merged.get(&key).and_then(Node::as_map).unwrap();
                    for key in upper.entries.keys().chain(below.entries.keys()) {
                        prop_assert!(found.entries.contains_key(key));
                    }
                }
                _ => prop_assert_eq!(settled(merged).get(&key).cloned(), (value.value != Value::Null).then(|| settled(value))),
            }
        }
    }

    #[test]
    fn a_map_set_after_a_removal_starts_afresh() {
        let one = |key: &str, text: &str| map([(key.to_owned(), Node::plain(text, HERE))]);
        let lower = map([("bench".to_owned(), one("old", "1"))]);
        let removed = merge(lower, map([("bench".to_owned(), Node { value: Value::Null, place: HERE })]));
        let again = settled(merge(removed, map([("bench".to_owned(), one("new", "2"))])));
        assert_eq!(again, map([("bench".to_owned(), one("new", "2"))]));
    }
}
