//! Somebody asks whether a machine is fit for a run. All GPUs here are simulated: see `tests/data/nvidia-smi`.

use std::process::Command;

use serde_json::Value;

use crate::support::{Home, Ran};

/// The doctor of a home, with GPUs as a folder of the data has them.
fn doctor(home: &Home, gpus: &str, words: &[&str]) -> Command {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nvidia-smi");
    let mut command = home.orch(&[&["doctor"], words].concat());
    command
        .env("PATH", format!("{data}:{}", std::env::var("PATH").unwrap()))
        .env("SIMULATED_GPUS", format!("{data}/{gpus}"))
        .env("ORCH_GPU_QUERY_LIMIT_S", "20")
        .env_remove("CUDA_VISIBLE_DEVICES");
    command
}

/// Its findings on GPUs, as ids and whether they block.
fn found(home: &Home, gpus: &str, words: &[&str]) -> (i32, Vec<(String, bool)>, Vec<Value>) {
    let ran = Ran::of(doctor(home, gpus, &[&["--json"], words].concat()).output().unwrap());
    let all: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr));
    // What the machine that runs the test is short of is none of this story.
    let own = ["gpu", "no_gpu", "pcie", "xid"];
    let of_gpus: Vec<Value> =
        all.into_iter().filter(|one| own.iter().any(|own| one["id"].as_str().unwrap().starts_with(own))).collect();
    let ids = of_gpus.iter().map(|one| (one["id"].as_str().unwrap().to_owned(), one["blocking"] == true)).collect();
    (ran.code, ids, of_gpus)
}

fn ids(home: &Home, gpus: &str) -> Vec<(String, bool)> {
    found(home, gpus, &[]).1
}

fn id(id: &str, blocking: bool) -> (String, bool) {
    (id.to_owned(), blocking)
}

#[test]
fn idle_and_power_capped_gpus_are_fit() {
    for gpus in ["idle", "power-capped"] {
        assert_eq!(ids(&Home::new(), gpus), [], "{gpus}");
    }
}

#[test]
fn a_stranger_on_a_gpu_is_named_with_what_to_do() {
    let home = Home::new();
    let (_, ids, findings) = found(&home, "busy", &[]);
    assert_eq!(ids, [id("gpu_in_use", false)]);
    let what = findings[0]["what"].as_str().unwrap();
    let who = "GPU 1 (Simulated H200, GPU-simulated-1) is used by pid 4194000 (python 61200 MiB)";
    assert!(what.starts_with(who), "{what}");
    for key in ["why", "do"] {
        assert!(!findings[0][key].as_str().unwrap().is_empty());
    }
    // A profile that needs both of them cannot have both.
    let profile = home.write("profiles/two.yaml", "engine: vllm\nmodel: a/b\nparallel: {tensor: 2}\n");
    let (code, ids, _) = found(&home, "busy", &["--profile", profile.to_str().unwrap()]);
    assert_eq!(code, 8);
    assert!(ids.contains(&id("no_gpu_free", true)), "{ids:?}");
}

#[test]
fn heat_and_a_narrow_link_are_told_apart() {
    let (code, ids, findings) = found(&Home::new(), "slowed", &[]);
    assert_eq!((code, ids), (8, vec![id("gpu_slowed", true), id("pcie_narrow", false)]));
    assert!(findings[0]["what"].as_str().unwrap().contains("at 93 °C: the hardware slows it down, the hardware, for"));
    assert!(findings[1]["what"].as_str().unwrap().ends_with("runs PCIe x8, and could run x16"));
}

#[test]
fn errors_of_the_hardware_block() {
    let home = Home::new();
    let (code, ids, findings) = found(&home, "xid", &[]);
    assert_eq!((code, ids), (8, vec![id("gpu_memory_errors", true), id("xid", true)]));
    assert!(findings[1]["what"].as_str().unwrap().contains("reported Xid 79"), "{findings:?}");
}

#[test]
fn a_driver_that_hangs_is_told_within_the_limit() {
    let home = Home::new();
    let ran = Ran::of(doctor(&home, "hung", &[]).env("ORCH_GPU_QUERY_LIMIT_S", "0.5").output().unwrap()).expect(8);
    let said = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "XX gpu_query_hung: `nvidia-smi --query-gpu=index,uuid,…` did not come back within 0.5 s why";
    assert!(said.contains(expected), "{}", ran.stdout);
}

#[test]
fn a_port_that_is_taken_is_told_with_its_holder() {
    let home = Home::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let profile = home.write("profiles/p.yaml", &format!("extends: sim-quick\nname: p\nport: {port}\n"));
    let ran = home.run(&["doctor", "--json", "--profile", profile.to_str().unwrap()]).expect(8);
    let findings: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let taken = findings.iter().find(|finding| finding["id"] == "port_taken").unwrap();
    assert_eq!(taken["blocking"], true);
    assert!(taken["what"].as_str().unwrap().starts_with(&format!("port {port} is taken by pid ")), "{taken}");
}

#[test]
fn a_model_with_a_shard_missing_and_an_engine_that_is_not_there_block() {
    let home = Home::new();
    home.write("model/model.safetensors.index.json", r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#);
    home.write("model/1.safetensors", "weights");
    let model = home.path("model");
    let text = format!("engine: {{kind: vllm, executable: /no/such/vllm}}\nmodel: {{path: {}}}\n", model.display());
    let profile = home.write("profiles/p.yaml", &text);
    let ran = home.run(&["doctor", "--json", "--profile", profile.to_str().unwrap()]).expect(8);
    let findings: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let what = |id: &str| {
        let finding = findings.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| panic!("{findings:#?}"));
        assert_eq!(finding["blocking"], true);
        finding["what"].as_str().unwrap().to_owned()
    };
    assert!(what("model").contains("names 2.safetensors, which is not there or is empty"));
    assert!(what("engine").contains("/no/such/vllm is not there"));
}

#[test]
fn another_host_is_asked_there() {
    let home = Home::new();
    let state = home.path("far-state");
    let hosts =
        home.write("hosts.yaml", &format!("far: {{ssh: local, enter: env XDG_STATE_HOME={}}}\n", state.display()));
    let ran = home.run(&["doctor", "far", "--json", "--hosts", hosts.to_str().unwrap()]);
    let findings: Vec<Value> =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr));
    assert!(findings.iter().all(|finding| finding["id"] != "clock_skew"), "this machine is as late as itself");
    let blocks = findings.iter().any(|finding| finding["blocking"] == true);
    assert_eq!(ran.code, if blocks { 8 } else { 0 });
    assert!(state.join("orch/doctor.json").is_file(), "it looked there");
}
