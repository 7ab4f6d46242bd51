//! Chooses the port, and keeps it for the launch.

use super::PreflightError;
use crate::launch::{self, WorkFolder};
use crate::profile::Port;

/// The port that the profile names, if it is free, else the first free one. Its lease is taken and stays reserved.
pub(super) fn choose(port: Port, work: &WorkFolder) -> Result<u16, PreflightError> {
    match port {
        Port::Auto => Ok(launch::choose_port(work)?),
        Port::Fixed(number) => {
            launch::reserve_port(work, number)?;
            Ok(number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::AUTO_PORTS;

    #[test]
    fn a_port_that_is_taken_is_refused_with_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("orch")).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let number = listener.local_addr().unwrap().port();
        let error = choose(Port::Fixed(number), &work).unwrap_err();
        assert_eq!(error.kind(), "port_in_use");
        let expected = format!("port {number} is taken by pid {} (", std::process::id());
        assert!(error.to_string().starts_with(&expected), "{error}");
        drop(listener);
        assert_eq!(choose(Port::Fixed(number), &work).unwrap(), number);
        // Another run finds it reserved, not free.
        let other = WorkFolder::at(work.root()).unwrap();
        let error = choose(Port::Fixed(number), &other).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("port:{number} is taken by a run that is being prepared")),
            "{error}"
        );
        assert!(AUTO_PORTS.contains(&choose(Port::Auto, &work).unwrap()));
    }
}
