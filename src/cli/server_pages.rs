//! What a running server says of itself, asked over HTTP, and on this machine the process behind its port.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::engine::{Definition, Version};
use crate::gate::{self, Beside};
use crate::import::{self, Draft, Launch};
use crate::profile::EngineKind;
use crate::record::model::Effective;

use super::{Exit, Failure, sources};

/// A page that takes longer comes from a server that is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// What there is to know of a server by its address.
pub(crate) enum Said {
    /// Its command: the process's, or the server's own words for it.
    Command {
        /// The command.
        launch: Box<Launch>,
        /// The version that it says.
        version: Option<Version>,
    },
    /// Values only.
    Draft(Box<Draft>),
}

/// A server that answers.
pub(crate) struct Asked {
    /// `http://host:port`.
    pub(crate) base_url: String,
    /// Its engine's definition.
    pub(crate) definition: Definition,
    /// The version that it says.
    pub(crate) version: Option<Version>,
    /// Its page of settings, if it has one.
    pub(crate) info: Option<Value>,
    /// Its list of models.
    pub(crate) models: Option<Value>,
}

/// Asks a server what it is.
pub(crate) fn ask(address: &str) -> Result<Asked, Failure> {
    let base_url = base_url(address);
    block_on(asked(base_url.clone()))?.ok_or_else(|| {
        let help = "an engine that orch describes is known by its own pages; `orch bench --url` measures any server";
        Failure::new(
            Exit::NotLaunched,
            miette::miette!(
                help = help,
                "nothing at {} answers like an engine that orch describes",
                import::hide(&base_url)
            ),
        )
    })
}

/// What an address tells, for import.
pub(crate) fn read(address: &str) -> Result<Said, Failure> {
    let asked = ask(address)?;
    if let Some(launch) = local_port(&asked.base_url).and_then(sources::behind) {
        return Ok(Said::Command { launch: Box::new(launch), version: asked.version });
    }
    if let Some(launch) = asked.info.as_ref().and_then(|info| import::server::launch(info, &asked.definition)) {
        return Ok(Said::Command { launch: Box::new(launch), version: asked.version });
    }
    let effective = effective(&asked, &Value::Null)?;
    let model = model(&asked);
    let port = reqwest::Url::parse(&asked.base_url).ok().and_then(|url| url.port());
    let draft = import::server::draft(&asked.definition, &effective, model, port, asked.version);
    draft.map(|draft| Said::Draft(Box::new(draft))).map_err(sources::refused)
}

/// What the server says it took for each setting, beside what was asked.
pub(crate) fn effective(asked: &Asked, profile: &Value) -> Result<Vec<Effective>, Failure> {
    let facts = BTreeMap::new();
    let beside = Beside { asked: profile, facts: &facts, log: None };
    block_on(async { Ok(gate::read_back(&asked.base_url, &asked.definition.readback, &beside).await) })
}

/// The model's own name or path, where the server tells it beside the name that requests use.
pub(crate) fn model(asked: &Asked) -> Option<String> {
    let of_info = asked.info.as_ref().and_then(|info| info.get("model_path"));
    let of_list = asked.models.as_ref().and_then(|models| models.pointer("/data/0/root"));
    of_info.or(of_list).and_then(Value::as_str).map(str::to_owned)
}

/// The port, where the address is this machine's.
pub(crate) fn local_port(base_url: &str) -> Option<u16> {
    let url = reqwest::Url::parse(base_url).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    url.port_or_known_default().filter(|_| is_here)
}

fn base_url(address: &str) -> String {
    let address = address.trim_end_matches('/');
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = crate::host::runtime::on_this_thread().map_err(Failure::start)?;
    runtime.block_on(future)
}

async fn asked(base_url: String) -> Result<Option<Asked>, Failure> {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build().map_err(Failure::own)?;
    let page = async |path: &str| {
        let answer = client.get(format!("{base_url}{path}")).send().await.ok()?;
        let text = answer.error_for_status().ok()?.text().await.ok()?;
        serde_json::from_str::<Value>(&text).ok()
    };
    let models = page("/v1/models").await;
    let info = match page("/server_info").await {
        Some(info) if info.get("tp_size").is_some() => Some(info),
        _ => page("/get_server_info").await.filter(|info| info.get("tp_size").is_some()),
    };
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let found = if let Some(info) = info {
        let version = text(&info, "version").map(Version);
        Some((EngineKind::Sglang, version, Some(info)))
    } else if let Some(props) = page("/props").await.filter(|props| props.get("total_slots").is_some()) {
        // `b10434-7e4c0a9`.
        let build = text(&props, "build_info").and_then(|build| Some(build.split('-').next()?.to_owned()));
        let version = build.filter(|build| build.len() > 1 && build[1..].bytes().all(|byte| byte.is_ascii_digit()));
        Some((EngineKind::Llamacpp, version.map(Version), Some(props)))
    } else {
        let owner = models.as_ref().and_then(|models| models.pointer("/data/0/owned_by")).and_then(Value::as_str)
            == Some("vllm");
        let version = page("/version").await.and_then(|page| text(&page, "version")).map(Version);
        owner.then_some((EngineKind::Vllm, version, None))
    };
    let Some((kind, version, info)) = found else { return Ok(None) };
    let definition = sources::definition(kind).map_err(|error| Failure::new(Exit::Usage, error))?;
    Ok(Some(Asked { base_url, definition, version, info, models }))
}
