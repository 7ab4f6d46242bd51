//! The story of `orch bench`: an endpoint that is already up is measured, and nothing is started or stopped.

use super::bench::{Bench, Files};
use super::error::{RunError, Stop};
use super::{effective, judge, quality, search};
use crate::event::{Emit, Event, Scope};
use crate::measure::Capacity;
use crate::profile::Question;
use crate::record::model::{AnswersWhen, Record};
use crate::record::{RunFolder, Store};
use crate::render::{Step, Warning};

/// Measures the steps one after the other, judges what came out, and writes it all down, whatever happens.
pub async fn bench(
    bench: &Bench<'_>,
    steps: &[Step],
    warnings: &[Warning],
    questions: &[Question],
    files: &mut Files,
    store: &Store,
    folder: &RunFolder,
) -> Result<Record, RunError> {
    let log = &folder.journal;
    for warning in warnings {
        log.emit(Scope::Run, Event::Warning(warning.clone()))?;
    }
    let capacity = tokio::select! {
        biased;
        () = bench.interrupt.cancelled() => Capacity::default(),
        read = effective::read_unknown(&bench.target.base_url, log) => read?,
    };
    let bench = &Bench { capacity: Some(&capacity), ..*bench };
    let (mut failure, mut interrupted) = (None, false);
    let mut before = None;
    if !questions.is_empty() {
        match quality::ask(bench, questions, AnswersWhen::Before, None).await {
            Ok(answers) => before = Some(answers),
            Err(Stop::Interrupted) => interrupted = true,
            Err(Stop::Failed(what)) => failure = Some(*what),
            Err(Stop::Error(error)) => return Err(error),
        }
    }
    let steps = if interrupted || failure.is_some() { &[] } else { steps };
    for step in steps {
        match search::measure(bench, step, files, &[]).await {
            Ok(_) => {}
            Err(Stop::Interrupted) => {
                interrupted = true;
                break;
            }
            Err(Stop::Failed(what)) => {
                failure = Some(*what);
                break;
            }
            Err(Stop::Error(error)) => return Err(error),
        }
    }
    if let (Some(before), None, false) = (before, &failure, interrupted) {
        match quality::ask(bench, questions, AnswersWhen::After, Some(&before)).await {
            Ok(_) => {}
            Err(Stop::Interrupted) => interrupted = true,
            Err(Stop::Failed(what)) => failure = Some(*what),
            Err(Stop::Error(error)) => return Err(error),
        }
    }
    // What was interrupted is not judged: its record says that it was. A signal after the last step interrupts nothing.
    let complete = !interrupted && judge(failure, None, store, folder)?;
    // Nothing was started here, so there is nothing that could be left.
    log.emit(Scope::Run, Event::RunEnded { complete, left: None })?;
    folder.save()?;
    Ok(folder.record())
}
