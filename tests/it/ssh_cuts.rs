//! A line that is cut and comes back, or ends and is made anew: nothing is lost, nothing comes twice.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use orch::host::{Follow, Host};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::host_suite::{binary, run, words};
use crate::ssh_hosts::ssh;
use crate::sshd::Lab;

/// What a line does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It carries what is sent.
    Up,
    /// It carries nothing, and nobody is told.
    Cut,
    /// Everything on it has ended, and nothing new comes through.
    Down,
}

/// A line to a port of this machine.
struct Line {
    port: u16,
    state: watch::Sender<State>,
}

impl Line {
    async fn to(far: u16) -> Self {
        let near = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = near.local_addr().unwrap().port();
        let (state, see) = watch::channel(State::Up);
        tokio::spawn(async move {
            while let Ok((stream, _)) = near.accept().await {
                let mut see = see.clone();
                if *see.borrow_and_update() == State::Down {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", far)).await else { continue };
                let (near_read, near_write) = stream.into_split();
                let (far_read, far_write) = far.into_split();
                tokio::spawn(carry(near_read, far_write, see.clone()));
                tokio::spawn(carry(far_read, near_write, see));
            }
        });
        Line { port, state }
    }

    fn is(&self, state: State) {
        self.state.send_replace(state);
    }
}

/// Carries one direction, as far as the line lets it.
async fn carry<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(mut from: R, mut to: W, mut see: watch::Receiver<State>) {
    let mut block = vec![0; 16 << 10];
    loop {
        let count = tokio::select! {
            count = from.read(&mut block) => count.unwrap_or(0),
            _ = becomes(&mut see, |state| state == State::Down) => return,
        };
        let state = becomes(&mut see, |state| state != State::Cut).await;
        if state != State::Up || count == 0 || to.write_all(&block[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits for such a state.
async fn becomes(see: &mut watch::Receiver<State>, wanted: impl Fn(State) -> bool) -> State {
    see.wait_for(|state| wanted(*state)).await.map_or(State::Down, |state| *state)
}

#[tokio::test]
async fn a_command_and_a_log_outlast_a_cut() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    let line = Arc::new(Line::to(server.port).await);
    lab.write("known_hosts", &format!("[127.0.0.1]:{} {}\n", line.port, lab.public("host_ed25519")));
    let config = lab.config(&[("box", line.port, "")]);
    let host = ssh("box", &config);
    assert!(run(&host, &["true"]).await.ok());
    let log = lab.path("log");
    let mut file = std::fs::File::create(&log).unwrap();
    let mut follow = Follow::new(host.clone(), log, 0);
    let mut seen = Vec::new();
    file.write_all(b"before ").unwrap();
    follow.more(|block| seen.extend_from_slice(block)).await.unwrap();

    line.is(State::Cut);
    file.write_all(b"meanwhile ").unwrap();
    let command = words(&["sh", "-c", "cat; echo there"]);
    let output = host.run(&command, Bytes::from(binary(100_000)));
    let log = follow.more(|block| seen.extend_from_slice(block));
    let back = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        line.is(State::Up);
    };
    let (output, log, ()) = tokio::join!(output, log, back);
    let output = output.unwrap();
    assert!(output.ok() && output.stdout.len() == 100_006 && output.stdout.ends_with(b"there\n"));
    log.unwrap();
    assert_eq!(seen, b"before meanwhile ");
}

#[tokio::test]
async fn a_log_goes_on_after_the_line_has_ended() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    let line = Arc::new(Line::to(server.port).await);
    lab.write("known_hosts", &format!("[127.0.0.1]:{} {}\n", line.port, lab.public("host_ed25519")));
    let config = lab.config(&[("box", line.port, "")]);
    let host = ssh("box", &config);
    let log = lab.path("log");
    let mut file = std::fs::File::create(&log).unwrap();
    let mut follow = Follow::new(host.clone(), log, 0);
    let mut seen = Vec::new();
    file.write_all(b"before ").unwrap();
    follow.more(|block| seen.extend_from_slice(block)).await.unwrap();

    // A command that was sent is lost, and is not sent again.
    let count = lab.path("count");
    let script = format!("echo x >> {}; {}", count.display(), lab.for_ever());
    let command = words(&["sh", "-c", &script]);
    let lost = host.run(&command, Bytes::new());
    let end = async {
        while !count.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        line.is(State::Down);
    };
    let (lost, ()) = tokio::join!(lost, end);
    assert!(lost.unwrap_err().is_lost());

    file.write_all(b"meanwhile ").unwrap();
    let log = follow.more(|block| seen.extend_from_slice(block));
    let back = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        line.is(State::Up);
    };
    let (log, ()) = tokio::join!(log, back);
    log.unwrap();
    assert_eq!(seen, b"before meanwhile ");
    assert!(run(&host, &["true"]).await.ok());
    assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\n");
}
