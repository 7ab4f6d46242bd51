//! A place inside a host that is reached by words before the words: a container, another user, a namespace.

use bytes::Bytes;

use super::pipe::Pipe;
use super::{Address, BoxedIo, ByteStream, Host, HostError, HostPath, Mode, Output, Words, files, relay};

/// A host inside a host: `pct exec 129 --`, `docker exec -i NAME`, `sudo -n`, `nsenter …`, or several of them in a row.
///
/// The words of a command follow the prefix as they are, so the prefix must be one that passes words on and does not join
/// them into a line for another shell. Files and connections go through commands too.
#[derive(Clone, Debug)]
pub struct Entered<H> {
    outer: H,
    prefix: Vec<String>,
}

impl<H> Entered<H> {
    /// The place that `prefix` leads to.
    pub fn new(outer: H, prefix: &Words) -> Self {
        Entered { outer, prefix: prefix.as_slice().to_vec() }
    }

    /// A place further inside.
    #[must_use]
    pub fn further(mut self, prefix: &Words) -> Self {
        self.prefix.extend_from_slice(prefix.as_slice());
        self
    }

    /// The host that it is in.
    pub fn outer(&self) -> &H {
        &self.outer
    }

    /// The words that lead inside.
    pub fn prefix(&self) -> &[String] {
        &self.prefix
    }

    fn words(&self, words: &Words) -> Result<Words, HostError> {
        Words::new(self.prefix.iter().chain(words.as_slice()).cloned())
    }
}

impl<H: Pipe + Clone + 'static> Host for Entered<H> {
    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        self.outer.run(&self.words(words)?, stdin).await
    }

    async fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
        files::put(self, path, content, mode).await
    }

    async fn read(&self, path: &HostPath, from: u64) -> Result<ByteStream, HostError> {
        files::read(self, path, from).await
    }

    async fn connect(&self, to: &Address) -> Result<BoxedIo, HostError> {
        relay::connect(self, to).await
    }
}

impl<H: Pipe + Clone + 'static> Pipe for Entered<H> {
    async fn pipe(&self, words: &Words) -> Result<BoxedIo, HostError> {
        self.outer.pipe(&self.words(words)?).await
    }
}

/// The words of a prefix that a person wrote as a line, `pct exec 129 --`.
pub(super) fn prefix(line: &str) -> Result<Words, String> {
    let words = shell_words::split(line).map_err(|error| error.to_string())?;
    match words.iter().any(|word| matches!(word.as_str(), "|" | "||" | "&&" | ";" | "&" | ">" | "<")) {
        true => Err("it is a list of words and not a line for a shell".to_owned()),
        false => Words::new(words).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{End, Local};

    #[tokio::test]
    async fn the_prefix_stands_before_the_words_and_may_be_nested() {
        let outer = Entered::new(Local, &prefix("env -u HOME").unwrap());
        let nested = Entered::new(outer.clone(), &prefix("env 'A=b c'").unwrap());
        assert_eq!(outer.clone().further(&prefix("env 'A=b c'").unwrap()).prefix().len(), 5);
        let inner = nested;
        let words = Words::new(["sh", "-c", r#"printf '%s|' "$A" "${HOME-none}" "$1""#, "sh", "x'$y"]).unwrap();
        let output = inner.run(&words, Bytes::new()).await.unwrap();
        assert_eq!((output.end, &output.stdout[..]), (End::Code(0), &b"b c|none|x'$y|"[..]));
    }

    #[test]
    fn a_line_for_a_shell_is_no_prefix() {
        assert_eq!(prefix("pct exec 129 --").unwrap().as_slice(), ["pct", "exec", "129", "--"]);
        assert!(prefix("cd /x && docker exec c").unwrap_err().contains("list of words"));
        assert!(prefix("").is_err());
        assert!(prefix("docker exec 'a").is_err());
    }
}
