//! Whether something at a URL generates tokens: the proof alone, for servers that orch did not start.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::probe::Probes;
use super::proof::{self, NoProof};

/// Between two tries.
const PACE: Duration = Duration::from_millis(500);

/// Asks until it generates `tokens` tokens, at most for `limit`, and
/// returns the model that its answer names; else what was last answered.
pub async fn answers(
    base_url: &str,
    model: Option<&str>,
    tokens: u32,
    limit: Duration,
) -> Result<Option<String>, String> {
    let probes = Probes::new(base_url).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + limit;
    loop {
        let proving = proof::prove(&probes, model, tokens);
        let last = match tokio::time::timeout_at(deadline, proving).await {
            Ok(Ok((_, proof))) => return Ok(proof.model),
            Ok(Err((path, NoProof::NoPath(status)))) => format!("{path}: {status}"),
            Ok(Err((path, NoProof::NotYet(answer) | NoProof::Wrong(answer)))) => format!("{path}: {answer}"),
            Err(_) => "no answer".to_owned(),
        };
        if Instant::now() + PACE >= deadline {
            return Err(last);
        }
        sleep(PACE).await;
    }
}
