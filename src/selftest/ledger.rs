//! The truth of a course, from the server's ledger.

use std::path::Path;

use serde::Deserialize;

use super::SelfTestError;

/// What the server wrote down of the measured requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Truth(Vec<Line>);

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Line {
    n: u64,
    path: String,
    arrived_ns: u64,
    chunks: Vec<(u64, u32)>,
}

impl Truth {
    /// Reads a ledger, without the first `warmup` generating requests.
    pub fn read(path: &Path, warmup: u64) -> Result<Self, SelfTestError> {
        let fail = |source| SelfTestError::File { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(fail)?;
        let lines: Result<Vec<Line>, _> = text.lines().map(serde_json::from_str).collect();
        let mut lines = lines.map_err(|error| fail(error.into()))?;
        lines.retain(|line| line.path.ends_with("/chat/completions"));
        // Lines are written when their requests end; the warm-up came first.
        lines.sort_by_key(|line| line.n);
        Ok(Truth(lines.into_iter().skip(usize::try_from(warmup).unwrap_or(usize::MAX)).collect()))
    }

    /// Requests, chunks and tokens.
    pub fn counts(&self) -> (u64, u64, u64) {
        let chunks = self.0.iter().flat_map(|line| &line.chunks);
        (self.0.len() as u64, chunks.clone().count() as u64, chunks.map(|(_, tokens)| u64::from(*tokens)).sum())
    }

    /// The samples of each metric that the client has too, by the same formulas.
    pub(super) fn samples(&self) -> [(&'static str, Vec<f64>); 4] {
        let ms = |later: u64, earlier: u64| later.saturating_sub(earlier) as f64 / 1e6;
        let (mut ttft, mut tpot, mut gaps, mut e2e) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for line in &self.0 {
            let (Some(first), Some(last)) = (line.chunks.first(), line.chunks.last()) else { continue };
            ttft.push(ms(first.0, line.arrived_ns));
            e2e.push(ms(last.0, line.arrived_ns));
            let after: u64 = line.chunks[1..].iter().map(|(_, tokens)| u64::from(*tokens)).sum();
            if after > 0 {
                tpot.push(ms(last.0, first.0) / after as f64);
            }
            gaps.extend(line.chunks.windows(2).map(|pair| ms(pair[1].0, pair[0].0)));
        }
        [("ttft_ms", ttft), ("tpot_ms", tpot), ("chunk_gap_ms", gaps), ("e2e_ms", e2e)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_and_other_paths_are_left_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = |n: u64, path: &str, first: u64| {
            format!(
                "{{\"n\":{n},\"path\":\"{path}\",\"arrived_ns\":1000000,\"chunks\":[[{first},1],[{},4],[{},4]],\"end_ns\":1}}\n",
                first + 20_000_000,
                first + 40_000_000
            )
        };
        let chat = "/v1/chat/completions";
        let text =
            [line(3, chat, 51_000_000), line(2, chat, 9), line(1, "/v1/completions", 9), line(4, chat, 61_000_000)];
        std::fs::write(file.path(), text.concat()).unwrap();
        let truth = Truth::read(file.path(), 1).unwrap();
        assert_eq!(truth.counts(), (2, 6, 18));
        let [ttft, tpot, gaps, e2e] = truth.samples();
        assert_eq!(ttft, ("ttft_ms", vec![50.0, 60.0]));
        assert_eq!(tpot, ("tpot_ms", vec![5.0, 5.0]));
        assert_eq!((gaps.1, e2e.1), (vec![20.0; 4], vec![90.0, 100.0]));
    }
}
