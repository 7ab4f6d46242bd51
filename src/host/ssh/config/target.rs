//! A host as somebody writes it: an alias, or `user@address:port`.

use std::fmt;

/// Where to, before any configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// The name that the configuration knows, or an address.
    pub(crate) name: String,
    pub(crate) user: Option<String>,
    pub(crate) port: Option<u16>,
}

impl Target {
    /// Reads `name`, `user@name`, `name:port`, `[v6]:port`, each also as `ssh://…`.
    pub(crate) fn read(written: &str) -> Result<Self, String> {
        let text = written.trim();
        let text = text.strip_prefix("ssh://").map_or(text, |rest| rest.trim_end_matches('/'));
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, text),
        };
        let (name, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, "")) => (name, None),
            Some((name, port)) => (name, Some(port.strip_prefix(':').ok_or("`]` is followed by `:port`")?)),
            // Several colons are an address of version 6 without a port.
            None if rest.matches(':').count() == 1 => {
                rest.split_once(':').map_or((rest, None), |(name, port)| (name, Some(port)))
            }
            None => (rest, None),
        };
        let port = match port {
            None => None,
            Some(port) => match port.parse::<u16>() {
                Ok(port) if port > 0 => Some(port),
                _ => return Err(format!("`{port}` is no port")),
            },
        };
        let odd = |word: &str| {
            // A word that begins with `-` would be an option of `ssh`; the others mean something to a shell.
            word.is_empty()
                || word.starts_with('-')
                || word.contains(|c: char| c.is_whitespace() || c.is_control() || "'`\"$\\;&<>|(){}".contains(c))
        };
        if odd(name) {
            return Err(format!("`{name}` is no name of a host"));
        }
        if user.is_some_and(odd) {
            return Err(format!("`{}` is no name of a user", user.unwrap_or_default()));
        }
        Ok(Target { name: name.to_owned(), user: user.map(str::to_owned), port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.port {
            Some(port) if self.name.contains(':') => write!(f, "[{}]:{port}", self.name),
            Some(port) => write!(f, "{}:{port}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_are_read_and_shown_again() {
        let parts = |written: &str| {
            let target = Target::read(written).unwrap();
            (target.user.clone(), target.name.clone(), target.port, target.to_string())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parts("big8"), (None, "big8".into(), None, "big8".into()));
        assert_eq!(
            parts("root@10.0.0.1:2222"),
            (some("root"), "10.0.0.1".into(), Some(2222), "root@10.0.0.1:2222".into())
        );
        assert_eq!(parts("ssh://a@b:22/"), (some("a"), "b".into(), Some(22), "a@b:22".into()));
        assert_eq!(parts("fe80::1"), (None, "fe80::1".into(), None, "fe80::1".into()));
        assert_eq!(parts("u@[fe80::1]:9"), (some("u"), "fe80::1".into(), Some(9), "u@[fe80::1]:9".into()));
        // A user may be an address of mail.
        assert_eq!(
            parts("me@corp.example@gw"),
            (some("me@corp.example"), "gw".into(), None, "me@corp.example@gw".into())
        );
    }

    #[test]
    fn what_would_be_an_option_or_a_line_for_a_shell_is_refused() {
        for written in ["", "-oProxyCommand=x", "a@-b", "-l@b", "a b", "a;b", "a:0", "a:70000", "$(x)", "[::1]22", "a@"]
        {
            assert!(Target::read(written).is_err(), "{written}");
        }
    }
}
