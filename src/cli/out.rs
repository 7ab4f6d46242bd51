//! Printing. A reader that went away (`orch list | head`) is no fault of ours and ends nothing; any other failure to
//! write is told, and is the program's own end: what was to be read is not there.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use miette::{GraphicalReportHandler, GraphicalTheme};

use super::Exit;

/// Whether something that was to be printed on standard output is lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// Writes a line to standard output.
pub(crate) fn line(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    told(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Writes text as it is to standard output.
pub(crate) fn text(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    told(write!(out, "{text}").and_then(|()| out.flush()));
}

/// Writes bytes as they are to standard output.
pub(crate) fn bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    told(out.write_all(bytes).and_then(|()| out.flush()));
}

/// Writes the log of a simulated server as it is, half lines too.
pub(crate) fn raw(bytes: &[u8]) {
    let mut error = std::io::stderr().lock();
    // Nobody is left to tell.
    let _ = error.write_all(bytes).and_then(|()| error.flush());
}

fn told(written: std::io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
        && !LOST.swap(true, Ordering::Relaxed)
    {
        note(format_args!("orch: cannot write to standard output: {error}"));
    }
}

/// How the program ends, given what was printed: a result that nobody can read is none.
pub(crate) fn exit(exit: Exit) -> Exit {
    match exit {
        Exit::Done if LOST.load(Ordering::Relaxed) => Exit::Own,
        exit => exit,
    }
}

/// Standard output, for whoever writes there alone.
pub(crate) fn duplicate() -> std::io::Result<std::fs::File> {
    use std::os::fd::AsFd;
    std::io::stdout().as_fd().try_clone_to_owned().map(Into::into)
}

/// Writes a line to standard error. If that fails there is nobody left to tell.
pub(crate) fn note(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Columns of the terminal; 80 without one.
fn width() -> usize {
    let on_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let size = on_terminal.then(terminal_size::terminal_size).flatten();
    size.map_or(80, |(width, _)| usize::from(width.0))
}

/// Writes a failure to standard error, drawn for people. It may quote files and answers of strangers, so nothing in it
/// reaches the terminal that could steer it; that leaves no colours either.
pub(crate) fn complain(report: &miette::Report) {
    let mut text = String::new();
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor()).with_width(width());
    // Most errors say what the system said in their own words; then the cause below them would only repeat it.
    let said = report.to_string();
    let handler = match report.chain().skip(1).all(|cause| said.contains(&cause.to_string())) {
        true => handler.without_cause_chain(),
        false => handler,
    };
    let drawn = handler.render_report(&mut text, report.as_ref());
    if drawn.is_err() {
        text = report.to_string();
    }
    let text: String = text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect();
    note(text.trim_end_matches('\n'));
}
