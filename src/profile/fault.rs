//! What is wrong with a profile, said to the person who wrote it: what, where, and what to do.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, Severity, SourceCode};
use serde::Serialize;

use super::source::{Place, Sources};

/// One thing that is wrong, while a profile is still being read.
///
/// It is one pointer wide, since it is the error of small functions that mostly succeed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault(Box<Parts>);

/// What a fault says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parts {
    /// The last part of its code, `unknown_key` of `orch::profile::unknown_key`; the whole code where another area
    /// found the fault.
    pub(crate) code: Cow<'static, str>,
    pub(crate) message: String,
    /// Where, and what is there.
    pub(crate) place: Option<(Place, String)>,
    /// A second place that has to do with it.
    pub(crate) other: Option<(Place, String)>,
    pub(crate) help: Option<String>,
    /// The file that it is about, and a line of it, where there is no text to point into.
    pub(crate) file: Option<(String, Option<usize>)>,
}

impl Fault {
    pub(crate) fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let (code, message) = (code.into(), message.into());
        Fault(Box::new(Parts { code, message, place: None, other: None, help: None, file: None }))
    }

    pub(crate) fn in_file(mut self, path: &Path, line: Option<usize>) -> Self {
        self.0.file = Some((path.display().to_string(), line));
        self
    }

    pub(crate) fn at(mut self, place: Place, label: impl Into<String>) -> Self {
        self.0.place = Some((place, label.into()));
        self
    }

    pub(crate) fn and(mut self, place: Place, label: impl Into<String>) -> Self {
        self.0.other = Some((place, label.into()));
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }
}

impl std::ops::Deref for Fault {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// What is wrong with a profile: all its faults at once, each with the text around it.
#[derive(Debug)]
pub struct ProfileError {
    /// What a person calls the whole.
    what: &'static str,
    asked: String,
    shown: Vec<Shown>,
}

impl ProfileError {
    /// Puts faults together with the texts they stand in, in reading order.
    pub(crate) fn new(asked: &str, sources: &Sources, faults: Vec<Fault>) -> Self {
        Self::of("profile", asked, sources, faults)
    }

    /// The same for a scenario of the simulated engine.
    pub(crate) fn of_scenario(asked: &str, sources: &Sources, faults: Vec<Fault>) -> Self {
        Self::of("scenario", asked, sources, faults)
    }

    /// The same for a search.
    pub(crate) fn of_search(asked: &str, sources: &Sources, faults: Vec<Fault>) -> Self {
        Self::of("search", asked, sources, faults)
    }

    /// The same for a sweep.
    pub(crate) fn of_sweep(asked: &str, sources: &Sources, faults: Vec<Fault>) -> Self {
        Self::of("sweep", asked, sources, faults)
    }

    fn of(what: &'static str, asked: &str, sources: &Sources, mut faults: Vec<Fault>) -> Self {
        // A fault in the profile's own file and one in a layer of it both come out of a merged tree; people read by file.
        faults.sort_by_key(|fault| fault.place.as_ref().map(|(place, _)| (place.source, place.start)));
        faults.dedup();
        let shown = faults.into_iter().map(|fault| Shown::new(sources, fault)).collect();
        ProfileError { what, asked: asked.to_owned(), shown }
    }

    /// The faults as plain values, for `--json`.
    pub fn faults(&self) -> impl Iterator<Item = FaultReport> + '_ {
        self.shown.iter().map(|shown| shown.report.clone())
    }

    /// How many faults there are; at least one.
    pub fn count(&self) -> usize {
        self.shown.len()
    }
}

/// A fault as a machine reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultReport {
    /// The file, `--set #N`, or `builtin:NAME`; `null` when the fault has no place.
    pub file: Option<String>,
    /// From 1.
    pub line: Option<usize>,
    /// From 1, in characters.
    pub column: Option<usize>,
    /// `orch::profile::<what>`; `orch::render::<what>` where the profile reads well and its engine cannot do it.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// A fault with the text around it, ready to be drawn.
#[derive(Debug)]
struct Shown {
    report: FaultReport,
    source: Option<NamedSource<Arc<str>>>,
    labels: Vec<LabeledSpan>,
}

impl Shown {
    fn new(sources: &Sources, fault: Fault) -> Self {
        let Parts { code, message, place, other, mut help, file: about } = *fault.0;
        let mut labels = Vec::new();
        let mut source = None;
        let (mut file, mut line) = about.map_or((None, None), |(file, line)| (Some(file), line));
        let mut column = None;
        let drawn = place.as_ref().is_some_and(|(place, _)| sources.is_drawable(*place));
        if let Some((place, label)) = &place {
            let text = sources.get(place.source);
            let at = sources.line_column(*place);
            (file, line, column) = (Some(text.name.clone()), Some(at.0), Some(at.1));
            if drawn {
                source = Some(NamedSource::new(&text.name, Arc::clone(&text.text)));
                labels.push(LabeledSpan::new_primary_with_span(Some(label.clone()), (place.start, place.len.max(1))));
            } else {
                let at = format!("{label}: {}", sources.describe(*place));
                help = Some(help.map_or_else(|| at.clone(), |help| format!("{help}\n{at}")));
            }
        }
        if let Some((second, label)) = other {
            match &place {
                Some((first, _)) if drawn && first.source == second.source => {
                    labels.push(LabeledSpan::new_with_span(Some(label), (second.start, second.len.max(1))));
                }
                // miette draws one text a fault: a place in another file is named in words.
                _ => {
                    let also = format!("{label}: {}", sources.describe(second));
                    help = Some(help.map_or_else(|| also.clone(), |help| format!("{help}\n{also}")));
                }
            }
        }
        let code = if code.contains("::") { code.into_owned() } else { format!("orch::profile::{code}") };
        let report = FaultReport { file, line, column, code, message, help };
        Shown { report, source, labels }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report.message)
    }
}

impl std::error::Error for Shown {}

impl Diagnostic for Shown {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.report.code))
    }

    fn severity(&self) -> Option<Severity> {
        Some(Severity::Error)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.report.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        (!self.labels.is_empty()).then(|| Box::new(self.labels.iter().cloned()) as Box<dyn Iterator<Item = _>>)
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shown.as_slice() {
            [one] => one.fmt(f),
            many => write!(f, "{} faults in {} `{}`", many.len(), self.what, self.asked),
        }
    }
}

impl std::error::Error for ProfileError {}

/// A single fault is drawn as itself, several as one list.
impl Diagnostic for ProfileError {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        match self.shown.as_slice() {
            [one] => one.code(),
            _ => Some(Box::new("orch::profile::faults")),
        }
    }

    fn severity(&self) -> Option<Severity> {
        Some(Severity::Error)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        match self.shown.as_slice() {
            [one] => one.help(),
            _ => None,
        }
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        match self.shown.as_slice() {
            [one] => one.source_code(),
            _ => None,
        }
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        match self.shown.as_slice() {
            [one] => one.labels(),
            _ => None,
        }
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        match self.shown.as_slice() {
            [_] => None,
            many => Some(Box::new(many.iter().map(|shown| shown as &dyn Diagnostic))),
        }
    }
}
