//! Who runs and who waits: the running cap and the room for tokens.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::oneshot;

/// Lets requests run in order of arrival, as far as there is room.
#[derive(Debug)]
pub(super) struct Admission {
    cap: Option<u64>,
    room: Option<u64>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    running: u64,
    used: u64,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    tokens: u64,
    go: oneshot::Sender<Slot>,
}

/// A request that runs. Its place is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    admission: Rc<Admission>,
    tokens: u64,
}

impl Admission {
    /// At most `cap` requests at once, with `room` tokens between them.
    pub(super) fn new(cap: Option<u64>, room: Option<u64>) -> Rc<Self> {
        Rc::new(Admission { cap, room, state: RefCell::default() })
    }

    /// Requests that run,
    pub(super) fn running(&self) -> u64 {
        self.state.borrow().running
    }

    /// requests that wait,
    pub(super) fn waiting(&self) -> u64 {
        self.state.borrow().waiting.iter().filter(|waiter| !waiter.go.is_closed()).count() as u64
    }

    /// and the tokens of those that run.
    pub(super) fn used(&self) -> u64 {
        self.state.borrow().used
    }

    /// The room for tokens.
    pub(super) fn room(&self) -> Option<u64> {
        self.room
    }

    /// A place for a request of so many tokens, at once where nobody waits and there is one.
    pub(super) fn try_enter(self: &Rc<Self>, tokens: u64) -> Option<Slot> {
        let mut state = self.state.borrow_mut();
        state.waiting.retain(|waiter| !waiter.go.is_closed());
        (state.waiting.is_empty() && self.fits(&state, tokens)).then(|| self.seat(&mut state, tokens))
    }

    /// A place in its turn. One that was retracted comes `first`.
    pub(super) fn enter(self: &Rc<Self>, tokens: u64, first: bool) -> oneshot::Receiver<Slot> {
        let (go, wait) = oneshot::channel();
        let waiter = Waiter { tokens, go };
        {
            let mut state = self.state.borrow_mut();
            if first { state.waiting.push_front(waiter) } else { state.waiting.push_back(waiter) }
        }
        self.pump();
        wait
    }

    fn fits(&self, state: &State, tokens: u64) -> bool {
        let place = self.cap.is_none_or(|cap| state.running < cap);
        // Whoever is alone has all the room there is, or nothing would ever run.
        place && (state.running == 0 || self.room.is_none_or(|room| state.used + tokens <= room))
    }

    fn seat(self: &Rc<Self>, state: &mut State, tokens: u64) -> Slot {
        state.running += 1;
        state.used += tokens;
        Slot { admission: Rc::clone(self), tokens }
    }

    fn pump(self: &Rc<Self>) {
        loop {
            let (go, slot) = {
                let mut state = self.state.borrow_mut();
                state.waiting.retain(|waiter| !waiter.go.is_closed());
                match state.waiting.front() {
                    Some(first) if self.fits(&state, first.tokens) => {}
                    _ => return,
                }
                let Some(first) = state.waiting.pop_front() else { return };
                let slot = self.seat(&mut state, first.tokens);
                (first.go, slot)
            };
            // One whose client has gone meanwhile gives its place back by being dropped.
            drop(go.send(slot));
        }
    }
}

impl Slot {
    /// Takes room for further tokens; false, and nothing taken, where there is none.
    pub(super) fn grow(&mut self, tokens: u64) -> bool {
        let mut state = self.admission.state.borrow_mut();
        let fits = state.running <= 1 || self.admission.room.is_none_or(|room| state.used + tokens <= room);
        if fits {
            state.used += tokens;
            self.tokens += tokens;
        }
        fits
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut state = self.admission.state.borrow_mut();
            state.running -= 1;
            state.used -= self.tokens;
        }
        self.admission.pump();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_holds_and_the_queue_is_in_order() {
        let admission = Admission::new(Some(2), None);
        let (one, two) = (admission.try_enter(1).unwrap(), admission.try_enter(1).unwrap());
        assert!(admission.try_enter(1).is_none());
        let (mut third, mut fourth) = (admission.enter(1, false), admission.enter(1, false));
        assert_eq!((admission.running(), admission.waiting()), (2, 2));
        drop(one);
        let three = third.try_recv().unwrap();
        assert!(fourth.try_recv().is_err());
        drop(three);
        assert!(fourth.try_recv().is_ok());
        drop(two);
        assert_eq!((admission.running(), admission.waiting(), admission.used()), (0, 0, 0));
    }

    #[test]
    fn room_runs_out_and_comes_back() {
        let admission = Admission::new(None, Some(10));
        let (mut one, two) = (admission.try_enter(5).unwrap(), admission.try_enter(4).unwrap());
        assert!(admission.try_enter(2).is_none());
        assert!(one.grow(1) && !one.grow(1));
        let gone = admission.enter(3, false);
        drop(gone);
        let mut last = admission.enter(3, false);
        drop(two);
        assert!(last.try_recv().is_ok(), "a client that went does not block the queue");
        drop(one);
        let mut alone = admission.try_enter(50).unwrap();
        assert!(alone.grow(50), "one that is alone always fits");
    }
}
