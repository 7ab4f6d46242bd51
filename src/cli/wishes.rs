//! What somebody who watches a run wants of it: by the keyboard, where there is one, and by signals.

use std::io::IsTerminal;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Ctrl-C, or SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// Ctrl-D, or a terminal that went away: watching ends, and nothing else.
    Leave,
    /// A line that was typed.
    Line(String),
}

/// All that come.
pub(crate) struct Wishes {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    keyboard: Option<UnboundedReceiver<Wish>>,
}

impl Wishes {
    /// Listens from now on.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Wishes {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            keyboard: keyboard(),
        })
    }

    /// Whether somebody can be asked.
    pub(crate) fn can_ask(&self) -> bool {
        self.keyboard.is_some()
    }

    /// The next one. May be dropped at any time.
    pub(crate) async fn next(&mut self) -> Wish {
        let typed = async {
            match &mut self.keyboard {
                Some(keyboard) => keyboard.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Wish::Interrupt,
            _ = self.terminate.recv() => Wish::Terminate,
            _ = self.hang_up.recv() => Wish::Leave,
            typed = typed => typed.unwrap_or(Wish::Leave),
        }
    }
}

/// Reads a terminal that is ours; one in whose background we are would stop us for it.
fn keyboard() -> Option<UnboundedReceiver<Wish>> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() || !in_foreground() {
        return None;
    }
    let (tell, told) = unbounded_channel();
    // It ends with the process: nothing else ends a read from a terminal.
    std::thread::spawn(move || {
        loop {
            let mut line = String::new();
            let wish = match std::io::stdin().read_line(&mut line) {
                Ok(0) | Err(_) => Wish::Leave,
                Ok(_) => Wish::Line(line.trim().to_lowercase()),
            };
            let leaves = wish == Wish::Leave;
            if tell.send(wish).is_err() || leaves {
                return;
            }
        }
    });
    Some(told)
}

/// Whether this process group is the one that the terminal listens to.
fn in_foreground() -> bool {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> =
        text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    // State, parent, group, session, terminal, and the group in its foreground.
    matches!((fields.get(2), fields.get(5)), (Some(own), Some(front)) if own == front)
}
