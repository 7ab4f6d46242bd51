//! One line of a file of known hosts.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::pattern;

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) marker: Marker,
    names: Names,
    pub(super) key: HostKey,
}

/// What a line is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// The key is that of the hosts.
    None,
    /// The key must never be trusted for them.
    Revoked,
    /// The key signs the keys of the hosts.
    Authority,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    Patterns(Vec<String>),
    /// The salt, and the code of a name with it.
    Hashed(Vec<u8>, Vec<u8>),
}

/// A public key as it stands in a file and goes over the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostKey {
    pub(crate) algorithm: String,
    pub(crate) blob: Vec<u8>,
}

impl HostKey {
    /// From what goes over the line, which begins with the name of its algorithm.
    pub(crate) fn of(blob: Vec<u8>) -> Option<Self> {
        let length = u32::from_be_bytes(blob.get(..4)?.try_into().ok()?) as usize;
        let algorithm = std::str::from_utf8(blob.get(4..4_usize.checked_add(length)?)?).ok()?.to_owned();
        Some(HostKey { algorithm, blob })
    }

    /// The fingerprint as `ssh` shows it.
    pub(crate) fn fingerprint(&self) -> String {
        use sha2::Digest;
        let sum = sha2::Sha256::digest(&self.blob);
        format!("SHA256:{}", base64::engine::general_purpose::STANDARD_NO_PAD.encode(sum))
    }

    /// The algorithm and the fingerprint.
    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.algorithm, self.fingerprint())
    }

    /// The algorithm and the key as they stand in a file.
    pub(crate) fn written(&self) -> String {
        format!("{} {}", self.algorithm, STANDARD.encode(&self.blob))
    }
}

impl Line {
    /// Reads a line; `None` for a comment, and for one that makes no sense, which then is nobody's key.
    pub(super) fn read(line: &str) -> Option<Self> {
        let mut fields = line.split([' ', '\t']).filter(|field| !field.is_empty());
        let mut names = fields.next().filter(|field| !field.starts_with('#'))?;
        let marker = match names {
            "@revoked" => Marker::Revoked,
            "@cert-authority" => Marker::Authority,
            _ if names.starts_with('@') => return None,
            _ => Marker::None,
        };
        if marker != Marker::None {
            names = fields.next()?;
        }
        let algorithm = fields.next()?;
        let key = HostKey::of(STANDARD.decode(fields.next()?).ok()?)?;
        if key.algorithm != algorithm {
            return None;
        }
        let names = match names.strip_prefix("|1|") {
            Some(hashed) => {
                let (salt, code) = hashed.split_once('|')?;
                Names::Hashed(STANDARD.decode(salt).ok()?, STANDARD.decode(code).ok()?)
            }
            None => Names::Patterns(names.split(',').map(str::to_owned).collect()),
        };
        Some(Line { marker, names, key })
    }

    /// Whether it speaks of this name: a host's, or `[host]:port`, in lower case.
    pub(super) fn names(&self, name: &str) -> bool {
        match &self.names {
            Names::Patterns(patterns) => pattern::list(patterns, name),
            Names::Hashed(salt, code) => {
                let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
                hmac::verify(&key, name.as_bytes(), code).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key of the right shape, which nobody has.
    pub(in crate::host::ssh::known) fn blob(algorithm: &str, byte: u8) -> Vec<u8> {
        let mut blob = (algorithm.len() as u32).to_be_bytes().to_vec();
        blob.extend_from_slice(algorithm.as_bytes());
        blob.extend_from_slice(&[0, 0, 0, 32]);
        blob.extend_from_slice(&[byte; 32]);
        blob
    }

    #[test]
    fn lines_are_read_with_any_blanks_and_markers() {
        let key = HostKey::of(blob("ssh-ed25519", 1)).unwrap();
        let written = key.written();
        let line = Line::read(&format!("  gpu-3,10.0.0.3\t{} comment here", written.replace(' ', "\t"))).unwrap();
        assert!(line.names("gpu-3") && line.names("10.0.0.3") && !line.names("gpu-4") && line.key == key);
        assert_eq!(Line::read(&format!("@revoked * {written}")).unwrap().marker, Marker::Revoked);
        assert_eq!(Line::read(&format!("@cert-authority *.x {written}")).unwrap().marker, Marker::Authority);
        for nonsense in
            ["", "# x", "a", "a ssh-ed25519", "a ssh-ed25519 %%%", "a 1024 35 1234", &format!("@other a {written}")]
        {
            assert_eq!(Line::read(nonsense), None, "{nonsense}");
        }
        let other = written.replace("ssh-ed25519", "ssh-rsa");
        assert_eq!(Line::read(&format!("a {other}")), None, "the name must be that of the key");
    }

    #[test]
    fn hashed_names_are_those_of_ssh_keygen() {
        // Made by `ssh-keygen -H` for the name `[gpu-3.example]:2200`.
        let key = HostKey::of(blob("ssh-ed25519", 1)).unwrap().written();
        let salt = STANDARD.encode([7_u8; 20]);
        let code = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &[7; 20]), b"[gpu-3.example]:2200");
        let line = Line::read(&format!("|1|{salt}|{} {key}", STANDARD.encode(code))).unwrap();
        assert!(line.names("[gpu-3.example]:2200") && !line.names("gpu-3.example"));
    }

    #[test]
    fn a_fingerprint_is_that_of_ssh_keygen() {
        let key = Line::read("h ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl")
            .unwrap()
            .key;
        assert_eq!(key.fingerprint(), "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU");
    }
}
