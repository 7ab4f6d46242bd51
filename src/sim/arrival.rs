//! When bytes of a client were there to be read.
//!
//! A server that reads a thousand requests one after the other reads the last of them late. The kernel notes when it
//! had them, and that is when they arrived: a client that is held against the ledger is then held against its own
//! sending, and not against how busy the simulated engine was.

use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::pace::now;
use crate::clock::Nanos;

const BLOCK: usize = 16 << 10;

/// Has the kernel note when bytes come. Where it cannot, the moment at which they are read has to do.
pub(super) fn ask_for(stream: &TcpStream) {
    let _ = setsockopt(stream, sockopt::ReceiveTimestampns, &true);
}

/// Appends what is there, waiting for it; how many bytes that were, and when the last of them was there.
pub(super) async fn read(stream: &TcpStream, into: &mut Vec<u8>) -> io::Result<(usize, Nanos)> {
    loop {
        stream.readable().await?;
        match stream.try_io(Interest::READABLE, || receive(stream, into)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

fn receive(stream: &TcpStream, into: &mut Vec<u8>) -> io::Result<(usize, Nanos)> {
    let mut block = [0; BLOCK];
    let mut space = nix::cmsg_space!(TimeSpec);
    let mut parts = [IoSliceMut::new(&mut block)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let (count, here) = (message.bytes, now());
    let noted = message.cmsgs()?.find_map(|one| match one {
        ControlMessageOwned::ScmTimestampns(at) => Some(at),
        _ => None,
    });
    let arrived = noted.and_then(age).map_or(here, |age| here.saturating_sub(age));
    into.extend_from_slice(&block[..count]);
    Ok((count, arrived))
}

/// How long ago a moment of the wall clock was, unless it says that it is still to come: the clock was set.
fn age(at: TimeSpec) -> Option<Nanos> {
    let nanos = |time: TimeSpec| i128::from(time.tv_sec()) * 1_000_000_000 + i128::from(time.tv_nsec());
    let wall = clock_gettime(ClockId::CLOCK_REALTIME).ok()?;
    u64::try_from(nanos(wall) - nanos(at)).ok().filter(|age| *age < MOST_AGE)
}

/// What looks older than this is the work of a clock that was set.
const MOST_AGE: Nanos = 10_000_000_000;
