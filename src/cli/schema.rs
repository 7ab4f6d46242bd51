//! `orch schema`: the JSON Schema of a profile, for editors.

use crate::profile;

use super::{Exit, Failure, Global, Outcome, out};

/// Prints the JSON Schema of a profile
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  orch schema > profile.schema.json\n\nAn editor with a YAML language server reads it when a profile begins with\n  # yaml-language-server: $schema=profile.schema.json"
)]
pub(crate) struct SchemaArgs {}

pub(crate) fn run(args: SchemaArgs, _global: &Global) -> Outcome {
    let SchemaArgs {} = args;
    let text = serde_json::to_string_pretty(&profile::schema())
        .map_err(|error| Failure::new(Exit::Own, miette::Report::msg(format!("cannot write the schema: {error}"))))?;
    out::line(text);
    Ok(Exit::Done)
}
