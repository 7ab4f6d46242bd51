//! Ctrl-C and SIGTERM: once ends the work in order and keeps the record, twice ends at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Exit;

/// Signals so close to the first one belong to it.
const ONE_WISH: Duration = Duration::from_millis(300);

/// What was asked of the program from outside.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    token: CancellationToken,
    signal: Arc<AtomicI32>,
}

impl Interrupt {
    /// Listens from now on. `at_once` is called on the second signal, before the program ends.
    pub(crate) fn listen(at_once: impl Fn() + Send + Sync + 'static) -> std::io::Result<Self> {
        let interrupt = Interrupt { token: CancellationToken::new(), signal: Arc::new(AtomicI32::new(0)) };
        let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut hup = signal(SignalKind::hangup())?;
        let shared = interrupt.clone();
        tokio::spawn(async move {
            let mut first: Option<Instant> = None;
            loop {
                let number = tokio::select! {
                    _ = int.recv() => nix::libc::SIGINT,
                    _ = term.recv() => nix::libc::SIGTERM,
                    _ = hup.recv() => nix::libc::SIGTERM,
                };
                // One wish may come as two signals: a terminal or `timeout` tells a process and its whole group.
                if first.get_or_insert_with(Instant::now).elapsed() < ONE_WISH && shared.token.is_cancelled() {
                    continue;
                }
                if shared.signal.swap(number, Ordering::SeqCst) != 0 {
                    at_once();
                    std::process::exit(shared.exit().map_or(1, |exit| exit as i32));
                }
                shared.token.cancel();
            }
        });
        Ok(interrupt)
    }

    /// Cancelled at the first signal.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// The exit code that the signal asks for, if there was one.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match self.signal.load(Ordering::SeqCst) {
            0 => None,
            nix::libc::SIGINT => Some(Exit::Interrupted),
            _ => Some(Exit::Terminated),
        }
    }
}
