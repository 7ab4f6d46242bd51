//! Which cores a server on this machine uses, so that the load beside it takes others.

use std::collections::BTreeSet;

use crate::launch;
use crate::load::Target;
use crate::load::cores::Cores;
use crate::load::url::Endpoint;

/// The cores for a load on `target`. None where the server leaves no choice, is elsewhere, or cannot be looked at.
pub(super) async fn apart_from(target: &Target) -> Cores {
    let own = Cores::own();
    // Told before anybody is looked for: most machines of one server are small.
    let Some(ports) = Some(ports(target)).filter(|ports| own.are_many() && !ports.is_empty()) else {
        return Cores::default();
    };
    let found = tokio::task::spawn_blocking(move || own.apart_from(&of_servers(&ports).unwrap_or_default(), &nodes()));
    found.await.unwrap_or_default()
}

/// The ports of servers on this machine; empty where one of them is elsewhere.
fn ports(target: &Target) -> Vec<u16> {
    let all = std::iter::once(&target.base_url).chain(&target.more);
    let local = all.map(|url| Endpoint::parse(url).ok().filter(|at| at.is_local() && at.unix.is_none()));
    local.map(|at| Some(at?.port)).collect::<Option<_>>().unwrap_or_default()
}

/// What the processes that listen on these ports may use, and all that descend from them. `None` where one of them cannot
/// be found.
fn of_servers(ports: &[u16]) -> Option<Cores> {
    let all = launch::processes().ok()?;
    let mut family = BTreeSet::new();
    for port in ports {
        let listeners: Vec<u32> = launch::listening(*port).ok()?;
        if listeners.is_empty() {
            return None;
        }
        family.extend(listeners);
    }
    loop {
        let children = all.iter().filter(|(pid, seen)| family.contains(&seen.parent) && !family.contains(*pid));
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        if children.is_empty() {
            break;
        }
        family.extend(children);
    }
    let mut cores = Cores::default();
    for pid in family {
        // One that has ended meanwhile uses none.
        let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        cores.extend(Cores::parse(list)?);
    }
    Some(cores)
}

/// The cores of each node of memory.
fn nodes() -> Vec<Cores> {
    let Ok(entries) = std::fs::read_dir("/sys/devices/system/node") else { return Vec::new() };
    let nodes = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_str().and_then(|name| name.strip_prefix("node")).is_some_and(|number| number.parse::<u32>().is_ok())
    });
    nodes.filter_map(|node| Cores::parse(&std::fs::read_to_string(node.path().join("cpulist")).ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_this_machine_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(of_servers(&[port]), Some(Cores::own()));
        drop(listener);
        assert_eq!(of_servers(&[port]), None);
    }

    #[test]
    fn only_servers_on_this_machine_have_ports_here() {
        let of = |urls: &[&str]| {
            let mut urls = urls.iter().map(|url| (*url).to_owned());
            ports(&Target { base_url: urls.next().unwrap(), more: urls.collect(), ..Target::default() })
        };
        assert_eq!(of(&["http://127.0.0.1:8000/v1"]), [8000]);
        assert_eq!(of(&["http://127.0.0.1:8000", "http://[::1]:8001"]), [8000, 8001]);
        for urls in [&["http://gpu-3:8000"][..], &["http://127.0.0.1:8000", "http://gpu-3:8000"], &["unix:/run/a"]] {
            assert_eq!(of(urls), [0_u16; 0]);
        }
    }
}
