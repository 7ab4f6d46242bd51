//! What follows from one request's moments. Every metric of latency is made of these.

use super::{ChunkKind, Outcome, Timeline, TokenSource};
use crate::clock::Nanos;

/// All generating chunks within this span, in milliseconds, are one burst,
const BURST_SPAN_MS: f64 = 2.0;
/// if at least this long passed before the first.
const BURST_WAIT_MS: f64 = 100.0;

/// A span in milliseconds.
pub(super) fn ms(span: Nanos) -> f64 {
    span as f64 / 1e6
}

impl Timeline {
    /// Whether it counts.
    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ok
    }

    /// A moment of it in milliseconds after it was sent.
    pub fn after_sent_ms(&self, moment: Option<Nanos>) -> Option<f64> {
        Some(ms(moment?.checked_sub(self.sent?)?))
    }

    /// From the sending to the first generating chunk, in milliseconds.
    pub fn ttft_ms(&self) -> Option<f64> {
        self.ttft().map(ms)
    }

    /// From the sending to the first chunk with text of the answer.
    pub fn ttft_content_ms(&self) -> Option<f64> {
        let first = self.chunks.iter().find(|chunk| chunk.kind == ChunkKind::Content)?;
        self.after_sent_ms(Some(first.at))
    }

    /// From the sending to the last generating chunk.
    pub fn e2e_ms(&self) -> Option<f64> {
        self.after_sent_ms(self.chunks.last().map(|chunk| chunk.at))
    }

    /// From the moment it was due to the first generating chunk.
    pub fn ttft_from_due_ms(&self) -> Option<f64> {
        Some(ms(self.chunks.first()?.at.checked_sub(self.due)?))
    }

    /// From the moment it was due to the last generating chunk.
    pub fn e2e_from_due_ms(&self) -> Option<f64> {
        Some(ms(self.chunks.last()?.at.checked_sub(self.due)?))
    }

    /// From the moment it was due to its sending.
    pub fn queued_ms(&self) -> Option<f64> {
        Some(ms(self.sent?.checked_sub(self.due)?))
    }

    /// Generated tokens, visible or not, and where the count comes from. Of a failure it is the number of generating
    /// chunks, and no count is claimed.
    pub fn output_tokens(&self) -> (u64, Option<TokenSource>) {
        let chunks = self.chunks.len() as u64;
        if !self.is_ok() {
            return (chunks, None);
        }
        // Who says 0 for an answer that was seen does not count.
        let usage = self.usage.and_then(|usage| usage.completion_tokens).filter(|count| *count > 0);
        let engine = self.engine.and_then(|engine| engine.predicted_n).filter(|count| *count > 0);
        match (usage, engine, self.retokenized) {
            (Some(count), _, _) => (count, Some(TokenSource::Usage)),
            (None, Some(count), _) => (count, Some(TokenSource::Engine)),
            (None, None, Some(count)) => (count, Some(TokenSource::Tokenizer)),
            (None, None, None) => (chunks, Some(TokenSource::Chunks)),
        }
    }

    /// Tokens of the prompt.
    pub fn input_tokens(&self) -> Option<u64> {
        let engine = self.engine.and_then(|engine| Some(engine.prompt_n?.saturating_add(engine.cache_n.unwrap_or(0))));
        self.usage.and_then(|usage| usage.prompt_tokens).or(engine)
    }

    /// Tokens of the prompt that came from the prefix cache.
    pub fn cached_tokens(&self) -> Option<u64> {
        let engine = self.engine.and_then(|engine| engine.cache_n);
        self.usage.and_then(|usage| usage.cached_tokens).or(engine)
    }

    /// Whether the tokens of each chunk are known.
    pub fn tokens_exact(&self) -> bool {
        !self.chunks.is_empty() && self.chunks.iter().all(|chunk| chunk.tokens.is_some())
    }

    /// Tokens of the first generating chunk, when they are known.
    pub fn tokens_in_first_chunk(&self) -> Option<u64> {
        self.chunks.first().and_then(|chunk| chunk.tokens).filter(|_| self.tokens_exact()).map(u64::from)
    }

    /// Whether two generating chunks or more came in one read.
    pub fn batched(&self) -> bool {
        self.chunks.windows(2).any(|pair| pair[0].at == pair[1].at)
    }

    /// Whether reasoning was counted but not shown.
    pub fn hides_reasoning(&self) -> bool {
        let counted = self.usage.and_then(|usage| usage.reasoning_tokens).is_some_and(|count| count > 0);
        counted && !self.chunks.iter().any(|chunk| chunk.kind == ChunkKind::Reasoning)
    }

    /// Whether the answer was there at once: all of its tokens in one chunk, or all chunks in one burst after a wait.
    pub fn came_at_once(&self) -> bool {
        let (Some(first), Some(last)) = (self.chunks.first(), self.chunks.last()) else { return false };
        if self.chunks.len() == 1 {
            return self.output_tokens().0 > 1;
        }
        // Chunks that were read in one go say nothing of their own times, however short the wait was.
        if first.at == last.at {
            return true;
        }
        ms(last.at - first.at) <= BURST_SPAN_MS && self.ttft_ms().is_some_and(|wait| wait >= BURST_WAIT_MS)
    }

    /// Whether a speed of decoding may be given.
    pub fn decode_rate_valid(&self) -> bool {
        self.is_ok() && !self.hides_reasoning() && !self.came_at_once()
    }

    /// Milliseconds and tokens of decoding: from the first to the last generating chunk, and the tokens after those of
    /// the first chunk (1 where they are unknown). `None` when there is nothing to divide by or no speed may be given.
    pub fn decoding(&self) -> Option<(f64, u64)> {
        if !self.decode_rate_valid() {
            return None;
        }
        let (first, last) = (self.chunks.first()?, self.chunks.last()?);
        let tokens = self.output_tokens().0.checked_sub(self.tokens_in_first_chunk().unwrap_or(1))?;
        (tokens > 0).then(|| (ms(last.at - first.at), tokens))
    }

    /// Time per output token after the first chunk.
    pub fn tpot_ms(&self) -> Option<f64> {
        self.decoding().map(|(span, tokens)| span / tokens as f64)
    }

    /// Gaps between generating chunks, in milliseconds.
    pub fn chunk_gaps_ms(&self) -> impl Iterator<Item = f64> {
        self.chunks.windows(2).map(|pair| ms(pair[1].at.saturating_sub(pair[0].at)))
    }

    /// Gaps between tokens, where the tokens of each chunk are known: a chunk of k tokens spreads the gap before it
    /// evenly over them. A chunk without a token (half of one) leaves its gap to the next.
    pub fn itl_ms(&self) -> Option<Vec<f64>> {
        if !self.tokens_exact() {
            return None;
        }
        let mut gaps = Vec::new();
        let mut carried = 0.0;
        for (gap, chunk) in self.chunk_gaps_ms().zip(&self.chunks[1..]) {
            carried += gap;
            if let Some(tokens @ 1..) = chunk.tokens {
                gaps.extend(std::iter::repeat_n(carried / f64::from(tokens), tokens as usize));
                carried = 0.0;
            }
        }
        Some(gaps)
    }

    /// Tokens per generating chunk on the mean of this request; `None` without a count, or when tokens were hidden.
    pub fn tokens_per_chunk(&self) -> Option<f64> {
        let (tokens, source) = self.output_tokens();
        let counted = matches!(source, Some(TokenSource::Usage | TokenSource::Engine | TokenSource::Tokenizer));
        (counted && !self.chunks.is_empty() && !self.hides_reasoning())
            .then(|| tokens as f64 / self.chunks.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Chunk, EngineTimings, Usage};

    const MS: u64 = 1_000_000;

    /// An ok request sent at 1,000 ms with chunks at the given milliseconds after it.
    fn request(chunks: &[u64], tokens: Option<u64>) -> Timeline {
        let chunks: Vec<_> =
            chunks.iter().map(|at| Chunk { at: (1000 + at) * MS, tokens: None, kind: ChunkKind::Content }).collect();
        Timeline {
            sent: Some(1000 * MS),
            due: 990 * MS,
            chunks,
            outcome: Outcome::Ok,
            usage: tokens.map(|count| Usage { completion_tokens: Some(count), ..Usage::default() }),
            ..Timeline::default()
        }
    }

    fn counted(chunks: &[(u64, u32)]) -> Timeline {
        let times: Vec<_> = chunks.iter().map(|(at, _)| *at).collect();
        let mut request = request(&times, Some(chunks.iter().map(|(_, tokens)| u64::from(*tokens)).sum()));
        for (chunk, (_, tokens)) in request.chunks.iter_mut().zip(chunks) {
            chunk.tokens = Some(*tokens);
        }
        request
    }

    #[test]
    fn three_chunks_of_one_token() {
        let request = counted(&[(50, 1), (70, 1), (100, 1)]);
        assert_eq!((request.ttft_ms(), request.e2e_ms(), request.queued_ms()), (Some(50.0), Some(100.0), Some(10.0)));
        assert_eq!(request.tpot_ms(), Some(25.0));
        assert_eq!(request.itl_ms(), Some(vec![20.0, 30.0]));
        assert_eq!(request.chunk_gaps_ms().collect::<Vec<_>>(), [20.0, 30.0]);
        assert_eq!((request.tokens_per_chunk(), request.tokens_in_first_chunk()), (Some(1.0), Some(1)));
    }

    #[test]
    fn tokens_of_the_first_chunk_take_no_time_after_it() {
        let request = counted(&[(300, 8), (320, 2), (380, 2)]);
        assert_eq!(request.tpot_ms(), Some(20.0));
        assert_eq!(request.itl_ms(), Some(vec![10.0, 10.0, 30.0, 30.0]));
        assert_eq!((request.tokens_per_chunk(), request.tokens_in_first_chunk()), (Some(4.0), Some(8)));
    }

    #[test]
    fn where_the_tokens_of_chunks_are_unknown_tpot_is_an_estimate_and_itl_is_none() {
        let request = request(&[100, 130, 160], Some(7));
        assert_eq!((request.tpot_ms(), request.itl_ms(), request.tokens_exact()), (Some(10.0), None, false));
        assert_eq!(request.tokens_in_first_chunk(), None);
    }

    #[test]
    fn half_a_token_leaves_its_gap_to_the_next_chunk() {
        assert_eq!(counted(&[(10, 1), (20, 0), (40, 1)]).itl_ms(), Some(vec![30.0]));
    }

    #[test]
    fn counts_come_from_usage_then_the_engine_then_the_chunks() {
        let mut one = request(&[10, 20], Some(5));
        one.engine = Some(EngineTimings {
            predicted_n: Some(6),
            prompt_n: Some(3),
            cache_n: Some(4),
            ..EngineTimings::default()
        });
        assert_eq!(one.output_tokens(), (5, Some(TokenSource::Usage)));
        assert_eq!((one.input_tokens(), one.cached_tokens()), (Some(7), Some(4)));
        one.usage = None;
        assert_eq!(one.output_tokens(), (6, Some(TokenSource::Engine)));
        one.engine = None;
        one.retokenized = Some(4);
        assert_eq!((one.output_tokens(), one.tokens_per_chunk()), ((4, Some(TokenSource::Tokenizer)), Some(2.0)));
        one.retokenized = None;
        assert_eq!(one.output_tokens(), (2, Some(TokenSource::Chunks)));
        assert_eq!((one.tokens_per_chunk(), one.input_tokens()), (None, None));
        assert_eq!(request(&[10, 20], Some(0)).output_tokens(), (2, Some(TokenSource::Chunks)));
        one.outcome = Outcome::TimedOut;
        assert_eq!(one.output_tokens(), (2, None));
    }

    #[test]
    fn no_speed_is_given_where_it_would_be_a_lie() {
        assert_eq!(request(&[1650, 1651, 1652], Some(3)).tpot_ms(), None, "a burst after a wait");
        assert_eq!(request(&[50, 51, 52], Some(3)).tpot_ms(), Some(1.0), "fast from the start");
        assert_eq!(request(&[500], Some(20)).tpot_ms(), None, "all in one chunk");
        assert!(!request(&[500], Some(20)).decode_rate_valid());
        let one_token = request(&[500], Some(1));
        assert_eq!((one_token.tpot_ms(), one_token.decode_rate_valid()), (None, true));
        let mut hidden = request(&[5170, 5410], Some(200));
        hidden.usage = hidden.usage.map(|usage| Usage { reasoning_tokens: Some(180), ..usage });
        assert_eq!((hidden.tpot_ms(), hidden.decode_rate_valid(), hidden.tokens_per_chunk()), (None, false, None));
        hidden.chunks[0].kind = ChunkKind::Reasoning;
        assert!(hidden.decode_rate_valid(), "reasoning that was shown");
        assert_eq!(hidden.ttft_content_ms(), Some(5410.0));
    }

    #[test]
    fn chunks_of_one_read_are_batched() {
        assert!(request(&[50, 70, 70], Some(3)).batched());
        assert!(!request(&[50, 70], Some(2)).batched());
    }

    #[test]
    fn what_did_not_happen_has_no_time() {
        let unsent = Timeline { due: 5, ..Timeline::default() };
        assert_eq!((unsent.ttft_ms(), unsent.e2e_ms(), unsent.queued_ms()), (None, None, None));
        assert_eq!((unsent.decode_rate_valid(), unsent.itl_ms()), (false, None));
    }
}
