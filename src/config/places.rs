//! The place of an error: the file and the line, or the variable; and the element of a list by its name.
//!
//! The checks work on structs, which know no lines. So the path of an option, such as `kind[0].timeout`, is looked up
//! in the text again, and only for errors and warnings.

use std::collections::BTreeSet;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problem;

pub(super) struct ConfigPlaces<'a> {
    /// The file; `None`: there is none.
    pub file: Option<&'a str>,
    pub text: &'a str,
    /// The options that variables have set.
    pub variables: &'a BTreeSet<String>,
}

/// A part of a path, and its place in a list: `topics[1]`.
struct PathPart<'a> {
    name: &'a str,
    index: Option<usize>,
}

/// A path as far as the text has it.
struct Found {
    /// The offset of the last part that exists, in bytes.
    at: Option<usize>,
    /// The path, with the names of elements instead of their indexes.
    shown: String,
}

impl ConfigPlaces<'_> {
    /// Adds its place to each problem.
    pub fn add_to(&self, problems: &mut [Problem]) {
        let document = DeTable::parse(self.text).ok();
        for problem in problems {
            if self.variables.contains(&problem.path) {
                problem.place = Some(super::environment::variable(&problem.path));
                continue;
            }
            // A wrong variable is its own place.
            let (Some(file), false) = (self.file, problem.path.starts_with(super::environment::PREFIX))
            else {
                continue;
            };
            let found = document.as_ref().and_then(|document| find(document.get_ref(), &problem.path));
            let line = found.as_ref().and_then(|found| found.at).map(|at| self.line(at));
            problem.place = Some(line.map_or(file.to_owned(), |line| format!("{file}:{line}")));
            problem.shown = found.map(|found| found.shown);
        }
    }

    fn line(&self, at: usize) -> usize {
        self.text[..self.text.floor_char_boundary(at)].matches('\n').count() + 1
    }
}

fn find(document: &DeTable<'_>, path: &str) -> Option<Found> {
    let mut found = Found { at: None, shown: String::new() };
    let mut table = Some(document);
    for part in path.split('.').map(PathPart::read) {
        if !found.shown.is_empty() && !found.shown.ends_with(": ") {
            found.shown.push('.');
        }
        found.shown += part.name;
        let entry = table.and_then(|table| table.get_key_value(part.name));
        found.at = entry.map(|(key, _)| key.span().start).or(found.at);
        let mut value = entry.map(|(_, value)| value);
        if let Some(index) = part.index {
            value = value.and_then(|value| value.get_ref().as_array()?.get(index));
            found.at = value.map(|value| value.span().start).or(found.at);
            match value.and_then(|value| name_of(value, part.name)) {
                Some(name) => found.shown += &format!(" {name:?}: "),
                None => found.shown += &format!("[{index}]"),
            }
        }
        table = value.and_then(|value| value.get_ref().as_table());
    }
    let end = found.shown.trim_end_matches(": ").len();
    found.shown.truncate(end);
    Some(found)
}

/// The name of an element; a class of timers is named by its type.
fn name_of<'a>(element: &'a Spanned<DeValue<'_>>, list: &str) -> Option<&'a str> {
    let key = if list == "timer" { "type" } else { "name" };
    element.get_ref().as_table()?.get(key)?.get_ref().as_str().filter(|name| !name.is_empty())
}

impl PathPart<'_> {
    fn read(text: &str) -> PathPart<'_> {
        let numbered = text.strip_suffix(']').and_then(|text| text.rsplit_once('['));
        match numbered.and_then(|(name, index)| Some((name, index.parse().ok()?))) {
            Some((name, index)) => PathPart { name, index: Some(index) },
            None => PathPart { name: text, index: None },
        }
    }
}
