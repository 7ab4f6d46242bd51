//! The words of `docker run` around a rank's command. Pure: what an image holds is looked up elsewhere and comes in as
//! an [`Image`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Fault, Rank};

/// An image as the container engine knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// As the profile names it: `repository:tag`.
    pub asked: String,
    /// What is run: `repository@sha256:…`, or the image's id where it came from no registry. The asked name where nobody
    /// has looked.
    pub resolved: String,
    /// What the image puts before a command; `None` where nobody has looked.
    pub entrypoint: Option<Vec<String>>,
    /// The image's labels.
    pub labels: BTreeMap<String, String>,
}

impl Image {
    /// An image that nobody has looked at.
    pub fn assumed(asked: &str) -> Self {
        Image { asked: asked.to_owned(), resolved: asked.to_owned(), ..Image::default() }
    }
}

/// Which GPUs a container sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// None.
    None,
    /// All of the host, by `--gpus`.
    All,
    /// These, by UUID, through `--gpus`.
    These(Vec<String>),
    /// These by the names of the container device interface: UUIDs, or `all`.
    Cdi(Vec<String>),
}

/// A folder of the host that a container sees at the same path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Which.
    pub path: PathBuf,
    /// Whether it may write there.
    pub writable: bool,
}

/// How a container gets the values of secrets. They never stand in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secrets {
    /// Named only: the values are in the environment of the client.
    Inherited,
    /// From a file that its owner alone can read.
    File(PathBuf),
}

/// A container around a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its labels: what it is known as ours by.
    pub labels: BTreeMap<String, String>,
    /// From which image.
    pub image: Image,
    /// The profile's own words for `docker run`.
    pub options: Vec<String>,
    /// The GPUs that it sees.
    pub gpus: Gpus,
    /// The folders that it sees.
    pub mounts: Vec<Mount>,
    /// `uid:gid`; `None` is the image's own user.
    pub user: Option<String>,
    /// The folder that it begins in; `None` is the image's own.
    pub folder: Option<PathBuf>,
    /// The first signal of a stop.
    pub stop_signal: String,
    /// How long it has after that signal.
    pub stop_patience: Duration,
    /// Names whose values the client's environment has, beside the secrets.
    pub inherited: Vec<String>,
    /// Where secrets come from.
    pub secrets: Secrets,
    /// Whether it stays when the client goes, and is started again after a reboot.
    pub stays: bool,
}

/// Words that orch itself gives: with others it could not reach, find or stop the container.
const OWNED: &[(&str, &str)] = &[
    ("--name", "orch names the container"),
    ("--network", "the server listens on the host's own network, where orch reaches it"),
    ("--net", "the server listens on the host's own network, where orch reaches it"),
    ("--publish", "the server listens on the host's own network, so no port is published"),
    ("-p", "the server listens on the host's own network, so no port is published"),
    ("--publish-all", "the server listens on the host's own network, so no port is published"),
    ("-P", "the server listens on the host's own network, so no port is published"),
    ("--rm", "orch removes the container, after it has looked how it ended"),
    ("--detach", "orch decides who waits for the container"),
    ("-d", "orch decides who waits for the container"),
    ("--interactive", "nobody types into a server"),
    ("-i", "nobody types into a server"),
    ("--tty", "a terminal would mix the server's two outputs"),
    ("-t", "a terminal would mix the server's two outputs"),
    ("--attach", "orch reads both outputs"),
    ("-a", "orch reads both outputs"),
    ("--cidfile", "orch knows the container by its label"),
    ("--restart", "`orch up` sets it; a measured server that came back by itself would be another one"),
    ("--entrypoint", "orch reads the image's own and gives the rendered command"),
    ("--stop-signal", "the engine's definition says it"),
    ("--stop-timeout", "the engine's definition says it"),
    ("--sig-proxy", "orch stops the container through it"),
    ("--pull", "orch pulls the image before the clock starts"),
];

/// Long options of `docker run` that take no value, so that the next word is not theirs.
const SWITCHES: &[&str] = &[
    "--detach",
    "--disable-content-trust",
    "--help",
    "--init",
    "--interactive",
    "--no-healthcheck",
    "--oom-kill-disable",
    "--privileged",
    "--publish-all",
    "--quiet",
    "--read-only",
    "--rm",
    "--sig-proxy",
    "--tty",
    "--use-api-socket",
];
/// Short ones that take none, and may stand together in a word.
const SHORT_SWITCHES: &str = "ditPq";

/// An option as `docker run` reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Given<'a> {
    /// The place of its word.
    pub(crate) place: usize,
    /// `--env` or `-e`; empty for a word that belongs to no option.
    pub(crate) flag: String,
    /// Its value; `None` for one that takes none.
    pub(crate) value: Option<&'a str>,
}

/// The options in the words: `--a=b`, `--a b`, `-a b`, `-ab`, `-a=b`, and `-xya b` for switches `x` and `y`.
pub(crate) fn options(words: &[String]) -> Vec<Given<'_>> {
    let mut options = Vec::new();
    let mut words = words.iter().enumerate();
    while let Some((place, word)) = words.next() {
        let mut add = |flag: String, value| options.push(Given { place, flag, value });
        let mut next = || words.next().map(|(_, value)| value.as_str());
        if let Some(long) = word.strip_prefix("--").filter(|long| !long.is_empty()) {
            match long.split_once('=') {
                Some((name, value)) => add(format!("--{name}"), Some(value)),
                None if SWITCHES.contains(&word.as_str()) => add(word.clone(), None),
                None => add(word.clone(), next()),
            }
            continue;
        }
        let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty() && !short.starts_with('-')) else {
            add(String::new(), Some(word));
            continue;
        };
        for (at, letter) in short.char_indices() {
            let rest = &short[at + letter.len_utf8()..];
            let flag = format!("-{letter}");
            if let Some(value) = rest.strip_prefix('=') {
                add(flag, Some(value));
                break;
            }
            if SHORT_SWITCHES.contains(letter) {
                add(flag, None);
                continue;
            }
            add(flag, if rest.is_empty() { next() } else { Some(rest) });
            break;
        }
    }
    options
}

/// What stands against the profile's words for `docker run`.
pub(crate) fn faults(options: &[String], secrets: &[String]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for Given { place, flag, value } in self::options(options) {
        let key = format!("launch.via.docker.options[{place}]");
        let value = value.unwrap_or_default();
        // The name of a secret and `=`, at the beginning or after what is no part of a name. Its value is never shown.
        let assigns = |secret: &&String| {
            let name = format!("{secret}=");
            let begins = |at: usize| !value[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            value.match_indices(&name).any(|(at, _)| begins(at))
        };
        if let Some(name) = secrets.iter().find(assigns) {
            let text = format!("the value of the secret `{name}` would stand on a command line");
            faults.push(
                Fault::new("secret", key, text)
                    .help("take it out: what `secrets` names is given to the container by itself"),
            );
            continue;
        }
        if let Some((_, why)) = OWNED.iter().find(|(owned, _)| *owned == flag) {
            faults.push(
                Fault::new("owned_flag", key.clone(), format!("`{flag}` is given by orch itself: {why}"))
                    .help("take it out"),
            );
        }
        if flag.is_empty() {
            let text = "a word that belongs to no option would be taken for the image";
            faults.push(
                Fault::new("owned_flag", key.clone(), text).help("write an option and its value as `--option=value`"),
            );
        }
        if value.contains("orch.run") || value.contains("orch.deployment") {
            faults.push(
                Fault::new("owned_flag", key, "labels that begin with `orch.` are orch's own marks")
                    .help("take it out"),
            );
        }
    }
    faults
}

/// The words of the container: `docker run …`, everything that has an effect among them.
pub fn words(rank: &Rank, container: &Container) -> Vec<String> {
    let mut words = Adding { options: &container.options, words: vec!["docker".to_owned(), "run".to_owned()] };
    if container.stays {
        words.always("--detach", None);
        words.always("--restart", Some("unless-stopped"));
    }
    words.always("--name", Some(&container.name));
    for (name, value) in &container.labels {
        words.always("--label", Some(&format!("{name}={value}")));
    }
    words.always("--network", Some("host"));
    words.always("--pull", Some("never"));
    words.always("--stop-signal", Some(&format!("SIG{}", container.stop_signal.trim_start_matches("SIG"))));
    words.always("--stop-timeout", Some(&container.stop_patience.as_secs().max(1).to_string()));
    // Engines leave children that nobody waits for.
    words.unless(&["--init"], "--init", None);
    match &container.gpus {
        Gpus::None => {}
        Gpus::All => words.unless(&["--gpus", "--device"], "--gpus", Some("all")),
        // The quotes are for the value's own reader, which takes it as a line of comma-separated values.
        Gpus::These(uuids) => {
            words.unless(&["--gpus", "--device"], "--gpus", Some(&format!("\"device={}\"", uuids.join(","))));
        }
        Gpus::Cdi(names) if !words.given(&["--gpus", "--device"]) => {
            names.iter().for_each(|name| words.always("--device", Some(&format!("nvidia.com/gpu={name}"))));
        }
        Gpus::Cdi(_) => {}
    }
    // Ranks exchange data through shared memory, and the engine's default of 64 MiB ends in a bus error.
    words.unless(&["--ipc", "--shm-size"], "--shm-size", Some("16g"));
    if !words.has_ulimit("memlock") {
        words.always("--ulimit", Some("memlock=-1"));
    }
    if !words.has_ulimit("stack") {
        words.always("--ulimit", Some("stack=67108864"));
    }
    if let Some(user) = &container.user {
        words.unless(&["--user", "-u"], "--user", Some(user));
    }
    if let Some(folder) = &container.folder {
        words.unless(&["--workdir", "-w"], "--workdir", Some(&folder.display().to_string()));
    }
    for mount in &container.mounts {
        let (path, mode) = (mount.path.display(), if mount.writable { "" } else { ":ro" });
        words.always("--volume", Some(&format!("{path}:{path}{mode}")));
    }
    // In a container that sees only some of the host's GPUs they are counted anew.
    let chosen = matches!(container.gpus, Gpus::These(_) | Gpus::Cdi(_));
    for (name, value) in rank.env.iter().filter(|(name, _)| !chosen || *name != "CUDA_VISIBLE_DEVICES") {
        words.always("--env", Some(&format!("{name}={value}")));
    }
    container.inherited.iter().for_each(|name| words.always("--env", Some(name)));
    match &container.secrets {
        Secrets::Inherited => rank.secrets.iter().for_each(|name| words.always("--env", Some(name))),
        Secrets::File(path) if !rank.secrets.is_empty() => {
            words.always("--env-file", Some(&path.display().to_string()));
        }
        Secrets::File(_) => {}
    }
    let mut words = words.words;
    words.extend(container.options.iter().cloned());
    let (entrypoint, command) = command(&rank.argv, container.image.entrypoint.as_deref());
    if let Some(entrypoint) = entrypoint {
        words.extend(["--entrypoint".to_owned(), entrypoint]);
    }
    words.push(container.image.resolved.clone());
    words.extend(command);
    words
}

/// How the rendered command comes out of an image that puts its entrypoint before what it is given: what replaces the
/// entrypoint, if it must be replaced, and the rest.
///
/// An entrypoint that is the command's own beginning (`vllm serve`, `/app/llama-server`) is kept. Any other one would
/// stand before the command, so it is replaced by the command's program.
fn command(argv: &[String], entrypoint: Option<&[String]>) -> (Option<String>, Vec<String>) {
    let name = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    match entrypoint {
        Some([]) => (None, argv.to_vec()),
        Some(words) if words.len() <= argv.len() && words.iter().zip(argv).all(|(a, b)| a == b || name(a) == *b) => {
            (None, argv[words.len()..].to_vec())
        }
        _ => (argv.first().cloned(), argv.get(1..).unwrap_or_default().to_vec()),
    }
}

/// Whether the image's entrypoint is replaced, and by what: worth a warning, since a wrapper may set something up.
pub fn replaced(argv: &[String], image: &Image) -> Option<String> {
    let entrypoint = image.entrypoint.as_deref().filter(|words| !words.is_empty())?;
    let (by, _) = command(argv, Some(entrypoint));
    by.map(|by| format!("the image's entrypoint `{}` is replaced by `{by}`", entrypoint.join(" ")))
}

struct Adding<'a> {
    options: &'a [String],
    words: Vec<String>,
}

impl Adding<'_> {
    fn always(&mut self, flag: &str, value: Option<&str>) {
        self.words.push(flag.to_owned());
        self.words.extend(value.map(str::to_owned));
    }

    /// Unless the profile's own words have one of `names`.
    fn unless(&mut self, names: &[&str], flag: &str, value: Option<&str>) {
        if !self.given(names) {
            self.always(flag, value);
        }
    }

    fn given(&self, names: &[&str]) -> bool {
        self::options(self.options).iter().any(|given| names.contains(&given.flag.as_str()))
    }

    fn has_ulimit(&self, name: &str) -> bool {
        let of = format!("{name}=");
        let is =
            |given: &Given<'_>| given.flag == "--ulimit" && given.value.is_some_and(|value| value.starts_with(&of));
        self::options(self.options).iter().any(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(words: &[&str]) -> Rank {
        Rank {
            node: "local".into(),
            argv: words.iter().map(|word| (*word).to_owned()).collect(),
            env: [("A", "b c"), ("CUDA_VISIBLE_DEVICES", "2,3")].map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
            secrets: vec!["HF_TOKEN".into()],
            files: Vec::new(),
            head: true,
        }
    }

    fn container(entrypoint: Option<&[&str]>) -> Container {
        let entrypoint = entrypoint.map(|words| words.iter().map(|word| (*word).to_owned()).collect());
        let image = Image { entrypoint, ..Image::assumed("engine:v1") };
        Container {
            name: "orch-r1".into(),
            labels: [("orch.run".to_owned(), "r1".to_owned())].into(),
            image: Image { resolved: "engine@sha256:0123".into(), ..image },
            options: Vec::new(),
            gpus: Gpus::These(vec!["GPU-1".into(), "GPU-2".into()]),
            mounts: vec![Mount { path: "/models/m".into(), writable: false }],
            user: Some("1000:1000".into()),
            folder: None,
            stop_signal: "TERM".into(),
            stop_patience: Duration::from_secs(60),
            inherited: vec!["ORCH_RUN".into()],
            secrets: Secrets::Inherited,
            stays: false,
        }
    }

    #[test]
    fn a_whole_container() {
        let words = words(&rank(&["vllm", "serve", "m"]), &container(Some(&["vllm", "serve"])));
        insta::assert_snapshot!(shell_words::join(words).replace(" -", "\n-"), @r#"
        docker run
        --name orch-r1
        --label 'orch.run=r1'
        --network host
        --pull never
        --stop-signal SIGTERM
        --stop-timeout 60
        --init
        --gpus '"device=GPU-1,GPU-2"'
        --shm-size 16g
        --ulimit 'memlock=-1'
        --ulimit 'stack=67108864'
        --user 1000:1000
        --volume /models/m:/models/m:ro
        --env 'A=b c'
        --env ORCH_RUN
        --env HF_TOKEN engine@sha256:0123 m
        "#);
    }

    #[test]
    fn the_rendered_command_is_what_runs_whatever_the_entrypoint() {
        let argv = ["llama-server", "--port", "1"].map(str::to_owned);
        let out = |entrypoint: Option<&[&str]>| {
            let entrypoint: Option<Vec<String>> =
                entrypoint.map(|words| words.iter().map(|word| (*word).to_owned()).collect());
            let (by, rest) = command(&argv, entrypoint.as_deref());
            (by, rest.join(" "))
        };
        assert_eq!(out(Some(&[])), (None, "llama-server --port 1".into()));
        assert_eq!(out(Some(&["/app/llama-server"])), (None, "--port 1".into()));
        assert_eq!(out(Some(&["/opt/entry.sh"])), (Some("llama-server".into()), "--port 1".into()));
        assert_eq!(out(None), (Some("llama-server".into()), "--port 1".into()));
        let image = Image { entrypoint: Some(vec!["/opt/entry.sh".into()]), ..Image::assumed("i") };
        assert_eq!(
            replaced(&argv, &image).unwrap(),
            "the image's entrypoint `/opt/entry.sh` is replaced by `llama-server`"
        );
    }

    #[test]
    fn what_the_profile_gives_itself_is_not_given_twice() {
        let mut container = container(Some(&[]));
        container.options =
            ["--ipc=host", "--ulimit", "memlock=1", "--device=nvidia.com/gpu=0", "-u0"].map(str::to_owned).into();
        let words = words(&rank(&["serve"]), &container);
        for absent in ["--shm-size", "--gpus", "--user", "memlock=-1"] {
            assert!(!words.iter().any(|word| word == absent), "{absent}: {words:?}");
        }
        container.secrets = Secrets::File("/w/secrets.env".into());
        let words = super::words(&rank(&["serve"]), &container);
        assert!(words.windows(2).any(|two| two == ["--env-file", "/w/secrets.env"]), "{words:?}");
        assert!(!words.iter().any(|word| word == "HF_TOKEN"));
    }

    #[test]
    fn words_that_would_hide_the_container_or_show_a_secret_are_refused() {
        let of = |options: &[&str]| {
            let options: Vec<String> = options.iter().map(|word| (*word).to_owned()).collect();
            let faults = faults(&options, &["HF_TOKEN".to_owned()]);
            assert!(faults.iter().all(|fault| !fault.to_string().contains("abc")), "{faults:?}");
            faults.iter().map(|fault| fault.code).collect::<Vec<_>>().join(" ")
        };
        for secret in [
            &["--env=HF_TOKEN=abc"][..],
            &["--env", "HF_TOKEN=abc"],
            &["-e", "HF_TOKEN=abc"],
            &["-eHF_TOKEN=abc"],
            &["-e=HF_TOKEN=abc"],
            &["-e HF_TOKEN=abc"],
            &["--label=x;HF_TOKEN=abc"],
            &["HF_TOKEN=abc"],
        ] {
            assert_eq!(of(secret), "secret", "{secret:?}");
        }
        for (owned, count) in [
            (&["--rm"][..], 1),
            (&["--name=x"], 1),
            (&["--name", "x"], 1),
            (&["-p", "1:2"], 1),
            (&["-p8000:8000"], 1),
            (&["-it"], 2),
            (&["-P"], 1),
            (&["-d=true"], 1),
            (&["-l", "orch.run=1"], 1),
            (&["-lorch.deployment=1"], 1),
            (&["--label=orch.run=1"], 1),
            (&["--init", "other/image"], 1),
            (&["--"], 1),
        ] {
            assert_eq!(of(owned), vec!["owned_flag"; count].join(" "), "{owned:?}");
        }
        let good = [
            "--shm-size=32g",
            "--ipc",
            "host",
            "-eA=-p",
            "-v/a:/a",
            "--privileged",
            "--env=MY_HF_TOKEN=x",
            "-e",
            "HF_TOKEN",
        ];
        assert_eq!(of(&good), "");
    }
}
