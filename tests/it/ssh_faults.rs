//! What goes wrong on the way to a host, and what is said of it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use miette::Diagnostic;
use orch::host::{AnyHost, End, Host, HostError, KeyFault, Mode};

use crate::host_suite::{binary, run, words};
use crate::ssh_hosts::{host, ssh};
use crate::sshd::Lab;
use crate::support::not_chosen;

async fn fails(host: &AnyHost) -> HostError {
    match host.run(&words(&["true"]), Bytes::new()).await {
        Err(error) => error,
        Ok(output) => panic!("it ran: {output:?}"),
    }
}

fn help(error: &HostError) -> String {
    error.help().map(|help| help.to_string()).unwrap_or_default()
}

#[tokio::test]
async fn an_unknown_key_is_refused_with_its_fingerprint_and_what_accepts_it() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.write("known_hosts", "");
    // Whatever the configuration would let pass.
    let config = lab.config(&[("box", server.port, "  StrictHostKeyChecking no")]);
    let error = fails(&ssh("box", &config)).await;
    let HostError::Key { fault, .. } = &error else { panic!("{error}") };
    let KeyFault::Unknown { shown, line, file, .. } = fault.as_ref() else { panic!("{error}") };
    assert_eq!(*shown, format!("ssh-ed25519 {}", lab.fingerprint("host_ed25519")));
    assert!(error.to_string().contains(shown.as_str()), "{error}");
    assert_eq!(*file, lab.path("known_hosts"));
    let help = help(&error);
    assert!(help.contains(&format!("ssh -F {} box true", config.display())) && help.contains(line.as_str()), "{help}");
    assert_eq!(std::fs::read_to_string(lab.path("known_hosts")).unwrap(), "", "nothing was accepted");
    // The very line that it names makes it known.
    std::fs::write(file, format!("{line}\n")).unwrap();
    let host = ssh("box", &config);
    assert!(run(&host, &["true"]).await.ok());
    let warnings = host.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("stricthostkeychecking"), "{warnings:?}");
}

#[tokio::test]
async fn a_changed_or_revoked_key_is_refused_with_its_place() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    let config = lab.config(&[("box", server.port, "")]);
    let here = format!("[127.0.0.1]:{}", server.port);
    let file = lab.write("known_hosts", &format!("# a comment\n{here} {}\n", lab.public("other_ed25519")));
    let error = fails(&ssh("box", &config)).await;
    let said = error.to_string();
    assert!(said.contains("IT HAS CHANGED") && said.contains(&format!("{}:2", file.display())), "{said}");
    assert!(said.contains(&lab.fingerprint("other_ed25519")), "{said}");
    assert!(help(&error).contains("ssh-keygen -R"), "{}", help(&error));
    // Known under an algorithm that the server does not have any more.
    let few = lab.serve("b", &["HostKeyAlgorithms ssh-ed25519"]);
    let config = lab.config(&[("few", few.port, "")]);
    lab.write("known_hosts", &format!("[127.0.0.1]:{} {}\n", few.port, lab.public("host_rsa")));
    let error = fails(&ssh("few", &config)).await;
    assert!(error.to_string().contains("IT HAS CHANGED"), "{error}");
    // Known, and revoked on another line.
    let key = lab.public("host_ed25519");
    let config = lab.config(&[("box", server.port, "")]);
    lab.write("known_hosts", &format!("{here} {key}\n@revoked * {key}\n"));
    let error = fails(&ssh("box", &config)).await;
    assert!(error.to_string().contains("IT IS REVOKED") && error.to_string().contains(":2"), "{error}");
    // The system's `ssh` says the same in its own words.
    lab.write("known_hosts", "");
    let by_openssh = host("big", "big: {ssh: box, transport: openssh}", Some(&config));
    let error = fails(&by_openssh).await;
    assert!(matches!(error, HostError::Key { .. }), "{error}");
}

#[tokio::test]
async fn a_wrong_key_is_refused_with_all_that_was_tried() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let text = std::fs::read_to_string(&config).unwrap().replace("client_ed25519", "client_wrong");
    lab.write("config", &text);
    let error = fails(&ssh("box", &config)).await;
    let HostError::Refused { tried, .. } = &error else { panic!("{error}") };
    assert!(tried.contains("client_wrong"), "{tried}");
    let by_openssh = host("big", "big: {ssh: box, transport: openssh}", Some(&config));
    let error = fails(&by_openssh).await;
    assert!(matches!(error, HostError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn a_session_that_is_killed_is_lost_and_not_an_exit_code() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    for host in [ssh("box", &config), host("big", "big: {ssh: box, transport: openssh}", Some(&config))] {
        let began = lab.path("began");
        let _ = std::fs::remove_file(&began);
        let script = format!("echo x > {}; {}", began.display(), lab.for_ever());
        let command = words(&["sh", "-c", &script]);
        let running = host.run(&command, Bytes::new());
        let kill = async {
            while !began.exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            server.kill_sessions();
        };
        let (result, ()) = tokio::join!(running, kill);
        let error = result.unwrap_err();
        assert!(error.is_lost(), "{error}");
        // The next one connects again.
        assert!(run(&host, &["true"]).await.ok());
    }
}

#[tokio::test]
async fn a_read_goes_on_where_it_was_after_the_server_was_away() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    let port = server.port;
    lab.knows(&[&server]);
    let config = lab.config(&[("box", port, "")]);
    let host = ssh("box", &config);
    // Longer than what one command reads.
    let content = binary(20 << 20);
    let path = lab.path("long");
    std::fs::write(&path, &content).unwrap();
    let mut blocks = host.read(&path, 0).await.unwrap();
    let mut seen = blocks.try_next().await.unwrap().unwrap().to_vec();
    server.stop();
    let away = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        lab.serve_at("a", port, &[]).unwrap()
    };
    let rest = async {
        while let Some(block) = blocks.try_next().await.unwrap() {
            seen.extend_from_slice(&block);
        }
    };
    let (_server, ()) = tokio::join!(away, rest);
    assert!(seen == content, "{} of {} bytes", seen.len(), content.len());
}

#[tokio::test]
async fn nothing_there_and_nothing_said_are_told_apart() {
    let Some(lab) = Lab::new() else { return };
    let config = lab.config(&[("closed", crate::support::free_port(), "")]);
    let error = fails(&ssh("closed", &config)).await;
    assert!(matches!(error, HostError::Unreachable { .. }) && error.to_string().contains("refused"), "{error}");
    // It accepts, and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = lab.config(&[("silent", silent.local_addr().unwrap().port(), "  ConnectTimeout 1")]);
    let since = Instant::now();
    let error = fails(&ssh("silent", &config)).await;
    assert!(matches!(error, HostError::Unreachable { .. }) && error.to_string().contains("1 s"), "{error}");
    assert!(since.elapsed() < Duration::from_secs(60));
    // No name, no machine.
    let error = fails(&ssh("no-such-machine.invalid", &config)).await;
    assert!(matches!(error, HostError::Unreachable { .. }), "{error}");
    // What is behind a host on the way that does not answer.
    let config = lab.config(&[("gate", crate::support::free_port(), ""), ("far", 22, "  ProxyJump gate")]);
    let error = fails(&ssh("far", &config)).await;
    assert!(matches!(&error, HostError::Unreachable { host, .. } if host == "gate"), "{error}");
}

#[tokio::test]
async fn a_frozen_host_is_lost_after_its_time_and_found_again() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config =
        lab.config(&[("box", server.port, "  ServerAliveInterval 1\n  ServerAliveCountMax 2\n  ConnectTimeout 3")]);
    let host = ssh("box", &config);
    assert!(run(&host, &["true"]).await.ok());
    server.freeze(true);
    let error = fails(&host).await;
    server.freeze(false);
    assert!(error.is_lost(), "{error}");
    assert!(run(&host, &["true"]).await.ok());
}

#[tokio::test]
async fn a_host_without_a_shell_says_what_it_said() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &["ForceCommand echo This account is not available."]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let error = fails(&ssh("box", &config)).await;
    assert!(matches!(error, HostError::NoShell { .. }) && error.to_string().contains("not available"), "{error}");
}

#[tokio::test]
async fn a_command_that_nobody_waits_for_is_ended() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let host = ssh("box", &config);
    let pid = lab.path("pid");
    let script = format!("echo $$ > {0}.t; mv {0}.t {0}; {1}", pid.display(), lab.for_ever());
    let command = words(&["sh", "-c", &script]);
    {
        let running = host.run(&command, Bytes::new());
        let began = async {
            while !pid.exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            output = running => panic!("{output:?}"),
            () = began => {}
        }
    }
    let pid = std::fs::read_to_string(&pid).unwrap();
    let process = std::path::PathBuf::from(format!("/proc/{}", pid.trim()));
    let since = Instant::now();
    while process.exists() {
        assert!(since.elapsed() < Duration::from_secs(60), "it still runs");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A folder on a disk of 1 MiB; `None` where no disk can be mounted.
fn small_disk(lab: &Lab) -> Option<Disk> {
    let folder = lab.path("disk");
    std::fs::create_dir(&folder).unwrap();
    let mut mount = std::process::Command::new("mount");
    let done = mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&folder).output();
    done.is_ok_and(|done| done.status.success()).then_some(Disk(folder))
}

struct Disk(std::path::PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[tokio::test]
async fn a_full_disk_is_named_and_nothing_is_left_on_it() {
    let Some(lab) = Lab::new() else { return };
    let Some(disk) = small_disk(&lab) else { return not_chosen("nothing may be mounted here") };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let host = ssh("box", &config);
    let path = disk.0.join("a");
    host.put(&path, "old".into(), Mode::PRIVATE).await.unwrap();
    let error = host.put(&path, binary(2 << 20).into(), Mode::PRIVATE).await.unwrap_err();
    let HostError::File { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&disk.0).unwrap().count(), 1, "no half file is left");
}

#[tokio::test]
async fn a_large_program_is_put_whole() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let host = ssh("box", &config);
    let content = Bytes::from(binary(25 << 20));
    let path = lab.path("program");
    host.put(&path, content.clone(), Mode(0o755)).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == content);
    let end = run(&host, &["test", "-x", path.to_str().unwrap()]).await.end;
    assert_eq!(end, End::Code(0));
}

#[tokio::test]
async fn a_server_that_allows_few_sessions_is_asked_for_few() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &["MaxSessions 2"]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let host = ssh("box", &config);
    let all = (0..10).map(|_| run(&host, &["sleep", "0.2"]));
    assert!(futures_util::future::join_all(all).await.iter().all(orch::host::Output::ok));
}

#[tokio::test]
async fn a_connection_that_nobody_reads_holds_up_no_command() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let host = ssh("box", &config);
    let talks = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = talks.local_addr().unwrap().port();
    let talker = tokio::spawn(async move {
        let (mut stream, _) = talks.accept().await.unwrap();
        let block = binary(1 << 20);
        for _ in 0..200 {
            if tokio::io::AsyncWriteExt::write_all(&mut stream, &block).await.is_err() {
                break;
            }
        }
    });
    let unread = host.connect(&orch::host::Address::Tcp("127.0.0.1".into(), port)).await.unwrap();
    for _ in 0..3 {
        assert!(run(&host, &["true"]).await.ok());
    }
    // It was cut off when too much waited, and the host goes on.
    talker.await.unwrap();
    assert!(run(&host, &["true"]).await.ok());
    drop(unread);
}
