//! What an upgrade of the engine changes before anything is measured: flags that the commands no longer have or now need,
//! and arguments that the server takes otherwise although nobody asked it to. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// An argument that both servers have, with a value that moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// The engine's own name of it.
    pub argument: String,
    /// Its value in the first,
    pub was: String,
    /// and in the second.
    pub now: String,
}

/// What differs between the servers of two versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Upgrade {
    /// Words of the first command, a flag with its value each, that the second does not have.
    pub flags_gone: Vec<String>,
    /// Words of the second command that the first does not have.
    pub flags_new: Vec<String>,
    /// Arguments that moved although no command sets them. `None`: one of the servers does not tell its arguments.
    pub moved_defaults: Option<Vec<Moved>>,
    /// Arguments that only the first server knows.
    pub arguments_gone: Vec<String>,
    /// Arguments that only the second one knows, with their values.
    pub arguments_new: Vec<(String, String)>,
}

/// Holds the servers of one side against those of the other. Of each side the command of one, and what each of its servers
/// said of its arguments: what differs between two starts of one side (a seed, a port) is no default.
pub fn upgrade(commands: [&[String]; 2], arguments: [&[BTreeMap<String, String>]; 2]) -> Upgrade {
    let [was, now] = commands.map(flags);
    let mut upgrade = Upgrade {
        flags_gone: was.difference(&now).map(|flag| flag.join(" ")).collect(),
        flags_new: now.difference(&was).map(|flag| flag.join(" ")).collect(),
        ..Upgrade::default()
    };
    let ([first, ..], [second, ..]) = (arguments[0], arguments[1]) else { return upgrade };
    let given: BTreeSet<String> =
        was.iter().chain(&now).filter_map(|flag| flag.first()).map(|flag| name(flag)).collect();
    let restless =
        |key: &str| arguments.iter().any(|side| side.windows(2).any(|pair| pair[0].get(key) != pair[1].get(key)));
    let own = |key: &str| given.contains(key) || OF_THE_START.contains(&key) || restless(key);
    let moved = first.iter().filter_map(|(key, was)| {
        let now = second.get(key).filter(|now| *now != was)?;
        (!own(key)).then(|| Moved { argument: key.clone(), was: was.clone(), now: now.clone() })
    });
    upgrade.moved_defaults = Some(moved.collect());
    upgrade.arguments_gone = first.keys().filter(|key| !second.contains_key(*key)).cloned().collect();
    let new = second.iter().filter(|(key, _)| !first.contains_key(*key) && !given.contains(*key));
    upgrade.arguments_new = new.map(|(key, value)| (key.clone(), value.clone())).collect();
    upgrade
}

/// Arguments that are each start's own, whatever the version.
const OF_THE_START: [&str; 5] = ["port", "nccl_port", "dist_init_addr", "random_seed", "seed"];

/// Each flag of a command with the words that follow it. A port is each start's own, and the program's words before the
/// first flag are where it is installed.
fn flags(command: &[String]) -> BTreeSet<Vec<String>> {
    let mut flags: Vec<Vec<String>> = Vec::new();
    for word in command {
        let is_flag = word.starts_with("--") || (word.starts_with('-') && word.parse::<f64>().is_err());
        match flags.last_mut() {
            _ if is_flag => flags.push(vec![word.clone()]),
            Some(flag) => flag.push(word.clone()),
            None => {}
        }
    }
    flags.into_iter().filter(|flag| flag[0] != "--port" && flag[0] != "-m").collect()
}

/// `--mem-fraction-static` as the engine's argument is called.
fn name(flag: &str) -> String {
    flag.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_")
}

/// The arguments that a server tells in its log, by their names: SGLang's `server_args=…`, as a dictionary or as a call, and
/// vLLM's `… engine (v…) with config: …`. `None`: there is no such line.
pub fn arguments(log: &str) -> Option<BTreeMap<String, String>> {
    log.lines().find_map(|line| {
        let after = |mark: &str| line.split_once(mark).map(|(_, rest)| rest.trim());
        if let Some(rest) = after("server_args=") {
            let inside = rest.strip_prefix('{').or_else(|| rest.split_once('(').map(|(_, inside)| inside))?;
            return Some(pairs(inside)).filter(|pairs| !pairs.is_empty());
        }
        let config = line.contains("LLM engine").then(|| after("with config:")).flatten()?;
        Some(pairs(config)).filter(|pairs| !pairs.is_empty())
    })
}

/// `a=1, b=[2, 3], 'c': {'d': 4}`, up to what closes it. A comma inside brackets or quotes is a part of its value.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let (mut depth, mut quote, mut escaped) = (0_u32, None, false);
    let (mut all, mut part) = (BTreeMap::new(), String::new());
    for letter in text.chars() {
        match (quote, letter) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(letter),
            (None, '[' | '(' | '{') => depth += 1,
            (None, ']' | ')' | '}') if depth == 0 => break,
            (None, ']' | ')' | '}') => depth -= 1,
            (None, ',') if depth == 0 => {
                all.extend(pair(&part));
                part.clear();
                continue;
            }
            (None, _) => {}
        }
        part.push(letter);
    }
    all.extend(pair(&part));
    all
}

/// `key=value` or `'key': value`.
fn pair(part: &str) -> Option<(String, String)> {
    let part = part.trim();
    let (key, value) = match part.starts_with(['\'', '"']) {
        true => part.split_once(':')?,
        false => part.split_once('=')?,
    };
    let key = key.trim().trim_matches(['\'', '"']);
    let is_name = !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    is_name.then(|| (key.to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn arguments_are_read_from_each_engines_line() {
        let call = "[2026-11-29 12:00:00] server_args=ServerArgs(model_path='a, b', tp_size=2, buckets=[1, 2], chat='it\\'s', x={'y': (1, 2)}, last=None)";
        let expected = of(&[
            ("model_path", "'a, b'"),
            ("tp_size", "2"),
            ("buckets", "[1, 2]"),
            ("chat", "'it\\'s'"),
            ("x", "{'y': (1, 2)}"),
            ("last", "None"),
        ]);
        assert_eq!(arguments(call), Some(expected));
        let dictionary = "server_args={'model_path': 'a:b', 'context_length': None, 'd': {'e': 1}}";
        assert_eq!(
            arguments(dictionary),
            Some(of(&[("model_path", "'a:b'"), ("context_length", "None"), ("d", "{'e': 1}")]))
        );
        let vllm = "(EngineCore pid=9) INFO core.py:93] Initializing a V1 LLM engine (v0.32.0) with config: model='tiny', seed=0, pooler_config=None, sizes=[1, 2]";
        assert_eq!(
            arguments(vllm),
            Some(of(&[("model", "'tiny'"), ("seed", "0"), ("pooler_config", "None"), ("sizes", "[1, 2]")]))
        );
        assert_eq!(arguments("nothing\nof the kind, a=b"), None);
    }

    #[test]
    fn what_an_upgrade_moves_is_told_apart_from_what_was_asked_and_from_what_never_stays() {
        let was = words("python -m sglang.launch_server --tp-size 2 --port 1 --cuda-graph-max-bs 16");
        let now = words("/new/python -m sglang.launch_server --tp-size 2 --port 2 --cuda-graph-max-bs-decode 16");
        let first = of(&[
            ("tp_size", "2"),
            ("chunked_prefill_size", "8192"),
            ("random_seed", "1"),
            ("id", "a"),
            ("old", "x"),
            ("same", "1"),
        ]);
        let again = of(&[
            ("tp_size", "2"),
            ("chunked_prefill_size", "8192"),
            ("random_seed", "2"),
            ("id", "b"),
            ("old", "x"),
            ("same", "1"),
        ]);
        let second = of(&[
            ("tp_size", "2"),
            ("chunked_prefill_size", "4096"),
            ("random_seed", "3"),
            ("id", "c"),
            ("new", "y"),
            ("same", "1"),
            ("cuda_graph_max_bs_decode", "16"),
        ]);
        let told = upgrade([&was, &now], [&[first.clone(), again], &[second]]);
        assert_eq!(told.flags_gone, ["--cuda-graph-max-bs 16"]);
        assert_eq!(told.flags_new, ["--cuda-graph-max-bs-decode 16"]);
        let moved = Moved { argument: "chunked_prefill_size".into(), was: "8192".into(), now: "4096".into() };
        assert_eq!(told.moved_defaults, Some(vec![moved]));
        assert_eq!(told.arguments_gone, ["old"]);
        assert_eq!(told.arguments_new, [("new".to_owned(), "y".to_owned())]);
        let silent = upgrade([&was, &was], [&[first], &[]]);
        assert_eq!((silent.moved_defaults, silent.flags_gone.len()), (None, 0), "one of them tells nothing");
    }
}
