//! The nodes that a server is spread over. Each carries one process; the first is the head, which answers requests.

use super::{Facts, Node};
use crate::profile::Profile;

/// One node's place among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// The host's name; `local` for this machine.
    pub(super) name: String,
    /// Its number, from 0.
    pub(super) rank: usize,
    /// How many there are.
    pub(super) of: usize,
    /// The head's address, as the others reach it.
    pub(super) head: String,
    /// Where they find each other.
    pub(super) meeting_port: u16,
}

/// The port at which nodes meet lies so far above the server's own.
const MEETING_OFFSET: u16 = 1000;

/// The seats, first the head's. Who has not looked at the nodes knows them by their names.
pub(super) fn seats(profile: &Profile, facts: &Facts) -> Vec<Seat> {
    let named = || profile.hosts.iter().map(|host| Node { name: host.clone(), address: host.clone() }).collect();
    let nodes: Vec<Node> = if facts.nodes.is_empty() { named() } else { facts.nodes.clone() };
    let several = profile.parallel.nodes.is_some_and(|nodes| nodes > 1);
    let port = facts.port;
    let meeting_port = port.checked_add(MEETING_OFFSET).unwrap_or(port - MEETING_OFFSET);
    let (Some(head), true) = (nodes.first(), several) else {
        return vec![Seat { name: "local".to_owned(), rank: 0, of: 1, head: "127.0.0.1".to_owned(), meeting_port }];
    };
    let of = nodes.len();
    let seat = |(rank, node): (usize, &Node)| Seat {
        name: node.name.clone(),
        rank,
        of,
        head: head.address.clone(),
        meeting_port,
    };
    nodes.iter().enumerate().map(seat).collect()
}
