//! A shell script as tokens: words with what is to be filled in, and what stands between commands.

use super::ImportError;

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A word.
    Word(Vec<Part>),
    /// `NAME=(…)` or `NAME+=(…)`.
    Array {
        /// Its name.
        name: String,
        /// Whether it adds to what there is.
        append: bool,
        /// Its words.
        words: Vec<Vec<Part>>,
    },
    /// The end of a command: a line's end, `;`, `&`, `&&`, `||`, `|`, a parenthesis.
    End,
}

/// A piece of a word.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    /// As it stands.
    Text {
        /// The text.
        text: String,
        /// Whether quotes are around it, so that nothing in it is a word of the shell's own.
        quoted: bool,
    },
    /// `$NAME`, `${NAME…}`.
    Variable {
        /// Its name.
        name: String,
        /// What follows the name inside braces: `:-x`, `##*/`, `[@]`.
        rest: String,
        /// Whether its value stays one word.
        quoted: bool,
    },
    /// `$(…)` or backquotes.
    Command {
        /// What is in it.
        text: String,
    },
}

/// Splits a script. `place` is what messages call it.
pub(super) fn tokens(text: &str, place: &str) -> Result<Vec<Token>, ImportError> {
    let mut lexer = Lexer { chars: text.chars().collect(), at: 0, place, tokens: Vec::new(), documents: Vec::new() };
    lexer.script()?;
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    chars: Vec<char>,
    at: usize,
    place: &'a str,
    tokens: Vec<Token>,
    /// Here-documents that begin at the next line: their last line, and whether tabs before it are left aside.
    documents: Vec<(String, bool)>,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn fault(&self, at: usize, why: &str) -> ImportError {
        let line = self.chars[..at.min(self.chars.len())].iter().filter(|c| **c == '\n').count() + 1;
        ImportError::Syntax { place: self.place.to_owned(), line, why: why.to_owned() }
    }

    fn script(&mut self) -> Result<(), ImportError> {
        while let Some(c) = self.peek(0) {
            match c {
                '\n' => {
                    self.at += 1;
                    self.tokens.push(Token::End);
                    self.skip_documents();
                }
                c if c.is_whitespace() => self.at += 1,
                '\\' if self.peek(1) == Some('\n') => self.at += 2,
                '\\' if self.peek(1) == Some('\r') && self.peek(2) == Some('\n') => self.at += 3,
                '#' => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '&' if self.peek(1) == Some('>') => {
                    self.at += 1;
                    self.redirection()?;
                }
                '<' | '>' => self.redirection()?,
                ';' | '&' | '|' | '(' | ')' => {
                    self.at += 1;
                    self.tokens.push(Token::End);
                }
                '0'..='9' if self.is_redirected_number() => {
                    while self.peek(0).is_some_and(|c| c.is_ascii_digit()) {
                        self.at += 1;
                    }
                    self.redirection()?;
                }
                _ => self.word_or_array()?,
            }
        }
        self.tokens.push(Token::End);
        Ok(())
    }

    /// `2>` and the like.
    fn is_redirected_number(&self) -> bool {
        let digits = self.chars[self.at..].iter().take_while(|c| c.is_ascii_digit()).count();
        matches!(self.peek(digits), Some('<' | '>'))
    }

    /// Where its output goes is orch's affair: passed over, with the file that it names.
    fn redirection(&mut self) -> Result<(), ImportError> {
        let start = self.at;
        while matches!(self.peek(0), Some('<' | '>' | '|')) {
            self.at += 1;
        }
        let sign: String = self.chars[start..self.at].iter().collect();
        let strips = sign == "<<" && self.peek(0) == Some('-');
        if strips || self.peek(0) == Some('&') {
            self.at += 1;
        }
        // `>(…)` and `<(…)` are commands of their own.
        if self.peek(0) == Some('(') {
            return Ok(());
        }
        while self.peek(0).is_some_and(|c| c == ' ' || c == '\t') {
            self.at += 1;
        }
        let word = self.word()?;
        if sign == "<<" {
            let end = word.iter().map(|part| match part {
                Part::Text { text, .. } => text.clone(),
                Part::Variable { name, .. } => format!("${name}"),
                Part::Command { text } => format!("$({text})"),
            });
            self.documents.push((end.collect(), strips));
        }
        Ok(())
    }

    /// Texts for other programs are no commands.
    fn skip_documents(&mut self) {
        for (end, strips) in std::mem::take(&mut self.documents) {
            while self.at < self.chars.len() {
                let length = self.chars[self.at..].iter().take_while(|c| **c != '\n').count();
                let line: String = self.chars[self.at..self.at + length].iter().collect();
                self.at = (self.at + length + 1).min(self.chars.len());
                let line = if strips { line.trim_start_matches('\t') } else { &line };
                if line == end {
                    break;
                }
            }
        }
    }

    fn word_or_array(&mut self) -> Result<(), ImportError> {
        let start = self.at;
        let name = self.name();
        if !name.is_empty() {
            let append = self.peek(0) == Some('+');
            let after = usize::from(append);
            if self.peek(after) == Some('=') && self.peek(after + 1) == Some('(') {
                self.at += after + 2;
                let words = self.array(start)?;
                self.tokens.push(Token::Array { name, append, words });
                return Ok(());
            }
        }
        self.at = start;
        let word = self.word()?;
        // A character that begins no word and ends none either would be looked at for ever.
        if self.at == start {
            self.at += 1;
        }
        if !word.is_empty() {
            self.tokens.push(Token::Word(word));
        }
        Ok(())
    }

    fn array(&mut self, start: usize) -> Result<Vec<Vec<Part>>, ImportError> {
        let mut words = Vec::new();
        loop {
            match self.peek(0) {
                None => return Err(self.fault(start, "the list that begins here does not end")),
                Some(')') => {
                    self.at += 1;
                    return Ok(words);
                }
                Some('#') => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                Some('\\') if self.peek(1) == Some('\n') => self.at += 2,
                Some(c) if c.is_whitespace() => self.at += 1,
                Some(_) => {
                    let before = self.at;
                    let word = self.word()?;
                    if self.at == before {
                        self.at += 1;
                    }
                    if !word.is_empty() {
                        words.push(word);
                    }
                }
            }
        }
    }

    fn name(&mut self) -> String {
        let start = self.at;
        while self.peek(0).is_some_and(|c| c == '_' || c.is_ascii_alphanumeric()) {
            self.at += 1;
        }
        self.chars[start..self.at].iter().collect()
    }

    fn word(&mut self) -> Result<Vec<Part>, ImportError> {
        let mut parts = Parts::default();
        while let Some(c) = self.peek(0) {
            match c {
                c if c.is_whitespace() => break,
                ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                '\\' => {
                    // A line's end after it is nothing at all.
                    match self.peek(1) {
                        Some('\n') => {}
                        Some(c) => parts.text(c, true),
                        None => {}
                    }
                    self.at = (self.at + 2).min(self.chars.len());
                }
                '\'' => self.single(&mut parts)?,
                '"' => self.double(&mut parts)?,
                '$' if self.peek(1) == Some('\'') => {
                    self.at += 1;
                    self.single(&mut parts)?;
                }
                '$' if self.peek(1) == Some('"') => self.at += 1,
                '$' | '`' => self.dollar(&mut parts, false)?,
                c => {
                    parts.text(c, false);
                    self.at += 1;
                }
            }
        }
        Ok(parts.0)
    }

    fn single(&mut self, parts: &mut Parts) -> Result<(), ImportError> {
        let start = self.at;
        self.at += 1;
        parts.0.push(Part::Text { text: String::new(), quoted: true });
        loop {
            match self.peek(0) {
                None => return Err(self.fault(start, "the quote that begins here does not close")),
                Some('\'') => break,
                Some(c) => parts.text(c, true),
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(())
    }

    fn double(&mut self, parts: &mut Parts) -> Result<(), ImportError> {
        let start = self.at;
        self.at += 1;
        parts.0.push(Part::Text { text: String::new(), quoted: true });
        loop {
            match self.peek(0) {
                None => return Err(self.fault(start, "the quote that begins here does not close")),
                Some('"') => break,
                Some('\\') if matches!(self.peek(1), Some('$' | '`' | '"' | '\\')) => {
                    if let Some(c) = self.peek(1) {
                        parts.text(c, true);
                    }
                    self.at += 2;
                }
                Some('\\') if self.peek(1) == Some('\n') => self.at += 2,
                Some('$' | '`') => self.dollar(parts, true)?,
                Some(c) => {
                    parts.text(c, true);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        Ok(())
    }

    /// What begins with `$` or a backquote.
    fn dollar(&mut self, parts: &mut Parts, quoted: bool) -> Result<(), ImportError> {
        let start = self.at;
        if self.peek(0) == Some('`') {
            self.at += 1;
            let text = self.until(start, &['`'], None)?;
            parts.0.push(Part::Command { text });
            return Ok(());
        }
        self.at += 1;
        match self.peek(0) {
            Some('(') => {
                self.at += 1;
                let text = self.until(start, &[')'], Some('('))?;
                parts.0.push(Part::Command { text });
            }
            Some('{') => {
                self.at += 1;
                let inner = self.until(start, &['}'], Some('{'))?;
                let end = inner.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(inner.len());
                // `${#NAME}`, `${!NAME}` and `${@}` begin with another sign.
                let end = if end == 0 { inner.chars().next().map_or(0, char::len_utf8) } else { end };
                let (name, rest) = inner.split_at(end);
                parts.0.push(Part::Variable { name: name.to_owned(), rest: rest.to_owned(), quoted });
            }
            Some(c) if c == '_' || c.is_ascii_alphabetic() => {
                let name = self.name();
                parts.0.push(Part::Variable { name, rest: String::new(), quoted });
            }
            Some(c) if c.is_ascii_digit() || "@*#?$!-".contains(c) => {
                self.at += 1;
                parts.0.push(Part::Variable { name: c.to_string(), rest: String::new(), quoted });
            }
            _ => parts.text('$', quoted),
        }
        Ok(())
    }

    /// The text up to one of `ends`, which is passed over; `opens` nests.
    fn until(&mut self, start: usize, ends: &[char], opens: Option<char>) -> Result<String, ImportError> {
        let (mut text, mut depth) = (String::new(), 0_usize);
        while let Some(c) = self.peek(0) {
            self.at += 1;
            if c == '\\' {
                text.push(c);
                text.extend(self.peek(0));
                self.at += 1;
                continue;
            }
            if ends.contains(&c) {
                if depth == 0 {
                    return Ok(text);
                }
                depth -= 1;
            } else if opens == Some(c) {
                depth += 1;
            }
            text.push(c);
        }
        Err(self.fault(start, "what begins here does not end"))
    }
}

#[derive(Default)]
struct Parts(Vec<Part>);

impl Parts {
    fn text(&mut self, c: char, quoted: bool) {
        match self.0.last_mut() {
            Some(Part::Text { text, quoted: before }) if *before == quoted => text.push(c),
            _ => self.0.push(Part::Text { text: c.to_string(), quoted }),
        }
    }
}
