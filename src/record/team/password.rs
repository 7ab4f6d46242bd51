//! The password of a store whose address has none: from `PGPASSWORD`, else from the file that `PGPASSFILE` names, else
//! from `~/.pgpass`, as PostgreSQL's own programs find it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// The file of passwords cannot be used.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum PasswordError {
    /// Others can read it.
    #[error("others can read the password of the team's store: {} has mode {mode:04o}", path.display())]
    #[diagnostic(code(orch::store::open_password), help("chmod 600 {}", path.display()))]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It was named and cannot be read.
    #[error("cannot read the file of passwords {}: {source}", path.display())]
    #[diagnostic(code(orch::store::password_file), help("PGPASSFILE names it; unset, ~/.pgpass is looked at"))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The password for `config`, if one is kept.
pub(super) fn find(config: &Config, env: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>, PasswordError> {
    if let Some(password) = env("PGPASSWORD").filter(|password| !password.is_empty()) {
        return Ok(Some(password));
    }
    let named = env("PGPASSFILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let is_named = named.is_some();
    let usual = || env("HOME").map(|home| Path::new(&home).join(".pgpass"));
    let Some(path) = named.or_else(usual) else { return Ok(None) };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(_) if !is_named => return Ok(None),
        Err(source) => return Err(PasswordError::File { path, source }),
    };
    let Some(password) = matching(&text, config) else { return Ok(None) };
    let mode = std::fs::metadata(&path).map(|found| found.permissions().mode() & 0o777).unwrap_or(0o777);
    match mode & 0o077 {
        0 => Ok(Some(password)),
        _ => Err(PasswordError::Open { path, mode }),
    }
}

/// The password of the first line that fits: `host:port:database:user:password`, where `*` fits everything.
fn matching(text: &str, config: &Config) -> Option<String> {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) => path.to_string_lossy().into_owned(),
        None => config.get_hostaddrs().first()?.to_string(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config.get_user().unwrap_or_default();
    let wanted = [host.as_str(), &port, config.get_dbname().unwrap_or(user), user];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let fits =
            fields.len() == 5 && wanted.iter().zip(&fields).all(|(wanted, field)| field == "*" || field == wanted);
        fits.then(|| fields[4].clone()).filter(|password| !password.is_empty())
    })
}

/// The parts of a line between its colons; a backslash takes the next character as it is.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.trim_end_matches(['\r', '\n']).chars();
    while let Some(c) = chars.next() {
        match c {
            // Only four of them divide: the password is the rest.
            ':' if fields.len() < 5 => fields.push(String::new()),
            _ => {
                let c = if c == '\\' { chars.next().unwrap_or(c) } else { c };
                fields.last_mut().into_iter().for_each(|field| field.push(c));
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# passwords\ndb:5432:other:ann:one\ndb:*:orch:ann:t\\:w\\\\o:x\n*:*:*:*:rest\n";
        assert_eq!(matching(text, &config("postgres://ann@db/orch")).as_deref(), Some("t:w\\o:x"));
        assert_eq!(matching(text, &config("postgres://bob@db/orch")).as_deref(), Some("rest"));
        assert_eq!(matching("db:5432:orch:ann:pw", &config("postgres://ann@%2Ftmp/orch")), None);
        assert_eq!(matching("/tmp:5432:orch:ann:pw", &config("postgres://ann@%2Ftmp/orch")).as_deref(), Some("pw"));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_if_it_has_the_password() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        std::fs::write(&path, "db:*:*:*:pw\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let named = path.display().to_string();
        let env = |name: &str| (name == "PGPASSFILE").then(|| named.clone());
        let found = find(&config("postgres://ann@db/orch"), &env);
        assert!(matches!(found, Err(PasswordError::Open { mode: 0o644, .. })), "{found:?}");
        assert!(find(&config("postgres://ann@elsewhere/orch"), &env).unwrap().is_none());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find(&config("postgres://ann@db/orch"), &env).unwrap().as_deref(), Some("pw"));
        let both = |name: &str| if name == "PGPASSWORD" { Some("own".to_owned()) } else { env(name) };
        assert_eq!(find(&config("postgres://ann@db/orch"), &both).unwrap().as_deref(), Some("own"));
    }
}
