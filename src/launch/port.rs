//! Who listens on a port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::Path;

use super::{LaunchError, process};

/// A socket that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) address: IpAddr,
    inode: u64,
}

impl Listener {
    /// The processes that have the socket open; empty when we may not look into them.
    pub(crate) fn pids(&self) -> io::Result<Vec<u32>> {
        process::holders_of(Path::new(&format!("socket:[{}]", self.inode)))
    }
}

/// Who answers on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortOwner {
    /// Nobody listens.
    Nobody,
    /// The server that was asked about.
    Ours,
    /// A process that is not ours, as `pid 123 (name)`.
    Stranger(String),
    /// Somebody who cannot be looked at: another user's process, or one in another container.
    CannotTell,
}

/// Whether nobody is in the way of a server on this port, on any address.
pub(crate) fn is_free(port: u16) -> bool {
    match bind(port) {
        Ok(()) => true,
        // What may not be bound by this process may be by the server, so the listing has to do.
        Err(error) if is_denied(&error) => listeners(port).is_ok_and(|listeners| listeners.is_empty()),
        Err(_) => false,
    }
}

/// That a server could listen on the port now, on any address; else why not.
pub(crate) fn check_free(port: u16) -> Result<(), LaunchError> {
    bind(port).map_err(|error| refused(port, error))
}

fn bind(port: u16) -> io::Result<()> {
    for address in [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)] {
        match TcpListener::bind((address, port)) {
            Ok(_) => {}
            // No IPv6 here, say: then nothing can be in the way there.
            Err(error) if matches!(error.raw_os_error(), Some(nix::libc::EAFNOSUPPORT | nix::libc::EADDRNOTAVAIL)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// EACCES or EPERM: a port below 1024, say, for which this user lacks the privilege.
fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn refused(port: u16, error: io::Error) -> LaunchError {
    match error.kind() {
        _ if is_denied(&error) => LaunchError::PortDenied { port, why: error },
        io::ErrorKind::AddrInUse => LaunchError::PortTaken { port, holder: holder(port) },
        // Without descriptors or memory, say, nothing is known of the port.
        _ => LaunchError::io("listen on", format!("port {port}"))(error),
    }
}

/// Who has the port, in words.
pub(crate) fn holder(port: u16) -> String {
    let pids = listeners(port).unwrap_or_default().iter().filter_map(|listener| listener.pids().ok()).flatten().next();
    match pids {
        Some(pid) => name(pid),
        None => "a process that cannot be looked at".to_owned(),
    }
}

/// `pid 123 (name)`.
pub(crate) fn name(pid: u32) -> String {
    match process::stat(pid) {
        Some(stat) => format!("pid {pid} ({})", stat.name),
        None => format!("pid {pid}"),
    }
}

/// The processes that listen on a port, as far as they can be looked at.
pub(crate) fn listening(port: u16) -> io::Result<Vec<u32>> {
    let pids: Vec<Vec<u32>> = listeners(port)?.iter().map(Listener::pids).collect::<io::Result<_>>()?;
    Ok(pids.concat())
}

/// The sockets that listen on a port.
pub(crate) fn listeners(port: u16) -> io::Result<Vec<Listener>> {
    let mut found = parse(&std::fs::read_to_string("/proc/net/tcp")?, port);
    match std::fs::read_to_string("/proc/net/tcp6") {
        Ok(text) => found.extend(parse(&text, port)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

/// Lines of `/proc/net/tcp` and `tcp6`: addresses in hex, in the machine's byte order by 32-bit words; state `0A` listens.
fn parse(table: &str, port: u16) -> Vec<Listener> {
    table.lines().skip(1).filter_map(|line| listener(line, port)).collect()
}

fn listener(line: &str, wanted: u16) -> Option<Listener> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    if *fields.get(3)? != "0A" || u16::from_str_radix(port, 16).ok()? != wanted {
        return None;
    }
    let words: Vec<[u8; 4]> = (0..address.len() / 8)
        .map(|word| u32::from_str_radix(address.get(word * 8..word * 8 + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect::<Option<_>>()?;
    let address = match words.concat().as_slice() {
        [a, b, c, d] => IpAddr::from([*a, *b, *c, *d]),
        bytes => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    };
    Some(Listener { address, inode: fields.get(9)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0\n\
             1: 0100007F:7530 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 20 4 30 10 -1\n\
             2: 00000000000000000000000001000000:7530 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 4713 1\n";
        let found = parse(table, 30000);
        assert_eq!(
            found,
            [
                Listener { address: IpAddr::from(Ipv4Addr::LOCALHOST), inode: 4711 },
                Listener { address: IpAddr::from(Ipv6Addr::LOCALHOST), inode: 4713 }
            ]
        );
        assert_eq!(parse(table, 30001), []);
    }

    #[test]
    fn a_taken_port_is_not_free_and_its_holder_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(port));
        let pid = std::process::id();
        assert!(holder(port).starts_with(&format!("pid {pid} (")), "{}", holder(port));
        drop(listener);
        assert!(is_free(port));
    }

    #[test]
    fn a_port_that_one_may_not_have_is_not_said_to_be_taken() {
        for code in [nix::libc::EACCES, nix::libc::EPERM] {
            let error = refused(80, io::Error::from_raw_os_error(code)).to_string();
            assert!(error.starts_with("port 80 may not be used by this user: "), "{error}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = check_free(port).unwrap_err().to_string();
        assert!(error.starts_with(&format!("port {port} is taken by pid {} (", std::process::id())), "{error}");
        drop(listener);
        check_free(port).unwrap();
    }
}
