//! `launch: {via: docker}`. No container engine runs where these tests do: `tests/data/bin/docker` is a STAND-IN that
//! answers as the real one and starts plain processes. What it cannot show is isolation, GPUs and a registry.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::strangers::Stranger;
use crate::support::{Home, Ran, free_port, read_json};

/// A home with a stand-in engine that has one image.
pub(crate) struct Engine {
    pub(crate) home: Home,
}

impl Engine {
    pub(crate) fn new() -> Self {
        let engine = Engine { home: Home::new() };
        std::fs::create_dir_all(engine.folder()).unwrap();
        let image = json!({"Id": "sha256:aaaa", "RepoDigests": ["engine@sha256:d00d"],
            "Config": {"Entrypoint": ["/opt/wrapper.sh"], "Labels": {"vendor": "nobody"}}});
        engine.put("remote.json", &json!({"engine:v1": image}));
        engine
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.home.path("engine")
    }

    pub(crate) fn put(&self, name: &str, value: &Value) {
        std::fs::write(self.folder().join(name), value.to_string()).unwrap();
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.home.orch(words);
        with_stand_ins(&mut command, &self.folder());
        command.env("TOKEN", "s3cret-value");
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        Ran::of(self.command(words).output().unwrap())
    }

    /// The stand-in itself, as a person at this machine would use it.
    pub(crate) fn docker(&self, words: &[&str]) -> Ran {
        let mut command = Command::new("docker");
        with_stand_ins(&mut command, &self.folder());
        Ran::of(command.args(words).output().unwrap())
    }

    pub(crate) fn calls(&self) -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(self.folder().join("calls")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn containers(&self) -> Vec<String> {
        let ran = self.docker(&["ps", "--all"]);
        ran.stdout.lines().map(str::to_owned).collect()
    }

    pub(crate) fn profile(&self, name: &str, port: u16, options: &str) -> String {
        let server = std::env::current_dir().unwrap().join("tests/data/servers/openai.py");
        let python = python();
        let path = self.home.write(
            &format!("profiles/{name}.yaml"),
            &format!(
                "port: {port}\nengine: {{kind: command, command: [{python}, {}, --port, '{{port}}', {options}], ready: {{http: /health}}}}\n\
                 model: {{path: tiny, served_name: tiny}}\nsecrets: [TOKEN]\n\
                 launch: {{via: {{docker: {{image: 'engine:v1', options: ['--memory=2g']}}}}}}\n\
                 bench: {{only: {{use: chat-mix, concurrency: 2, requests: 16, output_tokens: 12}}}}\ntolerance: {}\n",
                server.display(),
                crate::deploy::TOLERANCE
            ),
        );
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.command(&["stop", "--all"]).output();
        for id in self.containers() {
            self.docker(&["rm", "--force", &id]);
        }
    }
}

/// The interpreter itself and no shim of a version manager, which would want an environment of its own.
pub(crate) fn python() -> String {
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Puts the stand-ins before everything else on the PATH.
pub(crate) fn with_stand_ins(command: &mut Command, engine: &Path) {
    let bin = std::env::current_dir().unwrap().join("tests/data/bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).env("STANDIN_DOCKER", engine);
}

#[test]
fn a_server_in_a_stand_in_container_is_fetched_measured_and_removed() {
    let engine = Engine::new();
    let _stranger = Stranger::beside(free_port());
    let profile = engine.profile("boxed", free_port(), crate::deploy::GOOD);
    let ran = engine.run(&["run", &profile]).expect(0);
    assert!(ran.stdout.contains("engine@sha256:d00d"), "{}", ran.stdout);
    let record = engine.home.record();
    assert_eq!(record["complete"], true);
    assert_eq!(record["left"]["processes"], 0);
    let image = &record["provenance"]["image"];
    assert_eq!((&image["asked"], &image["resolved"]), (&json!("engine:v1"), &json!("engine@sha256:d00d")));
    let warnings = record["warnings"].to_string();
    assert!(warnings.contains("`/opt/wrapper.sh` is replaced by"), "{warnings}");
    // What is recorded is what was run, with the mark and without the secret.
    let calls = engine.calls();
    let run = calls.iter().find(|call| call[0] == "run").unwrap();
    let id = record["id"].as_str().unwrap();
    for two in [["--label", &format!("orch.run={id}")], ["--env", "TOKEN"], ["--network", "host"]] {
        assert!(run.windows(2).any(|words| words == two), "{two:?}: {run:?}");
    }
    assert!(run.contains(&"--memory=2g".to_owned()) && run.contains(&"engine@sha256:d00d".to_owned()), "{run:?}");
    assert_eq!(record["command"].as_array().unwrap()[1..], run.iter().map(|word| json!(word)).collect::<Vec<_>>());
    // Fetched before it was launched, and its log is the server's.
    let at = |verb: &str| calls.iter().position(|call| call[0] == verb).unwrap();
    assert!(at("pull") < at("run"));
    let folder = engine.home.newest_run();
    assert!(std::fs::read_to_string(folder.join("server.log")).unwrap().contains("model loaded"));
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        // A link to what is gone with the server has nothing to show.
        let Ok(text) = std::fs::read(&path) else { continue };
        assert!(!String::from_utf8_lossy(&text).contains("s3cret-value"), "{}", path.display());
    }
    assert!(!format!("{calls:?}").contains("s3cret-value"));
    assert_eq!(engine.containers(), [""; 0]);
    // The second time nothing is fetched.
    engine.run(&["run", &profile]).expect(0);
    assert_eq!(engine.calls().iter().filter(|call| call[0] == "pull").count(), 1);
}

#[test]
fn a_stand_in_container_that_ran_out_of_memory_says_so_and_a_strangers_container_stays() {
    let engine = Engine::new();
    let _stranger = Stranger::beside(free_port());
    let port = free_port();
    let profile = engine.profile("hungry", port, "--die-after, '9'");
    engine.docker(&["pull", "engine:v1"]).expect(0);
    // A stranger with our name in its arguments and a label that only looks like ours.
    let python = python();
    let words =
        ["run", "--detach", "--name", "orch-hungry", "--label", "orch.running=1", "--entrypoint", &python, "engine:v1"];
    let stranger =
        engine.docker(&[&words[..], &["-c", "import time; time.sleep(600)", "orch.run", "ORCH_RUN=1"]].concat());
    let stranger = stranger.expect(0).stdout.trim().to_owned();
    std::fs::write(engine.folder().join("oom"), "").unwrap();
    engine.run(&["run", &profile]).expect(5);
    let failure = &engine.home.record()["failure"];
    assert_eq!((&failure["stage"], &failure["kind"]), (&json!("server"), &json!("oom_host")), "{failure:#}");
    assert!(failure["text"].as_str().unwrap().contains("OOMKilled"), "{failure:#}");
    engine.run(&["stop", "--all"]).expect(0);
    assert_eq!(engine.containers(), std::slice::from_ref(&stranger));
    assert!(engine.docker(&["inspect", &stranger]).stdout.contains("\"Running\": true"));
}

#[test]
fn a_killed_run_leaves_a_stand_in_container_that_ps_shows_and_stop_removes() {
    let engine = Engine::new();
    let _stranger = Stranger::beside(free_port());
    let profile = engine.profile("left", free_port(), "");
    let mut child = engine
        .command(&["run", &profile, "--set", "bench.only.requests=1000000"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::launching::until("the container", || {
        let listed: Vec<Value> = serde_json::from_str(&engine.run(&["ps", "--json"]).stdout).unwrap();
        let id = engine.containers().pop()?;
        let running = engine.docker(&["inspect", &id]).stdout.contains("\"Running\": true");
        (listed.first()?["state"] == "running" && running).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    // The supervisor and the client go too: what is left is the container alone.
    let listed: Vec<Value> = serde_json::from_str(&engine.run(&["ps", "--json"]).stdout).unwrap();
    for pid in ["supervisor_pid", "pid"].into_iter().filter_map(|key| listed[0][key].as_u64()) {
        // The second may have ended with the first.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
    // They take a moment to be gone; the container stays.
    crate::launching::until("the orphan", || {
        let listed: Vec<Value> = serde_json::from_str(&engine.run(&["ps", "--json"]).stdout).unwrap();
        (listed.first()?["state"] == "orphan").then_some(())
    });
    engine.run(&["stop", "--all"]).expect(0);
    assert_eq!(engine.containers(), [""; 0]);
}

/// A stand-in for the program in the image: it names two flags.
const NAMES_ITS_FLAGS: &str = "#!/bin/sh\ncase \"$1\" in\n--version) echo 'version: 10434 (abc)' ;;\n\
    --help) printf '%s\\n' '--metrics                 counters' '--threads N               how many' ;;\nesac\n";

#[test]
fn flags_are_held_against_the_program_in_the_stand_in_image() {
    use std::os::unix::fs::PermissionsExt;
    let engine = Engine::new();
    let _stranger = Stranger::beside(free_port());
    let program = engine.home.write("image/llama-server", NAMES_ITS_FLAGS);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let model = engine.home.write("image/m.gguf", "GGUF");
    let text = format!(
        "engine: {{kind: llamacpp, executable: {}}}\nmodel: {}\nflags: {{batch-size: 64}}\n\
         launch: {{via: {{docker: {{image: 'engine:v1'}}}}}}\n\
         bench: {{only: {{use: chat-mix, concurrency: 1, requests: 8, output_tokens: 4}}}}\n",
        program.display(),
        model.display()
    );
    let profile = engine.home.write("profiles/flags.yaml", &text);
    let ran = engine.run(&["run", profile.to_str().unwrap()]).expect(2);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(said.contains("has no flag `--batch-size`") && said.contains("flags.batch-size"), "{said}");
    let calls = engine.calls();
    assert!(calls.iter().any(|call| call.last().is_some_and(|word| word == "--help")), "{calls:?}");
    // The program in the image was asked, and no server was started of it.
    let started = |call: &&Vec<String>| call[0] == "run" && !call.contains(&"--entrypoint".to_owned());
    assert_eq!(calls.iter().find(started), None);
    assert_eq!(engine.containers(), [""; 0]);
}

#[test]
fn an_image_that_is_nowhere_and_an_engine_that_is_down_are_told_before_anything_is_started() {
    let engine = Engine::new();
    let _stranger = Stranger::beside(free_port());
    let profile = engine.profile("nowhere", free_port(), "");
    let ran = engine.run(&["run", &profile, "--set", "launch.via.docker.image='engine:v2'"]).expect(3);
    assert!(
        ran.stdout.contains("manifest unknown") && ran.stdout.contains("launch.via.docker.image"),
        "{}",
        ran.stdout
    );
    std::fs::write(engine.folder().join("down"), "").unwrap();
    let ran = engine.run(&["run", &profile]).expect(3);
    assert!(ran.stdout.contains("the engine must run"), "{}", ran.stdout);
    assert_eq!(read_json(&engine.home.newest_run().join("run.json"))["failure"]["stage"], "preflight");
    std::fs::remove_file(engine.folder().join("down")).unwrap();
}
