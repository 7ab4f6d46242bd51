//! Watching a run on another host: its journal is read from there by offset and shown as that of a run here, whatever
//! becomes of the line in between.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::screen::Screen;
use super::shown::Shown;
use super::wishes::{Wish, Wishes};
use super::{Failure, far, out};
use crate::host::Follow;
use crate::record::journal::{self, Line as JournalLine};
use crate::record::{JournalError, RunId};
use crate::remote::beside::Look;
use crate::remote::{Door, Far, Line, LineEvent, RemoteError};

/// Between two readings of the journal.
const READ: Duration = Duration::from_millis(400);
/// Without a new line for so long, somebody looks whether the run still goes on.
const QUIET: Duration = Duration::from_secs(4);

/// A read that takes longer is one over a line that is lost: a transport may try again by itself for a while.
const SLOW: Duration = Duration::from_secs(3);

/// What is watched.
#[derive(Clone, Debug)]
pub(crate) enum Watched {
    /// A job.
    Job(String),
    /// A run, whoever began it.
    Run(String),
}

impl Watched {
    fn words(&self) -> [&str; 3] {
        match self {
            Watched::Job(id) => ["look", "--job", id],
            Watched::Run(id) => ["look", "--run", id],
        }
    }
}

/// How watching ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The run has ended, and this is how.
    Over(Look),
    /// Somebody left it; it goes on.
    Left,
    /// It was told to end, and nobody waits for that.
    Dropped,
}

/// Somebody who watches.
pub(crate) struct Viewer<'a, D: Door> {
    line: Line<D>,
    far: &'a Far,
    watched: Watched,
    screen: &'a Screen,
    wishes: Wishes,
    /// Whether a question is open.
    asked: bool,
    /// Whether the run was told to end.
    told: bool,
    /// Since when the line is known to be lost.
    lost: Option<Instant>,
}

impl<'a, D: Door> Viewer<'a, D> {
    /// Of a job or a run over a line.
    pub(crate) fn new(line: Line<D>, far: &'a Far, watched: Watched, screen: &'a Screen, wishes: Wishes) -> Self {
        Viewer { line, far, watched, screen, wishes, asked: false, told: false, lost: None }
    }

    /// The line, for whoever has more to do on it.
    pub(crate) fn into_line(self) -> Line<D> {
        self.line
    }

    /// Watches until the run has ended, or somebody leaves it. `begun` is told of the run as soon as it is known.
    pub(crate) async fn watch(&mut self, shown: &mut Shown, begun: &mut dyn FnMut(&RunId)) -> Result<End, Failure> {
        let look = match self.begun().await? {
            Ok(look) => look,
            Err(end) => return Ok(end),
        };
        let Some(run) = look.run.clone() else { return Ok(End::Over(look)) };
        if let Ok(id) = run.id.parse() {
            begun(&id);
        }
        match self.follow(run.folder.join("journal.jsonl"), shown).await? {
            Some(end) => Ok(end),
            None => self.over().await,
        }
    }

    /// Waits until the run has a journal, or has ended without one.
    async fn begun(&mut self) -> Result<Result<Look, End>, Failure> {
        loop {
            let look = match self.look().await? {
                Ok(look) => look,
                Err(end) => return Ok(Err(end)),
            };
            if look.run.is_some() || !look.running {
                return Ok(Ok(look));
            }
            if let Some(end) = self.pause(READ).await? {
                return Ok(Err(end));
            }
        }
    }

    /// Waits until the run's process has ended too: the journal's last line is not the last thing it does.
    async fn over(&mut self) -> Result<End, Failure> {
        loop {
            let look = match self.look().await? {
                Ok(look) => look,
                Err(end) => return Ok(end),
            };
            if !look.running {
                return Ok(End::Over(look));
            }
            if let Some(end) = self.pause(READ).await? {
                return Ok(end);
            }
        }
    }

    /// Shows the journal to its end: `None` when the run has ended, else what ended the watching.
    async fn follow(&mut self, path: PathBuf, shown: &mut Shown) -> Result<Option<End>, Failure> {
        let mut follow = Follow::new(self.line.host(), path.clone(), 0);
        let mut rest: Vec<u8> = Vec::new();
        let (mut heard, mut last) = (Instant::now(), false);
        loop {
            let slow = Instant::now() + SLOW;
            let read = {
                let more = follow.more(|block| rest.extend_from_slice(block));
                tokio::pin!(more);
                loop {
                    tokio::select! {
                        biased;
                        wish = self.wishes.next() => {
                            if let Some(end) = self.heed(wish).await? {
                                return Ok(Some(end));
                            }
                        }
                        read = &mut more => break read.map_err(RemoteError::from),
                        () = tokio::time::sleep_until(slow), if self.lost.is_none() => {
                            self.tell_lost(&format!("{} does not answer", self.far.name()));
                        }
                    }
                }
            };
            match read {
                Ok(count) => {
                    self.tell_back();
                    if count > 0 {
                        heard = Instant::now();
                        self.show(&mut rest, shown)?;
                    }
                }
                Err(error) if error.is_lost() => {
                    if let Some(end) = self.mend(&error).await? {
                        return Ok(Some(end));
                    }
                    follow = Follow::new(self.line.host(), path.clone(), follow.offset());
                    continue;
                }
                Err(error) => return Err(far::failure(error)),
            }
            if last || shown.ended() {
                return Ok(None);
            }
            if heard.elapsed() >= QUIET {
                heard = Instant::now();
                // What it wrote last is read yet.
                match self.look().await? {
                    Ok(look) => last = !look.running,
                    Err(end) => return Ok(Some(end)),
                }
            }
            self.screen.live(shown.live());
            if let Some(end) = self.drawing(READ, shown).await? {
                return Ok(Some(end));
            }
        }
    }

    /// Shows the whole lines of what was read, and leaves the rest.
    fn show(&self, rest: &mut Vec<u8>, shown: &mut Shown) -> Result<(), Failure> {
        let Some(whole) = rest.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1) else { return Ok(()) };
        let lines: Vec<u8> = rest.drain(..whole).collect();
        for text in lines.split_inclusive(|byte| *byte == b'\n') {
            let due = shown.next();
            let damaged = |reason: String| JournalError::Line {
                path: PathBuf::from(format!("{}:journal.jsonl", self.far.name())),
                line: due as usize + 1,
                reason,
            };
            match journal::read_line(text, due).map_err(|reason| Failure::new(super::Exit::Own, damaged(reason)))? {
                JournalLine::Entry(entry) => shown.see(&entry, self.screen),
                JournalLine::Unknown { seq, .. } => shown.pass(seq),
            }
        }
        Ok(())
    }

    /// Waits so long, and draws what goes on.
    async fn drawing(&mut self, time: Duration, shown: &Shown) -> Result<Option<End>, Failure> {
        let until = Instant::now() + time;
        let mut tick = interval(super::screen::LIVE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wish = tokio::select! {
                biased;
                wish = self.wishes.next() => wish,
                _ = tokio::time::sleep_until(until) => return Ok(None),
                _ = tick.tick(), if self.screen.is_live() && !self.asked => {
                    self.screen.live(shown.live());
                    continue;
                }
            };
            if let Some(end) = self.heed(wish).await? {
                return Ok(Some(end));
            }
        }
    }

    async fn pause(&mut self, time: Duration) -> Result<Option<End>, Failure> {
        let wish = tokio::select! {
            biased;
            wish = self.wishes.next() => wish,
            () = tokio::time::sleep(time) => return Ok(None),
        };
        self.heed(wish).await
    }

    /// How the run is doing; `Err` is what ended the watching while the line was lost.
    async fn look(&mut self) -> Result<Result<Look, End>, Failure> {
        loop {
            let words = self.watched.words();
            match self.far.ask(&self.line.host(), "look at a run", &words, Bytes::new()).await {
                Ok(look) => return Ok(Ok(look)),
                Err(error) if error.is_lost() => {
                    if let Some(end) = self.mend(&error).await? {
                        return Ok(Err(end));
                    }
                }
                Err(error) => return Err(far::failure(error)),
            }
        }
    }

    /// Opens a lost line anew, unless somebody leaves in between.
    async fn mend(&mut self, why: &RemoteError) -> Result<Option<End>, Failure> {
        self.tell_lost(&why.to_string());
        // It is told here.
        let mut tell = |_: LineEvent| {};
        tokio::select! {
            mended = self.line.again(why, &mut tell) => mended.map_err(far::failure)?,
            // Nothing can be passed on without a line.
            _ = self.wishes.next() => return Ok(Some(End::Left)),
        }
        self.tell_back();
        Ok(None)
    }

    /// Says once that the line is lost.
    fn tell_lost(&mut self, why: &str) {
        if self.lost.is_none() {
            self.lost = Some(Instant::now());
            self.screen.live(None);
            self.screen.line(&format!("  !  line       {why}; the run goes on, trying again"));
        }
    }

    /// Says that it is back, where it was said to be lost.
    fn tell_back(&mut self) {
        if let Some(since) = self.lost.take() {
            self.screen.line(&format!(" ok  line       back after {} s", since.elapsed().as_secs().max(1)));
        }
    }

    /// Does what somebody wants; what ends the watching is returned.
    async fn heed(&mut self, wish: Wish) -> Result<Option<End>, Failure> {
        match wish {
            Wish::Leave => Ok(Some(End::Left)),
            Wish::Interrupt if self.asked => Ok(Some(End::Left)),
            Wish::Interrupt if self.wishes.can_ask() && !self.told => {
                self.asked = true;
                self.screen.live(None);
                out::note("stop the run, or leave it?  s = stop, d = leave (it goes on), Enter = go on watching");
                Ok(None)
            }
            Wish::Interrupt | Wish::Terminate if self.told => Ok(Some(End::Dropped)),
            Wish::Interrupt => self.end(false).await,
            Wish::Terminate => self.end(true).await,
            Wish::Line(text) if self.asked => {
                self.asked = false;
                match text.as_str() {
                    "s" | "stop" => self.end(false).await,
                    "d" | "l" | "leave" | "detach" => Ok(Some(End::Left)),
                    _ => Ok(None),
                }
            }
            Wish::Line(_) => Ok(None),
        }
    }

    /// Tells the run to end, in order: it stops its server, and its record is kept.
    async fn end(&mut self, terminate: bool) -> Result<Option<End>, Failure> {
        let look = match self.look().await? {
            Ok(look) => look,
            Err(end) => return Ok(Some(end)),
        };
        let Some(job) = look.job else {
            out::note(format_args!("it was begun on {} itself, and is ended there", self.far.name()));
            return Ok(Some(End::Left));
        };
        let mut words = vec!["signal", "--job", job.as_str()];
        words.extend(terminate.then_some("--terminate"));
        loop {
            match self.far.ask::<_, bool>(&self.line.host(), "pass a signal on", &words, Bytes::new()).await {
                Ok(_) => break,
                Err(error) if error.is_lost() => {
                    if let Some(end) = self.mend(&error).await? {
                        return Ok(Some(end));
                    }
                }
                Err(error) => return Err(far::failure(error)),
            }
        }
        self.told = true;
        out::note(format_args!("the run on {} is told to end; once more, and nobody waits for that", self.far.name()));
        Ok(None)
    }
}
