//! `--set path=value`: a layer of one value above all files. The value is YAML.

use super::check::key_help;
use super::fault::Fault;
use super::fields::{KeyRule, PROFILE, Shape, Struct};
use super::read;
use super::source::{Place, SourceId, Sources};
use super::tree::{Entry, Node};

/// A key on the way to the value: its text, and where it begins in the argument.
type Key<'a> = (&'a str, usize);

/// The layer that a `--set` argument is.
pub(crate) fn layer(
    argument: &str,
    number: usize,
    sources: &mut Sources,
    faults: &mut Vec<Fault>,
) -> Option<(SourceId, Node)> {
    let source = sources.add(format!("--set #{number}"), argument, None);
    let place = |start: usize, len: usize| Place { source, start, len };
    let Some((path, text)) = argument.split_once('=') else {
        faults.push(
            Fault::new("bad_set", format!("`--set {argument}` has no `=`"))
                .at(place(0, argument.len()), "no value")
                .help("write `--set path=value`, such as `--set memory.fraction=0.9`"),
        );
        return None;
    };
    let keys = match keys(path) {
        Ok(keys) => keys,
        Err(wrong) => {
            faults.push(
                Fault::new("unknown_key", format!("unknown key `{}`", wrong.whole))
                    .at(place(wrong.start, wrong.len.max(1)), wrong.label)
                    .help(wrong.help),
            );
            return None;
        }
    };
    if keys.first().is_some_and(|(key, _)| *key == "extends") {
        faults.push(
            Fault::new("bad_set", "`extends` cannot be set from the command line")
                .at(place(0, path.len()), "layers are files' own")
                .help("write a small profile that extends both"),
        );
        return None;
    }
    let offset = path.len() + 1;
    if text.trim().is_empty() {
        faults.push(
            Fault::new("bad_set", format!("`--set {argument}` has an empty value"))
                .at(place(0, argument.len()), "nothing after `=`")
                .help("write `null` to remove a key, or `\"\"` for an empty text"),
        );
        return None;
    }
    let value = read::yaml(sources, source, text, offset, faults)?;
    let whole = place(0, argument.len());
    let node = keys.into_iter().rev().fold(value, |node, (key, start)| {
        Node::map([(key.to_owned(), Entry { key: place(start, key.len()), node })], whole)
    });
    Some((source, node))
}

struct WrongPath {
    whole: String,
    start: usize,
    len: usize,
    label: String,
    help: String,
}

/// Splits a path where the field table says that a key ends: metrics and flags may have dots of their own.
fn keys(path: &str) -> Result<Vec<Key<'_>>, WrongPath> {
    let mut keys = Vec::new();
    let mut shape = Shape::Struct(&PROFILE);
    let mut start = 0;
    loop {
        let rest = &path[start..];
        let (key, next) = match key_and_shape(shape, rest) {
            Ok(found) => found,
            Err((label, help)) => {
                let segment = rest.split('.').next().unwrap_or(rest);
                let whole = path[..start + segment.len()].to_owned();
                return Err(WrongPath { whole, start, len: segment.len(), label, help });
            }
        };
        keys.push((key, start));
        start += key.len();
        if start == path.len() {
            return Ok(keys);
        }
        start += 1;
        shape = next;
    }
}

/// The key that a path begins with, in a value of some shape, and the shape of what is under it.
fn key_and_shape(shape: Shape, rest: &str) -> Result<(&str, Shape), (String, String)> {
    let segment = rest.split('.').next().unwrap_or(rest);
    let in_tables = |tables: &[&'static Struct]| {
        let field = tables.iter().find_map(|table| table.field(segment));
        field.map(|field| (segment, field.shape)).ok_or_else(|| {
            let table = tables[0];
            (format!("not a key of {}", table.title()), key_help(table, segment, table.name == PROFILE.name))
        })
    };
    match shape {
        Shape::Struct(table) | Shape::Short(_, table) => in_tables(&[table]),
        Shape::Either(tables) | Shape::Or(_, tables) => in_tables(tables),
        Shape::WordOr(_, inner) => key_and_shape(*inner, rest),
        Shape::Any => Ok((segment, Shape::Any)),
        Shape::Map(KeyRule::Name | KeyRule::Phase, inner) => Ok((segment, *inner)),
        Shape::Map(KeyRule::Metric, inner) => {
            let cut = [".relative", ".absolute"].iter().find_map(|part| rest.strip_suffix(part));
            Ok((cut.unwrap_or(rest), *inner))
        }
        Shape::Map(_, inner) => Ok((rest, *inner)),
        Shape::List(_) | Shape::OneOrMany(_) => {
            Err(("below a list".to_owned(), "a list is set as a whole: `[a, b]`".to_owned()))
        }
        _ => Err(("below a single value".to_owned(), "there are no keys below it".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(argument: &str) -> (Option<Node>, Vec<Fault>) {
        let mut faults = Vec::new();
        let node = layer(argument, 1, &mut Sources::default(), &mut faults);
        (node.map(|(_, node)| node), faults)
    }

    #[test]
    fn keys_may_hold_dots_where_the_table_has_free_keys() {
        for (argument, path, text) in [
            ("memory.fraction=0.9", vec!["memory", "fraction"], "0.9"),
            ("expect.effective.max_running_requests=16", vec!["expect", "effective.max_running_requests"], "16"),
            ("tolerance.ttft_ms.p99=10%", vec!["tolerance", "ttft_ms.p99"], "10%"),
            ("tolerance.ttft_ms.p99.absolute=20ms", vec!["tolerance", "ttft_ms.p99", "absolute"], "20ms"),
            ("flags.a.b=x=y", vec!["flags", "a.b"], "x=y"),
            ("env.A=no", vec!["env", "A"], "no"),
            ("bench.ladder.concurrency=4", vec!["bench", "ladder", "concurrency"], "4"),
            ("bench.ladder.sampling.temperature=0", vec!["bench", "ladder", "sampling", "temperature"], "0"),
            ("engine.scenario.speed.ttft=50ms", vec!["engine", "scenario", "speed", "ttft"], "50ms"),
            ("launch.via.docker.image=x", vec!["launch", "via", "docker", "image"], "x"),
        ] {
            let (node, faults) = set(argument);
            assert_eq!(faults, [], "{argument}");
            assert_eq!(node.unwrap().text_at(&path), Some(text), "{argument}");
        }
        let (node, _) = set("flags.old=null");
        assert_eq!(node.unwrap().at(&["flags", "old"]).unwrap().value, super::super::tree::Value::Null);
    }

    #[test]
    fn a_wrong_path_is_told_where_it_goes_wrong() {
        for (argument, code, start) in [
            ("memory.fractoin=0.9", "unknown_key", 7),
            ("memry.fraction=0.9", "unknown_key", 0),
            ("port.x=1", "unknown_key", 5),
            ("args.0=1", "unknown_key", 5),
            ("memory.fraction", "bad_set", 0),
            ("memory.fraction=", "bad_set", 0),
            ("extends=x", "bad_set", 0),
            ("port=[1", "syntax", 5),
            ("=1", "unknown_key", 0),
            ("memory.=1", "unknown_key", 7),
        ] {
            let (_, faults) = set(argument);
            let found: Vec<_> = faults
                .iter()
                .map(|f| (f.code.as_ref(), f.place.as_ref().map_or(0, |(place, _)| place.start.min(5 + 2))))
                .collect();
            assert_eq!(found, [(code, start)], "{argument}");
        }
    }
}
