//! Logging in with keys: those of the agent, those in files, and certificates for either.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::client::{AuthResult, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::ssh_key::{Certificate, HashAlg};
use russh::keys::{PrivateKey, PrivateKeyWithHashAlg, PublicKey};
use tokio::net::UnixStream;

use super::checker::Checker;
use super::config::Settings;
use crate::host::HostError;

/// The passphrase of keys that are encrypted, for where there is no agent.
const PASSPHRASE: &str = "ORCH_SSH_PASSPHRASE";

/// Logs in, or says all that was tried.
pub(super) async fn log_in(handle: &mut Handle<Checker>, to: &Settings) -> Result<(), HostError> {
    let mut login = Login { handle, to, tried: Vec::new() };
    if login.go().await {
        return Ok(());
    }
    let tried = match login.tried.is_empty() {
        true => "there is no key to try".to_owned(),
        false => login.tried.join("; "),
    };
    let help = if tried.contains(PASSPHRASE) {
        format!("`ssh-add FILE` gives the key to an agent, or {PASSPHRASE} has its passphrase")
    } else {
        format!(
            "`ssh {} true` must work without a question: orch logs in with keys, agents and certificates only",
            to.name
        )
    };
    Err(HostError::Refused { host: to.name.clone(), user: to.user.clone(), tried, help })
}

struct Login<'a> {
    handle: &'a mut Handle<Checker>,
    to: &'a Settings,
    tried: Vec<String>,
}

/// A key file, as far as it can be read without its passphrase.
struct KeyFile {
    path: PathBuf,
    public: Option<PublicKey>,
}

impl Login<'_> {
    async fn go(&mut self) -> bool {
        let files: Vec<KeyFile> = self
            .to
            .identity_files
            .iter()
            .filter(|path| path.exists() || beside(path, ".pub").exists())
            .map(|path| KeyFile { public: public_of(path), path: path.clone() })
            .collect();
        let certificates = self.certificates(&files);
        let mut asked = Vec::new();
        if self.agent(&files, &certificates, &mut asked).await {
            return true;
        }
        for file in files {
            // One that the agent has was tried with it.
            if file.public.as_ref().is_some_and(|public| asked.contains(public.key_data())) || !file.path.exists() {
                continue;
            }
            if self.handle.is_closed() {
                break;
            }
            if self.file(&file, &certificates).await {
                return true;
            }
        }
        false
    }

    /// The certificates that are named, and those beside the keys.
    fn certificates(&mut self, files: &[KeyFile]) -> Vec<Certificate> {
        let beside = files.iter().map(|file| beside(&file.path, "-cert.pub")).filter(|path| path.exists());
        let mut all = Vec::new();
        for path in self.to.certificate_files.clone().into_iter().chain(beside) {
            match std::fs::read_to_string(&path)
                .map_err(|error| error.to_string())
                .and_then(|text| Certificate::from_openssh(text.trim()).map_err(|error| error.to_string()))
            {
                Ok(certificate) => all.push(certificate),
                Err(why) => self.tried.push(format!("the certificate {}: {why}", path.display())),
            }
        }
        all
    }

    async fn agent(
        &mut self,
        files: &[KeyFile],
        certificates: &[Certificate],
        asked: &mut Vec<russh::keys::ssh_key::public::KeyData>,
    ) -> bool {
        let Some(socket) = &self.to.agent else { return false };
        let mut agent = match AgentClient::connect_uds(socket).await {
            Ok(agent) => agent,
            Err(error) => {
                self.tried.push(format!("the agent at {}: {error}", socket.display()));
                return false;
            }
        };
        let identities = match agent.request_identities().await {
            Ok(identities) => identities,
            Err(error) => {
                self.tried.push(format!("the agent at {}: {error}", socket.display()));
                return false;
            }
        };
        let mut keys: Vec<PublicKey> = identities.iter().map(|identity| identity.public_key().into_owned()).collect();
        let named = |key: &PublicKey| {
            files.iter().position(|file| file.public.as_ref().is_some_and(|public| public.key_data() == key.key_data()))
        };
        if self.to.identities_only {
            keys.retain(|key| named(key).is_some());
        }
        // Those that are named come first, in the order in which they are.
        keys.sort_by_key(|key| named(key).unwrap_or(usize::MAX));
        let mut certificates = certificates.to_vec();
        certificates.extend(identities.into_iter().filter_map(|identity| match identity {
            AgentIdentity::Certificate { certificate, .. } => Some(certificate),
            AgentIdentity::PublicKey { .. } => None,
        }));
        for key in keys {
            if asked.contains(key.key_data()) || self.handle.is_closed() {
                continue;
            }
            asked.push(key.key_data().clone());
            let name = format!("{} {} of the agent", key.algorithm(), key.fingerprint(HashAlg::Sha256));
            if self.agent_key(&mut agent, &key, &certificates, &name).await {
                return true;
            }
        }
        false
    }

    async fn agent_key(
        &mut self,
        agent: &mut AgentClient<UnixStream>,
        key: &PublicKey,
        certificates: &[Certificate],
        name: &str,
    ) -> bool {
        let user = self.to.user.clone();
        let hash = self.hash(key).await;
        for certificate in certificates.iter().filter(|certificate| certificate.public_key() == key.key_data()) {
            let result =
                self.handle.authenticate_certificate_with(user.clone(), certificate.clone(), hash, agent).await;
            if self.tell(result.map_err(|error| error.to_string()), &format!("the certificate of {name}")) {
                return true;
            }
        }
        let result = self.handle.authenticate_publickey_with(user, key.clone(), hash, agent).await;
        self.tell(result.map_err(|error| error.to_string()), name)
    }

    async fn file(&mut self, file: &KeyFile, certificates: &[Certificate]) -> bool {
        let name = file.path.display().to_string();
        let path = file.path.clone();
        // What derives a key from a passphrase takes a tenth of a second of a processor.
        let loaded = tokio::task::spawn_blocking(move || load(&path)).await;
        let key = match loaded {
            Ok(Ok(key)) => Arc::new(key),
            Ok(Err(why)) => {
                self.tried.push(format!("{name}: {why}"));
                return false;
            }
            Err(error) => {
                self.tried.push(format!("{name}: {error}"));
                return false;
            }
        };
        let user = self.to.user.clone();
        for certificate in
            certificates.iter().filter(|certificate| certificate.public_key() == key.public_key().key_data())
        {
            let result = self.handle.authenticate_openssh_cert(user.clone(), key.clone(), certificate.clone()).await;
            if self.tell(result.map_err(|error| error.to_string()), &format!("the certificate of {name}")) {
                return true;
            }
        }
        let hash = self.hash(key.public_key()).await;
        let result = self.handle.authenticate_publickey(user, PrivateKeyWithHashAlg::new(key, hash)).await;
        self.tell(result.map_err(|error| error.to_string()), &name)
    }

    /// The hash for a key of RSA, which would be SHA-1 otherwise and is refused almost everywhere.
    async fn hash(&mut self, key: &PublicKey) -> Option<HashAlg> {
        if !key.algorithm().is_rsa() {
            return None;
        }
        match self.handle.best_supported_rsa_hash().await {
            Ok(Some(hash)) => hash,
            // A server that does not say takes it.
            _ => Some(HashAlg::Sha512),
        }
    }

    /// Whether that was it; if not, it is written down.
    fn tell(&mut self, result: Result<AuthResult, String>, what: &str) -> bool {
        match result {
            Ok(AuthResult::Success) => return true,
            Ok(AuthResult::Failure { partial_success: true, remaining_methods }) => self.tried.push(format!(
                "{what} is accepted, but the host asks for more ({remaining_methods:?}): `transport: openssh` may do that"
            )),
            _ if self.handle.is_closed() => {
                self.tried.push(format!("{what}: the host ended the connection, perhaps after too many keys (`IdentitiesOnly yes` tries fewer)"));
            }
            Ok(AuthResult::Failure { .. }) => self.tried.push(format!("{what} is not accepted")),
            Err(why) => self.tried.push(format!("{what}: {why}")),
        }
        false
    }
}

/// The path with something behind its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The public part of a key file, which needs no passphrase.
fn public_of(path: &Path) -> Option<PublicKey> {
    let public =
        std::fs::read_to_string(beside(path, ".pub")).ok().and_then(|text| PublicKey::from_openssh(text.trim()).ok());
    let whole = || std::fs::read_to_string(path).ok().and_then(|text| PrivateKey::from_openssh(text).ok());
    public.or_else(|| whole().map(|key| key.public_key().clone()))
}

/// Reads a private key.
fn load(path: &Path) -> Result<PrivateKey, String> {
    match russh::keys::load_secret_key(path, None) {
        Err(russh::keys::Error::KeyIsEncrypted) => match std::env::var(PASSPHRASE) {
            Ok(passphrase) => russh::keys::load_secret_key(path, Some(&passphrase))
                .map_err(|_| format!("it is encrypted, and {PASSPHRASE} does not open it")),
            Err(_) => Err(format!("it is encrypted, no agent holds it, and there is no {PASSPHRASE}")),
        },
        result => result.map_err(|error| error.to_string()),
    }
}
