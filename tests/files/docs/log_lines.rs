//! The table of log lines has every error and every warning of the source, and no other.

use std::collections::BTreeSet;

use super::{Page, none, sources};

/// Files whose lines repeat a text that is made elsewhere, and the part of it that the page names: the problems of
/// `/readyz`, the warnings of the configuration, the answers of the broker.
const REPEATED: [(&str, &str); 4] = [
    ("src/telemetry", "readiness.md"),
    ("src/cli/serve.rs", "`option=`"),
    ("src/service.rs", "no receiver is configured"),
    ("src/intake/mqtt/", "the broker refused the subscription"),
];

/// A line of the log as the source writes it, with `…` for each value that it fills in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    level: &'static str,
    text: String,
    file: String,
}

fn lines(file: &str, code: &str) -> Vec<Line> {
    let mut found = Vec::new();
    for level in ["error", "warn", "info"] {
        for rest in code.split(&format!("{level}!(")).skip(1) {
            if let Some(text) = message(rest) {
                found.push(Line { level, text, file: file.to_owned() });
            }
        }
    }
    found
}

/// The message of a macro: the first literal that is an argument of its own.
fn message(arguments: &str) -> Option<String> {
    let (mut depth, mut before) = (0, '(');
    let mut chars = arguments.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                let text = literal(&mut chars);
                if depth == 0 && matches!(before, '(' | ',') {
                    return Some(filled(&text));
                }
                before = '"';
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return None,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if !c.is_whitespace() && c != '"' {
            before = c;
        }
    }
    None
}

/// The text of a literal up to its end; a line that continues another begins with its first letter.
fn literal(chars: &mut std::str::Chars) -> String {
    let mut text = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                Some('\n') => {
                    let rest = chars.as_str().trim_start();
                    *chars = rest.chars();
                }
                Some(escaped) => text.push(escaped),
                None => break,
            },
            c => text.push(c),
        }
    }
    text
}

/// The text with `…` in the place of each `{…}`.
fn filled(text: &str) -> String {
    let mut parts = text.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + "…" + part.split_once('}').map_or("", |(_, rest)| rest))
}

/// The rows of the page: level and the beginning of the message.
fn rows(page: &Page) -> BTreeSet<(String, String)> {
    let rows = page.text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let rows = rows.filter_map(|(text, rest)| Some((rest.split(' ').next()?.to_owned(), text.to_owned())));
    rows.filter(|(level, _)| ["error", "warn", "info"].contains(&level.as_str())).collect()
}

/// Whether a row is about this line. A row may end early.
fn is_about((level, row): &(String, String), line: &Line) -> bool {
    level == line.level && line.text.starts_with(row.trim_end_matches('…'))
}

#[test]
fn every_error_and_every_warning_has_a_row_and_every_row_is_logged() {
    let page = Page::new("docs/log.md");
    let rows = rows(&page);
    let all: Vec<Line> = sources("src").iter().flat_map(|(file, code)| lines(file, code)).collect();
    assert!(all.len() > 40, "{} lines were found", all.len());
    let mut found = BTreeSet::new();
    for line in &all {
        if line.level == "info" {
            continue;
        }
        if !line.text.starts_with('…') {
            if !rows.iter().any(|row| is_about(row, line)) {
                found.insert(format!(
                    "docs/log.md has no row of {} {:?} ({})",
                    line.level, line.text, line.file
                ));
            }
        } else if !REPEATED
            .iter()
            .any(|(file, named)| line.file.starts_with(file) && page.text.contains(named))
        {
            found.insert(format!(
                "{}: {:?} says nothing by itself, and docs/log.md nothing of it",
                line.file, line.text
            ));
        }
    }
    let written = |row: &&(String, String)| all.iter().any(|line| is_about(row, line));
    found.extend(
        rows.iter()
            .filter(|row| !written(row))
            .map(|(level, text)| format!("nothing writes {level} {text:?}")),
    );
    none(found);
}

#[test]
fn lines_are_found_in_every_form() {
    let code = r#"
        tracing::warn!("plain");
        tracing::error!(%unit, name = "x", at = f(1, "y"), "two {why} of \"{}\", \
             and on", z);
        warn!(count, grown, "{text}");
        other!("no line");
    "#;
    let found: Vec<String> =
        lines("x", code).into_iter().map(|line| format!("{} {}", line.level, line.text)).collect();
    assert_eq!(found, ["error two … of \"…\", and on", "warn plain", "warn …"]);
    let page = Page { path: "x".into(), text: "| `plain` | warn | x |\n| `two …` | error | y |\n".into() };
    let rows = rows(&page);
    assert_eq!(rows.len(), 2);
    assert!(
        lines("x", code)
            .iter()
            .filter(|line| !line.text.starts_with('…'))
            .all(|line| rows.iter().any(|row| is_about(row, line)))
    );
}
