//! `orch completions SHELL`: the completion script of a shell, on standard output.

use super::{Exit, Outcome, out};

/// Prints a completion script.
///
/// For bash: `orch completions bash > ~/.local/share/bash-completion/completions/orch`
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell.
    shell: clap_complete::Shell,
}

pub(crate) fn run(args: CompletionsArgs) -> Outcome {
    let CompletionsArgs { shell } = args;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "orch", &mut script);
    out::text(String::from_utf8_lossy(&script));
    Ok(Exit::Done)
}
