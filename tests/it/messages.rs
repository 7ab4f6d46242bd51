//! What a person reads when a run does not come to its end, word for word.

use crate::support::{Home, Ran, free_port};

/// From the headline to the end, with what differs from run to run masked.
fn ending(home: &Home, ran: &Ran) -> String {
    let from = ["COULD NOT LAUNCH", "DID NOT START"].iter().find_map(|head| ran.stdout.find(head));
    let text = match from {
        Some(from) => &ran.stdout[from..],
        None => &ran.stderr,
    };
    mask(&text.replace(home.path("").to_str().unwrap(), "HOME/"))
}

fn mask(text: &str) -> String {
    // Where a line breaks depends on what is masked.
    let mut text = text.replace("\n        ", " ");
    for (pattern, mask) in [
        (r"\br[0-9a-f]{4}\b", "rXXXX"),
        (r"\d{8}-\d{6}-([a-z]+)-[0-9a-f]{4}", "TIME-$1-XXXX"),
        (r"\bpid \d+ \([^)]*\)", "pid PID (NAME)"),
        (r"\bport \d+\b", "port PORT"),
        (r"port: \d+", "port: PORT"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
        (r"\d[\dms.]*( ms| s)? after its\b", "TIME after its"),
        (r"\d[\d.]*( ms| s| min \d+ s)? after launch\b", "TIME after launch"),
        (r"silent for \S+,", "silent for TIME,"),
        (r"weights: +\d+% \| \d+/10", "weights: N% | N/10"),
        (r" +(exit \d)", "  $1"),
    ] {
        text = regex::Regex::new(pattern).unwrap().replace_all(&text, mask).into_owned();
    }
    text
}

fn command_profile(home: &Home, options: &str) -> String {
    let server = std::env::current_dir().unwrap().join("tests/data/servers/openai.py");
    std::os::unix::fs::symlink(server, home.path("openai.py")).unwrap();
    let port = free_port();
    let text = format!(
        "port: {port}\nengine: {{kind: command, command: [python3, {}, --port, '{{port}}', {options}], ready: {{http: /health}}}}\nmodel: {{path: tiny, served_name: tiny}}\nbench: {{only: {{use: chat, concurrency: 1, requests: 16}}}}\n",
        home.path("openai.py").display()
    );
    home.write("profiles/tiny.yaml", &text).to_str().unwrap().to_owned()
}

#[test]
fn a_program_that_is_missing() {
    let home = Home::new();
    let profile = home.write(
        "profiles/tiny.yaml",
        "engine: {kind: command, command: [/no/such/server, --port, '{port}'], ready: {http: /health}}\nmodel: tiny\nbench: {only: {use: chat, concurrency: 1, requests: 16}}\n",
    );
    let ran = home.run(&["run", profile.to_str().unwrap()]).expect(3);
    insta::assert_snapshot!(ending(&home, &ran));
}

#[test]
fn a_model_that_is_missing() {
    let home = Home::new();
    let profile = home.write(
        "profiles/tiny.yaml",
        "engine: {kind: llamacpp, version: ==b10434, executable: /bin/true}\nmodel: /no/such/model.gguf\nmax_running_requests: 1\nbench: {only: {use: chat, concurrency: 1, requests: 16}}\n",
    );
    let ran = home.run(&["run", profile.to_str().unwrap()]).expect(3);
    insta::assert_snapshot!(ending(&home, &ran));
}

#[test]
fn a_port_that_a_stranger_has() {
    let home = Home::new();
    let profile = command_profile(&home, "");
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("port={}", stranger.local_addr().unwrap().port());
    let ran = home.run(&["run", &profile, "--set", &port]).expect(3);
    insta::assert_snapshot!(ending(&home, &ran));
}

#[test]
fn a_server_that_exits_at_once() {
    let home = Home::new();
    let profile = command_profile(&home, "--exit-code, '3'");
    let ran = home.run(&["run", &profile]).expect(4);
    insta::assert_snapshot!(ending(&home, &ran));
}

#[test]
fn a_server_that_is_never_ready() {
    let home = Home::new();
    let profile = command_profile(&home, "--never-ready");
    let ran = home.run(&["run", &profile, "--set", "gate.timeout=2s"]).expect(4);
    insta::assert_snapshot!(ending(&home, &ran));
}

#[test]
fn results_that_cannot_be_written() {
    let home = Home::new();
    let profile = command_profile(&home, "");
    home.write("a-file", "");
    let ran = home.run(&["run", &profile, "--results", home.path("a-file").to_str().unwrap()]).expect(2);
    insta::assert_snapshot!(ending(&home, &ran));
}
