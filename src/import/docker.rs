//! `docker run` taken apart: what belongs to the container, and the command inside it.

use indexmap::IndexMap;

use super::open;
use super::secret;
use super::shell::is_variable;
use crate::render::docker;

/// A container as a command line asks for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Container {
    /// Its image.
    pub(super) image: String,
    /// The words for `docker run` that a profile may hold.
    pub(super) options: Vec<String>,
    /// What it sets in the environment.
    pub(super) env: IndexMap<String, String>,
    /// Ports outside and inside.
    pub(super) ports: Vec<(u16, u16)>,
    /// The command, after an entrypoint that was given.
    pub(super) words: Vec<String>,
    /// What a person should know.
    pub(super) notes: Vec<String>,
}

/// Whether words begin with the start of a container: how many words that is.
pub(super) fn begins(words: &[String]) -> Option<usize> {
    let name = super::program::base(words.first()?);
    if !matches!(name, "docker" | "podman" | "nerdctl") {
        return None;
    }
    match (words.get(1).map(String::as_str), words.get(2).map(String::as_str)) {
        (Some("run"), _) => Some(2),
        (Some("container"), Some("run")) => Some(3),
        _ => None,
    }
}

/// Reads what follows `docker run`; `None` without an image.
pub(super) fn read(words: &[String]) -> Option<Container> {
    let given = docker::options(words);
    let image = given.iter().find(|given| given.flag.is_empty())?.place;
    let mut container = Container { image: words[image].clone(), ..Container::default() };
    let mut entrypoint: Option<String> = None;
    for option in given.iter().take_while(|given| given.place < image) {
        let value = option.value.unwrap_or_default();
        match option.flag.as_str() {
            "--env" | "-e" => container.variable(value),
            "--publish" | "-p" => container.port(value),
            "--entrypoint" => entrypoint = Some(value.to_owned()),
            flag => container.option(flag, option.value),
        }
    }
    container.words =
        entrypoint.into_iter().filter(|word| !word.is_empty()).chain(words[image + 1..].iter().cloned()).collect();
    Some(container)
}

impl Container {
    fn variable(&mut self, value: &str) {
        match value.split_once('=') {
            Some((name, value)) if is_variable(name) => {
                self.env.insert(name.to_owned(), value.to_owned());
            }
            // The caller's own value.
            None if is_variable(value) => {
                self.env.insert(value.to_owned(), open::variable(value));
            }
            _ => self.notes.push("an `--env` that names no variable was left out".to_owned()),
        }
    }

    /// `8000:30000`, `127.0.0.1:8000:30000/tcp`.
    fn port(&mut self, value: &str) {
        let plain = value.split('/').next().unwrap_or(value);
        let mut numbers = plain.rsplit(':').map(str::parse::<u16>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(inside)), Some(Ok(outside))) => self.ports.push((outside, inside)),
            _ => self.notes.push(format!(
                "`--publish {}` was left out: the server listens on the host's own network",
                super::hide(value)
            )),
        }
    }

    fn option(&mut self, flag: &str, value: Option<&str>) {
        let word = match value {
            Some(value) if flag.starts_with("--") => format!("{flag}={value}"),
            Some(value) => format!("{flag}{value}"),
            None => flag.to_owned(),
        };
        if value.is_some_and(secret::is_value) {
            self.notes.push(format!("`{flag}` was left out: its value is a secret, which no profile may hold"));
            return;
        }
        // orch gives these itself, in its own way.
        if docker::faults(std::slice::from_ref(&word), &[]).is_empty() {
            self.options.push(word);
        }
    }
}

/// The version that an image's tag names, such as `v0.5.9-cu126` or `server-cuda-b10434`.
pub(super) fn version(image: &str) -> Option<String> {
    let tag = image.split('@').next()?.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'))?;
    let pattern =
        regex::Regex::new(r"(?:^|[-_v])(?<version>\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?|b\d{4,})(?:$|[-_+])").ok()?;
    Some(pattern.captures(tag)?["version"].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(line: &str) -> Container {
        let words = shell_words::split(line).unwrap();
        let begin = begins(&words).unwrap();
        read(&words[begin..]).unwrap()
    }

    #[test]
    fn a_container_is_taken_apart() {
        let container = container(
            "docker run -d --rm --gpus all --shm-size 32g -p 8000:30000 -v /models:/models:ro -e NCCL_DEBUG=INFO -e HF_TOKEN --name sg --ipc=host \
             lmsysorg/sglang:v0.5.9-cu126 python3 -m sglang.launch_server --port 30000",
        );
        assert_eq!(container.image, "lmsysorg/sglang:v0.5.9-cu126");
        assert_eq!(container.options, ["--gpus=all", "--shm-size=32g", "-v/models:/models:ro", "--ipc=host"]);
        assert_eq!(container.ports, [(8000, 30000)]);
        assert_eq!(container.env.keys().collect::<Vec<_>>(), ["NCCL_DEBUG", "HF_TOKEN"]);
        assert_eq!(container.words[..2], ["python3", "-m"]);
        let entered = self::container("podman run --entrypoint vllm img serve m");
        assert_eq!((entered.words, entered.options), (vec!["vllm".into(), "serve".into(), "m".into()], vec![]));
    }

    #[test]
    fn a_tag_may_name_the_version() {
        let of = |image: &str| version(image).unwrap_or_default();
        assert_eq!(of("lmsysorg/sglang:v0.5.9-cu126"), "0.5.9");
        assert_eq!(of("vllm/vllm-openai:v0.11.2"), "0.11.2");
        assert_eq!(of("ghcr.io/ggml-org/llama.cpp:server-cuda-b10434"), "b10434");
        assert_eq!(of("host:5000/sglang:v0.5.9.post1@sha256:00"), "0.5.9.post1");
        assert_eq!([of("lmsysorg/sglang:latest"), of("host:5000/x"), of("x:cu12.4")].concat(), "");
    }
}
