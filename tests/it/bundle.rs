//! One archive for an issue: what is needed is in it, and no secret is.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::support::{Home, free_port};

const SECRET: &str = "sesame-0f7c-open-91";
const OTHER: &str = "hf_AbCdEfGhIjKlMnOpQrStUvWx";

fn unpacked(path: &Path) -> BTreeMap<String, String> {
    let packed = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let mut archive = tar::Archive::new(packed.as_slice());
    let file = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (entry.path().unwrap().display().to_string(), text)
    };
    archive.entries().unwrap().map(file).collect()
}

#[test]
fn a_failed_start_is_packed_without_its_secrets() {
    let home = Home::new();
    let script = home.write(
        "serve.sh",
        &format!(
            "echo started with $MY_TOKEN\nfor i in $(seq 3000); do echo line $i; done\n\
             echo 'the other is {OTHER}'\necho 'torch.OutOfMemoryError: CUDA out of memory'\n\
             echo '[Errno 98] address already in use'\necho --api-key=$MY_TOKEN\nexit 3\n"
        ),
    );
    let profile = home.write(
        "profiles/secretive.yaml",
        &format!(
            "engine: {{kind: command, command: [sh, {}, --port, '{{port}}'], ready: {{http: /health}}}}\n\
             port: {}\nmodel: {{path: tiny, served_name: tiny}}\nsecrets: [MY_TOKEN]\nenv: {{SOME_KEY: {OTHER}, NCCL_DEBUG: INFO}}\n\
             bench: {{only: {{use: chat, concurrency: 1, requests: 16}}}}\n",
            script.display(),
            free_port()
        ),
    );
    let ran = home.orch(&["run", profile.to_str().unwrap()]).env("MY_TOKEN", SECRET).output().unwrap();
    assert_eq!(ran.status.code(), Some(4), "{}", String::from_utf8_lossy(&ran.stdout));
    let archive = home.path("out.tar.zst");
    let words = ["bundle", "latest", "-o", archive.to_str().unwrap()];
    // Without the value nobody could find it in what the server printed.
    let without = home.run(&words).expect(2);
    assert!(without.stderr.contains("the secret `MY_TOKEN` is not set"), "{}", without.stderr);
    assert!(!archive.exists());

    let ran = home.orch(&words).env("MY_TOKEN", SECRET).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let files = unpacked(&archive);
    for (name, text) in &files {
        assert!(!text.contains(SECRET) && !text.contains(OTHER), "{name} holds a secret");
    }
    let of = |end: &str| files.iter().find(|(name, _)| name.ends_with(end)).unwrap_or_else(|| panic!("{end}")).1;
    assert!(of("server.log").contains("started with ${MY_TOKEN}"), "{}", of("server.log"));
    assert!(of("server.log").contains("are left out ...]"), "it is cut");
    assert!(of("server.log").contains("torch.OutOfMemoryError"));
    assert!(of("README.md").contains("## To reproduce") && of("README.md").contains("serve.sh"), "{}", of("README.md"));
    assert!(of("environment.txt").contains("NCCL_DEBUG=INFO") && of("environment.txt").contains("SOME_KEY=***"));
    assert!(of("environment.txt").contains("orch "));
    assert!(of("profile.yaml").contains("secrets"));
    for name in ["command.txt", "record.json", "journal.jsonl"] {
        assert!(!of(name).is_empty());
    }
    // A file that is there is nobody's to write over.
    let again = home.orch(&words).env("MY_TOKEN", SECRET).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
}
