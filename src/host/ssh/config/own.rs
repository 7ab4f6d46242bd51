//! The reader of `ssh_config` for where no `ssh` is installed that could be asked.
//!
//! `Host` with its patterns, `Include`, the first value that is found. `Match` is refused: which of its lines hold depends
//! on programs and on what only `ssh` knows, and a wrong guess would connect to another machine.

use std::path::{Path, PathBuf};

use super::target::Target;
use crate::host::ssh::known::pattern;

/// How deep files may include files.
const DEEPEST: usize = 16;
/// A configuration of this size is none.
const MAX_BYTES: u64 = 4 << 20;

/// Keys that may be said several times, each time with another value.
const SEVERAL: [&str; 4] = ["identityfile", "certificatefile", "setenv", "sendenv"];

/// What the files say of a host: lower-case keys with their values, as `ssh -G` prints them.
pub(super) fn read(target: &Target, asked: Option<&Path>, home: &Path) -> Result<Vec<(String, String)>, String> {
    let mut found = Found { name: &target.name, home, values: Vec::new() };
    match asked {
        Some(file) => {
            if !file.exists() {
                return Err(format!("there is no {}", file.display()));
            }
            found.file(file, &home.join(".ssh"), true, 0)?;
        }
        None => {
            found.file(&home.join(".ssh/config"), &home.join(".ssh"), true, 0)?;
            found.file(Path::new("/etc/ssh/ssh_config"), Path::new("/etc/ssh"), true, 0)?;
        }
    }
    Ok(found.values)
}

struct Found<'a> {
    name: &'a str,
    home: &'a Path,
    values: Vec<(String, String)>,
}

impl Found<'_> {
    /// Reads one file. `active` is whether the block holds in which it is included.
    fn file(&mut self, path: &Path, base: &Path, active: bool, depth: usize) -> Result<(), String> {
        let size = std::fs::metadata(path).map_or(0, |data| data.len());
        if size > MAX_BYTES || depth > DEEPEST {
            return Err(format!("{} is too large, or files include each other", path.display()));
        }
        // A file that is not there says nothing, as for `ssh`.
        let Ok(text) = std::fs::read_to_string(path) else { return Ok(()) };
        let mut holds = active;
        for (number, line) in text.lines().enumerate() {
            let wrong = |why: &str| format!("{}:{}: {why}", path.display(), number + 1);
            let Some((key, values)) = words(line).map_err(|why| wrong(&why))? else { continue };
            match key.as_str() {
                "host" => holds = active && pattern::list(&values, self.name),
                "match" => {
                    return Err(wrong("`Match` can only be read by `ssh` itself, which is not installed here"));
                }
                "include" if holds => {
                    for value in &values {
                        for file in self.included(value, base) {
                            self.file(&file, base, holds, depth + 1)?;
                        }
                    }
                }
                "include" => {}
                _ if holds => self.value(key, values.join(" ")),
                _ => {}
            }
        }
        Ok(())
    }

    fn value(&mut self, key: String, value: String) {
        if SEVERAL.contains(&key.as_str()) || !self.values.iter().any(|(known, _)| *known == key) {
            self.values.push((key, value));
        }
    }

    /// The files that an `Include` names, in order.
    fn included(&self, written: &str, base: &Path) -> Vec<PathBuf> {
        let path = match written.strip_prefix("~/") {
            Some(rest) => self.home.join(rest),
            None => base.join(written),
        };
        let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Vec::new();
        };
        if !name.contains(['*', '?']) {
            return vec![path];
        }
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter(|entry| !entry.starts_with('.') && pattern::fits(name, entry)).collect();
        names.sort();
        names.into_iter().map(|name| folder.join(name)).collect()
    }
}

/// A line as its key in lower case and its values; `None` for one that says nothing.
fn words(line: &str) -> Result<Option<(String, Vec<String>)>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let end = line.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(line.len());
    let (key, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest).trim();
    let key = key.to_ascii_lowercase();
    // The value of these is a line for a shell.
    if matches!(key.as_str(), "proxycommand" | "localcommand" | "remotecommand" | "knownhostscommand") {
        return Ok(Some((key, vec![rest.to_owned()])));
    }
    let mut values = Vec::new();
    let mut rest = rest;
    while !rest.is_empty() && !rest.starts_with('#') {
        let (value, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or("a quote is not closed")?,
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        values.push(value.to_owned());
        rest = after.trim_start();
    }
    Ok(Some((key, values)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(found: &[(String, String)], key: &str) -> Vec<String> {
        found.iter().filter(|(known, _)| known == key).map(|(_, value)| value.clone()).collect()
    }

    #[test]
    fn the_first_value_counts_and_files_are_included() {
        let home = tempfile::tempdir().unwrap();
        let ssh = home.path().join(".ssh");
        std::fs::create_dir_all(ssh.join("more")).unwrap();
        std::fs::write(ssh.join("more/b.conf"), "Host gpu-*\n  User=\"in b\"\n  Port 7\n").unwrap();
        std::fs::write(ssh.join("more/a.conf"), "Host gpu-7\n\tHostName\t10.0.0.7\n").unwrap();
        let config = ssh.join("config");
        std::fs::write(
            &config,
            "# mine\nServerAliveInterval 9\nInclude more/*.conf missing\nHost gpu-* !gpu-8\n  Port 22\n  IdentityFile a\n  \
             IdentityFile = b\nHost *\n  ProxyCommand sh -c \"nc %h %p\"\n  User last\n",
        )
        .unwrap();
        let read = |name: &str| read(&Target::read(name).unwrap(), Some(&config), home.path()).unwrap();
        let seven = read("gpu-7");
        assert_eq!(get(&seven, "hostname"), ["10.0.0.7"]);
        assert_eq!(get(&seven, "user"), ["in b"]);
        assert_eq!((get(&seven, "port"), get(&seven, "serveraliveinterval")), (vec!["7".into()], vec!["9".into()]));
        assert_eq!(get(&seven, "identityfile"), ["a", "b"]);
        assert_eq!(get(&seven, "proxycommand"), ["sh -c \"nc %h %p\""]);
        assert_eq!(get(&read("gpu-8"), "identityfile"), Vec::<String>::new());
        assert_eq!(get(&read("other"), "user"), ["last"]);
    }

    #[test]
    fn a_match_is_refused_with_its_place() {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join("c");
        std::fs::write(&config, "Host a\n  Port 3\nMatch exec true\n  Port 4\n").unwrap();
        let error = read(&Target::read("a").unwrap(), Some(&config), home.path()).unwrap_err();
        assert!(
            error.ends_with("c:3: `Match` can only be read by `ssh` itself, which is not installed here"),
            "{error}"
        );
        assert!(read(&Target::read("a").unwrap(), Some(&home.path().join("none")), home.path()).is_err());
    }
}
