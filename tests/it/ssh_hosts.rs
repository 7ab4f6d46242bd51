//! Every kind of host holds the same list of facts, and gets in as people's own `ssh` does.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use bytes::Bytes;
use orch::host::{AnyHost, End, Host, HostError, Hosts, open};

use crate::host_suite::{Kind, holds, run, words};
use crate::sshd::{Agent, Lab};
use crate::support::skipped;

const EXACT: Kind = Kind { tells_signals: true };
const OF_A_SHELL: Kind = Kind { tells_signals: false };

/// A host of this `hosts.yaml` and configuration of `ssh`.
pub(crate) fn host(name: &str, hosts: &str, config: Option<&Path>) -> AnyHost {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), hosts).unwrap();
    open(name, &Hosts::read(Some(file.path()), &[]).unwrap(), config).unwrap()
}

/// A host behind orch's own SSH.
pub(crate) fn ssh(name: &str, config: &Path) -> AnyHost {
    host(name, "{}", Some(config))
}

#[tokio::test]
async fn this_machine_holds_the_suite() {
    holds(&host("local", "{}", None), EXACT).await;
}

#[tokio::test]
async fn a_place_in_this_machine_holds_the_suite() {
    let hosts = r#"{inner: {ssh: local, enter: [env, -u, NOTHING, sh, -c, 'exec "$@"', sh]}}"#;
    holds(&host("inner", hosts, None), EXACT).await;
}

#[tokio::test]
async fn a_host_behind_ssh_holds_the_suite() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    holds(&ssh("box", &config), EXACT).await;
}

#[tokio::test]
async fn a_host_that_talks_before_it_obeys_holds_the_suite() {
    let Some(lab) = Lab::new() else { return };
    let banner = lab.write("banner", "Authorised use only.\nAll is recorded.\n");
    let noisy = lab.write(
        "noisy",
        "#!/bin/sh\nset -x\necho 'Welcome to the machine.'\nprintf 'no newline'\necho 'quota: 3 %' >&2\neval \"$SSH_ORIGINAL_COMMAND\"\n",
    );
    let (banner, forced) = (format!("Banner {}", banner.display()), format!("ForceCommand sh {}", noisy.display()));
    let server = lab.serve("a", &[&banner, &forced]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    holds(&ssh("box", &config), EXACT).await;
}

#[tokio::test]
async fn a_host_behind_two_others_holds_the_suite() {
    let Some(lab) = Lab::new() else { return };
    let servers = [lab.serve("a", &[]), lab.serve("b", &[]), lab.serve("c", &[])];
    lab.knows(&[&servers[0], &servers[1], &servers[2]]);
    let config = lab.config(&[
        ("gate", servers[0].port, ""),
        ("middle", servers[1].port, ""),
        ("far", servers[2].port, "  ProxyJump gate,middle"),
    ]);
    holds(&ssh("far", &config), EXACT).await;
}

#[tokio::test]
async fn a_place_in_a_host_behind_ssh_holds_the_suite() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    holds(&host("inner", "inner: {ssh: box, enter: env INSIDE=yes}", Some(&config)), EXACT).await;
}

#[tokio::test]
async fn a_host_behind_the_systems_ssh_holds_the_suite() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let by_openssh = host("big", "big: {ssh: box, transport: openssh}", Some(&config));
    holds(&by_openssh, OF_A_SHELL).await;
    // Its master goes with it.
    drop(by_openssh);
    let hosts = "big: {ssh: box, transport: openssh, enter: env INSIDE=yes}";
    let inside = host("big", hosts, Some(&config));
    assert_eq!(&run(&inside, &["sh", "-c", "printf %s $INSIDE"]).await.stdout[..], b"yes");
}

/// Runs `whoami` and returns what it said.
async fn gets_in(host: &AnyHost) -> Result<(), HostError> {
    let output = host.run(&words(&["echo", "in"]), Bytes::new()).await?;
    assert_eq!((output.end, &output.stdout[..]), (End::Code(0), &b"in\n"[..]));
    Ok(())
}

#[tokio::test]
async fn keys_of_every_kind_get_in() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let key = |name: &str| format!("  IdentityFile {}\n", lab.path(name).display());
    let with_agent = |agent: &Agent, rest: &str| format!("  IdentityAgent {}\n{rest}", agent.socket.display());
    let agent = Agent::with(&lab, &["client_wrong", "client_encrypted"]);
    let port = server.port;
    let signed = key("client_signed");
    let config = lab.config(&[
        ("rsa", port, &key("client_rsa")),
        ("signed", port, &signed),
        ("held", port, &with_agent(&agent, "  IdentitiesOnly no\n")),
        ("held-and-named", port, &with_agent(&agent, &key("client_encrypted"))),
        ("several", port, &(key("client_wrong") + &key("missing") + &key("client_ed25519"))),
    ]);
    // Without the key that all entries share.
    let text = std::fs::read_to_string(&config).unwrap();
    let shared = format!("  IdentityFile {}\n  IdentitiesOnly", lab.path("client_ed25519").display());
    lab.write("config", &text.replace(&shared, "  IdentitiesOnly"));
    for name in ["rsa", "signed", "held", "held-and-named", "several"] {
        let result = gets_in(&ssh(name, &config)).await;
        assert!(result.is_ok(), "{name}: {}", result.unwrap_err());
    }
}

#[tokio::test]
async fn a_proxy_command_leads_there() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let relay = lab.write(
        "relay.py",
        "import os, socket, sys, threading\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n\
         def up():\n    while True:\n        b = os.read(0, 65536)\n        if not b: break\n        s.sendall(b)\n    \
         s.shutdown(socket.SHUT_WR)\n\
         threading.Thread(target=up, daemon=True).start()\nwhile True:\n    b = s.recv(65536)\n    if not b: break\n    os.write(1, b)\n",
    );
    let more = format!("  ProxyCommand python3 {} %h %p\n  HostKeyAlias [127.0.0.1]:{}", relay.display(), server.port);
    let config = lab.config(&[("box", server.port, &more)]);
    gets_in(&ssh("box", &config)).await.unwrap();
}

#[tokio::test]
async fn host_keys_are_known_as_ssh_knows_them() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    let certified = lab.serve("b", &[&format!("HostCertificate {}", lab.path("host_signed-cert.pub").display())]);
    let config = lab.config(&[("box", server.port, ""), ("certified", certified.port, "")]);
    let here = format!("[127.0.0.1]:{}", server.port);
    // Another algorithm than the one that the server would rather show.
    for known in [
        format!("{here} {}\n", lab.public("host_rsa")),
        format!("{here} {}\n", lab.public("host_ecdsa")),
        format!("# mine\n[127.0.0.*]:*\t{}\n", lab.public("host_ed25519").replace(' ', "\t")),
    ] {
        lab.write("known_hosts", &known);
        let result = gets_in(&ssh("box", &config)).await;
        assert!(result.is_ok(), "{known}: {}", result.unwrap_err());
    }
    // As `ssh-keygen` hashes it.
    lab.knows(&[&server]);
    assert!(
        Command::new("ssh-keygen").args(["-q", "-H", "-f"]).arg(lab.path("known_hosts")).status().unwrap().success()
    );
    gets_in(&ssh("box", &config)).await.unwrap();
    // By its authority alone.
    lab.write("known_hosts", &format!("@cert-authority [127.0.0.1]:* {}\n", lab.public("host_ca")));
    gets_in(&ssh("certified", &config)).await.unwrap();
    assert!(matches!(gets_in(&ssh("box", &config)).await, Err(HostError::Key { .. })), "it shows no certificate");
}

/// The passphrase comes from the environment, so this runs again as a process of its own that has it.
#[tokio::test]
async fn an_encrypted_key_takes_its_passphrase_from_the_environment() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let text = std::fs::read_to_string(&config).unwrap().replace("client_ed25519", "client_encrypted");
    lab.write("config", &text);
    let again = |passphrase: Option<&str>| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "ssh_hosts::gets_in_with_what_is_in_the_environment", "--ignored", "--nocapture"]);
        command.env("ORCH_TEST_SSH_CONFIG", &config).env_remove("ORCH_SSH_PASSPHRASE");
        if let Some(passphrase) = passphrase {
            command.env("ORCH_SSH_PASSPHRASE", passphrase);
        }
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (got_in, said) = again(Some("open sesame"));
    assert!(got_in, "{said}");
    for (passphrase, why) in [(None, "is encrypted"), (Some("wrong"), "ORCH_SSH_PASSPHRASE does not open it")] {
        let (got_in, said) = again(passphrase);
        assert!(!got_in && said.contains(why), "{said}");
        assert!(!said.contains("open sesame"));
    }
}

#[tokio::test]
#[ignore = "a part of the test above"]
async fn gets_in_with_what_is_in_the_environment() {
    let config = std::env::var("ORCH_TEST_SSH_CONFIG").unwrap();
    if let Err(error) = gets_in(&ssh("box", Path::new(&config))).await {
        panic!("{error}");
    }
}

/// What `orch` pays for a command on a host that it was not connected to, against `ssh HOST true`, in turn.
#[tokio::test]
#[ignore = "takes a quiet machine: cargo test --release -- --ignored --nocapture a_first_command"]
async fn a_first_command_costs_little_more_than_ssh() {
    let Some(lab) = Lab::new() else { return };
    if Command::new("ssh").arg("-V").output().is_err() {
        return skipped("there is no `ssh` to compare with");
    }
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        let since = Instant::now();
        gets_in(&ssh("box", &config)).await.unwrap();
        ours.push(since.elapsed());
        let since = Instant::now();
        let mut command = tokio::process::Command::new("ssh");
        assert!(command.arg("-F").arg(&config).args(["box", "true"]).status().await.unwrap().success());
        theirs.push(since.elapsed());
    }
    ours.sort_unstable();
    theirs.sort_unstable();
    let ratio = ours[15].as_secs_f64() / theirs[15].as_secs_f64();
    std::io::Write::write_fmt(
        &mut std::io::stderr().lock(),
        format_args!("orch {:?}, ssh {:?}, ratio {ratio:.2}\n", ours[15], theirs[15]),
    )
    .unwrap();
    assert!(ratio < 1.5, "{ratio}");
}
