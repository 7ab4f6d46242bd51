//! The line to a host, opened anew when it is lost.

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{RemoteError, Shared};
use crate::host::{Host, Words};

/// Between the first two attempts; each further pause is twice as long,
const FIRST: Duration = if cfg!(test) { Duration::from_millis(1) } else { Duration::from_millis(500) };
/// up to this one. A closed laptop may stay closed for hours: nobody gives up.
const LONGEST: Duration = Duration::from_secs(30);

/// What opens connections to one host.
pub trait Door: Send + Sync {
    /// What a connection is.
    type Host: Host;

    /// A connection of its own.
    fn open(&self) -> impl Future<Output = Result<Self::Host, RemoteError>> + Send;
}

/// What a person should know of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineEvent {
    /// It was lost, and is opened anew until that succeeds.
    Lost {
        /// What was seen.
        why: String,
    },
    /// It is there again, after so long.
    Back(Duration),
}

/// A line to a host.
#[derive(Debug)]
pub struct Line<D: Door> {
    door: D,
    host: Shared<D::Host>,
}

impl<D: Door> Line<D> {
    /// Opens it.
    pub async fn open(door: D) -> Result<Self, RemoteError> {
        let host = Shared::new(door.open().await?);
        Ok(Line { door, host })
    }

    /// The connection as it is now.
    pub fn host(&self) -> Shared<D::Host> {
        self.host.clone()
    }

    /// Takes a connection of its own in place of the one there is, which ends when nobody holds it any more.
    pub async fn renew(&mut self) -> Result<(), RemoteError> {
        self.host = Shared::new(self.door.open().await?);
        Ok(())
    }

    /// Opens it anew, and sees that it carries: a connection may be made only when it is used.
    async fn reach(&mut self) -> Result<(), RemoteError> {
        self.renew().await?;
        self.host.run(&Words::new(["true"])?, Bytes::new()).await?;
        Ok(())
    }

    /// Opens it anew after it was lost, however long that takes. Only what no trying can mend is an error: a key that has
    /// changed, say. May be dropped at any time.
    pub async fn again(&mut self, why: &RemoteError, tell: &mut impl FnMut(LineEvent)) -> Result<(), RemoteError> {
        tell(LineEvent::Lost { why: why.to_string() });
        let began = Instant::now();
        let mut pause = FIRST;
        loop {
            tokio::time::sleep(pause).await;
            match self.reach().await {
                Ok(()) => {
                    tell(LineEvent::Back(began.elapsed()));
                    return Ok(());
                }
                Err(error) if error.may_pass() => pause = (pause * 2).min(LONGEST),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::host::{HostError, Local};

    /// Refuses so many times.
    struct Stuck(AtomicU32);

    impl Door for Stuck {
        type Host = Local;

        async fn open(&self) -> Result<Local, RemoteError> {
            let lost =
                || HostError::Unreachable { host: "far".to_owned(), why: "no route".to_owned(), help: String::new() };
            match self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
                Ok(_) => Err(lost().into()),
                Err(_) => Ok(Local),
            }
        }
    }

    #[tokio::test]
    async fn a_lost_line_is_opened_until_it_is_there() {
        let mut line = Line::open(Stuck(AtomicU32::new(0))).await.unwrap();
        line.door.0.store(6, Ordering::SeqCst);
        let lost: RemoteError = HostError::Lost { host: "far".to_owned(), why: "reset".to_owned() }.into();
        let mut told = Vec::new();
        line.again(&lost, &mut |event| told.push(event)).await.unwrap();
        assert_eq!(told[0], LineEvent::Lost { why: "lost the connection to far: reset".to_owned() });
        assert!(matches!(told[1], LineEvent::Back(_)) && told.len() == 2, "{told:?}");
    }
}
