//! Which algorithms are offered to a host.

use std::borrow::Cow;

use russh::Preferred;
use russh::keys::ssh_key::{Algorithm, EcdsaCurve, HashAlg};
use russh::{cipher, kex};

use super::config::Settings;
use super::known::{Known, Names};

/// The fastest first: everything that is put or read goes through it.
const CIPHERS: [cipher::Name; 6] = [
    cipher::AES_256_GCM,
    cipher::AES_128_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_256_CTR,
    cipher::AES_192_CTR,
    cipher::AES_128_CTR,
];

/// Key exchanges that are behind those that `russh` offers by itself.
const MORE_KEX: [kex::Name; 3] = [kex::ECDH_SHA2_NISTP256, kex::ECDH_SHA2_NISTP384, kex::ECDH_SHA2_NISTP521];

/// Keys of hosts, each with the name under which it is offered. RSA with SHA-1 is not among them.
const KEYS: [(Algorithm, &str); 6] = [
    (Algorithm::Ed25519, "ssh-ed25519"),
    (Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 }, "ecdsa-sha2-nistp256"),
    (Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 }, "ecdsa-sha2-nistp384"),
    (Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 }, "ecdsa-sha2-nistp521"),
    (Algorithm::Rsa { hash: Some(HashAlg::Sha512) }, "rsa-sha2-512"),
    (Algorithm::Rsa { hash: Some(HashAlg::Sha256) }, "rsa-sha2-256"),
];

/// What may be used by the configuration and can be used here, the host's keys that are known first.
pub(super) fn preferred(to: &Settings, known: &Known, names: &Names) -> Preferred {
    let allowed = &to.algorithms;
    let of = |list: &[String], name: &str| list.is_empty() || list.iter().any(|allowed| allowed == name);
    let known_algorithms = known.algorithms(names);
    let is_known = |name: &str| {
        known_algorithms.iter().any(|known| known == name || known == "ssh-rsa" && name.starts_with("rsa-"))
    };
    let mut keys = KEYS.to_vec();
    keys.retain(|(_, name)| of(&allowed.host_keys, name));
    // A key that is known and not asked for would look like a changed one.
    keys.sort_by_key(|(_, name)| !is_known(name));
    let keys: Vec<Algorithm> = keys.into_iter().map(|(algorithm, _)| algorithm).collect();
    let kex = Preferred::DEFAULT.kex.iter().copied().chain(MORE_KEX);
    let kex = kex.filter(|name| is_extension(name) || of(&allowed.kex, name.as_ref()));
    let ciphers = CIPHERS.into_iter().filter(|name| of(&allowed.ciphers, name.as_ref()));
    let macs = Preferred::DEFAULT.mac.iter().copied().filter(|name| of(&allowed.macs, name.as_ref()));
    Preferred {
        kex: kex.collect(),
        // A server shows its certificate only to who asks for one.
        host_key_certificates: if known.has_authority(names) { keys.clone().into() } else { Cow::Borrowed(&[]) },
        key: keys.into(),
        cipher: ciphers.collect(),
        mac: macs.collect(),
        compression: Preferred::DEFAULT.compression,
    }
}

/// Whether a name in the list of key exchanges is none, but says what this side can do.
fn is_extension(name: &kex::Name) -> bool {
    let name: &str = name.as_ref();
    name.starts_with("ext-info-") || name.starts_with("kex-strict-")
}
