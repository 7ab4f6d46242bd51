//! Whether the key that a host shows is the one that is known, asked while the connection is made.

use russh::client::{DisconnectReason, Handler};
use russh::keys::PublicKeyOrCertificate;
use russh::keys::ssh_key::Certificate;
use russh::keys::ssh_key::certificate::CertType;

use super::connection::Ending;
use super::known::{HostKey, KeyFault, Known, Names, pattern};

/// Checks the key of one host.
pub(super) struct Checker {
    pub(super) known: Known,
    pub(super) names: Names,
    /// The names that a certificate may be for.
    pub(super) principals: Vec<String>,
    pub(super) ending: Ending,
}

/// Why a connection was not made, or ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    #[error(transparent)]
    Russh(#[from] russh::Error),
    #[error(transparent)]
    Key(#[from] KeyFault),
}

impl Handler for Checker {
    type Error = CheckError;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, CheckError> {
        match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => {
                let key = host_key(key.to_bytes())?;
                self.known.check(&self.names, &key)?;
            }
            PublicKeyOrCertificate::Certificate(certificate) => self.certificate(certificate)?,
        }
        Ok(true)
    }

    async fn disconnected(&mut self, reason: DisconnectReason<CheckError>) -> Result<(), CheckError> {
        let (said, result) = match reason {
            DisconnectReason::ReceivedDisconnect(info) => (format!("the host said `{}`", info.message), Ok(())),
            DisconnectReason::Error(error) => (error.to_string(), Err(error)),
        };
        if let Ok(mut ending) = self.ending.lock() {
            ending.get_or_insert(said);
        }
        result
    }
}

impl Checker {
    fn certificate(&self, certificate: &Certificate) -> Result<(), CheckError> {
        let wrong = |why: String| CheckError::Key(KeyFault::Certificate { why });
        let authority = host_key(russh::keys::PublicKey::new(certificate.signature_key().clone(), "").to_bytes())?;
        let key = host_key(russh::keys::PublicKey::new(certificate.public_key().clone(), "").to_bytes())?;
        self.known.revoked(&self.names, &authority)?;
        self.known.revoked(&self.names, &key)?;
        if !self.known.authority(&self.names, &authority) {
            // A key that is known by itself needs no authority.
            return Ok(self.known.check(&self.names, &key)?);
        }
        if certificate.cert_type() != CertType::Host {
            return Err(wrong("it is one for users".to_owned()));
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        if now < certificate.valid_after() || now >= certificate.valid_before() {
            return Err(wrong("it is not valid at this time".to_owned()));
        }
        // One without names would be for every host, which is more than anybody means to sign.
        let named = |name: &String| certificate.valid_principals().iter().any(|valid| pattern::fits(valid, name));
        if !self.principals.iter().any(named) {
            let names = match certificate.valid_principals() {
                [] => "no host by name".to_owned(),
                names => names.join(", "),
            };
            return Err(wrong(format!("it is for {names}, and not for {}", self.principals.join(" or "))));
        }
        if !certificate.critical_options().is_empty() {
            return Err(wrong("it has critical options, which nobody understands".to_owned()));
        }
        certificate.verify_signature().map_err(|_| wrong("its signature is not that of the authority".to_owned()))
    }
}

/// A key as it goes over the line.
fn host_key(blob: Result<Vec<u8>, russh::keys::ssh_key::Error>) -> Result<HostKey, CheckError> {
    let unreadable = || CheckError::Key(KeyFault::Certificate { why: "its key makes no sense".to_owned() });
    HostKey::of(blob.map_err(|_| unreadable())?).ok_or_else(unreadable)
}
