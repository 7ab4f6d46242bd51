use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::host::{Address, BoxedIo, ByteStream, HostError, HostPath, Local};

/// This machine, with what a shell says of it changed.
struct Odd {
    says: &'static [(&'static str, &'static str)],
    breaks: bool,
}

impl Host for Odd {
    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        let mut output = Local.run(words, stdin).await?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        for (from, to) in self.says {
            text = text.replace(from, to);
        }
        output.stdout = text.into();
        Ok(output)
    }

    async fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
        let content = if self.breaks { content.slice(1..) } else { content };
        Local.put(path, content, mode).await
    }

    async fn read(&self, path: &HostPath, from: u64) -> Result<ByteStream, HostError> {
        Local.read(path, from).await
    }

    async fn connect(&self, to: &Address) -> Result<BoxedIo, HostError> {
        Local.connect(to).await
    }
}

const PLAIN: Odd = Odd { says: &[], breaks: false };

/// A program that says a version; it is a script, and passes for one of this machine.
fn program(folder: &Path, text: &str) -> Program {
    let path = folder.join("program");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    Program::runner(&path, "orch 1").unwrap().passing_for(std::env::consts::ARCH)
}

async fn placed(host: &Odd, folder: &Path, program: &Program) -> Result<Placed, String> {
    let work = folder.join("work/orch");
    place(host, "far", Some(work.to_str().unwrap()), program).await.map_err(|error| error.to_string())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("work/orch/bin")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn it_is_put_there_once_for_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), "echo orch 1");
    let first = placed(&PLAIN, folder.path(), &program).await.unwrap();
    assert_eq!(names(folder.path()), [program.file_name()]);
    assert!(first.new && first.program.ends_with(program.file_name()));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&first.program), mode(&first.work)), (0o700, 0o700));
    let again = placed(&PLAIN, folder.path(), &program).await.unwrap();
    assert_eq!(again, Placed { new: false, ..first });
}

#[tokio::test]
async fn another_machine_and_an_older_library_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let arm = Odd { says: &[("machine Linux", "machine Linux aarch64 was")], breaks: false };
    let right = program(folder.path(), "echo orch 1");
    let error = placed(&arm, folder.path(), &right).await.unwrap_err();
    assert!(error.starts_with("far is Linux aarch64 was ") && error.contains(" is a program for Linux "), "{error}");
    let old = program(
        folder.path(),
        "echo \"./orch: libc.so.6: version 'GLIBC_2.9' not found; version 'GLIBC_2.39' not found\" >&2; exit 1",
    );
    let has = Odd { says: &[("libc ", "libc glibc 2.31, not ")], breaks: false };
    let error = placed(&has, folder.path(), &old).await.unwrap_err();
    assert!(error.starts_with("orch does not run on far: it needs GLIBC_2.39, and far has glibc 2.31"), "{error}");
    assert_eq!(names(folder.path()), [""; 0], "nothing is left of a trial");
}

#[tokio::test]
async fn what_does_not_run_or_is_another_version_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    for (text, expected) in [
        ("echo no such thing >&2; exit 3", "tried with `--version` it ended with 3: no such thing"),
        ("echo orch 2", " is `orch 2`, and this is `orch 1`"),
    ] {
        let error = placed(&PLAIN, folder.path(), &program(folder.path(), text)).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let error = placed(&Odd { says: &[], breaks: true }, folder.path(), &program(folder.path(), "echo orch 1")).await;
    assert!(error.unwrap_err().starts_with("what arrived on far is not what was sent: its SHA-256 is "));
    assert_eq!(names(folder.path()), [""; 0]);
}

#[tokio::test]
async fn what_a_stranger_put_there_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), "echo orch 1");
    let path = placed(&PLAIN, folder.path(), &program).await.unwrap().program;
    std::fs::write(&path, "something else").unwrap();
    let error = placed(&PLAIN, folder.path(), &program).await.unwrap_err();
    assert!(error.contains("is not the orch that belongs there: its SHA-256 is "), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "something else");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/bin/true", &path).unwrap();
    let error = placed(&PLAIN, folder.path(), &program).await.unwrap_err();
    assert!(error.ends_with("is not the orch that belongs there: a link"), "{error}");
}

#[tokio::test]
async fn a_folder_that_others_may_write_to_and_one_without_room_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), "echo orch 1");
    let full = Odd { says: &[("free ", "free 12\nfree_was ")], breaks: false };
    let error = placed(&full, folder.path(), &program).await.unwrap_err();
    assert!(error.starts_with("there is no room for orch on far: ") && error.contains("12 KiB free"), "{error}");
    let work = folder.path().join("work/orch");
    std::fs::set_permissions(&work, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = placed(&PLAIN, folder.path(), &program).await.unwrap_err();
    assert!(error.ends_with("cannot be used: others may write to it (mode 777)"), "{error}");
}

#[test]
fn the_newest_library_that_is_missed_is_the_one_that_is_named() {
    assert_eq!(needed_library("version `GLIBC_2.34' and `GLIBC_2.4'").unwrap(), "GLIBC_2.34");
    assert_eq!(needed_library("cannot execute: required file not found"), None);
}
