//! What a profile asks for against what is there: a unit that somebody changed, a process, a server.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::support::{Home, Ran};

const FILES: &[&str] = &[
    "sglang-qwen.service",
    "vllm@qwen3-8b.service",
    "llama.service",
    "bash-c.service",
    "glm.sh",
    "vllm-docker.sh",
    "kimi.sbatch",
    "old-sglang.sh",
    "vllm-speculative.sh",
    "tgi.sh",
];

fn data(name: &str) -> String {
    format!("tests/data/import/{name}")
}

/// Imports a file into a profile and gives its path.
fn imported(home: &Home, name: &str) -> String {
    let text = home.run(&["import", &data(name)]).expect(0).stdout;
    home.write("asked.yaml", &text).display().to_string()
}

fn report(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn a_unit_that_was_redeployed_with_one_step_is_told_in_the_profiles_words() {
    let home = Home::new();
    let profile = imported(&home, "sglang-qwen.service");
    let unit = data("sglang-qwen-redeployed.service");
    let ran = home.run(&["drift", &profile, "--unit", &unit]).expect(8);
    assert_eq!(ran.stdout, "speculative.steps  asked 3, unit has 1\n");
    assert!(ran.stderr.contains("not compared: `--host 0.0.0.0`: no profile says it\n"), "{}", ran.stderr);
    let ran = home.run(&["drift", &profile, "--unit", &unit, "--json"]).expect(8);
    let report = report(&ran);
    assert_eq!(report["differs"], json!(true));
    let compared = &report["compared"][0];
    assert_eq!(compared["differences"], json!([{"key": "speculative.steps", "asked": 3, "has": 1}]));
    assert_eq!((&compared["with"], &compared["name"]), (&json!("unit"), &json!("sglang-qwen-redeployed.service")));
}

#[test]
fn what_was_imported_does_not_differ_from_what_it_came_from() {
    let home = Home::new();
    for name in FILES {
        let profile = imported(&home, name);
        let ran = home.run(&["drift", &profile, "--unit", &data(name)]).expect(0);
        assert!(ran.stdout.starts_with("no difference between asked and "), "{name}: {}", ran.stdout);
    }
}

#[test]
fn every_kind_of_key_can_differ() {
    let home = Home::new();
    let profile = imported(&home, "sglang-qwen.service");
    let set = [
        "model.path=Qwen/Qwen3.6-14B",
        "port=30001",
        "parallel.tensor=4",
        "speculative=null",
        "memory.fraction=0.880",
        "context_length=131072",
        "max_running_requests=null",
        "graphs.enabled=false",
        "flags.chunked-prefill-size=4096",
        "flags.reasoning-parser=null",
        "env.NCCL_DEBUG=INFO",
        "env.NCCL_P2P_DISABLE=null",
        "instrument=off",
    ];
    let set = set.iter().flat_map(|set| ["--set", *set]);
    let words: Vec<&str> =
        ["drift", &profile, "--unit", "tests/data/import/sglang-qwen.service"].into_iter().chain(set).collect();
    insta::assert_snapshot!(home.run(&words).expect(8).stdout);
}

#[test]
fn what_is_not_known_is_neither_equal_nor_different() {
    let home = Home::new();
    let profile = home
        .write("p.yaml", "engine: vllm\nmodel: m/m\nport: 8000\nparallel: {tensor: 2}\ninstrument: off\n")
        .display()
        .to_string();
    let text = "source /etc/no/such.env\nvllm serve m/m --served-model-name m -tp $TP --port 8000\n";
    let script = home.write("serve.sh", text).display().to_string();
    let mut command = home.orch(&["drift", &profile, "--unit", &script]);
    let ran = Ran::of(command.env_remove("TP").output().unwrap()).expect(0);
    for what in [
        "`parallel.tensor`: what the command gives it is not known here",
        "reads `/etc/no/such.env`, which is not here",
    ] {
        assert!(ran.stderr.contains(what), "{what}\n{}", ran.stderr);
    }
}

#[test]
fn another_engine_is_one_difference_and_without_anything_to_compare_it_is_usage() {
    let home = Home::new();
    let profile = imported(&home, "llama.service");
    let ran = home.run(&["drift", &profile, "--unit", &data("sglang-qwen.service")]).expect(8);
    assert_eq!(ran.stdout, "engine.kind  asked llamacpp, unit has sglang\n");
    home.run(&["drift", &profile]).expect(2);
    home.run(&["drift", &profile, "--url", "http://127.0.0.1:9"]).expect(3);
}

/// Answers each page with JSON, for as long as the test runs.
fn pages(pages: Value) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut text = [0; 4096];
            let length = stream.read(&mut text).unwrap_or(0);
            let line = String::from_utf8_lossy(&text[..length]).into_owned();
            let page = pages.get(line.split(' ').nth(1).unwrap_or(""));
            let (status, body) = page.map_or(("404 Not Found", "{}".to_owned()), |page| ("200 OK", page.to_string()));
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    url
}

#[test]
fn a_server_tells_what_it_took() {
    let home = Home::new();
    let url = pages(json!({
        "/v1/models": {"data": [{"id": "qwen3.6-27b", "root": "Qwen/Qwen3.6-27B", "max_model_len": 131_072, "owned_by": "sglang"}]},
        "/server_info": {
            "version": "0.5.23", "model_path": "Qwen/Qwen3.6-27B", "served_model_name": "qwen3.6-27b", "tp_size": 2, "dp_size": 1,
            "mem_fraction_static": 0.88, "context_length": 131_072, "max_running_requests": 16, "chunked_prefill_size": 2048,
            "reasoning_parser": "qwen3", "tool_call_parser": "qwen3_coder", "enable_metrics": true, "enable_cache_report": true,
            "speculative_algorithm": "EAGLE", "speculative_num_steps": 1, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 2,
            "attention_backend": "fa3", "internal_states": [{"effective_max_running_requests_per_dp": 10}]
        }
    }));
    let profile = imported(&home, "sglang-qwen.service");
    let ran = home.run(&["drift", &profile, "--url", &url, "--json"]).expect(8);
    let report = report(&ran);
    let differences = report["compared"][0]["differences"].as_array().unwrap();
    let of = |key: &str| {
        differences.iter().find(|each| each["key"] == key).map(|each| (each["asked"].clone(), each["has"].clone()))
    };
    assert_eq!(
        of("max_running_requests"),
        Some((json!(16), json!(10))),
        "the cap that holds, not the one that was asked for"
    );
    assert_eq!(of("speculative.steps"), Some((json!(3), json!(1))));
    assert_eq!(of("flags.chunked-prefill-size"), Some((json!("8192"), json!(2048))));
    for same in [
        "parallel.tensor",
        "memory.fraction",
        "context_length",
        "model.path",
        "attention_backend",
        "flags.reasoning-parser",
    ] {
        assert_eq!(of(same), None, "{same}");
    }
    let untold = report["compared"][0]["not_compared"].to_string();
    assert!(untold.contains("env.NCCL_P2P_DISABLE"), "{untold}");
}

#[test]
fn a_servers_own_words_are_imported() {
    let home = Home::new();
    let url = pages(json!({
        "/v1/models": {"data": [{"id": "tiny", "owned_by": "sglang"}]},
        "/server_info": {"tp_size": 1, "version": "0.5.23",
            "launch_command": "--host 127.0.0.1 --port 18600 --model-path models/tiny --served-model-name tiny --device cpu --mem-fraction-static 0.05"}
    }));
    let address = url.strip_prefix("http://").unwrap();
    let ran = home.run(&["import", address]).expect(0);
    for line in
        ["engine: sglang ==0.5.23", "model: models/tiny", "port: 18600", "memory: {fraction: 0.05}", "  device: cpu"]
    {
        assert!(ran.stdout.lines().any(|each| each == line), "{line}\n{}", ran.stdout);
    }
}
