//! The errors of a configuration, with advice.
//!
//! An error of the parser shows the line, with a caret under it. Errors of values are
//! collected and reported at once, so that an operator need not start a service five times to
//! see five errors.

use std::fmt;
use std::time::Duration;

use super::span::Span;
use crate::cause::without_number;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The file is not TOML, or a key or a type in it is wrong. The text shows the line.
    #[error("{0}")]
    Shape(String),
    /// Values that are not valid, also those from the environment.
    #[error("{}", list(.0))]
    Meaning(Vec<Problem>),
}

/// An error or a warning about one option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The option, e.g. `route.receivers[1]`, or the environment variable.
    pub path: String,
    /// The error, and the text to write instead.
    pub text: String,
    /// The file and the line, or the variable, that set the option, if that is known.
    pub place: Option<String>,
    /// The path with the names of elements, such as `kind "detector": timeout`, if they are known.
    pub shown: Option<String>,
}

impl Problem {
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Problem {
        let text = without_number(&text.into());
        Problem { path: path.into(), text, place: None, shown: None }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        write!(f, "{}: {}", self.shown.as_ref().unwrap_or(&self.path), self.text)
    }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// Collects errors and warnings.
#[derive(Debug, Default)]
pub(super) struct Problems {
    pub(super) errors: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

impl Problems {
    /// Takes the problems of a broker, whose options begin with `path` in place of `mqtt`.
    pub(super) fn take(&mut self, of_one: Problems, path: &str) {
        let moved = |problem: Problem| match problem.path.strip_prefix("mqtt") {
            Some(rest) => Problem { path: format!("{path}{rest}"), ..problem },
            None => problem,
        };
        self.errors.extend(of_one.errors.into_iter().map(moved));
        self.warnings.extend(of_one.warnings.into_iter().map(moved));
    }

    /// A value that is not valid.
    pub(super) fn error(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.errors.push(Problem::new(path, text));
    }

    /// A value that is valid and probably not intended.
    pub(super) fn warn(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.warnings.push(Problem::new(path, text));
    }

    /// Keeps the value of a result and collects its error.
    pub(super) fn keep<T, E: fmt::Display>(&mut self, path: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.error(path, error.to_string())).ok()
    }

    /// A span of time, which must lie within bounds.
    pub(super) fn span(&mut self, path: &str, span: Span, least: Span, most: Span) -> Duration {
        if span < least || span > most {
            self.error(path, format!("{span} is out of bounds; {least} to {most} are allowed"));
        }
        span.0
    }

    /// A number, which must lie within bounds.
    pub(super) fn number<N: PartialOrd + fmt::Display>(&mut self, path: &str, n: N, least: N, most: N) -> N {
        if n < least || n > most {
            self.error(path, format!("{n} is out of bounds; {least} to {most} are allowed"));
        }
        n
    }
}

/// Renders an error of the TOML parser: its position, its text, the line and a caret.
pub(super) fn show(name: &str, text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let Some(span) = error.span() else { return without_line(name, error) };
    let start = text.floor_char_boundary(span.start);
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line = text[line_start..].lines().next().unwrap_or_default();
    let number = text[..line_start].matches('\n').count() + 1;
    let column = text[line_start..start].chars().count() + 1;
    let is_text = ["\"\"\"", "'''"].iter().any(|quotes| text[..line_start].matches(quotes).count() % 2 == 1);
    let (shown, what) = match if is_text { Some("...".to_owned()) } else { shown(line, message) } {
        None => (line.to_owned(), rephrase(message)),
        Some(hidden) => (hidden, rephrase(&without_value(message))),
    };
    let header = line.trim().strip_prefix('[').and_then(|line| line.strip_suffix(']'));
    let what = match header.filter(|_| message.starts_with("invalid type: map, expected a sequence")) {
        Some(section) => format!("there may be several of {section}; write [[{section}]]"),
        None => what,
    };
    // A hidden value must not show its length.
    let end = text.floor_char_boundary(span.end.min(line_start + line.len()).max(start));
    let before = text[line_start..start].chars().take(shown.chars().count());
    // Tabs stay tabs, so that the caret is in the right column on every terminal.
    let indent: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    let room = shown.chars().count().saturating_sub(indent.chars().count()).max(1);
    let carets = "^".repeat(text[start..end].chars().count().clamp(1, room));
    let gutter = " ".repeat(number.to_string().len());
    format!("{name}:{number}:{column}: {what}\n{gutter} |\n{number} | {shown}\n{gutter} | {indent}{carets}")
}

/// The text of an error without its line: the text that the parser read is not the text that the operator wrote.
pub(super) fn without_line(name: &str, error: &toml::de::Error) -> String {
    format!("{name}: {}", rephrase(&without_value(error.message())))
}

/// Parts of the names of keys that hold secrets. A URL may hold a password, or be a secret as a whole.
const SECRET_NAMES: [&str; 12] = [
    "secret",
    "password",
    "passwd",
    "token",
    "key",
    "sha256",
    "url",
    "smtp",
    "user",
    "header",
    "environment",
    "command",
];

/// The line without values that may be secrets, because errors are logged; `None` if it has no such values. Only a
/// value whose key is known to hold no secret is shown: not the value of an unknown key or of a key that the parser did
/// not read, nor a line that begins within a value.
fn shown(line: &str, message: &str) -> Option<String> {
    let is_known = ["invalid type: ", "invalid value: ", "unknown variant "];
    let is_known = is_known.iter().any(|lead| message.starts_with(lead));
    let Some((key, value)) = line.split_once('=') else {
        let is_header = line.trim_start().starts_with('[') && !line.contains(['"', '\'']);
        return (!is_header).then(|| "...".to_owned());
    };
    let name = key.trim().to_ascii_lowercase();
    if is_known && !may_be_secret(&name) && !value.contains('=') {
        return None;
    }
    // A long word is not a key: it may be a part of a value that spans several lines.
    let is_key =
        name.len() <= 40 && key.trim().chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '.'));
    Some(if is_key { format!("{key}= ...") } else { "...".to_owned() })
}

pub(super) fn may_be_secret(name: &str) -> bool {
    SECRET_NAMES.iter().any(|word| name.contains(word)) && !name.ends_with("_file")
}

/// The message of serde about a value, without the value.
pub(super) fn without_value(message: &str) -> String {
    let has_value = message.starts_with("invalid type: ") || message.starts_with("invalid value: ");
    match message.split_once(", expected").filter(|_| has_value) {
        None => message.to_owned(),
        Some((value, expected)) => {
            let what = value.split(['"', '`']).next().unwrap_or_default().trim_end();
            format!("{what}, expected{expected}")
        }
    }
}

/// What serde calls a value that it expects, and the words for operators.
const EXPECTED: [(&str, &str); 11] = [
    ("a sequence", "a list in brackets, such as [\"…\"]"),
    ("a boolean", "true or false, without quotes"),
    ("a string", "text in quotes"),
    ("a map", "a table"),
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number, 0 or more"),
    ("usize", "a whole number, 0 or more"),
    ("f64", "a number"),
    ("struct Flapping", "a table, such as { transitions = 6, window = \"1h\", stable = \"30m\" }"),
];

/// The message of serde about unknown keys and values, with a suggestion.
pub(super) fn rephrase(message: &str) -> String {
    let message = message.trim_end();
    if let Some((found, expected)) = message.rsplit_once(", expected ") {
        let known = EXPECTED.iter().find(|(name, _)| *name == expected).map(|(_, meaning)| *meaning);
        let known = known.or_else(|| expected.starts_with("struct ").then_some("a table in braces"));
        if let Some(meaning) = known {
            return format!("{}, expected {meaning}", found.replace(" as i128", ""));
        }
    }
    for (lead, thing) in [("unknown field `", "unknown key"), ("unknown variant `", "unknown value")] {
        if let Some((word, known)) = message.strip_prefix(lead).and_then(|rest| rest.split_once('`')) {
            let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
            return match suggest(word, known.iter().copied()) {
                Some(meant) => format!("{thing} `{word}`; did you mean `{meant}`?"),
                None => format!("{thing} `{word}`; known here: {}", known.join(", ")),
            };
        }
    }
    message.to_owned()
}

/// The known word that is most like `word`.
pub(super) fn suggest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(word.len()).div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}
