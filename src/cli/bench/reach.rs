//! How the endpoint is reached, and what is sent along: keys and headers come from the environment or from files alone,
//! since a command line is seen by everybody on the machine.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use miette::Report;

use super::super::{Exit, Failure};
use crate::load::Target;
use crate::load::net::{Net, Proxy};
use crate::load::url::Endpoint;
use crate::render::Warning;

/// What can be typed about it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How it is reached")]
pub(super) struct ReachArgs {
    /// A key that is sent as `authorization: Bearer KEY`: env:NAME or file:PATH (mode 0600)
    #[arg(long, value_name = "SOURCE")]
    pub(super) api_key: Option<String>,
    /// A header whose value is in the environment or in a file: NAME=env:VARIABLE or NAME=file:PATH (mode 0600)
    #[arg(long, value_name = "NAME=SOURCE")]
    pub(super) header: Vec<String>,
    /// The proxy in between: `env` takes the one of http_proxy, https_proxy, all_proxy and no_proxy, `none` takes none.
    /// This machine is never reached through one
    #[arg(long, value_name = "env|none|URL", default_value = "env")]
    pub(super) proxy: String,
    /// Believe the certificates of this file (PEM) alone, instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(super) ca: Option<PathBuf>,
    /// Believe any certificate; the record says so
    #[arg(long)]
    pub(super) insecure: bool,
    /// Speak HTTP/2: agreed on under TLS (ALPN), else as known before. Each request in flight has a connection of its own
    #[arg(long)]
    pub(super) http2: bool,
}

/// What was typed, looked up.
pub(super) struct Reach {
    pub(super) headers: Vec<(String, String)>,
    pub(super) net: Net,
}

impl Reach {
    pub(super) fn of(args: ReachArgs, endpoint: &Endpoint) -> Result<Self, Failure> {
        let ReachArgs { api_key, header, proxy, ca, insecure, http2 } = args;
        let mut headers = Vec::new();
        if let Some(source) = api_key {
            headers.push(("authorization".to_owned(), format!("Bearer {}", value("--api-key", &source)?)));
        }
        for header in header {
            let Some((name, source)) = header.split_once('=') else {
                return Err(usage(miette::miette!(
                    help = "for example --header x-team=env:TEAM",
                    "`--header` is NAME=env:VARIABLE or NAME=file:PATH"
                )));
            };
            headers.push((name.to_owned(), value(&format!("--header {name}"), source)?));
        }
        let environment = |name: &str| std::env::var(name).ok();
        let proxy = match proxy.as_str() {
            "none" => Ok(None),
            "env" => Proxy::of_environment(endpoint, environment),
            url => Proxy::parse(url).map(Some),
        };
        let proxy = proxy.map_err(|error| Failure::new(Exit::Usage, error))?;
        if http2 && proxy.is_some() && !endpoint.tls {
            return Err(usage(miette::miette!(
                code = "orch::bench::http2",
                help = "reach it without the proxy (--proxy none), or over https://",
                "`--http2` without TLS does not go through a proxy: only under TLS does one make a tunnel"
            )));
        }
        Ok(Reach { headers, net: Net { proxy, ca, insecure, http2 } })
    }
}

/// What a person should know of it.
pub(super) fn warnings(target: &Target, endpoint: &Endpoint) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if let Some(proxy) = &endpoint.net.proxy {
        let text = format!("requests go through the proxy {}:{}: its time is in all latencies", proxy.host, proxy.port);
        warnings.push(Warning::new("through_a_proxy", text));
    }
    if endpoint.tls && endpoint.net.insecure {
        let text = "the server's certificate was not looked at (`--insecure`): who answered is not known";
        warnings.push(Warning::new("tls_not_verified", text));
    }
    if !target.more.is_empty() {
        let text = format!("{} addresses are asked in turn: no server's own counters are read", target.more.len() + 1);
        warnings.push(Warning::new("several_addresses", text));
    }
    warnings
}

/// The value that a source holds, without the end of its line.
fn value(flag: &str, source: &str) -> Result<String, Failure> {
    let found = match source.split_once(':') {
        Some(("env", name)) => {
            let unset = |_| usage(miette::miette!("`{flag}`: {name} is not set in the environment"));
            std::env::var(name).map_err(unset)?
        }
        Some(("file", path)) => of_file(flag, &PathBuf::from(path))?,
        _ => {
            return Err(usage(miette::miette!(
                help =
                    "put it into the environment, and write env:NAME; or into a file of mode 0600, and write file:PATH",
                "`{flag}` takes no value itself: everybody on this machine can read a command line"
            )));
        }
    };
    let found = found.trim_end_matches(['\r', '\n']).to_owned();
    if found.is_empty() {
        return Err(usage(miette::miette!("`{flag}`: {source} is empty")));
    }
    Ok(found)
}

fn of_file(flag: &str, path: &PathBuf) -> Result<String, Failure> {
    let fail = |error: std::io::Error| usage(miette::miette!("`{flag}`: {}: {error}", path.display()));
    let mode = std::fs::metadata(path).map_err(fail)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(usage(miette::miette!(
            help = format!("chmod 600 {}", path.display()),
            "`{flag}`: others can read {}, which has mode {mode:04o}",
            path.display()
        )));
    }
    std::fs::read_to_string(path).map_err(fail)
}

fn usage(report: Report) -> Failure {
    Failure::new(Exit::Usage, report)
}
