//! From a name to a host.

use std::path::Path;

use super::any::Way;
use super::hosts::{Hosts, LOCAL, Transport};
use super::openssh::OpenSsh;
use super::ssh::Ssh;
use super::ssh::config::Target;
use super::{AnyHost, HostError, Local};

/// The host of a name: an entry of `hosts.yaml`, else an alias of the `ssh` configuration or `user@address:port`; `local`
/// is this machine. Nothing is connected before it is used.
///
/// `ssh_config` stands for `~/.ssh/config`.
pub fn open(name: &str, hosts: &Hosts, ssh_config: Option<&Path>) -> Result<AnyHost, HostError> {
    let entry = hosts.entry(name);
    let (ssh, transport) = match entry {
        Some(entry) => (entry.place(name), entry.transport),
        None => (name, Transport::default()),
    };
    let wrong = |why: String| HostError::Config {
        host: name.to_owned(),
        why,
        help: "a host is a name of hosts.yaml, an alias of ~/.ssh/config, or `user@address:port`".to_owned(),
    };
    let way = match ssh {
        LOCAL => Way::Local(Local),
        ssh => {
            let target = Target::read(ssh).map_err(wrong)?;
            // A path from here, wherever `ssh` may be started.
            let config = ssh_config.map(std::path::absolute).transpose().map_err(|error| wrong(error.to_string()))?;
            match transport {
                Transport::Russh => Way::Ssh(Ssh::new(target, config)),
                Transport::OpenSsh => Way::OpenSsh(OpenSsh::new(target, config)?),
            }
        }
    };
    let host = AnyHost::new(name, way);
    Ok(match entry.and_then(|entry| entry.enter.as_ref()) {
        Some(enter) => host.entered(&enter.0),
        None => host,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::host::{Host, Words};

    fn hosts(text: &str) -> Hosts {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts.yaml");
        std::fs::write(&path, text).unwrap();
        Hosts::read(Some(&path), &[]).unwrap()
    }

    #[tokio::test]
    async fn this_machine_and_a_place_in_it_are_open_at_once() {
        let hosts = hosts("c: {enter: env INSIDE=yes}\nlocal: {gpus: 0}");
        assert!(open("local", &hosts, None).unwrap().is_local());
        let inside = open("c", &hosts, None).unwrap();
        let words = Words::new(["sh", "-c", "printf %s $INSIDE"]).unwrap();
        assert_eq!(&inside.run(&words, Bytes::new()).await.unwrap().stdout[..], b"yes");
        assert!(!inside.is_local() && inside.outermost().is_local() && inside.name() == "c");
    }

    #[test]
    fn what_is_no_host_is_said() {
        let error = open("-oProxyCommand=x", &Hosts::default(), None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot tell how to reach -oProxyCommand=x: `-oProxyCommand=x` is no name of a host"
        );
        // Nothing is asked of anybody before it is used.
        open("no-such-host-anywhere", &Hosts::default(), None).unwrap();
    }
}
