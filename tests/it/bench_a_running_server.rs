//! `orch bench` against an endpoint that is already up, as a person would type it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::over_tls;
use crate::server::{Reply, Server, Then, start};

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Home(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn bench(&self, url: &str, more: &[&str]) -> Output {
        self.command(url, more).output().unwrap()
    }

    fn command(&self, url: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orch"));
        command.args(["bench", "--url", url]).args(more);
        command.arg("--results").arg(self.path("results")).env("XDG_STATE_HOME", self.path("state"));
        // Stories run side by side.
        command.env("ORCH_MEASURE_SCOPE", self.0.path());
        command
    }
}

fn base(server: &Server) -> String {
    server.url().trim_end_matches("/v1").to_owned()
}

fn record(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn rows(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const TWENTY: [&str; 6] = ["--requests", "20", "--concurrency", "2", "--warmup", "3"];

#[test]
fn a_good_run_prints_keeps_and_says_what_it_measured() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(4, 20)]));
    let file = home.path("rows.jsonl");
    let out = ["--requests-out", file.to_str().unwrap(), "--json", "--keep-text", "--keep-chunks"];
    let output = home.bench(&base(&server), &[&TWENTY[..], &out].concat());
    let record = record(&output);
    assert_eq!(output.status.code(), Some(0), "{record:#}");
    assert_eq!((&record["kind"], &record["complete"]), (&"bench".into(), &true.into()));
    assert_eq!(record["verdict"]["kind"], "no_baseline");
    assert_eq!(record["left"], Value::Null, "nothing was started, so nobody looked for what is left");
    assert_eq!(record["profile"]["share"], false);
    let step = &record["steps"][0];
    assert_eq!(
        (&step["valid"], &step["counts"]["ok"], &step["load_path"]),
        (&true.into(), &20.into(), &"beside".into())
    );
    assert_eq!(step["metrics"]["ttft_ms"]["samples"], 20);
    assert!(step["metrics"]["output_tokens_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(server.posts().len(), 23, "the warm-up and the requests, and nothing else");
    assert!(server.posts()[0].contains(r#""model":"the-model""#), "the only model that the server lists");
    let rows = rows(&file);
    assert_eq!(rows.len(), 20);
    for row in rows {
        assert_eq!(
            (&row["outcome"], &row["output_tokens"], &row["text"]),
            (&"ok".into(), &4.into(), &" w0 w1 w2 w3".into())
        );
        assert_eq!(row["chunk_ms"].as_array().unwrap().len(), 4);
        assert_eq!(row["chunk_tokens"], serde_json::json!([1, 1, 1, 1]));
    }
    let runs: Vec<_> = std::fs::read_dir(home.path("results/runs")).unwrap().collect();
    let folder = runs[0].as_ref().unwrap().path();
    assert_eq!(runs.len(), 1);
    let kept: Value = serde_json::from_slice(&std::fs::read(folder.join("run.json")).unwrap()).unwrap();
    assert_eq!(kept, record, "what is printed is what is kept");
    assert_eq!(orch::measure::read_rows(&folder.join("requests.jsonl.zst")).unwrap().len(), 20);
    assert!(std::fs::read_to_string(folder.join("histograms.hlog")).unwrap().contains("Tag=bench/ttft_ms"));
}

#[test]
fn without_json_it_ends_with_a_table_for_people() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(4, 20)]));
    let output = home.bench(&server.url(), &[&TWENTY[..], &["--no-record"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for words in ["TTFT", "20", "NO BASELINE", "no record kept"] {
        assert!(text.contains(words), "no `{words}` in\n{text}");
    }
    assert!(!home.path("results").exists());
}

#[test]
fn an_exact_length_is_asked_for_and_judged() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(4, 0)]));
    let output = home
        .bench(&base(&server), &[&TWENTY[..], &["--output-tokens", "9", "--api", "completions", "--json"]].concat());
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(record(&output)["steps"][0]["reasons"][0]["id"], "wrong_length");
    let post = &server.posts()[0];
    assert!(
        post.starts_with("POST /v1/completions ") && post.contains(r#""max_tokens":9,"ignore_eos":true"#),
        "{post}"
    );
}

#[test]
fn rows_and_summary_are_written_when_nothing_works() {
    let not_found = "HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot found";
    let server = start(vec![Reply::bytes(not_found, Then::Keep)]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (url, outcome) in [(base(&server), "http_error"), (format!("http://{free}"), "connect_failed")] {
        let home = Home::new();
        let file = home.path("rows.jsonl");
        let output = home.bench(
            &url,
            &["--requests", "2", "--concurrency", "1", "--json", "--requests-out", file.to_str().unwrap()],
        );
        assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
        let record = record(&output);
        let step = &record["steps"][0];
        assert_eq!((&step["valid"], &step["counts"]["ok"]), (&false.into(), &0.into()));
        assert_eq!(step["metrics"]["ttft_ms"]["p50"], Value::Null);
        if outcome == "connect_failed" {
            let warnings = record["warnings"].to_string();
            assert!(warnings.contains("does not answer") && !warnings.contains("lists no model"), "{warnings}");
        }
        let reasons = step["reasons"].to_string();
        assert!(reasons.contains("no_successful_request") && reasons.contains(outcome), "{reasons}");
        let rows = rows(&file);
        assert!(!rows.is_empty() && rows.iter().all(|row| row["outcome"] == outcome), "{rows:?}");
    }
    let said = server.posts().len();
    assert_eq!(said, 1, "a wrong path is not asked a second time");
}

#[test]
fn an_interrupt_keeps_record_and_rows() {
    let mut replies = vec![Reply::tokens(2, 0); 7];
    replies.push(Reply::bytes("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", Then::Hang));
    for (signal, code) in [(nix::sys::signal::Signal::SIGINT, 130), (nix::sys::signal::Signal::SIGTERM, 143)] {
        let (home, server) = (Home::new(), start(replies.clone()));
        let file = home.path("rows.jsonl");
        let more = [
            "--requests",
            "50",
            "--concurrency",
            "1",
            "--warmup",
            "2",
            "--json",
            "--requests-out",
            file.to_str().unwrap(),
        ];
        let mut command = home.command(&base(&server), &more);
        let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
        // The eighth request hangs: once it is there, only the signal can end the run.
        while server.posts().len() < 8 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let record = record(&output);
        assert_eq!((&record["complete"], &record["verdict"]["kind"]), (&false.into(), &"failed".into()));
        assert_eq!(record["verdict"]["reasons"][0]["id"], "interrupted");
        assert_eq!(record["steps"][0]["counts"]["ok"], 5);
        let outcomes: Vec<_> = rows(&file).iter().map(|row| row["outcome"].as_str().unwrap().to_owned()).collect();
        assert_eq!(outcomes, ["ok", "ok", "ok", "ok", "ok", "cancelled"]);
    }
}

#[test]
fn two_measurements_on_one_host_need_to_say_that_they_share_it() {
    let home = Home::new();
    let hanging = start(vec![Reply::bytes("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", Then::Hang)]);
    let one = ["--requests", "1", "--concurrency", "1", "--no-record"];
    let mut first = home.command(&base(&hanging), &one);
    let first = first.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    while hanging.posts().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let server = start(vec![Reply::tokens(4, 20)]);
    let refused = home.bench(&base(&server), &TWENTY);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{words}");
    assert!(words.contains("taken by") && server.posts().is_empty(), "{words}");
    let shared = home.bench(&base(&server), &[&TWENTY[..], &["--share", "--json"]].concat());
    assert_eq!((shared.status.code(), &record(&shared)["profile"]["share"]), (Some(0), &true.into()));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    first.wait_with_output().unwrap();
    assert_eq!(home.bench(&base(&server), &TWENTY).status.code(), Some(0), "the lease came back");
}

#[test]
fn mistakes_on_the_command_line_are_told_before_anything_is_sent() {
    let server = start(vec![Reply::tokens(1, 0)]);
    let (home, url) = (Home::new(), base(&server));
    let good = ["--requests", "1", "--concurrency", "1"];
    for (url, more) in [
        ("h:80", &good[..]),
        ("http://h/?a=b", &good),
        (&url, &["--concurrency", "1"]),
        (&url, &["--requests", "0", "--concurrency", "1"]),
        (&url, &["--requests", "1", "--concurrency", "0"]),
        (&url, &["--duration", "20", "--concurrency", "1"]),
        (&url, &["--requests", "1"]),
        (&url, &["--requests", "1", "--concurrency", "1", "--rate", "2"]),
        (&url, &["--requests", "1", "--rate", "0"]),
        (&url, &["--requests", "1", "--concurrency", "1", "--arrival", "constant"]),
        (&url, &["--requests", "1", "--rate", "1", "--arrival", "gamma"]),
        (&url, &["--requests", "1", "--concurrency", "1", "--warmup", "some"]),
        (&url, &["--requests", "1", "--concurrency", "1", "--request-timeout", "20"]),
        (&url, &["--requests", "1", "--concurrency", "4000000000"]),
        (&url, &["--requests", "1", "--concurrency", "1", "--requests-out", "/no/such/folder/rows"]),
    ] {
        let output = home.bench(url, more);
        assert_eq!(output.status.code(), Some(2), "{url} {more:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
    assert!(server.posts().is_empty());
}

#[test]
fn a_rate_is_kept_and_its_latencies_count_from_the_due_moments_too() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(3, 2)]));
    let output = home.bench(&base(&server), &["--requests", "20", "--rate", "50", "--arrival", "constant", "--json"]);
    let record = record(&output);
    assert_eq!(record["steps"][0]["counts"]["ok"], 20, "{record:#}");
    assert_eq!(server.posts().len(), 20 + 100, "two seconds of the rate are the warm-up");
    let step = &record["steps"][0];
    assert_eq!(step["load"]["arrival"], serde_json::json!({"open": {"rate": 50.0, "shape": "constant"}}));
    for id in ["ttft_from_due_ms", "e2e_from_due_ms", "queued_ms"] {
        assert_eq!(step["metrics"][id]["samples"], 20, "{id}");
    }
    assert_eq!(step["client"]["late_ms"]["samples"], 20);
    assert_eq!(step["warmup"]["requests"], 100);
    assert!(step["client"]["busy_ratio"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_warm_up_may_be_left_to_converge() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(4, 5)]));
    let more = ["--requests", "16", "--concurrency", "2", "--warmup", "auto", "--output-tokens", "4", "--json"];
    let record = record(&home.bench(&base(&server), &more));
    let warm_up = &record["steps"][0]["warmup"];
    assert!(warm_up["settled"].is_boolean() && warm_up["rounds"].as_u64().unwrap() >= 2, "{warm_up}");
    assert_eq!(server.posts().len() as u64, 16 + warm_up["requests"].as_u64().unwrap());
    let warned = record["warnings"].to_string().contains("not_settled");
    assert_eq!(warned, warm_up["settled"] == false, "{record:#}");
}

#[test]
fn rows_that_cannot_be_written_cost_neither_the_summary_nor_the_record() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(3, 25)]));
    let output = home.bench(&base(&server), &[&TWENTY[..], &["--json", "--requests-out", "/dev/full"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("/dev/full") && said.contains("No space left"), "{said}");
    assert!(said.contains("exit 1") && !said.contains("exit 0"), "{said}");
    let record = record(&output);
    assert_eq!((&record["complete"], &record["steps"][0]["counts"]["ok"]), (&true.into(), &20.into()));
    let runs: Vec<_> = std::fs::read_dir(home.path("results/runs")).unwrap().collect();
    assert!(runs[0].as_ref().unwrap().path().join("run.json").exists());
}

#[test]
fn rows_may_be_printed_and_then_nothing_else_is() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(3, 5)]));
    let output = home.bench(&base(&server), &[&TWENTY[..], &["--requests-out", "-"]].concat());
    let (said, text) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(0), "{said}");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 20);
    assert!(
        said.contains("20 requests, 2 at a time; built-in prompts, answers of at most 256 tokens; 3 before"),
        "{said}"
    );
    assert!(!Path::new("-").exists());
    let both = home.bench(&base(&server), &[&TWENTY[..], &["--requests-out", "-", "--json"]].concat());
    assert_eq!(both.status.code(), Some(2), "{}", String::from_utf8_lossy(&both.stderr));
}

#[test]
fn a_count_beyond_all_measure_is_no_small_one() {
    let word = |n| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\" w{n}\"}}}}]}}\n\n");
    let mut events: Vec<String> = (0..20).map(word).collect();
    events.push("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n".to_owned());
    let usage = "{\"prompt_tokens\":9223372036854775808,\"completion_tokens\":9223372036854775808}";
    events.push(format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n"));
    events.push("data: [DONE]\n\n".to_owned());
    let (home, server) = (Home::new(), start(vec![Reply::events(&events, 2)]));
    let output = home.bench(&base(&server), &[&TWENTY[..], &["--json"]].concat());
    let step = &record(&output)["steps"][0];
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(step["reasons"][0]["id"], "impossible_count", "{step:#}");
    for id in ["output_tokens_per_s", "input_tokens_per_s", "total_tokens_per_s", "decode_tokens_per_s_per_user"] {
        assert!(step["metrics"][id].as_f64().unwrap() > 1e18, "{id}: {}", step["metrics"][id]);
    }
}

#[test]
fn a_model_that_is_not_listed_is_told_and_asked_all_the_same() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(3, 4)]));
    let record = record(&home.bench(&base(&server), &[&TWENTY[..], &["--model", "another", "--json"]].concat()));
    let warnings = record["warnings"].to_string();
    assert!(warnings.contains("model_not_listed") && warnings.contains("the-model"), "{warnings}");
    assert!(server.posts()[0].contains(r#""model":"another""#));
}

#[test]
fn prompts_have_exactly_the_length_that_was_asked_for() {
    let (home, server) = (Home::new(), start(vec![Reply::counting(1)]));
    let file = home.path("rows.jsonl");
    let more = ["--input-tokens", "100", "--json", "--requests-out", file.to_str().unwrap()];
    let output = home.bench(&base(&server), &[&TWENTY[..], &more].concat());
    let record = record(&output);
    let rows = rows(&file);
    assert_eq!(rows.len(), 20, "{record:#}");
    assert!(rows.iter().all(|row| row["input_tokens"] == 100), "{rows:#?}");
    assert!(!record["warnings"].to_string().contains("input_length"), "{record:#}");
    let posts = server.posts();
    let asked = posts.len() - 23;
    assert!(asked <= 8, "{asked} requests found out how the server counts");
    let prompts: std::collections::BTreeSet<_> =
        posts[asked..].iter().map(|post| post.split_once("\r\n\r\n").unwrap().1).collect();
    assert_eq!(prompts.len(), 23, "no prompt is in a cache that another has filled");
    assert_eq!(record["profile"]["bench"]["bench"]["input_tokens"], 100);
}

#[test]
fn a_length_that_cannot_be_made_is_an_error_and_not_another_length() {
    for (server, words) in [
        (start(vec![Reply::tokens(3, 0)]), "one token each"),
        (
            start(vec![Reply::bytes("HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno", Then::Keep)]),
            "does not count prompts",
        ),
        (start(vec![Reply::counting(1)]), "stand around each prompt"),
    ] {
        let home = Home::new();
        let output = home.bench(&base(&server), &[&TWENTY[..], &["--input-tokens", "5", "--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{said}");
        let failure = record(&output)["failure"].to_string();
        assert!(failure.contains(words), "{failure}");
    }
}

#[test]
fn sglang_s_own_endpoint_is_read_as_it_speaks() {
    let event = |text: &str, tokens: u64, end: &str| {
        format!(
            "data: {{\"text\":\"{text}\",\"meta_info\":{{\"prompt_tokens\":5,\"completion_tokens\":{tokens},\"finish_reason\":{end}}}}}\n\n"
        )
    };
    let pieces = [
        event("He", 1, "null"),
        event("Hello", 3, "null"),
        event("Hello you", 4, "{\"type\":\"length\",\"length\":4}"),
        "data: [DONE]\n\n".to_owned(),
    ];
    let server = start(vec![Reply::events(&pieces, 4)]);
    let (home, file) = (Home::new(), tempfile::NamedTempFile::new().unwrap());
    let more =
        ["--api", "generate", "--output-tokens", "4", "--keep-text", "--keep-chunks", "--json", "--requests-out"];
    let output = home.bench(&base(&server), &[&TWENTY[..], &more, &[file.path().to_str().unwrap()]].concat());
    assert_eq!(record(&output)["steps"][0]["counts"]["ok"], 20, "{:#}", record(&output));
    let post = &server.posts()[0];
    assert!(post.starts_with("POST /generate HTTP/1.1"), "{post}");
    assert!(post.contains(r#""sampling_params":{"max_new_tokens":4,"ignore_eos":true},"stream":true"#), "{post}");
    let row = &rows(file.path())[0];
    assert_eq!(
        (&row["text"], &row["output_tokens"], &row["input_tokens"]),
        (&"Hello you".into(), &4.into(), &5.into())
    );
    assert_eq!((&row["chunk_tokens"], &row["finish_reason"]), (&serde_json::json!([1, 2, 1]), &"length".into()));
}

#[test]
fn llama_cpp_s_own_endpoint_is_read_as_it_speaks() {
    let pieces = [
        "data: {\"index\":0,\"content\":\" a\",\"stop\":false,\"tokens_predicted\":1,\"tokens_evaluated\":6}\n\n".to_owned(),
        "data: {\"index\":0,\"content\":\" b\",\"stop\":false,\"tokens_predicted\":2,\"tokens_evaluated\":6}\n\n".to_owned(),
        "data: {\"content\":\"\",\"stop\":true,\"stop_type\":\"limit\",\"tokens_predicted\":2,\"tokens_evaluated\":6,\"timings\":{\"predicted_n\":2,\"prompt_n\":6}}\n\n".to_owned(),
    ];
    let server = start(vec![Reply::events(&pieces, 4)]);
    let (home, file) = (Home::new(), tempfile::NamedTempFile::new().unwrap());
    let more = ["--api", "completion", "--output-tokens", "2", "--keep-text", "--json", "--requests-out"];
    let output = home.bench(&base(&server), &[&TWENTY[..], &more, &[file.path().to_str().unwrap()]].concat());
    assert_eq!(record(&output)["steps"][0]["counts"]["ok"], 20, "{:#}", record(&output));
    let post = &server.posts()[0];
    assert!(post.starts_with("POST /completion HTTP/1.1") && post.contains(r#""n_predict":2"#), "{post}");
    let row = &rows(file.path())[0];
    assert_eq!((&row["text"], &row["output_tokens"], &row["input_tokens"]), (&" a b".into(), &2.into(), &6.into()));
}

#[test]
fn https_works_where_the_certificate_is_trusted() {
    let home = Home::new();
    let url = format!("https://localhost:{}", over_tls::start());
    let mut command = home.command(&url, &["--requests", "16", "--concurrency", "2", "--json"]);
    let output = command.env("SSL_CERT_FILE", "tests/data/tls/ca.pem").output().unwrap();
    let record = record(&output);
    assert_eq!(record["steps"][0]["counts"]["ok"], 16, "{record:#}");
    let distrusted = home.bench(&url, &["--requests", "2", "--concurrency", "1", "--json"]);
    assert_eq!(self::record(&distrusted)["steps"][0]["counts"]["errors"]["tls_verify"], 2);
    assert_eq!(distrusted.status.code(), Some(5));
}

#[test]
fn the_help_names_every_option_of_the_contract() {
    let help = Command::new(env!("CARGO_BIN_EXE_orch")).args(["bench", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for option in [
        "url",
        "api",
        "model",
        "requests",
        "duration",
        "concurrency",
        "rate",
        "arrival",
        "input-tokens",
        "output-tokens",
        "warmup",
        "retries",
        "seed",
        "keep-text",
        "keep-chunks",
        "requests-out",
        "share",
        "no-record",
        "json",
    ] {
        assert!(help.contains(&format!("--{option}")), "{option}");
    }
}
