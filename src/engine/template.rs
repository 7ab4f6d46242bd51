//! Launch templates: the shape of a command, with a value in each place.
//!
//! A value becomes a part of one word, whatever it holds. The escape function sees to that, and the lint refuses each way
//! around it: unescaped expressions, expressions inside quotes or comments, helpers that write. Names that no profile has
//! are refused when the template is read, since handlebars takes a misspelt condition for an unset one.

use std::collections::BTreeMap;
use std::fmt;

use handlebars::template::{HelperTemplate, Parameter, TemplateElement};
use handlebars::{Handlebars, RenderErrorReason, Template};
use serde_json::Value;

use super::fields::{self, Shape};

/// A template that passed the lint.
#[derive(Clone)]
pub struct LaunchTemplate {
    /// The file it came from.
    pub name: String,
    registry: Handlebars<'static>,
}

impl fmt::Debug for LaunchTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchTemplate").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What is wrong with a template, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateFault {
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
    /// What.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl TemplateFault {
    fn new(at: (usize, usize), message: impl Into<String>) -> Self {
        TemplateFault { line: at.0, column: at.1, message: message.into(), help: None }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// A template that gave no words, though it passed the lint.
#[derive(Debug, thiserror::Error)]
pub enum TemplateRenderError {
    /// A field that is not set stands outside a condition, say.
    #[error("{} at line {line}: {what}", name)]
    Render {
        /// The template.
        name: String,
        /// From 1.
        line: usize,
        /// What handlebars said.
        what: String,
    },
    /// Its quotes do not close.
    #[error("{name} does not split into words: a quote is not closed")]
    Split {
        /// The template.
        name: String,
    },
}

/// Makes any text one shell word, or a part of one.
pub fn quote(text: &str) -> String {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | '=' | ',' | '@' | '%' | '+');
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    // Inside single quotes nothing has a meaning but the single quote itself.
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl LaunchTemplate {
    /// Compiles and lints a template.
    pub fn compile(name: &str, source: &str) -> Result<Self, Vec<TemplateFault>> {
        let template = Template::compile(source).map_err(|error| {
            let at = error.pos().unwrap_or((1, 1));
            vec![TemplateFault::new(at, format!("not a template: {}", error.reason()))]
        })?;
        let mut lint = Lint { faults: Vec::new(), quotes: Quotes::default() };
        lint.template(&template, &[fields::root()]);
        if !lint.faults.is_empty() {
            return Err(lint.faults);
        }
        let mut registry = Handlebars::new();
        registry.set_strict_mode(true);
        registry.register_escape_fn(quote);
        registry.register_template(name, template);
        Ok(LaunchTemplate { name: name.to_owned(), registry })
    }

    /// The words of the command. Fields that are not set are not in `context`.
    pub fn words(&self, context: &Value) -> Result<Vec<String>, TemplateRenderError> {
        let text = self.registry.render(&self.name, context).map_err(|error| TemplateRenderError::Render {
            name: self.name.clone(),
            line: error.line_no.unwrap_or(1),
            what: match error.reason() {
                // The lint has seen to it that it exists; it is only not set.
                RenderErrorReason::MissingVariable(Some(path)) => format!("`{path}` is not set in this profile"),
                other => other.to_string(),
            },
        })?;
        shell_words::split(&text).map_err(|_| TemplateRenderError::Split { name: self.name.clone() })
    }
}

/// Where in the shell's grammar the template's own text has got to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Quotes {
    inside: Option<char>,
    escaped: bool,
    comment: bool,
    in_word: bool,
}

impl Quotes {
    fn pass(&mut self, text: &str) {
        for c in text.chars() {
            if self.escaped {
                self.escaped = false;
                self.in_word = true;
                continue;
            }
            match (self.inside, c) {
                _ if self.comment => self.comment = c != '\n',
                (Some(quote), c) if c == quote => self.inside = None,
                (Some('\''), _) => {}
                (_, '\\') => self.escaped = true,
                (None, '\'' | '"') => (self.inside, self.in_word) = (Some(c), true),
                (None, '#') if !self.in_word => self.comment = true,
                (None, c) => self.in_word = !matches!(c, ' ' | '\t' | '\n'),
                (Some(_), _) => {}
            }
        }
    }

    fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.inside.is_some() {
            Some(("an expression stands inside quotes", "leave the quotes out: each value is quoted as it needs"))
        } else if self.escaped {
            Some(("a backslash stands before an expression", "leave it out: it would undo the value's own quoting"))
        } else if self.comment {
            Some(("an expression stands in a shell comment", "write comments as `{{! … }}`"))
        } else {
            None
        }
    }
}

struct Lint {
    faults: Vec<TemplateFault>,
    quotes: Quotes,
}

/// Helpers that give a value, and how many parameters they take at least.
const CONDITIONS: &[&str] = &["eq", "ne", "gt", "gte", "lt", "lte", "and", "or", "not"];

impl Lint {
    /// `scopes`: what `this` is, the innermost last.
    fn template(&mut self, template: &Template, scopes: &[Shape]) {
        for (element, mapping) in template.elements.iter().zip(&template.mapping) {
            let at = (mapping.0, mapping.1);
            match element {
                TemplateElement::RawString(text) => self.quotes.pass(text),
                TemplateElement::Comment(_) => {}
                TemplateElement::Expression(expression) => {
                    self.quoting(at);
                    self.expression(expression, scopes, at);
                    self.quotes.in_word = true;
                }
                TemplateElement::HtmlExpression(_) => self.faults.push(
                    TemplateFault::new(at, "an unescaped expression (`{{{…}}}` or `{{&…}}`) may become several words")
                        .help("write `{{…}}`; a list is walked by `{{#each …}}`"),
                ),
                TemplateElement::HelperBlock(block) => {
                    self.quoting(at);
                    self.block(block, scopes, at);
                }
                // Partials, decorators, and whatever a later handlebars brings.
                _ => {
                    self.faults
                        .push(TemplateFault::new(at, "partials and decorators are not used in launch templates"));
                }
            }
        }
    }

    fn quoting(&mut self, at: (usize, usize)) {
        if let Some((message, help)) = self.quotes.fault() {
            self.faults.push(TemplateFault::new(at, message).help(help));
        }
    }

    fn expression(&mut self, expression: &HelperTemplate, scopes: &[Shape], at: (usize, usize)) {
        if !expression.params.is_empty() || !expression.hash.is_empty() {
            let message = format!("`{}` cannot stand alone: only fields are written", shown(&expression.name));
            self.faults.push(TemplateFault::new(at, message));
            return;
        }
        match self.resolve(&expression.name, scopes, at) {
            None | Some(Shape::Scalar) => {}
            Some(Shape::List(_)) => {
                let name = shown(&expression.name);
                self.faults.push(
                    TemplateFault::new(at, format!("`{name}` is a list, not a value"))
                        .help(format!("write `{{{{#each {name}}}}}{{{{this}}}} {{{{/each}}}}`")),
                );
            }
            Some(Shape::Map(map)) => {
                let message = format!("`{}` is a group of fields, not a value", shown(&expression.name));
                let known = map.keys().cloned().collect::<Vec<_>>().join("`, `");
                self.faults.push(TemplateFault::new(at, message).help(format!("its fields are `{known}`")));
            }
        }
    }

    fn block(&mut self, block: &HelperTemplate, scopes: &[Shape], at: (usize, usize)) {
        let name = shown(&block.name);
        if block.block_param.is_some() {
            self.faults.push(TemplateFault::new(at, "block parameters (`as |x|`) are not used in launch templates"));
        }
        let mut inner = scopes.to_vec();
        match (name.as_str(), block.params.as_slice()) {
            ("if" | "unless", [condition]) => self.condition(condition, scopes, at),
            ("each", [list]) => match self.resolve(list, scopes, at) {
                Some(Shape::List(item)) => inner.push(*item),
                Some(_) => self.faults.push(TemplateFault::new(at, format!("`{}` is not a list", shown(list)))),
                // Said already; what is inside cannot be judged.
                None => return,
            },
            ("if" | "unless" | "each", _) => {
                self.faults.push(TemplateFault::new(at, format!("`{name}` takes one parameter")));
                return;
            }
            _ => {
                self.faults.push(
                    TemplateFault::new(at, format!("`{name}` is not a block of launch templates"))
                        .help("the blocks are `if`, `unless` and `each`"),
                );
                return;
            }
        }
        let before = self.quotes;
        if let Some(template) = &block.template {
            self.template(template, &inner);
        }
        let after = self.quotes;
        if let Some(inverse) = &block.inverse {
            self.quotes = before;
            self.template(inverse, scopes);
        }
        // Whether or not a block is written, the text after it must stand in the same place of the shell's grammar.
        let open = |quotes: &Quotes| (quotes.inside, quotes.escaped, quotes.comment);
        if open(&after) != open(&before) || open(&self.quotes) != open(&before) {
            self.faults.push(TemplateFault::new(
                at,
                format!("a quote or comment that begins inside `{name}` ends outside it"),
            ));
            self.quotes = before;
        }
    }

    fn condition(&mut self, parameter: &Parameter, scopes: &[Shape], at: (usize, usize)) {
        match parameter {
            Parameter::Literal(_) => {}
            Parameter::Subexpression(inner) => {
                let name = inner.name();
                if !CONDITIONS.contains(&name) {
                    self.faults.push(
                        TemplateFault::new(at, format!("`{name}` is not a condition of launch templates"))
                            .help(format!("the conditions are `{}`", CONDITIONS.join("`, `"))),
                    );
                    return;
                }
                for parameter in inner.params().into_iter().flatten() {
                    self.condition(parameter, scopes, at);
                }
            }
            name => {
                self.resolve(name, scopes, at);
            }
        }
    }

    /// What a name stands for; `None` when that was a fault, or nothing can be said.
    fn resolve(&mut self, name: &Parameter, scopes: &[Shape], at: (usize, usize)) -> Option<Shape> {
        let raw = match name {
            Parameter::Name(name) => name.clone(),
            Parameter::Path(_) => shown(name),
            Parameter::Literal(_) => return Some(Shape::Scalar),
            _ => {
                self.faults.push(TemplateFault::new(at, "a condition cannot stand here"));
                return None;
            }
        };
        if raw.starts_with('@') {
            return match raw.as_str() {
                "@index" | "@first" | "@last" | "@key" if scopes.len() > 1 => Some(Shape::Scalar),
                _ => {
                    self.faults.push(TemplateFault::new(at, format!("`{raw}` is nothing here")));
                    None
                }
            };
        }
        let mut rest = raw.as_str();
        let mut depth = scopes.len();
        while let Some(up) = rest.strip_prefix("../") {
            rest = up;
            depth = depth.saturating_sub(1);
        }
        rest = rest.strip_prefix("./").unwrap_or(rest);
        let mut shape = match depth.checked_sub(1).and_then(|scope| scopes.get(scope)) {
            Some(scope) => scope.clone(),
            None => {
                self.faults.push(TemplateFault::new(at, format!("`{raw}` leaves the template")));
                return None;
            }
        };
        for part in rest.split(['.', '/']).filter(|part| !part.is_empty() && *part != "this") {
            let Shape::Map(known) = &shape else {
                self.faults.push(TemplateFault::new(at, format!("`{raw}`: there is no `{part}` in it")));
                return None;
            };
            match known.get(part) {
                Some(next) => shape = next.clone(),
                None => {
                    let fault = TemplateFault::new(at, format!("unknown variable `{raw}`"));
                    self.faults.push(match nearest(part, known) {
                        Some(near) => fault.help(format!("did you mean `{near}`?")),
                        None => fault
                            .help(format!("known here: `{}`", known.keys().cloned().collect::<Vec<_>>().join("`, `"))),
                    });
                    return None;
                }
            }
        }
        Some(shape)
    }
}

fn nearest(word: &str, known: &BTreeMap<String, Shape>) -> Option<String> {
    known
        .keys()
        .map(|key| (strsim::damerau_levenshtein(word, key), key))
        .filter(|(distance, _)| *distance <= 2)
        .min()
        .map(|(_, key)| key.clone())
}

fn shown(parameter: &Parameter) -> String {
    match parameter {
        Parameter::Name(name) => name.clone(),
        Parameter::Path(handlebars::Path::Relative((_, raw)) | handlebars::Path::Local((_, _, raw))) => raw.clone(),
        Parameter::Literal(value) => value.to_string(),
        Parameter::Subexpression(inner) => format!("({} …)", inner.name()),
        _ => "?".to_owned(),
    }
}
