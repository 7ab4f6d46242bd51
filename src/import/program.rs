//! Which engine a command starts: out of a container, a job, a shell or a wrapper, in whichever of its forms.

use indexmap::IndexMap;

use super::docker::{self, Container};
use super::shell::{self, is_variable};
use super::{Launch, open};
use crate::profile::EngineKind;

/// A command whose engine is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The engine.
    pub kind: EngineKind,
    /// The program that a profile would name; `None`: the engine's usual one.
    pub executable: Option<String>,
    /// The words after it: its flags.
    pub words: Vec<String>,
    /// The whole command.
    pub(super) all: Vec<String>,
    /// What is set in its environment.
    pub(super) env: IndexMap<String, String>,
    /// The folder that it begins in.
    pub(super) folder: Option<String>,
    /// The container around it.
    pub(super) container: Option<Container>,
    /// What a person should know.
    pub(super) notes: Vec<String>,
    /// What it reads and was not there.
    pub(super) unread: Vec<String>,
}

/// Wrappers that change nothing about the server.
const SILENT: &[&str] = &[
    "env",
    "nohup",
    "exec",
    "setsid",
    "time",
    "stdbuf",
    "tini",
    "dumb-init",
    "command",
    "--",
    "srun",
    "mpirun",
    "bash",
    "sh",
    "-c",
    "-lc",
];

/// How deep commands may stand inside commands.
const DEEPEST: usize = 6;

/// The last part of a path.
pub(super) fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Finds the engine that a command starts.
pub(super) fn find(launch: &Launch) -> Option<Program> {
    within(launch, 0)
}

impl Program {
    /// A command of which nothing is known.
    pub(super) fn command(launch: Launch) -> Program {
        let Launch { words, env, folder, programs: _, notes, unread } = launch;
        Program {
            kind: EngineKind::Command,
            executable: None,
            all: words.clone(),
            words,
            env,
            folder,
            container: None,
            notes,
            unread,
        }
    }

    /// The command for a person.
    pub(super) fn shown(&self) -> String {
        shell_words::join(self.all.iter().map(|word| open::shown(word)))
    }
}

fn within(launch: &Launch, depth: usize) -> Option<Program> {
    if depth > DEEPEST {
        return None;
    }
    if let Some(found) = contained(launch, depth) {
        return Some(found);
    }
    let words = &launch.words;
    for at in 0..words.len() {
        if let Some(started) = started(&words[at..]) {
            return Some(program(launch, at, started));
        }
    }
    // `bash -c '…'`, `ssh host '…'`, `tmux new -d '…'`: a whole command in one word.
    for (at, word) in words.iter().enumerate().filter(|(_, word)| word.contains(char::is_whitespace)) {
        let Ok(inner) = shell::read(&open::shown(word), "the inner command", &|_| None) else { continue };
        for mut inner in inner {
            let mut env = launch.env.clone();
            env.extend(assigned(&words[..at]));
            env.extend(inner.env);
            inner.env = env;
            inner.folder = inner.folder.or_else(|| launch.folder.clone());
            inner.programs = inner.programs.or_else(|| launch.programs.clone());
            inner.notes.splice(0..0, launch.notes.iter().cloned());
            inner.unread.splice(0..0, launch.unread.iter().cloned());
            if let Some(wrapper) = wrapper(&words[..at]) {
                inner.notes.push(wrapper);
            }
            if let Some(found) = within(&inner, depth + 1) {
                return Some(found);
            }
        }
    }
    None
}

/// A command inside `docker run`.
fn contained(launch: &Launch, depth: usize) -> Option<Program> {
    let (at, begins) = (0..launch.words.len()).find_map(|at| Some((at, docker::begins(&launch.words[at..])?)))?;
    let container = docker::read(&launch.words[at + begins..])?;
    let words = &container.words;
    let as_it_is = Launch { words: words.clone(), env: container.env.clone(), ..Launch::default() };
    let found = within(&as_it_is, depth + 1).or_else(|| {
        // Without a program of its own the image's entrypoint is what is started.
        let head = entrypoint(&container.image)?;
        let words = head.iter().map(|word| (*word).to_owned()).chain(words.iter().cloned()).collect();
        within(&Launch { words, env: container.env.clone(), ..Launch::default() }, depth + 1)
    })?;
    let mut notes = launch.notes.clone();
    notes.extend(container.notes.iter().cloned());
    notes.extend(found.notes.iter().cloned());
    let unread = [launch.unread.as_slice(), &found.unread].concat();
    Some(Program { all: launch.words.clone(), container: Some(container), notes, unread, folder: None, ..found })
}

/// What the images of the engines start, by a word of their names.
fn entrypoint(image: &str) -> Option<&'static [&'static str]> {
    let name = image.split('@').next().unwrap_or(image).to_ascii_lowercase();
    [
        ("vllm", &["vllm", "serve"][..]),
        ("llama.cpp", &["llama-server"]),
        ("llama-cpp", &["llama-server"]),
        ("sglang", &["python3", "-m", "sglang.launch_server"]),
    ]
    .into_iter()
    .find_map(|(word, head)| name.contains(word).then_some(head))
}

/// The beginning of a command that starts an engine.
struct Started {
    kind: EngineKind,
    /// The program for a profile, as the command names it.
    executable: String,
    /// So many words are the program.
    words: usize,
    note: Option<String>,
}

fn started(words: &[String]) -> Option<Started> {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let first = words.first()?;
    let name = base(first);
    let of =
        |kind, executable: &str, words, note| Some(Started { kind, executable: executable.to_owned(), words, note });
    let beside = |program: &str| match first.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{program}"),
        None => program.to_owned(),
    };
    if is_python(name) {
        return python(words, &beside);
    }
    match (name, word(1)) {
        ("sglang", "serve") => {
            let note = "`sglang serve` was started; orch starts the same server as the module of its Python".to_owned();
            of(EngineKind::Sglang, &beside("python3"), 2, Some(note))
        }
        ("vllm", "serve") => of(EngineKind::Vllm, first, 2, None),
        ("llama", "serve") => of(EngineKind::Llamacpp, &beside("llama-server"), 2, None),
        ("trtllm-serve", "serve") => of(EngineKind::Trtllm, first, 2, None),
        ("trtllm-serve", _) => of(EngineKind::Trtllm, first, 1, None),
        ("orch", "sim") => of(EngineKind::Sim, first, 2, None),
        (name, next) if name.starts_with("llama-server") && (next.starts_with('-') || next.is_empty()) => {
            of(EngineKind::Llamacpp, first, 1, None)
        }
        // The name that it had before.
        ("server", next) if next.starts_with('-') && words.iter().any(|word| word.ends_with(".gguf")) => {
            of(EngineKind::Llamacpp, first, 1, None)
        }
        _ => None,
    }
}

fn is_python(name: &str) -> bool {
    let rest = name.strip_prefix("python").unwrap_or("x");
    rest.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// `python -u -m MODULE`, and `python /…/bin/vllm`, which is how a console script looks while it runs.
fn python(words: &[String], beside: &dyn Fn(&str) -> String) -> Option<Started> {
    let mut at = 1;
    loop {
        match words.get(at)?.as_str() {
            "-m" => break,
            "-X" | "-W" => at += 2,
            word if word.len() == 2 && word.starts_with('-') => at += 1,
            _ => return script(words, at),
        }
    }
    let first = &words[0];
    let of =
        |kind, executable: &str, words, note| Some(Started { kind, executable: executable.to_owned(), words, note });
    let as_serve =
        || Some("the server was started as a Python module; orch starts the same one as `vllm serve`".to_owned());
    match (words.get(at + 1)?.as_str(), words.get(at + 2).map(String::as_str)) {
        ("sglang.launch_server", _) => of(EngineKind::Sglang, first, at + 2, None),
        ("sglang.cli.main" | "sglang", Some("serve")) => of(EngineKind::Sglang, first, at + 3, None),
        ("vllm.entrypoints.openai.api_server", _) => of(EngineKind::Vllm, &beside("vllm"), at + 2, as_serve()),
        ("vllm.entrypoints.cli.main" | "vllm", Some("serve")) => {
            of(EngineKind::Vllm, &beside("vllm"), at + 3, as_serve())
        }
        _ => None,
    }
}

fn script(words: &[String], at: usize) -> Option<Started> {
    let path = words[at].as_str();
    let of = |kind, executable: String, words, note| Some(Started { kind, executable, words, note });
    match (base(path), words.get(at + 1).map(String::as_str)) {
        ("vllm", Some("serve")) => of(EngineKind::Vllm, path.to_owned(), at + 2, None),
        ("sglang", Some("serve")) => of(EngineKind::Sglang, words[0].clone(), at + 2, None),
        ("launch_server.py", _) if path.contains("sglang") => of(EngineKind::Sglang, words[0].clone(), at + 1, None),
        ("trtllm-serve", Some("serve")) => of(EngineKind::Trtllm, path.to_owned(), at + 2, None),
        ("trtllm-serve", _) => of(EngineKind::Trtllm, path.to_owned(), at + 1, None),
        _ => None,
    }
}

fn program(launch: &Launch, at: usize, started: Started) -> Program {
    let Launch { words, env, folder, programs, notes, unread } = launch;
    let Started { kind, executable, words: length, note } = started;
    let mut env = env.clone();
    env.extend(assigned(&words[..at]));
    let mut notes = notes.clone();
    notes.extend(wrapper(&words[..at]));
    notes.extend(note);
    // An activated environment has its programs before all others.
    let executable = match (programs, executable.contains('/') || open::is_open(&executable)) {
        (Some(folder), false) => format!("{folder}/{executable}"),
        _ => executable,
    };
    Program {
        kind,
        executable: Some(executable),
        words: words[at + length..].to_vec(),
        all: words.clone(),
        env,
        folder: folder.clone(),
        container: None,
        notes,
        unread: unread.clone(),
    }
}

/// `env A=b`, and `--export=ALL,A=b` of `srun`.
fn assigned(words: &[String]) -> IndexMap<String, String> {
    let exported = words.iter().filter_map(|word| word.strip_prefix("--export=")).flat_map(|list| list.split(','));
    let pairs = words.iter().map(String::as_str).chain(exported).filter_map(|word| word.split_once('='));
    pairs.filter(|(name, _)| is_variable(name)).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// What stood before the command and is not carried over.
fn wrapper(words: &[String]) -> Option<String> {
    let kept = words.iter().filter(|word| !word.split_once('=').is_some_and(|(name, _)| is_variable(name)));
    let kept: Vec<String> = kept.map(|word| open::shown(word)).collect();
    let is_silent = |word: &String| SILENT.contains(&base(word));
    let mut words = kept.as_slice();
    while let Some((first, rest)) = words.split_first()
        && is_silent(first)
        && !rest.first().is_some_and(|next| next.starts_with('-') && !is_silent(next))
    {
        words = rest;
    }
    while let Some((last, rest)) = words.split_last()
        && is_silent(last)
    {
        words = rest;
    }
    if words.is_empty() {
        return None;
    }
    let text = super::hide(&shell_words::join(words));
    Some(format!("`{text}` stood before the command: orch starts the server without it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Program {
        find(&Launch::of(shell_words::split(line).unwrap())).unwrap_or_else(|| panic!("{line}"))
    }

    fn shown(line: &str) -> String {
        let program = found(line);
        format!("{} {} | {}", program.kind, program.executable.unwrap_or_default(), program.words.join(" "))
    }

    #[test]
    fn every_form_of_every_engine_is_known() {
        for (line, expected) in [
            ("python -u -m sglang.launch_server --port 1", "sglang python | --port 1"),
            ("/v/bin/python3.12 -X dev -m sglang.launch_server", "sglang /v/bin/python3.12 | "),
            ("/v/bin/sglang serve M", "sglang /v/bin/python3 | M"),
            ("python /src/sglang/python/sglang/launch_server.py --a", "sglang python | --a"),
            ("vllm serve M -tp 2", "vllm vllm | M -tp 2"),
            ("/v/bin/python3 /v/bin/vllm serve M", "vllm /v/bin/vllm | M"),
            ("/v/bin/python -m vllm.entrypoints.openai.api_server --model M", "vllm /v/bin/vllm | --model M"),
            ("./llama-server -m a.gguf", "llamacpp ./llama-server | -m a.gguf"),
            ("./server -m a.gguf", "llamacpp ./server | -m a.gguf"),
            ("trtllm-llmapi-launch trtllm-serve M --tp_size 2", "trtllm trtllm-serve | M --tp_size 2"),
        ] {
            assert_eq!(shown(line), expected, "{line}");
        }
        assert!(find(&Launch::of(["python", "server.py", "--port", "1"])).is_none());
        assert!(find(&Launch::of(["llama-server-proxy", "x"])).is_none());
    }

    #[test]
    fn wrappers_are_taken_off_and_told() {
        let program = found("nohup env A=1 numactl --cpunodebind=0 --membind=0 vllm serve M");
        assert_eq!(program.env["A"], "1");
        assert_eq!(
            program.notes,
            ["`numactl '--cpunodebind=0' '--membind=0'` stood before the command: orch starts the server without it"]
        );
        assert!(found("exec env A=1 vllm serve M").notes.is_empty());
        let inner = found(
            "srun --export=ALL,NCCL_DEBUG=INFO bash -lc 'source /v/bin/activate; B=2 exec python -m sglang.launch_server --port 1'",
        );
        assert_eq!((inner.executable.as_deref(), inner.words.len()), (Some("/v/bin/python"), 2));
        assert_eq!(inner.env.keys().collect::<Vec<_>>(), ["NCCL_DEBUG", "B"]);
        assert_eq!(shown("ssh gpu-3 'vllm serve M --port 8000'"), "vllm vllm | M --port 8000");
    }

    #[test]
    fn a_container_holds_the_command_or_its_image_does() {
        let program = found("sudo docker run --gpus all -e A=1 vllm/vllm-openai:v0.11.2 --model M --port 8000");
        assert_eq!((program.kind, program.words.join(" ")), (EngineKind::Vllm, "--model M --port 8000".to_owned()));
        assert_eq!(program.env["A"], "1");
        assert_eq!(program.container.unwrap().image, "vllm/vllm-openai:v0.11.2");
        assert_eq!(
            found("docker run lmsysorg/sglang:latest bash -c 'python3 -m sglang.launch_server --tp 2'").words,
            ["--tp", "2"]
        );
        assert!(find(&Launch::of(["docker", "run", "redis:7"])).is_none());
    }
}
