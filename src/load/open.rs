//! The open loop: requests go at the moments of their schedule, however slow the answers are.
//!
//! The moments are absolute, so that nothing that comes late moves what comes after it. A request takes an idle
//! connection, or opens one: none ever waits for another request to end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::attempt::request;
use super::batch::{Batch, Shared};
use super::pool::Slot;
use super::wire::Connection;
use crate::clock::{Clock, Nanos};

/// The pacemaker looks so often whether it is still wanted.
const NAP: Duration = Duration::from_millis(50);

/// Connections that wait for a request.
#[derive(Default)]
pub(super) struct Idle {
    connections: Mutex<Vec<Connection>>,
    /// How many places the target has, and whose turn it is.
    places: usize,
    turn: AtomicUsize,
}

impl Idle {
    pub(super) fn of(slots: Vec<Slot>, places: usize) -> Self {
        Idle { connections: Mutex::new(slots.into_iter().flatten().collect()), places, turn: AtomicUsize::new(0) }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The one that was used last: it is the least likely to have been closed. Of several places, the one whose turn it
    /// is.
    fn take(&self) -> Slot {
        if self.places <= 1 {
            return self.all().pop();
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.places;
        let mut all = self.all();
        let at = all.iter().rposition(|connection| connection.place == turn)?;
        Some(all.swap_remove(at))
    }

    fn put(&self, connection: Connection) {
        self.all().push(connection);
    }

    /// Takes them all out.
    pub(super) fn into_slots(self) -> Vec<Slot> {
        self.connections.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).into_iter().map(Some).collect()
    }
}

/// Sends requests at their moments until the batch is over or its requests are all sent, then waits for their ends. The
/// tasks of those in flight are in `tasks`. Returns how late each was taken up, by this machine alone.
pub(super) async fn arrivals(
    shared: &Arc<Shared>,
    batch: &Arc<Batch>,
    cut: &CancellationToken,
    idle: &Arc<Idle>,
    schedule: impl Iterator<Item = Duration> + Send + 'static,
    tasks: &mut JoinSet<()>,
) -> Vec<Nanos> {
    let mut due = pace(shared.clock.clone(), schedule, shared.halt.clone());
    let mut late = Vec::new();
    loop {
        let over = async {
            match batch.end {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        let moment = tokio::select! {
            biased;
            () = shared.halt.cancelled() => break,
            // What has ended is let go, so that a long step does not hold a task for each of its requests.
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                re_panic(ended);
                continue;
            }
            moment = due.recv() => moment,
            () = over => break,
        };
        let Some(moment) = moment else { break };
        if shared.is_over(batch) {
            break;
        }
        let Some(number) = batch.take() else { break };
        let last = batch.requests == Some(number + 1);
        late.push(shared.clock.nanos().saturating_sub(moment));
        let (shared, batch, cut, idle) = (shared.clone(), batch.clone(), cut.clone(), idle.clone());
        tasks.spawn(async move {
            let mut slot = idle.take();
            request(&shared, &batch, &cut, &mut slot, number, moment).await;
            match slot {
                Some(connection) if !shared.closes.load(Ordering::Relaxed) => idle.put(connection),
                _ => {}
            }
        });
        if last {
            break;
        }
    }
    late
}

/// A fault of ours ends the thread, and the step with an error.
pub(super) fn re_panic<T>(ended: Result<T, tokio::task::JoinError>) -> Option<T> {
    match ended {
        Ok(value) => Some(value),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}

/// Tells each moment of the schedule when it has come, on the clock of the load. A thread of its own sleeps to the
/// microsecond, which the timers of the runtime do not.
fn pace(
    clock: Clock,
    schedule: impl Iterator<Item = Duration> + Send + 'static,
    halt: CancellationToken,
) -> mpsc::UnboundedReceiver<Nanos> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let began = clock.nanos();
    // A thread that cannot be had ends the batch before its first request, which is then told as having measured nothing.
    let _ = std::thread::Builder::new().name("pace".to_owned()).spawn(move || {
        for after in schedule {
            let moment = began.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
            loop {
                let left = Duration::from_nanos(moment.saturating_sub(clock.nanos()));
                if halt.is_cancelled() || sender.is_closed() {
                    return;
                }
                if left.is_zero() {
                    break;
                }
                std::thread::sleep(left.min(NAP));
            }
            if sender.send(moment).is_err() {
                return;
            }
        }
    });
    receiver
}
