//! A host of whichever kind.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::openssh::OpenSsh;
use super::ssh::Ssh;
use super::{Address, BoxedIo, ByteStream, Entered, Host, HostError, HostPath, Local, Mode, Output, Pipe, Words};

/// A host of whichever kind, with what is known of it.
#[derive(Clone, Debug)]
pub struct AnyHost {
    name: Arc<str>,
    way: Way,
}

/// How it is reached.
#[derive(Clone, Debug)]
pub(super) enum Way {
    Local(Local),
    Ssh(Ssh),
    OpenSsh(OpenSsh),
    InLocal(Entered<Local>),
    InSsh(Entered<Ssh>),
    InOpenSsh(Entered<OpenSsh>),
}

/// The same for each way.
macro_rules! each {
    ($way:expr, $host:ident => $do:expr) => {
        match $way {
            Way::Local($host) => $do,
            Way::Ssh($host) => $do,
            Way::OpenSsh($host) => $do,
            Way::InLocal($host) => $do,
            Way::InSsh($host) => $do,
            Way::InOpenSsh($host) => $do,
        }
    };
}

impl AnyHost {
    /// This machine.
    pub fn local() -> Self {
        AnyHost::new("local", Way::Local(Local))
    }

    pub(super) fn new(name: &str, way: Way) -> Self {
        AnyHost { name: name.into(), way }
    }

    /// The same, from inside: every command behind these words.
    #[must_use]
    pub fn entered(self, prefix: &Words) -> Self {
        let way = match self.way {
            Way::Local(host) => Way::InLocal(Entered::new(host, prefix)),
            Way::Ssh(host) => Way::InSsh(Entered::new(host, prefix)),
            Way::OpenSsh(host) => Way::InOpenSsh(Entered::new(host, prefix)),
            Way::InLocal(host) => Way::InLocal(host.further(prefix)),
            Way::InSsh(host) => Way::InSsh(host.further(prefix)),
            Way::InOpenSsh(host) => Way::InOpenSsh(host.further(prefix)),
        };
        AnyHost { name: self.name, way }
    }

    /// The name by which it was asked for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is this machine itself.
    pub fn is_local(&self) -> bool {
        matches!(self.way, Way::Local(_))
    }

    /// The host around an entered one; itself for any other.
    #[must_use]
    pub fn outermost(&self) -> Self {
        let way = match &self.way {
            Way::InLocal(host) => Way::Local(*host.outer()),
            Way::InSsh(host) => Way::Ssh(host.outer().clone()),
            Way::InOpenSsh(host) => Way::OpenSsh(host.outer().clone()),
            way => way.clone(),
        };
        AnyHost { name: self.name.clone(), way }
    }

    /// Connects, unless it is connected. Without it that happens with the first use.
    pub async fn reach(&self) -> Result<(), HostError> {
        match &self.way {
            Way::Ssh(host) => host.reach().await,
            Way::InSsh(host) => host.outer().reach().await,
            Way::OpenSsh(host) => host.reach().await,
            Way::InOpenSsh(host) => host.outer().reach().await,
            Way::Local(_) | Way::InLocal(_) => Ok(()),
        }
    }

    /// What of the person's configuration of `ssh` changes how a host is reached and is not followed, and what is to be
    /// known of it, once it was reached.
    pub fn warnings(&self) -> Vec<String> {
        match &self.way {
            Way::Ssh(host) => host.warnings(),
            Way::InSsh(host) => host.outer().warnings(),
            _ => Vec::new(),
        }
    }

    /// The `ssh` configuration file that was asked for, as a path that another `ssh` can be given.
    pub fn ssh_config(&self) -> Option<PathBuf> {
        match &self.way {
            Way::Ssh(host) => host.config_file(),
            Way::InSsh(host) => host.outer().config_file(),
            Way::OpenSsh(host) => host.config_file(),
            Way::InOpenSsh(host) => host.outer().config_file(),
            Way::Local(_) | Way::InLocal(_) => None,
        }
    }
}

impl Host for AnyHost {
    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        each!(&self.way, host => host.run(words, stdin).await)
    }

    async fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
        each!(&self.way, host => host.put(path, content, mode).await)
    }

    async fn read(&self, path: &HostPath, from: u64) -> Result<ByteStream, HostError> {
        each!(&self.way, host => host.read(path, from).await)
    }

    async fn connect(&self, to: &Address) -> Result<BoxedIo, HostError> {
        each!(&self.way, host => host.connect(to).await)
    }
}

impl Pipe for AnyHost {
    async fn pipe(&self, words: &Words) -> Result<BoxedIo, HostError> {
        each!(&self.way, host => host.pipe(words).await)
    }
}
