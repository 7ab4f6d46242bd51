//! Finding and reading definitions: in a user's `templates/` folder, else in the program itself.

use std::borrow::Cow;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use regex::Regex;
use serde::de::DeserializeOwned;

use super::error::{EngineError, Wrong, kind_word};
use super::{
    Common, Condition, Definition, EngineFacts, FlagLists, LaunchTemplate, PHASES, SAMPLE_FIELDS, SERVING_EVENTS,
    ServingRules, Version, builtin, settings,
};
use crate::profile::{Engine, EngineKind};
use crate::units;

/// A file of this size is no definition.
const MAX_BYTES: u64 = 1 << 20;

/// The definition of an engine. A user's folder that holds `<kind>/engine.yaml` or `<kind>/launch.hbs` overrides that
/// file; the first of several folders wins.
pub fn definition(kind: EngineKind, folders: &[PathBuf]) -> Result<Definition, EngineError> {
    let word = kind_word(kind);
    let missing = || EngineError::Missing {
        kind: word.to_owned(),
        looked: folders.iter().map(|folder| folder.join(word)).collect(),
    };
    let facts = find(&format!("{word}/engine.yaml"), folders)?.ok_or_else(missing)?;
    let template = find(&format!("{word}/launch.hbs"), folders)?.ok_or_else(missing)?;
    let common = find("common.yaml", folders)?.map(|file| parse::<Common>(&file)).transpose()?.unwrap_or_default();
    let parsed: EngineFacts = parse(&facts)?;
    check(&parsed, kind, &facts)?;
    let template = LaunchTemplate::compile(&template.name, &template.text).map_err(|faults| {
        EngineError::of(faults.into_iter().map(|fault| Wrong::template(&template, fault)).collect())
    })?;
    Ok(Definition { facts: parsed.with_common(common), template, flag_lists: flag_lists(word, folders)? })
}

/// The lists of flags that are kept of an engine: those in the program, and those of the first folder that has any of
/// the same version.
fn flag_lists(word: &str, folders: &[PathBuf]) -> Result<FlagLists, EngineError> {
    let mut lists: Vec<(Version, Cow<'static, str>)> = Vec::new();
    for folder in folders.iter().map(|folder| folder.join(word).join("flags")) {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            Err(source) => return Err(EngineError::Read { path: folder, source }),
        };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        for path in files {
            let Some(version) =
                path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".txt"))
            else {
                continue;
            };
            let version = Version::from(version);
            if lists.iter().all(|(known, _)| *known != version) {
                let text = read(&path).map_err(|source| EngineError::Read { path: path.clone(), source })?;
                lists.push((version, text.into()));
            }
        }
    }
    for (version, text) in builtin::flag_lists(word) {
        let version = Version::from(version);
        if lists.iter().all(|(known, _)| *known != version) {
            lists.push((version, Cow::Borrowed(text)));
        }
    }
    Ok(FlagLists(lists))
}

/// The definition for a profile's engine. A simulated one is started by its own, and is read and asked by that of the
/// engine that it plays.
pub fn definition_for(engine: &Engine, folders: &[PathBuf]) -> Result<Definition, EngineError> {
    let mut own = definition(engine.kind, folders)?;
    if engine.kind == EngineKind::Sim {
        let played = definition(engine.played(), folders)?.facts;
        let EngineFacts { verified, endpoints, requests, counters, readback, stop, log, .. } = played;
        own.facts = EngineFacts { verified, endpoints, requests, counters, readback, stop, log, ..own.facts };
    }
    Ok(own)
}

/// Where a user's own definitions are looked for: `templates/` of the current folder.
pub fn default_folders() -> Vec<PathBuf> {
    vec![PathBuf::from("templates")]
}

/// Another file of an engine's folder, such as a launcher that an install variant names.
pub fn file(kind: EngineKind, name: &str, folders: &[PathBuf]) -> Result<Option<String>, EngineError> {
    Ok(find(&format!("{}/{name}", kind_word(kind)), folders)?.map(|file| file.text))
}

/// The template of a systemd unit: a user's `templates/systemd/server.service.hbs`, else orch's own.
pub fn unit_template(folders: &[PathBuf]) -> Result<String, EngineError> {
    Ok(find("systemd/server.service.hbs", folders)?.map(|file| file.text).unwrap_or_default())
}

/// A file as it was found.
pub(super) struct Found {
    /// The path, or `builtin:` and the path below `templates/`.
    pub(super) name: String,
    pub(super) text: String,
}

fn find(path: &str, folders: &[PathBuf]) -> Result<Option<Found>, EngineError> {
    for folder in folders {
        let full = folder.join(path);
        match read(&full) {
            Ok(text) => return Ok(Some(Found { name: full.display().to_string(), text })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(EngineError::Read { path: full, source }),
        }
    }
    Ok(builtin::file(path).map(|text| Found { name: format!("builtin:{path}"), text: text.to_owned() }))
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {}", units::bytes_text(MAX_BYTES)),
        ));
    }
    Ok(text)
}

fn parse<T: DeserializeOwned>(file: &Found) -> Result<T, EngineError> {
    serde_yaml::from_str(&file.text).map_err(|error| EngineError::of(vec![Wrong::yaml(file, &error)]))
}

/// What serde cannot see: that words are those of orch's own vocabularies.
fn check(facts: &EngineFacts, kind: EngineKind, file: &Found) -> Result<(), EngineError> {
    let mut wrongs = Vec::new();
    let mut wrong = |word: &str, message: String, help: String| wrongs.push(Wrong::word(file, word, message, help));
    if facts.kind != kind {
        let own = kind_word(facts.kind);
        wrong(
            own,
            format!("`kind: {own}` stands in the folder `{}`", kind_word(kind)),
            "name the folder after the kind".into(),
        );
    }
    for key in facts.settings.keys().filter(|key| !settings::is_key(key)) {
        let derived = settings::DERIVED.iter().map(|(key, _)| *key);
        let known = settings::KEYS.iter().copied().chain(derived).collect::<Vec<_>>().join("`, `");
        wrong(key, format!("`settings.{key}`: profiles have no such setting"), format!("the settings are `{known}`"));
    }
    let spelled = facts.settings.values().flat_map(|row| &row.spellings).filter_map(|spelling| spelling.when.as_ref());
    let rules = facts.rules.iter().flat_map(|rule| std::iter::once(&rule.when).chain(&rule.need));
    let traps = facts.warnings.iter().map(|trap| &trap.when);
    for condition in spelled.chain(rules).chain(traps) {
        for word in condition_faults(condition) {
            wrong(
                word,
                format!("`{word}` in `{condition}`: profiles have no such setting"),
                "see docs/engines.md".into(),
            );
        }
    }
    let phases = facts.log.phases.iter().map(|rule| &rule.phase);
    let again = facts.log.phases.iter().filter_map(|rule| rule.again.as_ref()).map(|again| &again.phase);
    let phases = phases.chain(again).chain(facts.log.bars.iter().map(|rule| &rule.phase));
    let failures = facts.log.failures.iter().flat_map(|rule| [&rule.phase, &rule.at]).flatten();
    for phase in phases.chain(failures) {
        if !PHASES.contains(&phase.as_str()) {
            wrong(phase, format!("`{phase}` is not a phase"), format!("the phases are `{}`", PHASES.join("`, `")));
        }
    }
    for (key, place) in facts.readback.iter().flat_map(|(key, places)| places.0.iter().map(move |place| (key, place))) {
        if let Some(fault) = place.fault() {
            wrong(key, format!("`readback.{key}`: {fault}"), "see docs/engines.md".into());
        }
        for (word, pattern) in [("pattern", &place.pattern), ("log", &place.log)] {
            if let Some(Err(error)) = pattern.as_deref().map(Regex::new) {
                wrong(key, format!("`readback.{key}.{word}`: not a regular expression: {error}"), "mend it".into());
            }
        }
    }
    for (word, message, help) in serving_faults(&facts.log.serving) {
        wrong(&word, message, help);
    }
    let spans = facts.log.phases.iter().filter_map(|rule| rule.patience.as_ref()).chain([&facts.stop.patience]);
    for span in spans {
        if let Err(error) = units::parse_duration(span) {
            wrong(span, error.to_string(), "such as `60s` or `15m`".into());
        }
    }
    for pattern in &facts.log.serving.acceptance {
        if let Err(error) = Regex::new(pattern) {
            wrong(pattern, format!("not a regular expression: {error}"), "see docs/engines.md".into());
        }
    }
    let patterns = facts.version.iter().map(|probe| &probe.pattern);
    for pattern in patterns {
        match Regex::new(pattern) {
            Ok(regex) if regex.capture_names().flatten().any(|name| name == "version") => {}
            Ok(_) => wrong(
                pattern,
                "the pattern has no group `(?<version>…)`".into(),
                "name the part that is the version".into(),
            ),
            Err(error) => wrong(pattern, format!("not a regular expression: {error}"), "see docs/engines.md".into()),
        }
    }
    if wrongs.is_empty() { Ok(()) } else { Err(EngineError::of(wrongs)) }
}

/// Words of `log.serving` that are not of its vocabulary, with what to say of each. That its patterns read, the grammar
/// says.
fn serving_faults(serving: &ServingRules) -> Vec<(String, String, String)> {
    let mut faults = Vec::new();
    for event in serving.events.iter().filter(|rule| !SERVING_EVENTS.contains(&rule.event.as_str())) {
        let help = format!("the events are `{}`", SERVING_EVENTS.join("`, `"));
        faults.push((event.event.clone(), format!("`log.serving.events`: `{}` is not one", event.event), help));
    }
    let patterns = serving.samples.iter().flat_map(|rule| &rule.fields).filter_map(|field| Regex::new(field).ok());
    let names: Vec<String> =
        patterns.flat_map(|regex| regex.capture_names().flatten().map(str::to_owned).collect::<Vec<_>>()).collect();
    for name in names.into_iter().filter(|name| !SAMPLE_FIELDS.contains(&name.as_str())) {
        let help = format!("the fields are `{}`", SAMPLE_FIELDS.join("`, `"));
        faults.push((name.clone(), format!("`log.serving.samples`: `{name}` is not a field"), help));
    }
    faults
}

fn condition_faults(condition: &Condition) -> Vec<&str> {
    condition
        .words()
        .filter(|word| word.contains('.') && !settings::is_key(word) && !settings::is_own_word(word))
        .collect()
}

#[cfg(test)]
mod tests {
    use miette::Diagnostic;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    fn refused(yaml: &str, template: &str) -> String {
        let folder = folder(&[("vllm/engine.yaml", yaml), ("vllm/launch.hbs", template)]);
        let error = definition(EngineKind::Vllm, &[folder.path().to_owned()]).unwrap_err();
        let mut text = String::new();
        miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::none())
            .with_width(100)
            .render_report(&mut text, &error as &dyn Diagnostic)
            .unwrap();
        text.replace(&folder.path().display().to_string(), "templates").replace("\r", "")
    }

    #[test]
    fn the_definitions_in_the_program_are_sound() {
        for kind in [
            EngineKind::Sglang,
            EngineKind::Vllm,
            EngineKind::Llamacpp,
            EngineKind::Trtllm,
            EngineKind::Command,
            EngineKind::Sim,
        ] {
            let definition = definition(kind, &[]).unwrap();
            assert_eq!(definition.kind, kind);
            assert!(definition.log.failures.iter().any(|rule| rule.kind == "port_in_use"), "common.yaml is in it");
        }
    }

    #[test]
    fn an_engine_that_is_nowhere_is_named_with_where_it_was_looked_for() {
        let error = definition(EngineKind::named("tgi").unwrap(), &[PathBuf::from("mine")]).unwrap_err();
        assert_eq!(error.to_string(), "there is no definition of engine `tgi`");
        assert!(error.help().unwrap().to_string().contains("mine/tgi"));
    }

    #[test]
    fn one_file_of_the_users_overrides_one_in_the_program() {
        let folder = folder(&[("llamacpp/launch.hbs", "{{executable}} --mine")]);
        let definition = definition(EngineKind::Llamacpp, &[folder.path().to_owned()]).unwrap();
        assert!(definition.template.name.ends_with("llamacpp/launch.hbs"));
        assert_eq!(definition.verified[0].0, "b10434");
    }

    #[test]
    fn wrong_files_are_refused_with_their_place() {
        insta::assert_snapshot!(refused("kind: vllm\nsetings: {}\n", ""));
        insta::assert_snapshot!(refused(
            "kind: vllm\nsettings:\n  memory.fractoin: {flag: --x}\nlog:\n  phases: [{phase: wieghts}]\nstop: {patience: 60}\n",
            ""
        ));
        insta::assert_snapshot!(refused("kind: sglang\n", ""));
    }

    #[test]
    fn wrong_templates_are_refused_with_their_place() {
        insta::assert_snapshot!(refused(
            "kind: vllm\n",
            "{{executable}}\n{{#if parallel.tensr}}--tp {{parallel.tensr}}{{/if}}\n"
        ));
        insta::assert_snapshot!(refused(
            "kind: vllm\n",
            "{{executable}} '{{port}}' {{{name}}} {{&name}}\n{{args}} {{model}}\n"
        ));
        insta::assert_snapshot!(refused("kind: vllm\n", "{{#each args}}\n{{this}}\n"));
    }

    #[test]
    fn all_ways_around_the_quoting_are_refused() {
        for template in [
            "\"{{name}}\"",
            "'a {{name}}'",
            "\\\\{{name}}",
            "# {{name}}",
            "{{{name}}}",
            "{{&name}}",
            "{{#if name}}'{{/if}}{{name}}",
            "'{{#if name}}' {{else}}{{/if}}{{name}}",
            "{{> other}}",
            "{{lookup settings 0}}",
            "{{#with model}}{{path}}{{/with}}",
            "{{#each args as |x|}}{{x}}{{/each}}",
            "{{settings}}",
            "{{model}}",
            "{{#each settings}}{{words}}{{/each}}",
            "{{#if (eq name lookup)}}{{/if}}",
            "{{../name}}",
            "{{@root.name}}",
            "{{name.length}}",
        ] {
            let faults = LaunchTemplate::compile("t", template);
            assert!(faults.is_err(), "{template}");
        }
        for template in [
            "{{executable}} --port={{port}} # fixed\n{{#if parallel.tensor}}--tp {{parallel.tensor}}{{else}}'one gpu'{{/if}}",
            "{{#each settings}}{{#each words}}{{this}} {{/each}}{{../name}}{{key}}{{/each}}",
            "{{#if (and (eq engine.kind \"vllm\") (not graphs.enabled))}}--enforce-eager{{/if}} {{~ name ~}} {{! a comment }}",
        ] {
            LaunchTemplate::compile("t", template).unwrap_or_else(|faults| panic!("{template}: {faults:?}"));
        }
    }
}
