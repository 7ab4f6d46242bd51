//! What is kept of a server that lives, says nothing and is about to be ended: afterwards nobody can look any more.
//!
//! Where each of its threads stands, what the kernel said, its sockets, and what its GPUs do. Ten seconds at most, and
//! whatever cannot be looked at is left out.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::event::{Emit, EmitError, Event, Scope};
use crate::launch::{Process, Watched};
use crate::render::Warning;

/// All of it together may take so long.
const LIMIT: Duration = Duration::from_secs(10);
/// One program may take so long.
const PROGRAM: Duration = Duration::from_secs(3);
/// So many processes are looked at, and so many threads of each.
const PROCESSES: usize = 64;
const THREADS: usize = 512;
/// No more of one program's words is kept.
const OUTPUT_BYTES: u64 = 4 << 20;

/// Keeps what can be seen of a server's processes in `folder`, and says so.
pub(super) async fn keep(folder: Option<&Path>, server: &dyn Watched, emit: &dyn Emit) -> Result<(), EmitError> {
    let (Some(folder), Some(processes)) = (folder.map(Path::to_owned), server.processes()) else { return Ok(()) };
    let into = folder.clone();
    let gathered = tokio::task::spawn_blocking(move || gather(&into, &processes));
    // What hangs in the kernel may hang us too: then it is left behind.
    let kept = match tokio::time::timeout(LIMIT, gathered).await {
        Ok(Ok(Ok(kept))) => kept,
        _ => fs::read_dir(&folder).map_or(0, Iterator::count),
    };
    if kept == 0 {
        return Ok(());
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text =
        format!("what its processes did right before the end is kept in the run's folder: {name}/ ({kept} files)");
    emit.emit(Scope::Run, Event::Warning(Warning::new("evidence_kept", text)))
}

/// Writes what can be seen; returns how many files that made.
fn gather(folder: &Path, processes: &[Process]) -> std::io::Result<usize> {
    let deadline = Instant::now() + LIMIT;
    fs::create_dir_all(folder)?;
    let mut kept = 0;
    let mut write = |name: String, text: String| -> std::io::Result<()> {
        if !text.trim().is_empty() {
            fs::write(folder.join(name), text)?;
            kept += 1;
        }
        Ok(())
    };
    // The quick ones first.
    write("sockets.txt".to_owned(), sockets(processes))?;
    let kernel = run("dmesg", &["--ctime"], deadline).map(|text| last_lines(&text, 200)).unwrap_or_default();
    write("kernel.txt".to_owned(), kernel)?;
    write("gpu.txt".to_owned(), run("nvidia-smi", &["-q"], deadline).unwrap_or_default())?;
    for process in processes.iter().filter(|process| process.lives()).take(PROCESSES) {
        if Instant::now() >= deadline {
            break;
        }
        write(format!("stacks-{}.txt", process.pid), stacks(process.pid, deadline))?;
    }
    Ok(kept)
}

/// Where the threads of a process stand: as `py-spy` tells it, where that is there and may look, else as the kernel does.
fn stacks(pid: u32, deadline: Instant) -> String {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let mut text = String::new();
    // A `String` takes whatever is written to it.
    let _ = writeln!(text, "{}", read(folder.join("comm")).trim());
    if let Some(python) = run("py-spy", &["dump", "--pid", &pid.to_string()], deadline) {
        let _ = writeln!(text, "\n{python}");
    }
    let _ = writeln!(text, "\n{}", read(folder.join("status")).trim());
    let threads = fs::read_dir(folder.join("task")).into_iter().flatten().flatten().map(|entry| entry.path());
    for thread in threads.take(THREADS) {
        let of = |name: &str| read(thread.join(name)).trim().to_owned();
        let id = thread.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let _ = writeln!(text, "\nthread {id} {}: waits in {}", of("comm"), of("wchan"));
        for line in of("stack").lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// The sockets of these processes, as the kernel lists them.
fn sockets(processes: &[Process]) -> String {
    let mut inodes = std::collections::BTreeSet::new();
    for process in processes.iter().take(PROCESSES) {
        for open in fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten() {
            let link = fs::read_link(open.path()).unwrap_or_default().to_string_lossy().into_owned();
            inodes.extend(link.strip_prefix("socket:[").and_then(|rest| Some(rest.strip_suffix(']')?.to_owned())));
        }
    }
    let mut text = String::new();
    for table in ["tcp", "tcp6"] {
        let listed = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let own = listed.lines().enumerate().filter(|(at, line)| {
            *at == 0 || line.split_ascii_whitespace().nth(9).is_some_and(|inode| inodes.contains(inode))
        });
        let own: Vec<&str> = own.map(|(_, line)| line).collect();
        if own.len() > 1 {
            let _ = writeln!(text, "{table}\n{}", own.join("\n"));
        }
    }
    text
}

/// What a program says within its time; `None` where it is not there, may not look, or does not come back.
fn run(program: &str, words: &[&str], deadline: Instant) -> Option<String> {
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let output = child.stdout.take()?;
    // Read beside the waiting: it may say more than a pipe holds.
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.take(OUTPUT_BYTES).read_to_end(&mut bytes);
        bytes
    });
    let until = deadline.min(Instant::now() + PROGRAM);
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                // It may hang in a driver: it is not waited for.
                let _ = child.kill();
                return None;
            }
        }
    }
    Some(String::from_utf8_lossy(&reading.join().ok()?).into_owned())
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_threads_of_a_living_process_stand_is_kept() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("evidence");
        let kept = gather(&into, &[process, Process { pid: process.pid, start_ticks: 1 }]).unwrap();
        assert!(kept >= 1);
        let text = fs::read_to_string(into.join(format!("stacks-{}.txt", process.pid))).unwrap();
        assert!(text.contains("Threads:") && text.contains(&format!("thread {}", process.pid)), "{text}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_program_that_is_not_there_or_fails_says_nothing() {
        let deadline = Instant::now() + LIMIT;
        assert_eq!(run("no-such-program", &[], deadline), None);
        assert_eq!(run("false", &[], deadline), None);
        assert_eq!(run("sh", &["-c", "echo x"], deadline).as_deref(), Some("x\n"));
        assert_eq!(run("sleep", &["60"], Instant::now()), None);
        assert_eq!(last_lines("a\nb\nc", 2), "b\nc");
    }
}
