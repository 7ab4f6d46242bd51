//! The `%` tokens, `${NAME}` and `~` in what a configuration says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the tokens stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    values: BTreeMap<char, String>,
    home: PathBuf,
}

impl Tokens {
    pub(super) fn new(home: &Path) -> Self {
        let mut tokens = Tokens { values: BTreeMap::new(), home: home.to_owned() };
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        tokens.set('d', home.to_string_lossy());
        tokens.set('i', nix::unistd::getuid().to_string());
        tokens.set('L', host.split('.').next().unwrap_or_default());
        tokens.set('l', host.as_str());
        tokens.set('u', local_user());
        tokens.set('%', "%");
        tokens
    }

    pub(super) fn set(&mut self, token: char, value: impl Into<String>) {
        self.values.insert(token, value.into());
    }

    /// The text with its tokens replaced.
    pub(super) fn expand(&self, text: &str) -> Result<String, String> {
        let mut whole = String::with_capacity(text.len());
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                whole.push(c);
                continue;
            }
            let token = rest.next().ok_or_else(|| format!("`{text}` ends with `%`"))?;
            let value = self.values.get(&token).ok_or_else(|| format!("orch does not know `%{token}` in `{text}`"))?;
            whole.push_str(value);
        }
        Ok(whole)
    }

    /// A path with its tokens, variables and `~` replaced.
    pub(super) fn path(&self, text: &str) -> Result<PathBuf, String> {
        let text = variables(&self.expand(text)?)?;
        Ok(match text.strip_prefix('~') {
            Some("") => self.home.clone(),
            Some(rest) if rest.starts_with('/') => self.home.join(rest.trim_start_matches('/')),
            Some(rest) => {
                let (user, below) = rest.split_once('/').unwrap_or((rest, ""));
                let found = nix::unistd::User::from_name(user).ok().flatten();
                found.ok_or_else(|| format!("there is no user `{user}` for `{text}`"))?.dir.join(below)
            }
            None => PathBuf::from(text),
        })
    }
}

/// Who runs this.
pub(super) fn local_user() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    user.map(|user| user.name).or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "root".to_owned())
}

/// The text with `${NAME}` replaced from the environment.
fn variables(text: &str) -> Result<String, String> {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) = after.split_once('}').ok_or_else(|| format!("`{text}` has `${{` without `}}`"))?;
        let value =
            std::env::var(name).map_err(|_| format!("`{text}` needs {name}, which is not in the environment"))?;
        whole.push_str(before);
        whole.push_str(&value);
        rest = behind;
    }
    Ok(whole + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_variables_and_the_home_are_replaced() {
        let mut tokens = Tokens::new(Path::new("/home/me"));
        tokens.set('h', "gpu-3");
        assert_eq!(tokens.expand("nc %h 100%%").unwrap(), "nc gpu-3 100%");
        assert_eq!(tokens.path("~/.ssh/%h").unwrap(), Path::new("/home/me/.ssh/gpu-3"));
        assert_eq!(tokens.path("%d/x").unwrap(), Path::new("/home/me/x"));
        let path = std::env::var("PATH").unwrap();
        assert_eq!(tokens.path("/a/${PATH}/b").unwrap(), PathBuf::from(format!("/a/{path}/b")));
        assert!(tokens.expand("%Z").unwrap_err().contains("`%Z`"));
        assert!(tokens.path("${NO_SUCH_VARIABLE_HERE}").unwrap_err().contains("NO_SUCH_VARIABLE_HERE"));
        assert!(tokens.expand("%").is_err() && tokens.path("${A").is_err());
    }
}
