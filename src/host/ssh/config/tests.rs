use super::*;

fn settings_of(name: &str, said: &str) -> Result<Settings, String> {
    let said: Vec<(String, String)> = said
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
    read(&Target::read(name).unwrap(), &said, Path::new("/home/me"))
}

#[test]
fn what_ssh_says_is_taken_with_its_tokens() {
    let settings = settings_of(
        "gpu-3",
        "hostname %h.example\nuser ada\nport 2200\nidentityfile ~/.ssh/%n\nidentityfile none\nidentitiesonly yes\n\
         identityagent none\ncertificatefile %d/c-cert.pub\nuserknownhostsfile ~/a b /c d/e\nglobalknownhostsfile none\n\
         hostkeyalias cluster\nproxyjump ada@gw:2022,inner\nconnecttimeout 3\nserveraliveinterval 5\nserveralivecountmax 2\n\
         ciphers aes128-ctr,aes256-gcm@openssh.com\ngssapiauthentication yes\nstricthostkeychecking accept-new\n",
    )
    .unwrap();
    assert_eq!((settings.hostname.as_str(), settings.user.as_str(), settings.port), ("gpu-3.example", "ada", 2200));
    assert_eq!(settings.identity_files, [Path::new("/home/me/.ssh/gpu-3")]);
    assert_eq!(settings.certificate_files, [Path::new("/home/me/c-cert.pub")]);
    assert_eq!(settings.known_hosts, [Path::new("/home/me/a b"), Path::new("/c d/e")]);
    assert_eq!((settings.agent, settings.identities_only), (None, true));
    assert_eq!(settings.key_alias.as_deref(), Some("cluster"));
    let jump: Vec<String> = settings.jump.iter().map(Target::to_string).collect();
    assert_eq!(jump, ["ada@gw:2022", "inner"]);
    assert_eq!((settings.connect_timeout, settings.alive), (Duration::from_secs(3), (Duration::from_secs(5), 2)));
    assert_eq!(settings.algorithms.ciphers, ["aes128-ctr", "aes256-gcm@openssh.com"]);
    assert_eq!(settings.warnings.len(), 2, "{:?}", settings.warnings);
}

#[test]
fn nothing_said_is_what_ssh_does_by_itself() {
    let settings =
        settings_of("ada@10.0.0.1:99", "serveraliveinterval 0\nserveralivecountmax 3\nconnecttimeout none").unwrap();
    assert_eq!((settings.hostname.as_str(), settings.user.as_str(), settings.port), ("10.0.0.1", "ada", 99));
    assert_eq!((settings.connect_timeout, settings.alive), (CONNECT_TIMEOUT, ALIVE));
    assert_eq!(settings.identity_files.len(), 3);
    assert_eq!(settings.known_hosts[0], Path::new("/home/me/.ssh/known_hosts"));
    assert!(settings.jump.is_empty() && settings.proxy_command.is_none() && settings.warnings.is_empty());
}

#[test]
fn a_proxy_command_gets_its_tokens_and_a_jump_goes_before_it() {
    let settings = settings_of("ada@h:5", "proxycommand nc -x %% %h %p %r").unwrap();
    assert_eq!(settings.proxy_command.as_deref(), Some("nc -x % h 5 ada"));
    let settings = settings_of("h", "proxycommand nc %h\nproxyjump gw").unwrap();
    assert!(settings.proxy_command.is_none() && settings.jump.len() == 1);
    assert!(settings_of("h", "proxycommand nc %Q").unwrap_err().contains("`%Q`"));
    assert!(settings_of("h", "proxyjump -oX").is_err());
    assert!(settings_of("h", "port x").is_err());
}

#[tokio::test]
async fn the_systems_ssh_is_asked_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    std::fs::write(
        &file,
        "Host box\n  HostName 127.0.0.1\n  Port 2201\nMatch user nobody host 127.0.0.1\n  Port 2202\n",
    )
    .unwrap();
    let Ok(Some(_)) = ask::ask(&Target::read("box").unwrap(), Some(&file)).await else { return };
    let port = async |name: &str| settings(&Target::read(name).unwrap(), Some(&file)).await.unwrap().port;
    assert_eq!(port("box").await, 2201);
    let error = settings(&Target::read("box").unwrap(), Some(Path::new("/no/such/file"))).await.unwrap_err();
    assert!(matches!(error, HostError::Config { .. }), "{error}");
}
