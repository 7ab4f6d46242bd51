//! Looking at a server from outside while it starts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::life::{self, Look};
use crate::launch::Watched;

/// Between two looks from outside.
const LOOK: Duration = Duration::from_secs(1);
/// Devices and caches are looked at every so manieth time.
const SELDOM: u64 = 5;

/// Looks at the server from outside, again and again.
pub(super) struct Lookout<'a> {
    server: &'a dyn Watched,
    log: &'a Path,
    caches: Vec<PathBuf>,
}

impl<'a> Lookout<'a> {
    pub(super) fn new(server: &'a dyn Watched, log: &'a Path) -> Self {
        let caches = life::look::caches(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        Lookout { server, log, caches }
    }

    /// Hands each look on, for as long as it is polled. Devices and caches cost more and are looked at less often.
    pub(super) async fn look(self, saw: mpsc::Sender<Look>) {
        let devices = self.server.devices();
        for number in 0_u64.. {
            let seldom = number % SELDOM == 0;
            let at = life::look::Where {
                processes: self.server.processes(),
                devices: if seldom { devices.clone() } else { Vec::new() },
                caches: if seldom { self.caches.clone() } else { Vec::new() },
                log: self.log.to_owned(),
            };
            // Off the threads that serve the rest: it reads many files, and may run a program that hangs.
            if let Ok(look) = tokio::task::spawn_blocking(move || life::look::look(&at)).await
                && saw.send(look).await.is_err()
            {
                return;
            }
            sleep(LOOK).await;
        }
    }
}
