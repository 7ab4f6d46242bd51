//! Which of the lines that look like failures is the cause.

/// A line that looks like a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its kind in the log vocabulary.
    pub kind: String,
    /// What part it plays.
    pub nature: Nature,
    /// The line.
    pub line: String,
    /// Its number, from 1.
    pub line_no: u64,
    /// Which rank said it, if it says.
    pub rank: Option<u32>,
    /// The phase it fell into.
    pub phase: String,
    /// Whether its own words prove that phase, whatever the log says else.
    pub proves: bool,
    /// What to do about it.
    pub remedy: Option<String>,
    /// Whether trying again can help: `never`, `maybe`, `later`, `elsewhere`.
    pub retry: Option<String>,
}

/// What part a failure plays among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// It says what went wrong.
    Cause,
    /// The last line of a traceback that no rule knows.
    Unknown,
    /// It is often a consequence: it counts where nothing else is.
    Yields,
    /// The server goes on without what failed.
    Degrades,
    /// It only reports another one, and is the engine's own word that it failed.
    Wraps,
    /// It only reports another one, as many things may.
    Result,
}

/// So many failures are kept of those that may be causes: a server that repeats one for hours costs no more memory.
const MOST: usize = 50;
/// So many of those that only report others.
const MOST_WRAPS: usize = 10;
/// So many lines may stand between a failure and the one that says of which kind it is.
const NAMED_WITHIN: u64 = 12;

/// A failure of which a later line said what it is.
pub(super) struct Named {
    /// The failure, as it is known now.
    pub(super) failure: Failure,
    /// Before, it was known as another kind.
    pub(super) is_new: bool,
}

/// The failures so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Causes {
    all: Vec<Failure>,
    wraps: usize,
}

impl Causes {
    /// Adds one; says whether it is the first of its kind and part.
    pub(super) fn add(&mut self, failure: Failure) -> bool {
        let first = !self.all.iter().any(|known| known.kind == failure.kind && known.nature == failure.nature);
        let is_wrap = matches!(failure.nature, Nature::Wraps | Nature::Result);
        let room = if is_wrap { self.wraps < MOST_WRAPS } else { self.all.len() - self.wraps < MOST };
        if room {
            self.wraps += usize::from(is_wrap);
            self.all.push(failure);
        }
        first
    }

    /// A later line says of which kind the failure right before it is. Says whether there was one.
    pub(super) fn name(&mut self, by: &Failure) -> Option<Named> {
        let near = |known: &&mut Failure| {
            known.nature == Nature::Cause && by.line_no.saturating_sub(known.line_no) <= NAMED_WITHIN
        };
        let same = |kind: &str| kind.split('_').next().unwrap_or_default().to_owned();
        let known = self.all.iter_mut().rev().find(near)?;
        if same(&known.kind) != same(&by.kind) {
            return None;
        }
        let (kind, line_no) = (known.kind.clone(), known.line_no);
        let mut failure = known.clone();
        // Those right before it are of the same kind, such as one for each device.
        for known in self
            .all
            .iter_mut()
            .filter(|known| known.kind == kind && known.line_no <= line_no && line_no - known.line_no <= NAMED_WITHIN)
        {
            known.kind.clone_from(&by.kind);
            known.remedy.clone_from(&by.remedy);
            known.retry.clone_from(&by.retry);
        }
        failure.kind.clone_from(&by.kind);
        failure.remedy.clone_from(&by.remedy);
        failure.retry.clone_from(&by.retry);
        Some(Named { is_new: kind != by.kind, failure })
    }

    /// The one that looks like the cause.
    pub(super) fn root(&self) -> Option<&Failure> {
        let first = |nature: Nature| self.all.iter().find(|failure| failure.nature == nature);
        first(Nature::Cause)
            .or_else(|| self.all.iter().find(|failure| matches!(failure.nature, Nature::Unknown | Nature::Yields)))
            .or_else(|| first(Nature::Degrades))
    }

    /// All of them, in their order.
    pub(super) fn all(&self) -> &[Failure] {
        &self.all
    }

    /// They were survived; hands out those of which nothing remains.
    pub(super) fn survived(&mut self) -> Vec<Failure> {
        self.wraps = 0;
        let all = std::mem::take(&mut self.all);
        let (remain, gone) = all.into_iter().partition(|failure| failure.nature == Nature::Degrades);
        self.all = remain;
        gone
    }

    /// What a rank said went wrong and no rule knows, it lived through: it goes on.
    pub(super) fn goes_on(&mut self, rank: Option<u32>) {
        self.all.retain(|failure| failure.nature != Nature::Unknown || failure.rank != rank);
    }

    /// What failed in the last lines is tried in another way.
    pub(super) fn recovered(&mut self, line_no: u64) {
        self.all.retain(|failure| {
            !matches!(failure.nature, Nature::Cause | Nature::Unknown)
                || line_no.saturating_sub(failure.line_no) > NAMED_WITHIN
        });
    }
}
