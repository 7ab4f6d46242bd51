//! Why an engine's definition could not be had.

use std::fmt;
use std::io;
use std::path::PathBuf;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use super::TemplateFault;
use super::read::Found;
use crate::profile::EngineKind;

/// Why an engine's definition could not be had.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No folder of the name is there.
    #[error("there is no definition of engine `{kind}`")]
    Missing {
        /// The kind.
        kind: String,
        /// Where it was looked for, beside the program itself.
        looked: Vec<PathBuf>,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something wrong.
    #[error(transparent)]
    Wrong(Box<Wrong>),
    /// A file holds several wrong things.
    #[error("{} faults in {file}", wrongs.len())]
    Wrongs {
        /// The file.
        file: String,
        /// What.
        wrongs: Vec<Wrong>,
    },
}

impl EngineError {
    pub(super) fn of(mut wrongs: Vec<Wrong>) -> Self {
        match (wrongs.pop(), wrongs.is_empty()) {
            (Some(one), true) => EngineError::Wrong(Box::new(one)),
            (last, _) => {
                wrongs.extend(last);
                let file = wrongs.first().map_or_else(String::new, |wrong| wrong.source_text.name().to_owned());
                EngineError::Wrongs { file, wrongs }
            }
        }
    }
}

impl Diagnostic for EngineError {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        match self {
            EngineError::Missing { .. } => Some(Box::new("orch::engine::unknown")),
            EngineError::Read { .. } => Some(Box::new("orch::engine::read")),
            EngineError::Wrong(wrong) => wrong.code(),
            EngineError::Wrongs { .. } => Some(Box::new("orch::engine::faults")),
        }
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        match self {
            EngineError::Missing { kind, looked } => {
                let looked: Vec<String> = looked.iter().map(|path| format!("{}/", path.display())).collect();
                let looked = if looked.is_empty() { String::new() } else { format!(" and in {}", looked.join(", ")) };
                Some(Box::new(format!(
                    "looked for in the program{looked}; an engine is added by a folder `templates/{kind}/` with `engine.yaml` and `launch.hbs`, see docs/engines.md"
                )))
            }
            EngineError::Wrong(wrong) => wrong.help(),
            EngineError::Read { .. } | EngineError::Wrongs { .. } => None,
        }
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        match self {
            EngineError::Wrong(wrong) => wrong.source_code(),
            _ => None,
        }
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        match self {
            EngineError::Wrong(wrong) => wrong.labels(),
            _ => None,
        }
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        match self {
            EngineError::Wrongs { wrongs, .. } => Some(Box::new(wrongs.iter().map(|wrong| wrong as &dyn Diagnostic))),
            _ => None,
        }
    }
}

/// Something wrong in a file, with its place.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Wrong {
    code: &'static str,
    message: String,
    help: Option<String>,
    source_text: NamedSource<String>,
    label: Option<LabeledSpan>,
}

impl Wrong {
    /// What the YAML reader stopped at.
    pub(super) fn yaml(file: &Found, error: &serde_yaml::Error) -> Self {
        let error = error.without_snippet();
        let span = error.location().and_then(|location| {
            let offset = usize::try_from(location.span().byte_offset()?).ok()?;
            Some((offset, usize::try_from(location.span().byte_len()?).ok()?.max(1)))
        });
        // The place is drawn; in words it would stand there twice.
        let text = error.to_string();
        let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
        Wrong {
            code: "orch::engine::definition",
            message: message.trim_start_matches("error: ").to_owned(),
            help: None,
            source_text: NamedSource::new(&file.name, file.text.clone()),
            label: span.map(|span| LabeledSpan::new_primary_with_span(Some("here".to_owned()), span)),
        }
    }

    /// A word that should be another.
    pub(super) fn word(file: &Found, word: &str, message: String, help: String) -> Self {
        let label = file
            .text
            .find(word)
            .map(|at| LabeledSpan::new_primary_with_span(Some("here".to_owned()), (at, word.len())));
        Wrong {
            code: "orch::engine::definition",
            message,
            help: Some(help),
            source_text: NamedSource::new(&file.name, file.text.clone()),
            label,
        }
    }

    /// What the lint of templates found.
    pub(super) fn template(file: &Found, fault: TemplateFault) -> Self {
        let line_start: usize =
            file.text.split_inclusive('\n').take(fault.line.saturating_sub(1)).map(str::len).sum::<usize>();
        let line = &file.text[line_start..];
        let at = line_start + line.char_indices().nth(fault.column.saturating_sub(1)).map_or(0, |(at, _)| at);
        let rest = &file.text[at..];
        let length =
            rest.find("}}").map_or(1, |end| end + 2).min(rest.find('\n').unwrap_or(rest.len()).max(1)).min(rest.len());
        Wrong {
            code: "orch::engine::template",
            message: fault.message,
            help: fault.help,
            source_text: NamedSource::new(&file.name, file.text.clone()),
            label: Some(LabeledSpan::new_primary_with_span(Some("here".to_owned()), (at, length))),
        }
    }
}

impl Diagnostic for Wrong {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.code))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.source_text)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.label.clone().map(|label| Box::new(std::iter::once(label)) as Box<dyn Iterator<Item = LabeledSpan>>)
    }
}

/// The word for a kind: the folder's name.
pub fn kind_word(kind: EngineKind) -> &'static str {
    kind.word()
}
