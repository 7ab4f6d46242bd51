//! How an endpoint is reached: through a proxy or not, and whose certificates are believed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_platform_verifier::ConfigVerifierExt;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::LoadError;
use super::url::Endpoint;

/// How an endpoint is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// What stands between.
    pub proxy: Option<Proxy>,
    /// A file of certificates that alone are believed, instead of the system's.
    pub ca: Option<PathBuf>,
    /// Whether any certificate is believed.
    pub insecure: bool,
    /// Whether HTTP/2 is spoken: agreed on under TLS, else known before.
    pub http2: bool,
}

/// A proxy of HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its host,
    pub host: String,
    /// and port.
    pub port: u16,
}

impl Proxy {
    /// Reads its address.
    pub fn parse(url: &str) -> Result<Self, LoadError> {
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let endpoint = Endpoint::parse(&with_scheme)?;
        if endpoint.tls || endpoint.unix.is_some() {
            let why = "a proxy is reached over http:// here".to_owned();
            return Err(LoadError::Url { url: url.to_owned(), why });
        }
        Ok(Proxy { host: endpoint.host, port: endpoint.port })
    }

    /// The proxy that the environment names for an endpoint: `http_proxy` or `https_proxy`, else `all_proxy`, unless
    /// `no_proxy` names its host. This machine is never reached through one.
    pub fn of_environment(
        endpoint: &Endpoint,
        value: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, LoadError> {
        if endpoint.is_local() {
            return Ok(None);
        }
        let either = |name: &str| value(name).or_else(|| value(&name.to_uppercase())).filter(|text| !text.is_empty());
        let scheme = if endpoint.tls { "https_proxy" } else { "http_proxy" };
        let Some(url) = either(scheme).or_else(|| either("all_proxy")) else { return Ok(None) };
        let spared = either("no_proxy").unwrap_or_default();
        if spared.split(',').map(str::trim).any(|name| spares(name, &endpoint.host)) {
            return Ok(None);
        }
        Proxy::parse(&url).map(Some)
    }
}

/// Whether a word of `no_proxy` means this host: all, itself, or what it is a part of.
fn spares(word: &str, host: &str) -> bool {
    let word = word.trim_start_matches('.').to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    let within = host.strip_suffix(&word).is_some_and(|rest| rest.ends_with('.'));
    !word.is_empty() && (word == "*" || word == host || within)
}

/// How certificates are looked at.
pub(super) fn tls(net: &Net) -> Result<ClientConfig, LoadError> {
    let fail = |error: rustls::Error| LoadError::Tls(error.to_string());
    let mut config = match (&net.ca, net.insecure) {
        (_, true) => {
            let provider = rustls::crypto::aws_lc_rs::default_provider();
            let any = Any(provider.signature_verification_algorithms);
            builder(provider)?.dangerous().with_custom_certificate_verifier(Arc::new(any)).with_no_client_auth()
        }
        (Some(path), false) => {
            let provider = rustls::crypto::aws_lc_rs::default_provider();
            builder(provider)?.with_root_certificates(roots(path)?).with_no_client_auth()
        }
        (None, false) => ClientConfig::with_platform_verifier().map_err(fail)?,
    };
    config.alpn_protocols = vec![if net.http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    Ok(config)
}

fn builder(provider: CryptoProvider) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, LoadError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions();
    builder.map_err(|error| LoadError::Tls(error.to_string()))
}

fn roots(path: &Path) -> Result<RootCertStore, LoadError> {
    let fail = |why: String| LoadError::Tls(format!("{}: {why}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| fail(error.to_string()))? {
        let certificate = certificate.map_err(|error| fail(error.to_string()))?;
        roots.add(certificate).map_err(|error| fail(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fail("it holds no certificates".to_owned()));
    }
    Ok(roots)
}

/// Believes anybody who holds the key of the certificate that they show.
#[derive(Debug)]
struct Any(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(url: &str, environment: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, text)| (*text).to_owned());
        let found = Proxy::of_environment(&Endpoint::parse(url).unwrap(), value).unwrap();
        found.map(|proxy| format!("{}:{}", proxy.host, proxy.port))
    }

    #[test]
    fn a_proxy_of_the_environment_is_the_one_of_the_scheme() {
        let both = [("http_proxy", "http://one:3128"), ("HTTPS_PROXY", "two:8080")];
        assert_eq!(proxy("http://gpu-3:8000", &both).as_deref(), Some("one:3128"));
        assert_eq!(proxy("https://gpu-3", &both).as_deref(), Some("two:8080"));
        assert_eq!(proxy("https://gpu-3", &[("all_proxy", "http://three")]).as_deref(), Some("three:80"));
        assert_eq!(proxy("http://gpu-3", &[]), None);
    }

    #[test]
    fn this_machine_and_what_is_spared_have_none() {
        let one = [("all_proxy", "http://one:3128")];
        for url in ["http://127.0.0.1:8000", "http://localhost:1", "http://[::1]:1", "unix:/run/a.sock"] {
            assert_eq!(proxy(url, &one), None, "{url}");
        }
        for (word, spared) in
            [("gpu-3.lab", true), (".lab", true), ("lab", true), ("*", true), ("ab", false), ("x,lab", true)]
        {
            let found = proxy("http://gpu-3.lab:8000", &[("all_proxy", "http://one:1"), ("no_proxy", word)]);
            assert_eq!(found.is_none(), spared, "{word}");
        }
    }

    #[test]
    fn what_is_no_proxy_is_refused() {
        assert!(Proxy::parse("https://one").is_err());
        assert!(Proxy::parse("socks5://one").is_err());
    }
}
