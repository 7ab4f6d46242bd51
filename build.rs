//! Tells the program which commit it was built from. `ORCH_COMMIT` in the environment wins; outside a checkout it stays
//! unknown.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=ORCH_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let commit = std::env::var("ORCH_COMMIT").ok().or_else(|| {
        // The log of HEAD changes with each commit, also on a branch; it is not there in a fresh repository.
        for file in [".git/HEAD", ".git/logs/HEAD"] {
            if std::path::Path::new(file).exists() {
                println!("cargo::rerun-if-changed={file}");
            }
        }
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    if let Some(commit) = commit.filter(|commit| !commit.is_empty()) {
        println!("cargo::rustc-env=ORCH_COMMIT={commit}");
    }
}

fn git(words: &[&str]) -> Option<String> {
    // Only this package's own repository: a checkout inside another project must not report that one's commit.
    std::path::Path::new(".git").exists().then_some(())?;
    let output = Command::new("git").args(words).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
