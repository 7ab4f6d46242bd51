//! Another host, as a verb asks for it.

use super::screen::{Screen, Stream};
use super::{Exit, Failure, Global, out, version};
use crate::host::Hosts;
use crate::launch::WorkFolder;
use crate::profile::{self, Profile};
use crate::remote::{Door, Far, LineEvent, Named, Program, RemoteError};

/// The name of this machine.
const LOCAL: &str = crate::deploy::LOCAL;

/// The host that was asked for with `-H`, where it is another one.
pub(crate) fn asked(global: &Global) -> Option<&str> {
    global.on.as_deref().filter(|name| *name != LOCAL)
}

/// The host of a profile, where it is another one; `-H` wins.
pub(crate) fn of_profile<'a>(profile: &'a Profile, global: &'a Global) -> Option<&'a str> {
    let name = global.on.as_deref().or(profile.host.as_deref());
    name.filter(|name| *name != LOCAL)
}

/// orch on another host, and how it is reached.
#[derive(Debug)]
pub(crate) struct There {
    pub(crate) far: Far,
    pub(crate) door: Named,
}

impl There {
    /// On the host of that name.
    pub(crate) fn of(name: &str, global: &Global) -> Result<Self, Failure> {
        let hosts = Hosts::read(global.hosts.as_deref(), &profile::default_folders())
            .map_err(|error| Failure::new(Exit::Usage, error))?;
        let door = Named::new(name, hosts, global.ssh_config.clone());
        let settings = door.settings().map_err(failure)?;
        let called = format!("orch {}", version());
        let program = match &global.runner {
            Some(path) => Program::runner(path, &called),
            None => {
                let work = WorkFolder::find().ok();
                Program::own(&called, work.as_ref().map(WorkFolder::root))
            }
        };
        let columns = u16::try_from(Screen::new(Stream::Out).width()).ok();
        let far = Far::new(name, settings, program.map_err(failure)?).for_columns(columns);
        Ok(There { far, door })
    }

    /// A connection.
    pub(crate) async fn open(&self) -> Result<<Named as Door>::Host, Failure> {
        let host = self.door.open().await.map_err(failure)?;
        for warning in host.warnings() {
            out::note(format_args!("{warning}"));
        }
        Ok(host)
    }
}

/// Ends a verb for what is between here and the host.
pub(crate) fn failure(error: RemoteError) -> Failure {
    let exit = match &error {
        RemoteError::Host { .. } | RemoteError::NoSuchRun { .. } | RemoteError::OtherVersion { .. } => Exit::Usage,
        RemoteError::File { .. } => Exit::Own,
        _ => Exit::NotLaunched,
    };
    Failure::new(exit, error)
}

/// Tells what a person should know of the line, on standard error.
pub(crate) fn tell(event: LineEvent) {
    match event {
        LineEvent::Lost { why } => out::note(format_args!("{why}; the run goes on there, and the line is tried again")),
        LineEvent::Back(after) => out::note(format_args!("the line is back after {} s", after.as_secs())),
    }
}
