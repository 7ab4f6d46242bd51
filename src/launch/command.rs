//! Other people's programs, run to their end within a limit: a container engine or a manager that does not answer must not
//! keep orch from ending a server.

use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// For a question.
pub(super) const ASK: Duration = Duration::from_secs(60);
/// For an act that may wait for a server's end, which its manager bounds itself.
pub(super) const ACT: Duration = Duration::from_secs(10 * 60);
/// Between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(10);
/// How long what an ended program has written may take to be read: a child of it may hold the pipe open.
const REST: Duration = Duration::from_secs(5);

/// Runs it without input. One that takes longer than `limit` is killed, and that is the error.
pub(crate) fn output(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(LOOK),
            None => {
                // It may hang in a driver or a socket, so its end is not waited for here.
                child.kill()?;
                std::thread::spawn(move || child.wait());
                let text = format!("it did not end within {} s, and was killed", limit.as_secs_f64());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
    };
    let rest = |from: Receiver<Vec<u8>>| from.recv_timeout(REST).unwrap_or_default();
    Ok(Output { status, stdout: rest(stdout), stderr: rest(stderr) })
}

/// Reads all of it on a thread, so that it never waits for us.
fn read(from: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // What was read until a fault is what there is.
            let _ = from.read_to_end(&mut bytes);
        }
        let _ = tell.send(bytes);
    });
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_is_read_and_one_that_does_not_is_killed() {
        let mut command = Command::new("sh");
        let told = output(command.args(["-c", "echo out; echo err >&2; exit 3"]), ASK).unwrap();
        assert_eq!((told.status.code(), &told.stdout[..], &told.stderr[..]), (Some(3), &b"out\n"[..], &b"err\n"[..]));
        let began = Instant::now();
        let error = output(Command::new("sleep").arg("600"), Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "it did not end within 0.05 s, and was killed");
        assert!(began.elapsed() < ASK);
    }
}
