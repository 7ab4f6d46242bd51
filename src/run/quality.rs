//! Known answers: a few questions, one after the other at temperature 0, before the first step and after the last. What
//! a server answers wrong it computes wrong, and how fast it does so is no result.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::bench::Bench;
use super::error::Stop;
use crate::event::{Event, Scope};
use crate::load::{self, Options};
use crate::profile::{Prompt, Question};
use crate::record::model::{Answer, AnswersWhen};
use crate::render::{self, Api, Arrival, Lengths, Load, Step, Warning, Workload};

/// So much of an answer is kept, in characters.
const KEPT_CHARS: usize = 300;

/// Asks all questions and says how they were answered. With the answers of before, also whether they are the same.
pub(super) async fn ask(
    bench: &Bench<'_>,
    questions: &[Question],
    when: AnswersWhen,
    before: Option<&[Answer]>,
) -> Result<Vec<Answer>, Stop> {
    let mut answers = Vec::new();
    for question in questions {
        answers.push(one(bench, question).await?);
        if bench.interrupt.is_cancelled() {
            return Err(Stop::Interrupted);
        }
    }
    bench.log.emit(Scope::Run, Event::Answers { when, answers: answers.clone() })?;
    if let Some(before) = before {
        let was: BTreeMap<&str, &Answer> = before.iter().map(|answer| (answer.id.as_str(), answer)).collect();
        let differ = |answer: &&Answer| was.get(answer.id.as_str()).is_some_and(|was| was.text != answer.text);
        let changed: Vec<&str> = answers.iter().filter(differ).map(|answer| answer.id.as_str()).collect();
        if !changed.is_empty() {
            // Kernels are chosen by the batch, so that this alone proves no fault.
            let text =
                format!("known questions are answered otherwise after the load than before: {}", changed.join(", "));
            bench.log.emit(Scope::Run, Event::Warning(Warning::new("answers_changed", text)))?;
        }
    }
    Ok(answers)
}

async fn one(bench: &Bench<'_>, question: &Question) -> Result<Answer, Stop> {
    let prompt = Prompt { id: question.id.clone(), text: question.prompt.clone(), then: Vec::new() };
    let stop = render::Stop::Natural { max_tokens: question.max_tokens };
    let mut workload = Workload::plain("quality", Api::Chat, vec![prompt], stop, 0, Lengths::default());
    workload.body = Map::from_iter([("temperature".to_owned(), Value::from(0))]);
    let load =
        Load { arrival: Arrival::Closed { concurrency: 1 }, requests: Some(1), duration_s: None, warmup: Some(0) };
    let step = Step { name: "quality".to_owned(), workload, load, goodput: None };
    let options = Options { keep_text: true, ..bench.options.clone() };
    let measured = load::run_step(bench.target, &step, bench.clock, bench.interrupt, &options, &mut |_| ())
        .await
        .map_err(Stop::from)?;
    let timeline = measured.timelines.first();
    let text = timeline.and_then(|timeline| timeline.text.clone()).unwrap_or_default();
    let problem = match timeline {
        Some(timeline) if timeline.is_ok() && !text.trim().is_empty() => None,
        Some(timeline) if timeline.is_ok() => Some("reasoning, and no answer within its limit of tokens".to_owned()),
        Some(timeline) => {
            Some(format!("{}: {}", timeline.outcome.word(), timeline.error.as_deref().unwrap_or("without words")))
        }
        None => Some(measured.gave_up.unwrap_or_else(|| "it was not sent".to_owned())),
    };
    let matches = question.expect.as_ref().map(|expect| expect.is_match(&text));
    Ok(Answer {
        id: question.id.clone(),
        right: if problem.is_some() { Some(false) } else { matches },
        text: text.chars().take(KEPT_CHARS).collect(),
        expect: question.expect.as_ref().map(|expect| expect.as_str().to_owned()),
        problem,
    })
}
