//! Prompts and answers of wanted lengths.
//!
//! Prompts of a length are made of words that are one token each where they stand, so that a prompt of n words has n
//! tokens more than what stands around it: the chat template, the first word. Which words those are, and how many tokens
//! stand around them, the server says itself: its `/tokenize` where there is one that counts as the generating endpoint
//! does, else that endpoint, asked for one token. One generating request at the end proves the sum.

use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::exchange::Exchange;
use super::requests::{self, WARMUP};
use super::url::Endpoint;
use super::wire::Dialer;
use super::{LoadError, Target, draw, tokenize};
use crate::clock::Clock;
use crate::measure::Timeline;
use crate::profile::{Length, Trace, TraceRow};
use crate::render::{Api, Special, Stop, Workload};

/// Words that are one token in most vocabularies, with the space before them.
const WORDS: &str = "the and of to in that it was for on with as at by from this have be are not but had his they she \
    which you one we all her would there their will when who him been has more if no out so what up said about other \
    into than its time only could new them man some these then two first may any like now my such make over our even \
    most me state after also made many did must before back see through way where get much go well your know should \
    down work year because come people just say each those take day good how long own too little use very great still \
    men here life both between old under last never place same another think house while high right might came off \
    find states since used give against three himself look few general until second school";
/// What each prompt begins with, so that the first of the words has a space before it.
const LEAD: &str = "Words:";
/// Tokens with which most chat templates close what a person said, and open the answer.
const AFTER: u64 = 5;
/// With fewer words prompts would be too much alike.
const LEAST_WORDS: usize = 16;
/// Counts that are asked for at most, and how long all of them may take.
const COUNTS: u32 = 64;
const LIMIT: Duration = Duration::from_secs(300);

/// Words of one token each, and what stands around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    words: Vec<&'static str>,
    around: u64,
}

impl Vocabulary {
    /// A prompt of exactly `tokens` tokens, the `number`-th of `seed`. At least one word is in it.
    fn prompt(&self, tokens: u64, seed: u64, number: u64) -> String {
        let mut prompt = LEAD.to_owned();
        self.write(self.words_in(tokens), generator(seed, Stream::Words, number), &mut prompt);
        prompt
    }

    /// A prompt of which the share `ratio` of its tokens is that of all others.
    fn sharing(&self, tokens: u64, ratio: f64, seed: u64, number: u64) -> String {
        let all = self.words_in(tokens);
        let shared = ((tokens as f64 * ratio).round() as u64).saturating_sub(self.before()).min(all - 1);
        let mut prompt = LEAD.to_owned();
        self.write(shared, generator(seed, Stream::Shared, 0), &mut prompt);
        self.write(all - shared, generator(seed, Stream::Words, number), &mut prompt);
        prompt
    }

    /// A prompt of blocks, each of which is the same text wherever it comes; what is left after them is its own.
    fn of_blocks(&self, tokens: u64, blocks: &[u64], block_tokens: u64, seed: u64, number: u64) -> String {
        let mut left = self.words_in(tokens);
        let mut prompt = LEAD.to_owned();
        // What stands before the words is a part of the first block.
        let mut room = block_tokens.saturating_sub(self.before()).max(1);
        for id in blocks {
            let words = room.min(left);
            self.write(words, generator(seed, Stream::Block, *id), &mut prompt);
            left -= words;
            room = block_tokens;
        }
        self.write(left, generator(seed, Stream::Words, number), &mut prompt);
        prompt
    }

    fn words_in(&self, tokens: u64) -> u64 {
        tokens.saturating_sub(self.around).max(1)
    }

    /// Tokens that stand before the words: all but the few with which a template closes what a person said.
    fn before(&self) -> u64 {
        self.around.saturating_sub(AFTER)
    }

    fn write(&self, words: u64, mut generator: ChaCha8Rng, prompt: &mut String) {
        for _ in 0..words {
            prompt.push(' ');
            prompt.push_str(self.words.choose(&mut generator).unwrap_or(&"the"));
        }
    }
}

/// What is drawn, each from a stream of its own.
#[derive(Clone, Copy)]
enum Stream {
    Words = 1,
    Input = 2,
    Output = 3,
    Shared = 4,
    Block = 5,
}

fn generator(seed: u64, stream: Stream, number: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    // The highest bit keeps these apart from the order of prompts and the schedule.
    generator.set_stream((1 << 63) | ((stream as u64) << 60) | (number & ((1 << 60) - 1)));
    generator
}

/// The input length of request `number` and its prompt, where prompts are made.
pub(super) fn made(workload: &Workload, vocabulary: &Vocabulary, number: u64, words: u64) -> Option<(u64, String)> {
    if let Some((row, trace)) = row(workload, number) {
        let tokens = row.input?;
        return Some((tokens, vocabulary.of_blocks(tokens, &row.blocks, trace.block_tokens, words, number)));
    }
    let length = workload.lengths.input.as_ref()?;
    let tokens = drawn(length, &mut generator(workload.seed, Stream::Input, number));
    let prompt = match workload.special.hit_ratio {
        Some(ratio) => vocabulary.sharing(tokens, ratio, words, number),
        None => vocabulary.prompt(tokens, words, number),
    };
    Some((tokens, prompt))
}

/// The output length of request `number`, where it is drawn or recorded.
pub(super) fn output(workload: &Workload, number: u64) -> Option<u64> {
    if let Some(recorded) = row(workload, number).and_then(|(row, _)| row.output) {
        return Some(recorded);
    }
    let length = workload.lengths.output.as_ref()?;
    Some(drawn(length, &mut generator(workload.seed, Stream::Output, number)))
}

/// What was recorded of request `number`, if more than its moment was. A warm-up takes the rows from the back.
fn row(workload: &Workload, number: u64) -> Option<(&TraceRow, &Trace)> {
    let trace = workload.special.trace.as_ref()?;
    let count = trace.rows.len() as u64;
    let at = match number.checked_sub(WARMUP) {
        Some(before) => count.checked_sub(1 + before.checked_rem(count)?)?,
        None => number.checked_rem(count)?,
    };
    let row = trace.rows.get(usize::try_from(at).ok()?)?;
    (!row.is_moment()).then_some((row, trace))
}

/// The shortest prompt that is to be made; `None` where none is made.
pub(super) fn shortest(workload: &Workload) -> Option<u64> {
    let recorded = workload.special.trace.iter().flat_map(|trace| &trace.rows).filter_map(|row| row.input).min();
    let wanted = workload.lengths.input.as_ref().map(|length| match *length {
        Length::Exact(tokens) => tokens,
        Length::Range { from, .. } => from,
        Length::Normal { min, .. } => min,
    });
    recorded.or(wanted)
}

fn drawn(length: &Length, generator: &mut ChaCha8Rng) -> u64 {
    match *length {
        Length::Exact(tokens) => tokens,
        Length::Range { from, to } => generator.random_range(from..=to.max(from)),
        Length::Normal { mean, stdev, min, max } => {
            // What lies outside is drawn again, which a clamp would pile up at the ends.
            for _ in 0..64 {
                let tokens = (mean + stdev * draw::normal(generator)).round();
                if tokens >= min as f64 && tokens <= max as f64 {
                    return tokens as u64;
                }
            }
            (mean.round().max(0.0) as u64).clamp(min, max.max(min))
        }
    }
}

/// Finds out how the server counts, if prompts are to be made; `None` if not.
pub async fn calibrate(target: &Target, workload: &Workload, clock: &Clock) -> Result<Option<Vocabulary>, LoadError> {
    let Some(shortest) = shortest(workload) else { return Ok(None) };
    let endpoint = target.endpoint()?;
    let counter = Counter { target, endpoint, workload, clock, asked: 0, tokenizes: true };
    tokio::time::timeout(LIMIT, find(counter, shortest))
        .await
        .unwrap_or_else(|_| Err(refuse(format!("the server did not count within {} s", LIMIT.as_secs()))))
        .map(Some)
}

fn refuse(why: String) -> LoadError {
    LoadError::InputLength { why }
}

async fn find(mut counter: Counter<'_>, least: u64) -> Result<Vocabulary, LoadError> {
    let all: Vec<&str> = WORDS.split_whitespace().collect();
    let mut words = Vec::new();
    let mut open = vec![all];
    while let Some(some) = open.pop() {
        let (once, twice) = (counter.count(&text(&some, 1)).await?, counter.count(&text(&some, 2)).await?);
        if twice.checked_sub(once) == Some(some.len() as u64) {
            words.extend(some);
        } else if some.len() > 1 {
            let half = some.len() / 2;
            open.extend([some[half..].to_vec(), some[..half].to_vec()]);
        }
        if counter.asked >= COUNTS && words.len() >= LEAST_WORDS {
            break;
        }
        if counter.asked >= COUNTS {
            return Err(refuse("too few words are one token each in the server's count".to_owned()));
        }
    }
    if words.len() < LEAST_WORDS {
        return Err(refuse(format!("only {} words are one token each in the server's count", words.len())));
    }
    let whole = counter.count(&text(&words, 1)).await?;
    let around = whole.checked_sub(words.len() as u64).ok_or_else(|| refuse("its counts do not add up".to_owned()))?;
    let vocabulary = counter.prove(Vocabulary { words, around }, least).await?;
    let around = vocabulary.around;
    if least <= around {
        return Err(refuse(format!(
            "{around} of the {least} tokens that are wanted stand around each prompt (the chat template): ask for more"
        )));
    }
    Ok(vocabulary)
}

fn text(words: &[&str], times: usize) -> String {
    let mut text = LEAD.to_owned();
    for word in std::iter::repeat_n(words, times).flatten() {
        text.push(' ');
        text.push_str(word);
    }
    text
}

/// Asks the server for counts.
struct Counter<'a> {
    target: &'a Target,
    endpoint: Endpoint,
    workload: &'a Workload,
    clock: &'a Clock,
    asked: u32,
    /// Whether `/tokenize` has counted so far.
    tokenizes: bool,
}

impl Counter<'_> {
    async fn count(&mut self, text: &str) -> Result<u64, LoadError> {
        self.asked += 1;
        if self.tokenizes {
            if let Some(count) = self.tokenize(text).await {
                return Ok(count);
            }
            self.tokenizes = false;
        }
        self.generate(text).await
    }

    /// By one generated token, whether what was found out holds; one constant that was overlooked is put right.
    async fn prove(&mut self, mut found: Vocabulary, least: u64) -> Result<Vocabulary, LoadError> {
        let tokens = least.max(found.around + LEAST_WORDS as u64);
        for _ in 0..2 {
            let came = self.generate(&found.prompt(tokens, self.workload.seed, u64::MAX)).await?;
            if came == tokens {
                return Ok(found);
            }
            let around = (found.around + came).checked_sub(tokens);
            found.around = around.ok_or_else(|| refuse(format!("{tokens} tokens were wanted and {came} came")))?;
        }
        Err(refuse(format!("a prompt of {tokens} tokens cannot be made: the server's counts do not add up")))
    }

    /// The count of `/tokenize`, if it counts a whole request as this endpoint would.
    async fn tokenize(&self, text: &str) -> Option<u64> {
        let body = match self.workload.api {
            Api::Chat | Api::Responses => json!({"messages": [{"role": "user", "content": text}]}),
            // vLLM and SGLang call it a prompt, llama.cpp a content.
            _ => json!({"prompt": text, "content": text, "add_special": true}),
        };
        tokenize::ask(self.target, &self.endpoint, "/tokenize", body).await
    }

    /// The count of the generating endpoint itself.
    async fn generate(&self, text: &str) -> Result<u64, LoadError> {
        let special = Special { trace: None, turns: None, ..self.workload.special.clone() };
        let workload = Workload { stop: Stop::Natural { max_tokens: 1 }, special, ..self.workload.clone() };
        let request = requests::one(self.target, &self.endpoint, &workload, text)?;
        let opened = Dialer::new(&self.endpoint).await?.open().await;
        let mut connection = opened.map_err(|error| refuse(format!("the server does not answer: {}", error.words)))?;
        let mut exchange = Exchange::new(Timeline::default(), false).speaking(workload.api);
        connection.run(&request, &mut exchange, self.clock, |_, _, _| ()).await;
        let timeline = exchange.finish(self.clock.nanos());
        timeline.input_tokens().filter(|count| *count > 0).ok_or_else(|| {
            let words =
                timeline.error.unwrap_or_else(|| "its answer says not how many tokens the prompt had".to_owned());
            refuse(format!("the server does not count prompts: {words}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(length: &Length) -> Vec<u64> {
        (0..2000).map(|number| drawn(length, &mut generator(3, Stream::Input, number))).collect()
    }

    #[test]
    fn lengths_are_drawn_as_they_were_asked_for() {
        assert_eq!(many(&Length::Exact(7))[..3], [7, 7, 7]);
        let range = many(&Length::Range { from: 10, to: 13 });
        assert_eq!(range.iter().collect::<std::collections::BTreeSet<_>>(), [10, 11, 12, 13].iter().collect());
        let normal = many(&Length::Normal { mean: 100.0, stdev: 20.0, min: 50, max: 150 });
        let mean = normal.iter().sum::<u64>() as f64 / normal.len() as f64;
        let variance = normal.iter().map(|tokens| (*tokens as f64 - mean).powi(2)).sum::<f64>() / normal.len() as f64;
        assert!((mean - 100.0).abs() < 2.0 && (variance.sqrt() - 19.5).abs() < 2.0, "{mean} {}", variance.sqrt());
        assert!(normal.iter().all(|tokens| (50..=150).contains(tokens)));
        assert_eq!(normal, many(&Length::Normal { mean: 100.0, stdev: 20.0, min: 50, max: 150 }));
        // Far outside of its own limits it is at the nearer one, and ends.
        assert_eq!(many(&Length::Normal { mean: 1000.0, stdev: 1.0, min: 5, max: 9 })[0], 9);
    }

    #[test]
    fn a_prompt_has_a_word_for_each_token_and_none_is_like_another() {
        let vocabulary = Vocabulary { words: WORDS.split_whitespace().collect(), around: 12 };
        let prompt = vocabulary.prompt(100, 1, 0);
        assert_eq!(prompt.split_whitespace().count(), 1 + 100 - 12);
        assert_eq!(prompt, vocabulary.prompt(100, 1, 0));
        assert_ne!(prompt, vocabulary.prompt(100, 1, 1));
        assert_ne!(prompt, vocabulary.prompt(100, 2, 0));
        assert!(vocabulary.words.len() > 100);
    }

    #[test]
    fn prompts_share_what_they_should_and_no_more() {
        let vocabulary = Vocabulary { words: WORDS.split_whitespace().collect(), around: 25 };
        let common = |one: &str, two: &str| {
            let pairs = one.split(' ').zip(two.split(' '));
            pairs.take_while(|(one, two)| one == two).count() as u64 - 1
        };
        let share = |number| vocabulary.sharing(500, 0.6, 3, number);
        assert_eq!(share(1).split_whitespace().count(), 1 + 500 - 25);
        // 20 of the 25 tokens stand before the words.
        let shared = common(&share(1), &share(2));
        assert!((280..=284).contains(&shared), "{shared}");
        let blocks = |ids: &[u64], number| vocabulary.of_blocks(1500, ids, 512, 3, number);
        assert_eq!(blocks(&[1, 2, 3], 0).split_whitespace().count(), 1 + 1500 - 25);
        let shared = common(&blocks(&[1, 2, 3], 0), &blocks(&[1, 2, 9], 1));
        assert!((1004..=1008).contains(&shared), "{shared}");
        assert!(common(&blocks(&[4, 2, 3], 0), &blocks(&[1, 2, 3], 0)) < 5);
        assert_eq!(blocks(&[1, 2, 3], 0), blocks(&[1, 2, 3], 1));
    }
}
