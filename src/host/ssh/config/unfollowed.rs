//! What a configuration says that changes a connection and that orch does not follow. It is named, so that nobody wonders.

/// A key, the values of it that change nothing here, and what the others mean.
const KEYS: [(&str, &[&str], &str); 19] = [
    ("gssapiauthentication", &["no"], "Kerberos is not tried"),
    ("hostbasedauthentication", &["no"], "host-based authentication is not tried"),
    ("pkcs11provider", &["none"], "keys of a smart card are only used through an agent"),
    ("securitykeyprovider", &["internal", "none"], "FIDO keys are only used through an agent"),
    ("pubkeyauthentication", &["yes", "true"], "keys are all that orch logs in with, so they are tried anyway"),
    ("stricthostkeychecking", &["yes", "true", "ask"], "an unknown key is refused whatever it says"),
    ("nohostauthenticationforlocalhost", &["no"], "the key of this machine is checked too"),
    ("verifyhostkeydns", &["no", "false"], "keys in DNS are not looked up"),
    ("knownhostscommand", &["none"], "only files of known hosts are read"),
    ("revokedhostkeys", &["none"], "only `@revoked` lines of known hosts are heeded"),
    ("canonicalizehostname", &["no", "false", "none"], "names are not made canonical"),
    ("bindaddress", &["none", "*"], "the connection starts from any address"),
    ("bindinterface", &["none"], "the connection starts from any interface"),
    ("proxyusefdpass", &["no"], "a proxy command is spoken to by its standard streams"),
    ("remotecommand", &["none"], "orch runs its own commands"),
    ("setenv", &[], "no variables are sent"),
    ("tunnel", &["no", "false"], "no tunnel is made"),
    ("forwardagent", &["no"], "no agent is forwarded"),
    ("compression", &["no"], "nothing is compressed"),
];

/// What is to be told, of what `ssh -G` or the files said.
pub(super) fn warnings(said: &[(String, String)], name: &str) -> Vec<String> {
    let told = KEYS.iter().filter_map(|(key, harmless, meaning)| {
        let (_, value) = said.iter().find(|(known, _)| known == key)?;
        let changes = !harmless.iter().any(|harmless| value.eq_ignore_ascii_case(harmless)) && !value.is_empty();
        changes.then(|| {
            format!("ssh's configuration of {name} says `{key} {value}`, which orch does not follow: {meaning} (`transport: openssh` does)")
        })
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_something_is_told() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let said = [
            pair("gssapiauthentication", "yes"),
            pair("compression", "no"),
            pair("tunnel", "false"),
            pair("port", "22"),
        ];
        assert_eq!(
            warnings(&said, "gpu-3"),
            [
                "ssh's configuration of gpu-3 says `gssapiauthentication yes`, which orch does not follow: Kerberos is not tried \
              (`transport: openssh` does)"
            ]
        );
    }
}
