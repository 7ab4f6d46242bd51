//! Runtimes, for everything that waits.
//!
//! Tokio ends the process where there is no descriptor left for its own pipes. So it is asked for some first: an error that
//! is told is better.

use std::fs::File;
use std::io;

use tokio::runtime::{Builder, Runtime};

/// So many descriptors a runtime takes for itself, with some to spare.
const OWN: usize = 10;

/// A runtime on the thread that waits on it.
pub(crate) fn on_this_thread() -> io::Result<Runtime> {
    spare()?;
    Builder::new_current_thread().enable_all().build()
}

/// A runtime with so many threads of its own.
pub(crate) fn on_threads(count: usize) -> io::Result<Runtime> {
    spare()?;
    Builder::new_multi_thread().worker_threads(count).enable_all().build()
}

fn spare() -> io::Result<()> {
    let first = File::open("/dev/null")?;
    let all: io::Result<Vec<File>> = (1..OWN).map(|_| first.try_clone()).collect();
    all.map(drop)
}
