//! Time as the program sees it: one monotonic clock for spans, one wall clock for stamps.
//!
//! Everything that measures takes its moments from [`Clock::nanos`]; a moment is a plain number of nanoseconds since
//! the clock was made, so that two moments of one run can be subtracted and written down. Wall-clock time is used only
//! to say *when* something happened, never how long it took: wall clocks step.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// A moment: nanoseconds since the start of the clock that gave it.
pub type Nanos = u64;

/// Where moments come from. Cheap to clone; clones share one origin.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { origin: Instant },
    Manual { elapsed: Arc<AtomicU64>, wall: Arc<Mutex<Timestamp>> },
}

impl Clock {
    /// The machine's own clock, with its origin now.
    pub fn system() -> Self {
        Clock(Source::System { origin: Instant::now() })
    }

    /// A clock that moves only by [`Clock::advance`], for tests and for replaying old logs.
    pub fn manual(wall: Timestamp) -> Self {
        Clock(Source::Manual { elapsed: Arc::new(AtomicU64::new(0)), wall: Arc::new(Mutex::new(wall)) })
    }

    /// Nanoseconds since the origin; never goes back.
    pub fn nanos(&self) -> Nanos {
        match &self.0 {
            Source::System { origin } => u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Source::Manual { elapsed, .. } => elapsed.load(Ordering::Relaxed),
        }
    }

    /// The wall-clock time, for stamps.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System { .. } => Timestamp::now(),
            Source::Manual { wall, .. } => *wall.lock().unwrap_or_else(|poisoned| poisoned.into_inner()),
        }
    }

    /// Moves a manual clock forward; a system clock is left alone.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual { elapsed, wall } = &self.0 {
            elapsed.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            let mut wall = wall.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Ok(later) = wall.checked_add(by) {
                *wall = later;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::manual(start);
        assert_eq!((clock.nanos(), clock.now()), (0, start));
        clock.clone().advance(Duration::from_millis(1500));
        assert_eq!(clock.nanos(), 1_500_000_000);
        assert_eq!(clock.now().to_string(), "2026-01-01T00:00:01.5Z");
    }
}
