//! What an installer's output tells: what it is at, and why it failed.

use std::path::{Path, PathBuf};

use regex::Regex;

use super::InstallError;
use crate::profile::InstallVariant;

/// So many last lines of the output are shown.
const SHOWN: usize = 12;

/// What is being done, by the last line that says so: `fetching server 1.0`. `None` if the output does not tell.
pub(super) fn doing(output: &str, variant: &InstallVariant) -> Option<String> {
    output.lines().rev().find_map(|line| {
        let line = line.trim();
        let (verb, rest) = if let Some(rest) = line.strip_prefix("Collecting ") {
            ("fetching", rest)
        } else if let Some(rest) = line.strip_prefix("Building wheel for ") {
            ("building", rest)
        } else if line.starts_with("Installing collected packages") {
            return Some(format!("unpacking {}", names(variant)));
        } else {
            return None;
        };
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.'))?;
        let package = variant.packages.iter().find(|package| plain(&package.name) == plain(&rest[..end]))?;
        Some(format!("{verb} {} {}", package.name, package.version))
    })
}

/// So many packages are named; a locked environment of an engine has some 160.
const NAMED: usize = 3;

/// `server 1.0, model 2.0`; of many the first ones, and how many more.
pub(super) fn names(variant: &InstallVariant) -> String {
    let packages = &variant.packages;
    let named = if packages.len() > NAMED + 1 { NAMED } else { packages.len() };
    let mut names: Vec<String> =
        packages[..named].iter().map(|package| format!("{} {}", package.name, package.version)).collect();
    if named < packages.len() {
        names.push(format!("{} more", packages.len() - named));
    }
    names.join(", ")
}

/// Package names differ in case and in `-`, `_`, `.` only on paper.
fn plain(name: &str) -> String {
    name.replace(['_', '.'], "-").to_ascii_lowercase()
}

/// Why the installer failed.
pub(super) fn explain(
    output: &str,
    command: &str,
    status: String,
    variant: &InstallVariant,
    log: &Path,
) -> InstallError {
    let has = |signs: &[&str]| signs.iter().any(|sign| output.contains(sign));
    let (lines, log) = (last_lines(output), log.to_owned());
    if has(&["No space left on device", "Disk quota exceeded"]) {
        return InstallError::NoSpace { path: log.parent().map_or_else(PathBuf::new, Path::to_owned) };
    }
    if has(&["DO NOT MATCH THE HASHES", "Hash mismatch for"]) {
        return InstallError::WrongHash { lines, log };
    }
    // Debian's Python says so over two lines.
    if has(&["ensurepip is not", "No module named ensurepip", "No module named venv"]) {
        return InstallError::NoVenv { package: venv_package(output) };
    }
    // pip retries, then says only that there is no such package.
    let unreachable = has(&["connection broken by", "Max retries exceeded"]);
    let not_found = has(&["No matching distribution found", "No solution found", "Could not install packages due to"]);
    if (unreachable && not_found)
        || has(&["error sending request", "dns error", "Network connectivity is disabled", "Failed to fetch"])
    {
        return InstallError::NoNetwork { packages: names(variant), lines, log };
    }
    if not_found {
        return InstallError::NoSuchPackage { lines, log };
    }
    InstallError::Failed { command: command.to_owned(), status, lines, log }
}

/// Debian's Python names the package itself: `apt install python3.11-venv`.
fn venv_package(output: &str) -> String {
    let named = Regex::new(r"apt install (python3[\w.]*-venv)").ok().and_then(|named| named.captures(output));
    named.map_or_else(|| "python3-venv".to_owned(), |found| found[1].to_owned())
}

fn last_lines(output: &str) -> Vec<String> {
    let mut lines: Vec<String> = output
        .lines()
        .rev()
        .map(str::trim_end)
        .filter(|line| !line.trim().is_empty())
        .take(SHOWN)
        .map(|line| line.chars().take(300).collect())
        .collect();
    lines.reverse();
    // What came before the first error explains nothing.
    let first = lines.iter().position(|line| line.trim_start().to_ascii_lowercase().starts_with("error:"));
    lines.drain(..first.unwrap_or(0));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Package;

    fn variant() -> InstallVariant {
        let package =
            |name: &str, version: &str| Package { name: name.into(), version: version.into(), sha256: vec![] };
        InstallVariant {
            cpu: vec![],
            packages: vec![package("tiny-server", "1.0"), package("tiny_model", "2.0")],
            executable: None,
            launcher: None,
            version: None,
            build_env: [].into(),
        }
    }

    #[test]
    fn of_many_packages_a_few_are_named() {
        let mut many = variant();
        assert_eq!(names(&many), "tiny-server 1.0, tiny_model 2.0");
        for k in 3..=5 {
            many.packages.push(Package { name: format!("p{k}"), version: "1".into(), sha256: vec![] });
        }
        assert_eq!(names(&many), "tiny-server 1.0, tiny_model 2.0, p3 1, 2 more");
    }

    fn why(output: &str) -> InstallError {
        explain(output, "pip install", "status 1".into(), &variant(), Path::new("/e/install.log"))
    }

    #[test]
    fn what_is_being_done_is_the_last_that_was_said() {
        let mut output = String::new();
        let mut then = |line: &str| {
            output.push_str(line);
            output.push('\n');
            doing(&output, &variant())
        };
        assert_eq!(then("Looking in links: /w"), None);
        assert_eq!(then("Collecting Tiny_Server==1.0 (from -r r.txt (line 1))").unwrap(), "fetching tiny-server 1.0");
        assert_eq!(then("  Downloading tiny_server-1.0.whl (68.0 MB)").unwrap(), "fetching tiny-server 1.0");
        assert_eq!(
            then("  Building wheel for tiny-model (pyproject.toml): started").unwrap(),
            "building tiny_model 2.0"
        );
        assert_eq!(
            then("Installing collected packages: tiny-server, tiny-model").unwrap(),
            "unpacking tiny-server 1.0, tiny_model 2.0"
        );
    }

    #[test]
    fn failures_are_told_apart() {
        let retry =
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/x/\n";
        let none = "ERROR: No matching distribution found for x==1.0\n";
        let network = why(&format!("{retry}{none}"));
        assert!(
            matches!(&network, InstallError::NoNetwork { packages, .. } if packages == "tiny-server 1.0, tiny_model 2.0")
        );
        assert!(matches!(why(none), InstallError::NoSuchPackage { .. }));
        assert!(matches!(why("error: Failed to fetch: `x`\n  Caused by: dns error"), InstallError::NoNetwork { .. }));
        // A retry that went well does not explain what came later.
        assert!(matches!(why(&format!("{retry}error: ninja: build stopped")), InstallError::Failed { .. }));
        let hash = "Collecting x\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    Got        00\n";
        match why(hash) {
            InstallError::WrongHash { lines, .. } => assert_eq!(lines[1], "    Got        00"),
            error => panic!("{error}"),
        }
        assert!(
            matches!(why("OSError: [Errno 28] No space left on device"), InstallError::NoSpace { path } if path == Path::new("/e"))
        );
        let venv = "The virtual environment was not created successfully because ensurepip is not\navailable. \
                    On Debian systems, install the python3-venv package:\n\n    apt install python3.11-venv\n";
        assert!(matches!(why(venv), InstallError::NoVenv { package } if package == "python3.11-venv"));
        assert!(
            matches!(why("python3: No module named venv"), InstallError::NoVenv { package } if package == "python3-venv")
        );
    }

    #[test]
    fn only_the_last_lines_are_shown() {
        let output: String = (1..=40).map(|line| format!("line {line}\n\n")).collect();
        match why(&output) {
            InstallError::Failed { lines, status, .. } => {
                assert_eq!((lines.len(), lines[0].as_str(), lines[11].as_str()), (12, "line 29", "line 40"));
                assert_eq!(status, "status 1");
            }
            error => panic!("{error}"),
        }
    }
}
