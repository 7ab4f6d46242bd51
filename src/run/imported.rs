//! A record of what another tool has measured.

use super::error::RunError;
use super::judge;
use crate::event::{Emit, Event, Scope};
use crate::interop::Foreign;
use crate::record::model::Record;
use crate::record::{RunFolder, Store};
use crate::render::Warning;

/// Writes a foreign result down as a run of its own, judged as any other.
pub fn imported(foreign: &Foreign, from: &str, store: &Store, folder: &RunFolder) -> Result<Record, RunError> {
    let log = &folder.journal;
    let lossy: Vec<&str> = foreign.lossy.iter().map(|(name, _)| *name).collect();
    let text = format!(
        "imported from {from}: measured by another program; {} have other formulas there (docs/interop.md)",
        lossy.join(" and ")
    );
    log.emit(Scope::Run, Event::Warning(Warning::new("imported", text)))?;
    let scope = Scope::Step(foreign.step.name.clone());
    log.emit(scope, Event::StepEnded { result: Box::new(foreign.step.clone()) })?;
    let complete = judge(None, None, store, folder)?;
    log.emit(Scope::Run, Event::RunEnded { complete, left: None })?;
    folder.save()?;
    Ok(folder.record())
}
