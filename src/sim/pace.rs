//! Time for the simulated engine: the machine's monotonic clock, and sleeping until a moment of it.
//!
//! The runtime's own timers are a millisecond coarse and round up. Steps are due at moments that are counted from a
//! request's start, so one timer of the kernel wakes all that is due, to within some tens of microseconds.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Poll, Waker};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::clock::Nanos;

/// Nanoseconds of `CLOCK_MONOTONIC`: the same number for every process of this machine, so that a ledger can be held
/// against what a client saw.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Wakes tasks of one thread at their moments.
pub(super) struct Pacer {
    timer: AsyncFd<OwnedFd>,
    waiting: RefCell<BinaryHeap<Reverse<Waiting>>>,
}

struct Waiting {
    due: Nanos,
    waker: Waker,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

impl Pacer {
    /// A pacer, and its task on the current thread.
    pub(super) fn start() -> io::Result<Rc<Self>> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "its successor is `unsafe` for types whose descriptor may change; an `OwnedFd`'s does not"
        )]
        let timer = AsyncFd::new(timer)?;
        let pacer = Rc::new(Pacer { timer, waiting: RefCell::default() });
        let weak = Rc::downgrade(&pacer);
        tokio::task::spawn_local(async move {
            while let Some(pacer) = weak.upgrade() {
                if pacer.tick().await.is_err() {
                    return;
                }
            }
        });
        Ok(pacer)
    }

    /// Waits for the timer once and wakes all that is due.
    async fn tick(&self) -> io::Result<()> {
        let mut ready = self.timer.readable().await?;
        let mut count = [0; 8];
        if rustix::io::read(self.timer.get_ref(), &mut count).is_ok() {
            let now = now();
            let mut waiting = self.waiting.borrow_mut();
            while waiting.peek().is_some_and(|Reverse(first)| first.due <= now) {
                if let Some(Reverse(first)) = waiting.pop() {
                    first.waker.wake();
                }
            }
            if let Some(Reverse(first)) = waiting.peek() {
                self.set(first.due);
            }
        }
        ready.clear_ready();
        Ok(())
    }

    fn set(&self, due: Nanos) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec {
            tv_sec: i64::try_from(due / 1_000_000_000).unwrap_or(i64::MAX),
            // Zero would take the timer back.
            tv_nsec: i64::try_from((due % 1_000_000_000).max(1)).unwrap_or(0),
        };
        // A moment always fits, and there is nobody to tell if it did not.
        let _ =
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: zero, it_value: at });
    }

    /// Returns at `due`, or at once if that is past.
    pub(super) async fn until(&self, due: Nanos) {
        let mut known = false;
        poll_fn(|cx| {
            if now() >= due {
                return Poll::Ready(());
            }
            if !known {
                known = true;
                let mut waiting = self.waiting.borrow_mut();
                let first = waiting.peek().is_none_or(|Reverse(first)| due < first.due);
                waiting.push(Reverse(Waiting { due, waker: cx.waker().clone() }));
                if first {
                    self.set(due);
                }
            }
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_come_in_order_and_never_early() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let came = tokio::task::LocalSet::new().block_on(&runtime, async {
            let pacer = Pacer::start().unwrap();
            let start = now();
            let came = Rc::new(RefCell::new(Vec::new()));
            let tasks: Vec<_> = [9, 3, 6, 3, 0]
                .into_iter()
                .map(|ms| {
                    let (pacer, came) = (Rc::clone(&pacer), Rc::clone(&came));
                    tokio::task::spawn_local(async move {
                        let due = start + ms * 1_000_000;
                        pacer.until(due).await;
                        assert!(now() >= due);
                        came.borrow_mut().push(ms);
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            came.take()
        });
        assert_eq!(came, [0, 3, 3, 6, 9]);
    }
}
