//! Taking the pieces of a log: what each one tells, and whether it is a sign of life.

use super::{Said, Starting, told};
use crate::clock::Nanos;
use crate::event::Sign;
use crate::gate::log::{Change, Nature, Observation, Passed, Piece, RawPiece};

/// The fact that says how much device memory is left.
const FREE_MEMORY: &str = "avail_mem_gb";
/// What is counted while graphs are captured.
const GRAPHS: &str = "graphs";

/// Where a bar is: its phase, how much is done, of how much.
type Place = (String, f64, Option<f64>);

impl Starting<'_> {
    /// Takes the next piece of its log, which was there at `now`.
    pub fn take(&mut self, piece: &Piece, now: Nanos) -> Said {
        if self.waits(piece, now) {
            return if self.passing.is_full() { self.catch_up(now) } else { Vec::new() };
        }
        let mut said = self.catch_up(now);
        said.extend(self.read(piece, now, true));
        said
    }

    /// Whether a piece may wait, since the server serves and says such things all the time; it is kept then.
    fn waits(&mut self, piece: &Piece, now: Nanos) -> bool {
        if !self.startup.is_serving() {
            return false;
        }
        let raw = RawPiece { line_no: piece.line_no, bytes: piece.text.as_bytes(), cut: piece.cut };
        let Some(passed) = self.passing.keep(self.grammar, &self.startup, &raw) else { return false };
        self.passing_since.get_or_insert(now);
        if passed == Passed::Line {
            self.line_seen(now);
        }
        true
    }

    /// Reads what waits. To be called before what the log told is asked for.
    pub fn catch_up(&mut self, now: Nanos) -> Said {
        self.passing_since = None;
        let waited: Vec<Piece> = self.passing.drain().iter().filter_map(|line| line.piece().decode()).collect();
        // They were signs of life when they came.
        waited.iter().flat_map(|piece| self.read(piece, now, false)).collect()
    }

    fn line_seen(&mut self, now: Nanos) {
        self.life.sign(Sign::Line, now);
        self.fresh.insert(Sign::Line, "its log".to_owned());
    }

    fn read(&mut self, piece: &Piece, now: Nanos, may_be_sign: bool) -> Said {
        let changes = self.startup.take(self.grammar, piece, now);
        let (sign, graphs) = if may_be_sign { self.sign_of(piece, now) } else { (None, None) };
        if let Some(sign) = sign {
            let words = if sign == Sign::Line { "its log" } else { "a progress bar" };
            self.life.sign(sign, now);
            self.fresh.insert(sign, words.to_owned());
        }
        for change in &changes {
            match change {
                Change::Failure(failure) if failure.nature == Nature::Wraps => {
                    self.confirmed_at = self.confirmed_at.or(Some(now));
                    self.consequence.get_or_insert_with(|| (failure.line_no, failure.line.clone()));
                }
                // It goes on, whatever it said.
                Change::Began { .. } => self.confirmed_at = None,
                Change::Progress { phase, done, unit, .. } => {
                    self.confirmed_at = None;
                    self.places.insert((phase.clone(), unit.clone()), (now, *done));
                }
                _ => {}
            }
        }
        told(self.with_place(changes, graphs))
    }

    /// Puts the place of a bar of graphs before the memory that it shows, where it was not told for coming too soon after
    /// the last: which graph that memory is of must be known.
    fn with_place(&mut self, mut changes: Vec<Change>, graphs: Option<Place>) -> Vec<Change> {
        let is_memory = |change: &Change| matches!(change, Change::Fact { key, .. } if key == FREE_MEMORY);
        let told = changes.iter().find_map(|change| match change {
            Change::Progress { unit, done, .. } if unit == GRAPHS => Some(*done),
            _ => None,
        });
        self.graphs_told = told.or(self.graphs_told);
        if let (Some(at), Some((phase, done, total))) = (changes.iter().position(is_memory), graphs)
            && self.graphs_told != Some(done)
        {
            self.graphs_told = Some(done);
            changes.insert(at, Change::Progress { phase, done, total, unit: GRAPHS.to_owned() });
        }
        changes
    }

    /// Whether a piece is a sign of life: a line that is no heartbeat, or a bar that moved. A bar that is drawn again where
    /// it was is the work of its clock. Also gives where a bar of graphs is.
    fn sign_of(&mut self, piece: &Piece, now: Nanos) -> (Option<Sign>, Option<Place>) {
        if self.startup.last_at() != now {
            return (None, None);
        }
        if !self.grammar.may_be_bar(piece) {
            return (Some(Sign::Line), None);
        }
        let mut graphs = None;
        let seen = self.grammar.read(piece);
        // `Some(None)`: there is a bar, and it did not move.
        let mut bar: Option<Option<Sign>> = None;
        let mut is_more = false;
        for what in seen.into_iter().map(|seen| seen.what) {
            match what {
                Observation::Bar { phase, done, total, unit, .. } => {
                    let sign = if unit == GRAPHS { Sign::Graph } else { Sign::Bar };
                    if unit == GRAPHS {
                        graphs = Some((phase.clone(), done, total));
                    }
                    let moved = self.bars.insert((phase, unit), (done, total)) != Some((done, total));
                    bar = Some(bar.flatten().or(moved.then_some(sign)));
                }
                Observation::Begin { .. } | Observation::End { .. } | Observation::Failure { .. } => is_more = true,
                Observation::Traceback | Observation::Error => is_more = true,
                Observation::Heartbeat
                | Observation::Fact { .. }
                | Observation::Recovers
                | Observation::Suspect { .. }
                | Observation::Chain => {}
            }
        }
        let sign = match bar {
            Some(Some(sign)) => Some(sign),
            Some(None) if !is_more => None,
            _ => Some(Sign::Line),
        };
        (sign, graphs)
    }

    /// What stands at the end of the log and may go on: only the place of a bar is read from it.
    pub fn stands(&mut self, end: &Piece) {
        if !self.grammar.may_be_bar(end) {
            return;
        }
        for seen in self.grammar.read(end) {
            if let Observation::Bar { phase, done, total, unit, .. } = seen.what {
                self.bars.insert((phase, unit), (done, total));
            }
        }
    }
}
