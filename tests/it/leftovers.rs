//! Files that a killed engine leaves behind are removed where they are its own, and a stranger's of the same name stay.

use std::path::PathBuf;

use nix::sys::signal::Signal;

use crate::launching::{kill, until};
use crate::strangers::{Stranger, port_of};
use crate::support::{Home, free_port};
use crate::whole_runs::Running;

#[test]
fn what_a_killed_engine_leaves_in_memory_is_removed_and_named() {
    let home = Home::new();
    let scenario = "{seed: 1, ranks: 2, startup: {weights: 50ms}, speed: {ttft: 4ms, step: 2ms}, processes: {rename: all, leftovers: true}}";
    let file = home.write(
        "profiles/leaves.yaml",
        &format!(
            "port: {}\nengine: {{kind: sim, as: sglang, scenario: {scenario}}}\nbench: {{only: {{use: chat, concurrency: 2, requests: 100000, output_tokens: 8}}}}\n",
            free_port()
        ),
    );
    let mut other = Stranger::beside(port_of(&file));
    // The same kind of file, of a process that is none of ours: this one.
    let stranger = PathBuf::from(format!("/dev/shm/sgl_shm_sim_{}", std::process::id()));
    std::fs::write(&stranger, "somebody else's").unwrap();
    let mut running = Running::start(&home, &file);
    running.until("step_began");
    let server = until("the server", || home.ps().into_iter().next());
    // And one that somebody else names after our server while it lives: the pid in a name proves nothing.
    let named = PathBuf::from(format!("/dev/shm/strangers_cache_{}", server["pid"]));
    std::fs::write(&named, "somebody else's").unwrap();
    // What the server uses is looked at soon after its start.
    let files = home.state().join("orch/servers").join(server["id"].as_str().unwrap()).join("files.jsonl");
    until("its files", || std::fs::read_to_string(&files).ok().filter(|text| text.contains("/dev/shm/")));
    kill(server["pid"].as_u64().unwrap(), Signal::SIGKILL);
    running.end().expect(5);
    let left = &home.record()["left"];
    let removed: Vec<PathBuf> =
        left["removed"].as_array().unwrap().iter().map(|path| path.as_str().unwrap().into()).collect();
    assert!(removed.iter().any(|path| path.starts_with("/dev/shm")), "{left:#}");
    assert!(removed.iter().all(|path| !path.exists()) && !removed.contains(&stranger), "{left:#}");
    assert!(stranger.exists() && named.exists(), "a stranger's file was removed");
    let told = left["files"].as_array().unwrap().iter().filter_map(|line| line.as_str());
    let told: Vec<&str> = told.filter(|line| line.starts_with(named.to_str().unwrap())).collect();
    assert!(told.len() == 1 && told[0].contains("not seen to use it"), "{left:#}");
    other.assert_untouched();
    std::fs::remove_file(stranger).unwrap();
    std::fs::remove_file(named).unwrap();
    // What it writes, and what orch keeps, are no leftovers.
    assert!(home.newest_run().join("server.log").metadata().unwrap().len() > 0);
    assert_eq!(left["processes"], 0);
}
