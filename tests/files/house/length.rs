//! Which files and functions are long.

use super::source::{Source, bare, before_tests};

/// A file has one noun. A file above this length most likely has more.
const LONG_FILE: usize = 800;

/// Functions above this are worth splitting.
const LONG_FUNCTION: usize = 60;

/// A function that is in one piece for a reason gives the reason in its head, after these words.
const REASON: &str = "In one piece: ";

/// Why a file is too long.
pub fn long_file(source: &Source) -> Option<String> {
    let lines = source.text.lines().count();
    let why = || format!("{} has {lines} lines: is it the noun to which everything is added?", source.path);
    (lines > LONG_FILE).then(why)
}

/// Functions that are too long without a reason, and functions that give a reason although they are short.
pub fn long_functions(source: &Source) -> Vec<String> {
    let text: Vec<&str> = before_tests(&source.text).lines().collect();
    let code = bare(&source.code);
    let code: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (at, line) in code.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let Some(lines) = length(&code[at..]) else { continue };
        let head = text[..at].iter().rev().map(|line| line.trim_start());
        let mut head = head.take_while(|line| line.starts_with("//") || line.starts_with("#["));
        let place = format!("{}: {name} (line {})", source.path, at + 1);
        match (lines > LONG_FUNCTION, head.any(|line| line.contains(REASON))) {
            (true, false) => {
                found.push(format!("{place} has {lines} lines, and its head does not say {REASON:?}"))
            }
            (false, true) => found.push(format!("{place} has {lines} lines, which need no reason")),
            _ => {}
        }
    }
    found
}

/// The name of the function that begins on this line.
fn function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let words = ["pub", "pub(super)", "pub(crate)", "async", "const", "extern", "unsafe"];
    before.split_whitespace().all(|word| words.contains(&word)).then_some(())?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

/// How many lines the function has; `None` for a function without a body.
fn length(code: &[&str]) -> Option<usize> {
    let (mut depth, mut began) = (0, false);
    let mut brackets = 0;
    for (at, line) in code.iter().enumerate() {
        for c in line.chars() {
            match c {
                '(' | '[' if !began => brackets += 1,
                ')' | ']' if !began => brackets -= 1,
                ';' if !began && brackets == 0 => return None,
                // A pattern among the parameters has braces, too.
                '{' if began || brackets == 0 => (depth, began) = (depth + 1, true),
                '}' if began => depth -= 1,
                _ => {}
            }
        }
        if began && depth == 0 {
            return Some(at + 1);
        }
    }
    None
}
