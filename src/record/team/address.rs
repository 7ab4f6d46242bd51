//! Where a team's store is: what `ORCH_STORE` says, read once and never shown with a password in it.

use std::fmt;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::password::{self, PasswordError};

/// The variable that names the store. Unset or empty: there is none, and the results folder stands alone.
pub const VARIABLE: &str = "ORCH_STORE";

/// How long a host of the store may take to answer, unless `connect_timeout` of the address says otherwise.
const CONNECT: Duration = Duration::from_secs(3);
const PORT: u16 = 5432;

/// The address of a store, with what is needed to open it.
#[derive(Clone)]
pub struct Address {
    pub(super) config: Config,
    shown: String,
}

/// What `ORCH_STORE` says is no address, or its password cannot be had.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum AddressError {
    /// It is no kind of store that this build knows.
    #[error("{VARIABLE}: {what} is not a store that orch knows")]
    #[diagnostic(
        code(orch::store::unknown),
        help(
            "{VARIABLE}=postgres://USER@HOST/DATABASE names the store of a team (docs/team.md); without it the records are kept in the results folder alone"
        )
    )]
    Unknown {
        /// What it names, without anything that could be a password.
        what: String,
    },
    /// It is one of PostgreSQL that cannot be read.
    #[error("{VARIABLE} cannot be read as the address of a PostgreSQL database: {why}")]
    #[diagnostic(
        code(orch::store::address),
        help(
            "postgres://USER@HOST:PORT/DATABASE?sslmode=require; a socket's folder is written %2Frun%2Fpostgresql, and in a password `/` is %2F, `@` is %40, `%` is %25"
        )
    )]
    Address {
        /// What is wrong with it.
        why: String,
    },
    /// Its password cannot be had.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Password(#[from] PasswordError),
}

impl Address {
    /// What the environment says; `None` where it names no store.
    pub fn of_environment() -> Result<Option<Self>, AddressError> {
        match std::env::var(VARIABLE) {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => Self::of(&text, &|name| std::env::var(name).ok()).map(Some),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(address("it is not UTF-8")),
        }
    }

    /// Reads an address. `env` gives the variables that a password may be in.
    pub(super) fn of(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, AddressError> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(AddressError::Unknown { what: unknown(scheme, rest) });
        }
        let mut config: Config = verified(text).parse().map_err(|error| address(said(&error)))?;
        // The password ends at the first `@`, and the host at the first `/`: one that holds them would end up in names.
        if config.get_dbname().is_some_and(|name| name.contains(['@', '/'])) {
            return Err(address("there is an `@` or a `/` after the host"));
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(address("it names no host"));
        }
        if config.get_user().is_none() {
            config.user(crate::record::model::Writer::here().user);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        config.application_name("orch");
        let shown = shown(&config);
        if config.get_password().is_none()
            && let Some(password) = password::find(&config, env)?
        {
            config.password(password);
        }
        Ok(Address { config, shown })
    }

    /// How long all that has to be done to be connected may take.
    pub(super) fn connect_limit(&self) -> Duration {
        let each = self.config.get_connect_timeout().copied().unwrap_or(CONNECT);
        each * u32::try_from(self.config.get_hosts().len().max(1)).unwrap_or(1)
    }
}

/// Host, port and database: neither user nor password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.shown)
    }
}

fn address(why: impl Into<String>) -> AddressError {
    AddressError::Address { why: why.into() }
}

/// What is named instead, as far as it may be shown.
fn unknown(scheme: &str, rest: &str) -> String {
    match scheme {
        // A path, or the words of libpq, which may hold a password.
        "" if rest.contains(['=', '@', ':']) => "what it says".to_owned(),
        "" => format!("`{rest}`"),
        scheme => format!("`{scheme}://…`"),
    }
}

/// The address with those words for TLS in it that the library knows. Certificates are verified whenever there is TLS, so
/// that asking for it is all there is to ask.
fn verified(text: &str) -> String {
    let Some((before, query)) = text.split_once('?') else { return text.to_owned() };
    let word = |each: &str| match each {
        "sslmode=verify-full" | "sslmode=verify-ca" => "sslmode=require".to_owned(),
        "sslmode=allow" => "sslmode=prefer".to_owned(),
        other => other.to_owned(),
    };
    format!("{before}?{}", query.split('&').map(word).collect::<Vec<_>>().join("&"))
}

/// The library's own words, with what lies below them.
fn said(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(below) = source {
        let words = below.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = below.source();
    }
    text
}

fn shown(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts = hosts.chain(config.get_hostaddrs().iter().map(ToString::to_string));
    let ports = config.get_ports();
    let with_port = hosts.enumerate().map(|(index, host)| {
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(PORT);
        if port == PORT { host } else { format!("{host}:{port}") }
    });
    let hosts = with_port.collect::<Vec<_>>().join(",");
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("{hosts}/{database}")
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::SslMode;

    use super::*;

    fn of(text: &str) -> Result<Address, AddressError> {
        Address::of(text, &|_| None)
    }

    #[test]
    fn an_address_is_shown_without_user_and_password() {
        let all = [
            ("postgres://ann:s3cret@db.example/orch", "db.example/orch"),
            ("postgresql://ann@db.example:6000/orch?sslmode=require", "db.example:6000/orch"),
            ("postgres://ann@%2Frun%2Fpostgresql/orch", "/run/postgresql/orch"),
            ("postgres://ann@a,b:6000/orch", "a,b:6000/orch"),
            ("postgres://ann@db", "db/ann"),
        ];
        for (text, expected) in all {
            let address = of(text).unwrap();
            assert_eq!(address.to_string(), expected);
            assert!(!format!("{address:?}").contains("s3cret"));
        }
    }

    #[test]
    fn what_is_no_store_is_named_without_what_could_be_a_password() {
        let all = [
            ("mysql://ann:s3cret@db/orch", "`mysql://…`"),
            ("results/index.sqlite", "`results/index.sqlite`"),
            ("host=db password=s3cret", "what it says"),
            ("ann:s3cret@db", "what it says"),
        ];
        for (text, expected) in all {
            let error = of(text).unwrap_err();
            assert_eq!(error.to_string(), format!("ORCH_STORE: {expected} is not a store that orch knows"));
        }
    }

    #[test]
    fn an_address_that_cannot_be_read_is_told_without_its_password() {
        let all = [
            "postgres://ann:s3cret@db/orch?sslmode=maybe",
            "postgres://ann:s3cret@db/orch?sslrootcert=ca.pem",
            "postgres://ann:s3cret@db:port/orch",
            "postgres://ann:pw@s3cret/x@db/orch",
            "postgres:///orch",
        ];
        for text in all {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains("cannot be read") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn every_word_for_verified_tls_means_tls() {
        let mode = |text: &str| of(&format!("postgres://ann@db/orch{text}")).unwrap().config.get_ssl_mode();
        assert_eq!(mode(""), SslMode::Prefer);
        assert_eq!(mode("?sslmode=disable"), SslMode::Disable);
        for word in ["require", "verify-ca", "verify-full"] {
            assert_eq!(mode(&format!("?connect_timeout=1&sslmode={word}")), SslMode::Require, "{word}");
        }
    }
}
