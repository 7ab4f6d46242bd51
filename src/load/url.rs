//! The address of an endpoint, as people write it: with or without `/v1`, with or without a slash at the end.

use std::path::PathBuf;

use super::LoadError;
use super::net::Net;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether TLS is spoken.
    pub tls: bool,
    /// Host name or address, IPv6 without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// `host` or `host:port`, as the `host` header says it.
    pub authority: String,
    /// The socket on this machine that stands for host and port.
    pub unix: Option<PathBuf>,
    /// How it is reached.
    pub net: Net,
    /// The path before `/v1`, without a slash at its end.
    prefix: String,
}

impl Endpoint {
    /// Reads a base URL. Exactly one `/v1` at its end is taken off.
    pub fn parse(url: &str) -> Result<Self, LoadError> {
        let fail = |why: &str| LoadError::Url { url: url.to_owned(), why: why.to_owned() };
        if url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(fail("it holds a space or a control character"));
        }
        if let Some(path) = url.strip_prefix("unix:") {
            return Self::socket(path)
                .ok_or_else(|| fail("a socket is named by its whole path: unix:/run/server.sock"));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| fail("it does not begin with http:// or https://"))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            other => return Err(fail(&format!("`{other}` is not http or https"))),
        };
        if rest.contains(['?', '#']) {
            return Err(fail("a base address has no query and no fragment"));
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        if authority.contains('@') {
            return Err(fail("a user name in it is not supported; send a header instead"));
        }
        let (host, port) = split_authority(authority).ok_or_else(|| fail("its host or port cannot be read"))?;
        let path = path.strip_suffix('/').unwrap_or(path);
        let prefix = path.strip_suffix("/v1").unwrap_or(path);
        Ok(Endpoint {
            tls,
            host: host.to_owned(),
            port: port.unwrap_or(if tls { 443 } else { 80 }),
            authority: authority.to_owned(),
            unix: None,
            net: Net::default(),
            prefix: prefix.to_owned(),
        })
    }

    /// A socket by its path, with or without the two slashes of a URL before it.
    fn socket(path: &str) -> Option<Self> {
        let path = path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path);
        path.starts_with('/').then(|| Endpoint {
            tls: false,
            host: "localhost".to_owned(),
            port: 80,
            authority: "localhost".to_owned(),
            unix: Some(PathBuf::from(path)),
            net: Net::default(),
            prefix: String::new(),
        })
    }

    /// The same, reached in another way. This machine is reached without a proxy whatever was said.
    #[must_use]
    pub fn through(mut self, net: &Net) -> Self {
        self.net = net.clone();
        if self.is_local() {
            self.net.proxy = None;
        }
        self
    }

    /// Whether it is on this machine, by its address.
    pub fn is_local(&self) -> bool {
        let is_loopback = |host: &str| host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        self.unix.is_some() || self.host == "localhost" || is_loopback(&self.host)
    }

    /// The path to ask for: `path`, which begins with a slash, behind the base.
    pub fn path(&self, path: &str) -> String {
        match &self.net.proxy {
            // A proxy that makes no tunnel has to be told the whole address.
            Some(_) if !self.tls => self.url(path),
            _ => format!("{}{path}", self.prefix),
        }
    }

    /// The whole address, for people.
    pub fn url(&self, path: &str) -> String {
        if let Some(socket) = &self.unix {
            return format!("unix:{}{path}", socket.display());
        }
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}{path}", self.authority, self.prefix)
    }
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return None;
    }
    match port {
        None => Some((host, None)),
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port != 0).map(|port| (host, Some(port)))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(base: &str) -> String {
        Endpoint::parse(base).unwrap().url("/v1/chat/completions")
    }

    #[test]
    fn a_base_may_end_in_v1_or_a_slash_or_neither() {
        for base in ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"] {
            assert_eq!(joined(base), "http://h:8000/v1/chat/completions", "{base}");
        }
        assert_eq!(joined("http://h:8000/av1"), "http://h:8000/av1/v1/chat/completions");
        assert_eq!(joined("http://h:8000/v10"), "http://h:8000/v10/v1/chat/completions");
        assert_eq!(joined("http://h:8000/v1/v1"), "http://h:8000/v1/v1/chat/completions");
        assert_eq!(
            joined("http://10.5.0.9:80/member1/demo_v4/"),
            "http://10.5.0.9:80/member1/demo_v4/v1/chat/completions"
        );
    }

    #[test]
    fn hosts_and_ports_are_read_in_every_form() {
        let parts = |base: &str| {
            let endpoint = Endpoint::parse(base).unwrap();
            (endpoint.tls, endpoint.host, endpoint.port)
        };
        assert_eq!(parts("http://h"), (false, "h".to_owned(), 80));
        assert_eq!(parts("HTTPS://h/x"), (true, "h".to_owned(), 443));
        assert_eq!(parts("http://[::1]:8000/v1"), (false, "::1".to_owned(), 8000));
        assert_eq!(parts("https://[fe80::1]"), (true, "fe80::1".to_owned(), 443));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for url in [
            "",
            "h:8000",
            "127.0.0.1:8000",
            "ftp://h",
            "http://",
            "http://:80",
            "http://h:99999",
            "http://h:0",
            "http://h:x",
            "http://u:p@h",
            "http://h/?a=b",
            "http://h/#a",
            "http://h/a b",
            "http://h\r\nx: y",
            "http://[::1",
            "http://[g]:1",
        ] {
            assert!(Endpoint::parse(url).is_err(), "{url:?}");
        }
    }

    #[test]
    fn a_socket_is_named_by_its_path() {
        for url in ["unix:/run/a.sock", "unix:///run/a.sock"] {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!(endpoint.unix.as_deref(), Some(std::path::Path::new("/run/a.sock")), "{url}");
            assert_eq!((endpoint.path("/v1/models"), endpoint.is_local()), ("/v1/models".to_owned(), true));
        }
        assert!(Endpoint::parse("unix:a.sock").is_err());
    }

    #[test]
    fn a_proxy_is_told_the_whole_address_unless_it_makes_a_tunnel() {
        let net = Net { proxy: Some(super::super::net::Proxy { host: "p".into(), port: 1 }), ..Net::default() };
        let path = |url: &str| Endpoint::parse(url).unwrap().through(&net).path("/v1/models");
        assert_eq!(path("http://h:8000/x/v1"), "http://h:8000/x/v1/models");
        assert_eq!(path("https://h/x/v1"), "/x/v1/models");
        assert_eq!(path("http://127.0.0.1:8000/v1"), "/v1/models");
    }
}
