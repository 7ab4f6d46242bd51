use std::path::PathBuf;

use super::line::{HostKey, Line, Marker};
use super::{KeyFault, Known, Names, Place};

/// A key of the right shape, which nobody has.
fn key(algorithm: &str, byte: u8) -> HostKey {
    let mut blob = (algorithm.len() as u32).to_be_bytes().to_vec();
    blob.extend_from_slice(algorithm.as_bytes());
    blob.extend_from_slice(&[0, 0, 0, 32]);
    blob.extend_from_slice(&[byte; 32]);
    HostKey::of(blob).unwrap()
}

/// Files with these texts, in order.
fn known(texts: &[String]) -> (tempfile::TempDir, Known) {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = (0..texts.len()).map(|i| folder.path().join(format!("known{i}"))).collect();
    for (file, text) in files.iter().zip(texts) {
        std::fs::write(file, text).unwrap();
    }
    let files = [files, vec![folder.path().join("missing")]].concat();
    let known = Known::read(&files).unwrap();
    (folder, known)
}

#[test]
fn a_key_is_known_by_name_and_port() {
    let ed = key("ssh-ed25519", 1);
    let text = format!("# mine\n\n[gpu-3]:2200 {}\ngpu-4 {}\n", ed.written(), ed.written());
    let (_folder, known) = known(&[text]);
    assert_eq!(known.check(&Names::new("gpu-3", 2200, None), &ed), Ok(()));
    assert_eq!(known.check(&Names::new("GPU-4", 22, None), &ed), Ok(()));
    // As `ssh` does: the key is known for the host without a port.
    assert_eq!(known.check(&Names::new("gpu-4", 2200, None), &ed), Ok(()));
    assert!(matches!(known.check(&Names::new("gpu-3", 22, None), &ed), Err(KeyFault::Unknown { .. })));
    assert_eq!(known.check(&Names::new("10.0.0.1", 99, Some("gpu-4")), &ed), Ok(()), "an alias has no port");
}

#[test]
fn an_unknown_key_comes_with_its_fingerprint_and_line() {
    let ed = key("ssh-ed25519", 1);
    let (folder, known) = known(&[String::new()]);
    let fault = known.check(&Names::new("gpu-3", 2200, None), &ed).unwrap_err().accepted_by("ssh gpu-3 true".into());
    assert_eq!(fault.to_string(), format!("it is not known yet (ssh-ed25519 {})", ed.fingerprint()));
    let file = folder.path().join("known0");
    let line = format!("[gpu-3]:2200 {}", ed.written());
    assert_eq!(
        fault.help(),
        format!(
            "ask whoever runs the host for its fingerprint; if it is this one, `ssh gpu-3 true` asks and remembers it, or: \
             printf '%s\\n' '{line}' >> {}",
            file.display()
        )
    );
    // The very line makes it known.
    std::fs::write(&file, line + "\n").unwrap();
    assert_eq!(Known::read(&[file]).unwrap().check(&Names::new("gpu-3", 2200, None), &ed), Ok(()));
}

#[test]
fn another_key_is_a_changed_one_with_its_place_also_of_another_algorithm() {
    let (ed, rsa) = (key("ssh-ed25519", 1), key("ssh-rsa", 2));
    let (folder, known) = known(&[format!("other {}\n", ed.written()), format!("# x\ngpu-3 {}\n", rsa.written())]);
    let names = Names::new("gpu-3", 22, None);
    let place = Place { file: folder.path().join("known1"), line: 2 };
    for shown in [&ed, &key("ssh-rsa", 3)] {
        let fault = known.check(&names, shown).unwrap_err();
        assert!(matches!(&fault, KeyFault::Changed { place: at, known, .. } if *at == place && *known == rsa.shown()));
        assert!(fault.to_string().starts_with("IT HAS CHANGED: "), "{fault}");
    }
    assert_eq!(known.algorithms(&names), ["ssh-rsa"]);
    assert_eq!(known.algorithms(&Names::new("gpu-3", 2200, None)), ["ssh-rsa"]);
    // A line without a port does not forbid another key on another port.
    assert!(matches!(known.check(&Names::new("gpu-3", 2200, None), &ed), Err(KeyFault::Unknown { .. })));
}

#[test]
fn a_revoked_key_is_refused_even_if_it_is_known() {
    let ed = key("ssh-ed25519", 1);
    let (folder, known) = known(&[format!("gpu-3 {0}\n@revoked\t*  {0}\n", ed.written())]);
    let place = Place { file: folder.path().join("known0"), line: 2 };
    let fault = known.check(&Names::new("gpu-3", 22, None), &ed).unwrap_err();
    assert_eq!(fault, KeyFault::Revoked { shown: ed.shown(), place });
}

#[test]
fn patterns_and_authorities_are_heeded() {
    let (ed, ca) = (key("ssh-ed25519", 1), key("ssh-ed25519", 9));
    let text = format!("gpu-*,!gpu-9 {}\n@cert-authority *.lab {}\n", ed.written(), ca.written());
    let (_folder, known) = known(&[text]);
    assert_eq!(known.check(&Names::new("gpu-3", 22, None), &ed), Ok(()));
    assert!(known.check(&Names::new("gpu-9", 22, None), &ed).is_err());
    let lab = Names::new("a.lab", 2200, None);
    assert!(known.has_authority(&lab) && known.authority(&lab, &ca) && !known.authority(&lab, &ed));
    // An authority's key is not a host's.
    assert!(matches!(known.check(&Names::new("a.lab", 22, None), &ca), Err(KeyFault::Unknown { .. })));
}

#[test]
fn a_file_that_cannot_be_read_is_no_empty_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Known::read(&[folder.path().to_owned()]).unwrap_err();
    assert_eq!(path, folder.path());
    assert_eq!(Line::read("x").map(|line| line.marker), None::<Marker>);
}

/// What `ssh-keygen` hashes, this finds.
#[test]
fn names_that_ssh_keygen_has_hashed_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("known");
    let ed = key("ssh-ed25519", 1);
    std::fs::write(&file, format!("[gpu-3]:2200 {}\n", ed.written())).unwrap();
    let hashed = std::process::Command::new("ssh-keygen").args(["-q", "-H", "-f"]).arg(&file).output();
    if !hashed.is_ok_and(|output| output.status.success()) {
        return;
    }
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("|1|"));
    assert_eq!(Known::read(&[file]).unwrap().check(&Names::new("gpu-3", 2200, None), &ed), Ok(()));
}
