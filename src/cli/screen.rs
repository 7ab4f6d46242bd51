//! The terminal while a run goes on: finished lines above, one live line at the bottom. Without a terminal the finished
//! lines alone, plain.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::out;

/// Where lines go and how they look.
#[derive(Debug)]
pub(crate) struct Screen {
    live: Option<ProgressBar>,
    colour: bool,
    to: Stream,
    width: usize,
}

/// Which stream is for people; the other one may be for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output.
    Out,
    /// Standard error, when standard output carries JSON.
    Err,
}

impl Screen {
    /// Finds out what the stream can do.
    pub(crate) fn new(to: Stream) -> Self {
        let terminal = match to {
            Stream::Out => std::io::stdout().is_terminal() && std::io::stderr().is_terminal(),
            Stream::Err => std::io::stderr().is_terminal(),
        };
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let colour = terminal && !dumb && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let live = (terminal && !dumb).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
            bar.set_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar
        });
        Screen { live, colour, to, width: width(terminal) }
    }

    /// Columns to draw for.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Whether there is a live line at all.
    pub(crate) fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Writes a finished line above the live one.
    pub(crate) fn line(&self, text: &str) {
        let text = if self.colour { coloured(text) } else { text.to_owned() };
        let write = || match self.to {
            Stream::Out => out::line(&text),
            Stream::Err => out::note(&text),
        };
        match &self.live {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Shows what is going on now; `None` clears the line.
    pub(crate) fn live(&self, text: Option<String>) {
        if let Some(bar) = &self.live {
            match text {
                Some(text) => bar.set_message(text),
                None => bar.set_message(String::new()),
            }
            bar.tick();
        }
    }

    /// Takes the live line away for good.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.live {
            bar.finish_and_clear();
        }
    }
}

/// How often the live line is drawn anew.
pub(crate) const LIVE_INTERVAL: Duration = Duration::from_millis(250);

fn width(terminal: bool) -> usize {
    let wanted = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let real = terminal.then(terminal_size::terminal_size).flatten().map(|(width, _)| usize::from(width.0));
    real.or(wanted).unwrap_or(80)
}

/// Colours the mark at the beginning of a line, and a verdict word.
fn coloured(text: &str) -> String {
    use owo_colors::OwoColorize;
    let Some(mark) = text.get(..4) else { return text.to_owned() };
    let rest = text.get(4..).unwrap_or_default();
    // What `orch up` changes stands indented, as `diff -u` marks it.
    match (mark, rest.as_bytes().first()) {
        ("    ", Some(b'+')) => return text.green().to_string(),
        ("    ", Some(b'-')) => return text.red().to_string(),
        ("    ", Some(b'@')) => return text.cyan().to_string(),
        _ => {}
    }
    match mark.trim() {
        "ok" => format!("{}{rest}", mark.green()),
        "!" | "??" => format!("{}{rest}", mark.yellow()),
        "XX" => format!("{}{rest}", mark.red().bold()),
        ".." => format!("{}{rest}", mark.cyan()),
        _ if text.starts_with("REGRESSED") || text.starts_with("FAILED") || text.starts_with("INVALID") => {
            text.red().bold().to_string()
        }
        _ if text.starts_with("OK") || text.starts_with("IMPROVED") => text.green().bold().to_string(),
        _ if text.starts_with("NO BASELINE") || text.starts_with("INCONCLUSIVE") => text.yellow().bold().to_string(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_coloured_as_it_is_marked() {
        assert_eq!(coloured("    +  --port 1"), "\u{1b}[32m    +  --port 1\u{1b}[39m");
        assert_eq!(coloured("    -  --port 2"), "\u{1b}[31m    -  --port 2\u{1b}[39m");
        assert_eq!(coloured("    @@ -1,2 +1,2 @@"), "\u{1b}[36m    @@ -1,2 +1,2 @@\u{1b}[39m");
        for plain in ["       --port 1", "     same", ""] {
            assert_eq!(coloured(plain), plain);
        }
    }
}
