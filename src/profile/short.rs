//! Short forms, written out before layers are merged, so that `engine: sglang >=0.5.9` in one layer and
//! `engine: {executable: …}` in another make one engine.

use super::fault::Fault;
use super::fields::{Shape, ShortForm, Struct};
use super::source::Place;
use super::tree::{Entry, Map, Node, Scalar, Value};

/// Writes out all short forms in a layer.
pub(crate) fn write_out(table: &Struct, node: &mut Node, faults: &mut Vec<Fault>) {
    let Some(map) = node.as_map_mut() else { return };
    for (key, entry) in &mut map.entries {
        if let Some(field) = table.field(key) {
            write_out_value(&field.shape, &mut entry.node, faults);
        }
    }
}

fn write_out_value(shape: &Shape, node: &mut Node, faults: &mut Vec<Fault>) {
    match shape {
        Shape::Struct(table) => write_out(table, node, faults),
        Shape::Map(_, inner) => {
            if let Some(map) = node.as_map_mut() {
                map.entries.values_mut().for_each(|entry| write_out_value(inner, &mut entry.node, faults));
            }
        }
        Shape::Short(form, _) => {
            if let Some(long) = long_form(*form, node, faults) {
                *node = long;
            }
        }
        _ => {}
    }
}

fn long_form(form: ShortForm, node: &Node, faults: &mut Vec<Fault>) -> Option<Node> {
    let scalar = match (&node.value, form) {
        (Value::Scalar(scalar), _) => scalar,
        (Value::List(_), ShortForm::Hook) => return Some(one("command", node.clone(), node.place)),
        _ => return None,
    };
    match form {
        ShortForm::Engine => split_engine(scalar, node.place),
        ShortForm::Model => split_model(scalar, node.place),
        ShortForm::Tolerance => Some(one("relative", node.clone(), node.place)),
        ShortForm::Hook => match shell_words::split(&scalar.text) {
            Ok(words) => {
                let words = words.into_iter().map(|word| Node {
                    value: Value::Scalar(Scalar {
                        text: word,
                        plain: false,
                        exact: false,
                        expanded: false,
                        broken: false,
                    }),
                    place: node.place,
                });
                let list = Node { value: Value::List(words.collect()), place: node.place };
                Some(one("command", list, node.place))
            }
            Err(_) => {
                faults.push(
                    Fault::new("bad_value", "a quote in this command does not close")
                        .at(node.place, "this command")
                        .help("write the command as a list of words"),
                );
                // Read on as if it were right: the fault is told.
                Some(one("command", Node { value: Value::List(Vec::new()), place: node.place }, node.place))
            }
        },
    }
}

fn one(key: &str, node: Node, place: Place) -> Node {
    Node::map([(key.to_owned(), Entry { key: place, node })], place)
}

/// After `${NAME}` was filled in: what came from the environment may be a short form too.
pub(crate) fn write_out_expanded(root: &mut Node) {
    for (key, first, second) in [("engine", "kind", "version"), ("model", "path", "revision")] {
        let Some(Value::Map(map)) =
            root.as_map_mut().and_then(|map| map.entries.get_mut(key)).map(|e| &mut e.node.value)
        else {
            continue;
        };
        let Some(entry) = map.entries.get(first) else { continue };
        let Some(scalar) = entry.node.scalar().filter(|scalar| scalar.expanded) else { continue };
        let long = if key == "engine" {
            split_engine(scalar, entry.node.place)
        } else {
            split_model(scalar, entry.node.place)
        };
        if let Some(Node { value: Value::Map(Map { entries, .. }), .. }) = long
            && entries.contains_key(second)
            && !map.entries.contains_key(second)
        {
            map.entries.extend(entries);
        }
    }
}

fn split_engine(scalar: &Scalar, place: Place) -> Option<Node> {
    let at = outside_braces(&scalar.text).find(|(_, c)| c.is_whitespace() || "=<>!~".contains(*c)).map(|(at, _)| at);
    let (kind, version) = scalar.text.split_at(at.unwrap_or(scalar.text.len()));
    let rest_at = at.unwrap_or(0) + (version.len() - version.trim_start().len());
    let version = version.trim();
    Some(pieces(scalar, place, ("kind", 0, kind), ("version", rest_at, version)))
}

fn split_model(scalar: &Scalar, place: Place) -> Option<Node> {
    let text = scalar.text.as_str();
    let is_local = text.starts_with(['/', '.', '~']) || text.starts_with("package:");
    let at = outside_braces(text).filter(|(_, c)| *c == '@').last().map(|(at, _)| at).filter(|_| !is_local);
    let (path, revision) = at.map_or((text, ""), |at| (&text[..at], &text[at + 1..]));
    Some(pieces(scalar, place, ("path", 0, path), ("revision", at.map_or(0, |at| at + 1), revision)))
}

/// The characters of a text that are not inside `${…}`.
fn outside_braces(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut inside = false;
    text.char_indices().filter(move |(at, c)| {
        if text[*at..].starts_with("${") {
            inside = true;
        }
        let keep = !inside;
        if *c == '}' {
            inside = false;
        }
        keep
    })
}

type Piece<'a> = (&'static str, usize, &'a str);

fn pieces(scalar: &Scalar, place: Place, first: Piece<'_>, second: Piece<'_>) -> Node {
    let entries = [first, second].into_iter().filter(|(_, at, text)| *at == 0 || !text.is_empty()).filter_map(
        |(key, start, text)| {
            // An absent second part starts at 0 and is empty; an empty first part is a value that will be refused.
            if start == 0 && text.is_empty() && key == second.0 {
                return None;
            }
            let place = if scalar.exact { place.part(start, text.len()) } else { place };
            let value = Value::Scalar(Scalar { text: text.to_owned(), ..scalar.clone() });
            Some((key.to_owned(), Entry { key: place, node: Node { value, place } }))
        },
    );
    Node::map(entries, place)
}

#[cfg(test)]
mod tests {
    use super::super::fields::PROFILE;
    use super::super::source::SourceId;
    use super::*;

    fn written_out(key: &str, text: &str) -> Node {
        let place = Place { source: SourceId(0), start: 10, len: text.len() };
        let mut node = one(key, Node::plain(text, place), place);
        write_out(&PROFILE, &mut node, &mut Vec::new());
        node
    }

    #[test]
    fn an_engine_is_a_kind_and_perhaps_a_version() {
        for (text, kind, version) in [
            ("sglang", "sglang", None),
            ("sglang >=0.5.9", "sglang", Some(">=0.5.9")),
            ("sglang==0.5.9", "sglang", Some("==0.5.9")),
            ("vllm >=0.30, <0.33", "vllm", Some(">=0.30, <0.33")),
            ("${ENGINE:-sglang >=0.5}", "${ENGINE:-sglang >=0.5}", None),
            ("${KIND} ==${V}", "${KIND}", Some("==${V}")),
        ] {
            let node = written_out("engine", text);
            assert_eq!(node.text_at(&["engine", "kind"]), Some(kind), "{text}");
            assert_eq!(node.text_at(&["engine", "version"]), version, "{text}");
        }
        let node = written_out("engine", "sglang >=0.5.9");
        let place = node.at(&["engine", "version"]).unwrap().place;
        assert_eq!((place.start, place.len), (17, 7));
    }

    #[test]
    fn a_model_is_a_path_and_perhaps_a_revision() {
        for (text, path, revision) in [
            ("Qwen/Qwen3.6-27B@9c1f2ab", "Qwen/Qwen3.6-27B", Some("9c1f2ab")),
            ("Qwen/Qwen3.6-27B", "Qwen/Qwen3.6-27B", None),
            ("/models/a@b.gguf", "/models/a@b.gguf", None),
            ("package:smollm2/a@b.gguf", "package:smollm2/a@b.gguf", None),
            ("Org/M@refs/pr/3", "Org/M", Some("refs/pr/3")),
        ] {
            let node = written_out("model", text);
            assert_eq!(node.text_at(&["model", "path"]), Some(path), "{text}");
            assert_eq!(node.text_at(&["model", "revision"]), revision, "{text}");
        }
    }
}
