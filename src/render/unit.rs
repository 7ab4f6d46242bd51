//! A systemd unit around a rank's command. Pure: the text of the template comes in, the text of the unit goes out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use handlebars::Handlebars;
use serde_json::json;

use super::{Rank, StopRule};

/// What a unit says beside the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit<'a> {
    /// The deployment's name; the unit is `orch-NAME.service`.
    pub name: &'a str,
    /// The profile's name.
    pub profile: &'a str,
    /// The profile's series.
    pub series: &'a str,
    /// Where the server begins.
    pub folder: &'a Path,
    /// What it has in its environment beside the plan's own; no secrets.
    pub env: BTreeMap<String, String>,
    /// The file that holds the values of secrets.
    pub secrets: Option<PathBuf>,
    /// How it is stopped.
    pub stop: &'a StopRule,
    /// Whether the user's own manager has it, and not the system's.
    pub of_user: bool,
}

/// The unit's name.
pub fn unit_name(deployment: &str) -> String {
    format!("orch-{deployment}.service")
}

/// Why a template gives no unit.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum UnitError {
    /// The template has a mistake.
    #[error("the template systemd/server.service.hbs gives no unit: {why}")]
    #[diagnostic(code(orch::render::unit), help("a file of that name under `templates/` replaces orch's own"))]
    Template {
        /// What handlebars said.
        why: String,
    },
    /// systemd cannot be told this path: it reads it to the end of the line as it stands.
    #[error("no unit can name {what}, `{}`: {why}", path.escape_debug())]
    #[diagnostic(code(orch::render::unit_path), help("use another folder"))]
    Path {
        /// What it is.
        what: &'static str,
        /// The path.
        path: String,
        /// What is in it.
        why: &'static str,
    },
}

/// The text of the unit. Each value is quoted as systemd reads it, so that it can become neither a second word nor a
/// second line.
pub fn unit(template: &str, rank: &Rank, unit: &Unit<'_>) -> Result<String, UnitError> {
    let mut env = unit.env.clone();
    env.extend(rank.env.clone());
    let env: Vec<String> = env.iter().map(|(name, value)| quoted(&format!("{name}={value}"), false)).collect();
    let context = json!({
        "name": one_line(unit.name),
        "profile": one_line(unit.profile),
        "series": one_line(unit.series),
        "description": one_line(&format!("{}, deployed by orch", unit.profile)),
        "folder": path("the folder that the server begins in", unit.folder)?,
        "env": env,
        "secrets": unit.secrets.as_deref().map(environment_file).transpose()?,
        "exec": exec(&rank.argv),
        "stop": {"signal": unit.stop.signal.trim_start_matches("SIG"), "patience_s": unit.stop.patience.as_secs().max(1)},
        "wanted_by": if unit.of_user { "default.target" } else { "multi-user.target" },
    });
    let mut registry = Handlebars::new();
    registry.set_strict_mode(true);
    registry.register_escape_fn(handlebars::no_escape);
    registry
        .render_template(template, &context)
        .map_err(|error| UnitError::Template { why: error.reason().to_string() })
}

/// The command, a flag with its values on each line, so that a difference shows what differs.
fn exec(argv: &[String]) -> String {
    let mut text = String::new();
    for (place, word) in argv.iter().enumerate() {
        let is_flag = word.starts_with('-') && word.parse::<f64>().is_err();
        text.push_str(match place {
            0 => "",
            _ if is_flag => " \\\n  ",
            _ => " ",
        });
        text.push_str(&quoted(word, true));
    }
    text
}

/// A word as systemd is to read it: specifiers (`%`) and, in a command, variables (`$`) are doubled.
fn quoted(word: &str, command: bool) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:=,@+-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let mut text = String::from("\"");
    for c in word.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '%' => text.push_str("%%"),
            '$' if command => text.push_str("$$"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            c if c.is_ascii_control() => text.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

/// A path where systemd takes the rest of the line as it stands, but for specifiers: quotes would be part of it.
fn path(what: &'static str, path: &Path) -> Result<String, UnitError> {
    let wrong = |why| Err(UnitError::Path { what, path: path.display().to_string(), why });
    match path.to_str() {
        None => wrong("it is not UTF-8"),
        Some(text) if text.chars().any(char::is_control) => wrong("it has a control character"),
        Some(text) if text.ends_with('\\') => wrong("a backslash at the end would join the next line to it"),
        Some(text) if text.trim() != text => wrong("space at its end would be lost"),
        Some(text) => Ok(text.replace('%', "%%")),
    }
}

/// A path that is a pattern too.
fn environment_file(file: &Path) -> Result<String, UnitError> {
    let what = "the file of its secrets";
    let text = path(what, file)?;
    if text.contains(['*', '?', '[', '\\']) {
        let path = file.display().to_string();
        return Err(UnitError::Path { what, path, why: "`*`, `?`, `[` and `\\` would make a pattern of it" });
    }
    Ok(text)
}

/// Free text in a unit: specifiers doubled, nothing that ends the line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().replace('%', "%%")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;

    const TEMPLATE: &str = include_str!("../../templates/systemd/server.service.hbs");

    fn text(argv: &[&str], env: &[(&str, &str)], secrets: bool) -> String {
        let secrets = secrets.then_some("/w/deployments/qwen/secrets.env");
        at("/srv/models", argv, env, secrets).unwrap()
    }

    fn at(folder: &str, argv: &[&str], env: &[(&str, &str)], secrets: Option<&str>) -> Result<String, UnitError> {
        let rank = Rank {
            node: "local".into(),
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            secrets: Vec::new(),
            files: Vec::new(),
            head: true,
        };
        let stop = StopRule { signal: "TERM".into(), patience: Duration::from_secs(60) };
        let unit = Unit {
            name: "qwen",
            profile: "qwen-mtp3",
            series: "qwen36-27b",
            folder: Path::new(folder),
            env: BTreeMap::new(),
            secrets: secrets.map(PathBuf::from),
            stop: &stop,
            of_user: false,
        };
        super::unit(TEMPLATE, &rank, &unit)
    }

    #[test]
    fn a_path_stands_as_it_is_or_is_refused() {
        let folder = "/srv/my \"own\" 50% models";
        let text = at(folder, &["/bin/x"], &[], Some("/w/a b/secrets.env")).unwrap();
        assert!(text.contains("\nWorkingDirectory=/srv/my \"own\" 50%% models\n"), "{text}");
        assert!(text.contains("\nEnvironmentFile=/w/a b/secrets.env\n"), "{text}");
        for folder in ["/srv/a\nUser=root", "/srv/a\\", "/srv/a "] {
            let error = at(folder, &["/bin/x"], &[], None).unwrap_err();
            assert!(error.to_string().starts_with("no unit can name the folder"), "{error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
        for file in ["/w/*/secrets.env", "/w/a\n/secrets.env"] {
            let error = at("/srv", &["/bin/x"], &[], Some(file)).unwrap_err();
            assert!(error.to_string().contains("the file of its secrets"), "{error}");
        }
    }

    #[test]
    fn a_whole_unit() {
        insta::assert_snapshot!(text(
            &["/opt/sglang/bin/python", "-m", "sglang.launch_server", "--port", "30000", "--json", "{\"a\": \"50%\", \"b\": \"$HOME\"}"],
            &[("NCCL_P2P_DISABLE", "1"), ("NOTE", "a b")],
            true,
        ), @r#"
        # Written by orch from the profile qwen-mtp3. `orch up` replaces it, `orch down qwen` takes it away.
        [Unit]
        Description=qwen-mtp3, deployed by orch
        Wants=network-online.target
        After=network-online.target
        # A server that cannot start is left alone after five tries, so that its log can be read.
        StartLimitIntervalSec=1h
        StartLimitBurst=5

        [Service]
        Type=exec
        WorkingDirectory=/srv/models
        Environment=NCCL_P2P_DISABLE=1
        Environment="NOTE=a b"
        # Values of secrets; only its owner can read it.
        EnvironmentFile=/w/deployments/qwen/secrets.env
        ExecStart=/opt/sglang/bin/python \
          -m sglang.launch_server \
          --port 30000 \
          --json "{\"a\": \"50%%\", \"b\": \"$$HOME\"}"
        KillSignal=SIGTERM
        KillMode=mixed
        TimeoutStopSec=60
        # Loading a large model takes as long as it takes.
        TimeoutStartSec=infinity
        Restart=on-failure
        RestartSec=10
        LimitMEMLOCK=infinity
        LimitNOFILE=1048576

        [Install]
        WantedBy=multi-user.target

        [X-Orch]
        Deployment=qwen
        Profile=qwen-mtp3
        Series=qwen36-27b
        "#);
    }

    #[test]
    fn no_value_becomes_a_second_line_or_word() {
        let text =
            text(&["/bin/x", "a\nExecStartPost=/bin/evil", ";", "%h"], &[("A", "1\n[Service]\nUser=root")], false);
        assert!(text.contains("ExecStart=/bin/x \"a\\nExecStartPost=/bin/evil\" \";\" \"%%h\"\n"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("ExecStartPost") || line.starts_with("User=")), "{text}");
    }

    fn verify(path: &Path) -> std::io::Result<String> {
        let output = std::process::Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(path).output()?;
        Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    #[test]
    fn systemd_itself_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orch-qwen.service");
        let odd = ["/bin/sh", "-c", "echo \"$x\" 'y' 100% \\ ;", "-", "ü\t\u{1}"];
        let working = folder.path().join("a folder of 100% \"quotes\"");
        std::fs::create_dir(&working).unwrap();
        let secrets = working.join("secrets.env");
        let text = at(working.to_str().unwrap(), &odd, &[("A", "'\"\\$ %n")], secrets.to_str()).unwrap();
        std::fs::write(&path, text).unwrap();
        // What is ignored with a warning is no fault for systemd, and one here.
        let said = match verify(&path) {
            Ok(said) => said,
            Err(error) => {
                return writeln!(std::io::stderr(), "skipped, because systemd-analyze cannot run: {error}").unwrap();
            }
        };
        let own: Vec<&str> = said.lines().filter(|line| line.contains("orch-qwen.service")).collect();
        assert!(own.is_empty(), "{own:#?}");
    }
}
