//! Questions with known answers: what a server is asked before the first step and after the last.

use std::io;
use std::path::{Path, PathBuf};

use regex::Regex;
use serde::Deserialize;

/// So many tokens an answer may have unless its question says otherwise.
const MAX_TOKENS: u64 = 64;
/// A file of this size holds no questions.
const MAX_BYTES: u64 = 4 << 20;

/// A question.
#[derive(Clone, Debug)]
pub struct Question {
    /// Its name: its own, or the number of its line.
    pub id: String,
    /// What is asked.
    pub prompt: String,
    /// What the answer must hold; `None`: only that it is the same before and after.
    pub expect: Option<Regex>,
    /// At most so many tokens an answer.
    pub max_tokens: u64,
}

/// A line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: Option<String>,
    prompt: String,
    expect: Option<String>,
    max_tokens: Option<u64>,
}

/// A file of questions cannot be used.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum QuestionsError {
    /// It cannot be read.
    #[error("cannot read the questions in {}: {source}", path.display())]
    #[diagnostic(code(orch::quality::unreadable))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is no question.
    #[error("{}:{line}: {message}", path.display())]
    #[diagnostic(
        code(orch::quality::line),
        help(
            "each line is an object such as {{\"prompt\": \"What is two plus two?\", \"expect\": \"\\\\b(4|four)\\\\b\"}}; `id` and `max_tokens` may be there too"
        )
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// It holds no question.
    #[error("{} holds no question", path.display())]
    #[diagnostic(code(orch::quality::empty), help("each line is an object with `prompt` and, as a rule, `expect`"))]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a file of questions: a JSON object in each line.
pub fn read_questions(path: &Path) -> Result<Vec<Question>, QuestionsError> {
    let unreadable = |source| QuestionsError::Read { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_BYTES {
        return Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, "more than 4 MiB")));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let questions: Vec<Question> =
        lines.map(|(number, line)| question(path, number + 1, line)).collect::<Result<_, _>>()?;
    if questions.is_empty() {
        return Err(QuestionsError::Empty { path: path.to_owned() });
    }
    Ok(questions)
}

fn question(path: &Path, number: usize, text: &str) -> Result<Question, QuestionsError> {
    let wrong = |message: String| QuestionsError::Line { path: path.to_owned(), line: number, message };
    let Line { id, prompt, expect, max_tokens } =
        serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if prompt.trim().is_empty() {
        return Err(wrong("`prompt` is empty".to_owned()));
    }
    if max_tokens == Some(0) {
        return Err(wrong("`max_tokens` is 0: an answer needs at least one".to_owned()));
    }
    let expect = expect.map(|pattern| Regex::new(&pattern)).transpose();
    let expect = expect.map_err(|error| wrong(format!("`expect` is not a regular expression: {error}")))?;
    let id = id.unwrap_or_else(|| format!("line {number}"));
    Ok(Question { id, prompt, expect, max_tokens: max_tokens.unwrap_or(MAX_TOKENS) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Question>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("q.jsonl");
        std::fs::write(&path, text).unwrap();
        let folder = format!("{}/", folder.path().display());
        read_questions(&path).map_err(|error| error.to_string().replace(&folder, ""))
    }

    #[test]
    fn a_question_has_a_name_a_pattern_and_a_limit_or_their_defaults() {
        let questions = read(
            "{\"prompt\": \"2 + 2?\", \"expect\": \"\\\\b4\\\\b\"}\n\n{\"id\": \"tale\", \"prompt\": \"Tell\", \"max_tokens\": 8}\n",
        )
        .unwrap();
        assert_eq!((questions[0].id.as_str(), questions[0].max_tokens), ("line 1", 64));
        assert!(questions[0].expect.as_ref().unwrap().is_match("It is 4."));
        assert!(!questions[0].expect.as_ref().unwrap().is_match("It is 14."));
        assert_eq!((questions[1].id.as_str(), questions[1].max_tokens), ("tale", 8));
        assert!(questions[1].expect.is_none());
    }

    #[test]
    fn what_is_no_question_is_told_with_its_line() {
        let error = |text: &str| read(text).unwrap_err();
        assert_eq!(error("\n\n"), "q.jsonl holds no question");
        assert!(error("{\"prompt\": \"a\"}\n{\"promt\": \"b\"}").starts_with("q.jsonl:2: unknown field `promt`"));
        assert!(
            error("{\"prompt\": \"a\", \"expect\": \"(\"}")
                .starts_with("q.jsonl:1: `expect` is not a regular expression")
        );
        assert_eq!(error("{\"prompt\": \" \"}"), "q.jsonl:1: `prompt` is empty");
        assert!(error("[1]").starts_with("q.jsonl:1: "));
    }
}
