//! Why a step could not be measured at all. A request that fails is no error here: it is a timeline with an outcome.

use miette::Diagnostic;

/// Why no load was sent.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum LoadError {
    /// The address is none.
    #[error("`{url}` is not an address: {why}")]
    #[diagnostic(code(orch::load::url), help("an address looks like http://127.0.0.1:8000 or https://host/prefix/v1"))]
    Url {
        /// As written.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A header that HTTP cannot carry.
    #[error("the header `{name}` cannot be sent: {why}")]
    #[diagnostic(code(orch::load::header))]
    Header {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A key of the workload that the load must set itself.
    #[error("the workload sets `{key}` in the request body, which is the load's own")]
    #[diagnostic(
        code(orch::load::owned_key),
        help("the load sets model, messages, prompt, stream, max_tokens and ignore_eos")
    )]
    OwnedKey {
        /// The key.
        key: String,
    },
    /// A load that cannot be sent yet.
    #[error("{what} is not supported yet")]
    #[diagnostic(code(orch::load::unsupported), help("{help}"))]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What is there instead.
        help: &'static str,
    },
    /// A step without anything to do.
    #[error("the step `{step}` cannot be run: {why}")]
    #[diagnostic(code(orch::load::step))]
    Step {
        /// Its name.
        step: String,
        /// What is missing.
        why: &'static str,
    },
    /// Prompts of the wanted length cannot be made.
    #[error("prompts of an exact length cannot be made: {why}")]
    #[diagnostic(
        code(orch::load::input_length),
        help("they need a server that counts the tokens of its prompts (/tokenize, or usage in its answers)")
    )]
    InputLength {
        /// What is missing.
        why: String,
    },
    /// Too few file descriptors for so many connections.
    #[error("{wanted} connections need more open files than the limit of {limit}")]
    #[diagnostic(
        code(orch::load::open_files),
        help("raise the hard limit of open files (ulimit -Hn), or lower the concurrency")
    )]
    OpenFiles {
        /// Connections asked for.
        wanted: u32,
        /// The hard limit.
        limit: u64,
    },
    /// The system's certificates could not be read.
    #[error("TLS cannot be set up: {0}")]
    #[diagnostic(code(orch::load::tls))]
    Tls(String),
    /// The system refused a thread or a runtime.
    #[error("the load's own thread cannot start: {0}")]
    #[diagnostic(code(orch::load::thread))]
    Thread(#[source] std::io::Error),
    /// A fault of ours.
    #[error("the load's own thread ended without a result")]
    #[diagnostic(code(orch::load::lost))]
    Lost,
}
