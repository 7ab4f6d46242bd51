//! The production of a host, as `hosts.yaml` names it: what `--displace` stops and brings back.

use super::production::{Production, What};
use crate::host::{Commands, Hosts, HostsError, ProductionKeys};
use crate::units;

/// For how long production must not have served a request, unless the file says otherwise.
const IDLE: std::time::Duration = std::time::Duration::from_secs(10 * 60);

impl Hosts {
    /// The production of a host.
    pub fn production(&self, host: &str) -> Result<Production, HostsError> {
        let none = |why: String| HostsError::NoProduction { why, host: host.to_owned() };
        let Some(path) = self.path() else {
            return Err(none("there is no hosts.yaml that says what production is here".to_owned()));
        };
        let entry = self.entry(host).ok_or_else(|| none(format!("{} has no host `{host}`", path.display())))?;
        let keys = entry.production.clone();
        let keys = keys.ok_or_else(|| none(format!("{} names no production of `{host}`", path.display())))?;
        keys.read().map_err(|(why, help)| HostsError::Wrong {
            path: path.to_owned(),
            why: format!("`{host}.production`: {why}"),
            help: help.to_owned(),
        })
    }
}

impl ProductionKeys {
    fn read(self) -> Result<Production, (String, &'static str)> {
        let ProductionKeys { unit, manager, container, command, url, model, idle, ready } = self;
        let what = match (unit, container, command) {
            (Some(unit), None, None) => {
                let name = if unit.contains('.') { unit } else { format!("{unit}.service") };
                What::Unit { name, manager: manager.unwrap_or_default() }
            }
            (None, Some(name), None) => What::Container { name },
            (None, None, Some(Commands { start, stop, status })) => {
                if start.is_empty() || stop.is_empty() || status.as_ref().is_some_and(Vec::is_empty) {
                    return Err((
                        "a command has no words".to_owned(),
                        "write its words as a list: [/opt/serve, start]",
                    ));
                }
                What::Command { start, stop, status }
            }
            _ => {
                return Err((
                    "it must be one of `unit`, `container` and `command`".to_owned(),
                    "name the one that serves, as its own manager knows it",
                ));
            }
        };
        if manager.is_some() && !matches!(what, What::Unit { .. }) {
            return Err(("`manager` is for a `unit` only".to_owned(), "take it out"));
        }
        let url = url.ok_or((
            "`url` is missing".to_owned(),
            "say where it answers (`url: \"http://127.0.0.1:30000\"`): orch asks there whether it is idle, and whether it is back",
        ))?;
        let duration = |key: &str, text: &str| {
            let read = units::parse_duration(text);
            read.map_err(|error| (format!("`{key}`: {error}"), "write a duration with its unit, such as `10m`"))
        };
        let idle = match idle.as_deref() {
            None => Some(IDLE),
            Some("unchecked") => None,
            Some(text) => Some(duration("idle", text)?),
        };
        let ready = ready.as_deref().map(|text| duration("ready", text)).transpose()?;
        Ok(Production { what, url: url.trim_end_matches('/').trim_end_matches("/v1").to_owned(), model, idle, ready })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::LOCAL;
    use crate::launch::systemd::Manager;

    fn production(text: &str) -> Result<Production, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts.yaml");
        std::fs::write(&path, text).unwrap();
        let hosts = Hosts::read(Some(&path), &[]).map_err(|error| error.to_string())?;
        hosts.production(LOCAL).map_err(|error| error.to_string().replace(&path.display().to_string(), "F"))
    }

    #[test]
    fn production_is_a_unit_a_container_or_commands() {
        let unit = production("local: {production: {unit: qwen, url: 'http://127.0.0.1:30000/v1'}}").unwrap();
        assert_eq!(unit.what, What::Unit { name: "qwen.service".into(), manager: Manager::System });
        assert_eq!((unit.url.as_str(), unit.idle, unit.ready), ("http://127.0.0.1:30000", Some(IDLE), None));
        let container =
            production("local: {production: {container: qwen, url: u, idle: unchecked, ready: 1h}}").unwrap();
        assert_eq!((container.shown().as_str(), container.idle), ("container qwen", None));
        assert_eq!(container.ready.unwrap().as_secs(), 3600);
        let command =
            production("local:\n  ssh: root@x\n  production:\n    command: {start: [a], stop: [b, c]}\n    url: u\n");
        assert_eq!(command.unwrap().shown(), "production of `a`");
        // As it lies on disk while it is displaced.
        let written = serde_json::to_string(&unit).unwrap();
        assert_eq!(serde_json::from_str::<Production>(&written).unwrap(), unit);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, expected) in [
            (
                "local: {production: {unit: a, container: b, url: u}}",
                "F: `local.production`: it must be one of `unit`, `container` and `command`",
            ),
            ("local: {production: {unit: a}}", "F: `local.production`: `url` is missing"),
            ("local: {production: {unit: a, url: u, idle: 10}}", "`idle`"),
            ("other: {}", "F has no host `local`"),
            ("local: {}", "F names no production of `local`"),
            ("local: {production: {unt: a}}", "unt"),
            ("local: {prodution: {}}", "prodution"),
        ] {
            let error = production(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
