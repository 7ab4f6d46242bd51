//! The ledger: what was really sent, and when. Lines are written by a thread of their own, off the path of the answers.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use serde::Serialize;

use crate::clock::Nanos;

/// One request, as a line of the ledger. All times are `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Entry {
    /// The request's own id (the header `x-request-id`, or `request_id` or `rid` in its body), else its number.
    pub id: String,
    /// When its last byte had been read.
    pub arrived_ns: Nanos,
    /// Each write that held generated tokens: the moment before the bytes were handed to the socket, and how many
    /// tokens. On one machine the write itself delivers, so a reader is never before this moment.
    pub chunks: Vec<(Nanos, u32)>,
    /// When nothing more of it was to be sent.
    pub end_ns: Nanos,
    /// The status of the answer; 0 where it had none.
    pub status: u16,
    /// Its number, from 1, in order of arrival.
    pub n: u64,
    /// The path that was asked.
    pub path: String,
    /// When it began to run, if it did.
    pub started_ns: Option<Nanos>,
    /// Tokens of its prompt,
    pub prompt_tokens: u64,
    /// those of them that counted as cached,
    pub cached_tokens: u64,
    /// tokens that were generated, whether sent or not,
    pub output_tokens: u64,
    /// and those of them that were reasoning.
    pub reasoning_tokens: u64,
    /// Verify steps,
    pub verify_steps: u64,
    /// tokens drafted,
    pub drafted_tokens: u64,
    /// and those of them that became part of the answer.
    pub accepted_tokens: u64,
    /// How often it was retracted.
    pub retracted: u64,
    /// Why it stopped, in the engine's word.
    pub finish_reason: Option<String>,
    /// What the scenario made go wrong.
    pub fault: Option<String>,
    /// Whether its client went away, or the server ended, before it was complete.
    pub aborted: bool,
}

/// Takes entries, or nothing at all when nobody wants a ledger.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    lines: Option<(Sender<Message>, JoinHandle<()>)>,
}

enum Message {
    Entry(Box<Entry>),
    Sync(Sender<()>),
}

impl Ledger {
    /// Begins a ledger in a file; what stood there before is gone.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("ledger".to_owned()).spawn(move || write(file, &receiver))?;
        Ok(Ledger { lines: Some((sender, thread)) })
    }

    /// Adds a line.
    pub(super) fn add(&self, entry: Entry) {
        if let Some((sender, _)) = &self.lines {
            // The thread ends only when this end is gone.
            let _ = sender.send(Message::Entry(Box::new(entry)));
        }
    }

    /// Returns when everything so far is in the file.
    pub(super) fn sync(&self) {
        if let Some((sender, _)) = &self.lines {
            let (done, wait) = channel();
            if sender.send(Message::Sync(done)).is_ok() {
                let _ = wait.recv();
            }
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.lines.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// A ledger that cannot be written is missed by whoever reads it; the server has no better place to say so.
fn write(mut file: BufWriter<File>, lines: &Receiver<Message>) {
    loop {
        let message = match lines.try_recv() {
            Ok(message) => message,
            Err(_) => {
                // Nothing more at the moment: what there is may be read.
                let _ = file.flush();
                match lines.recv() {
                    Ok(message) => message,
                    Err(_) => return,
                }
            }
        };
        match message {
            Message::Entry(entry) => {
                let _ = serde_json::to_writer(&mut file, &entry).map_err(io::Error::from);
                let _ = file.write_all(b"\n");
            }
            Message::Sync(done) => {
                let _ = file.flush();
                let _ = done.send(());
            }
        }
    }
}
