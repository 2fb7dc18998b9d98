//! The files of the crate as the readings see them.

use std::path::{Path, PathBuf};

pub struct Source {
    pub path: String,
    /// The code: without comments, and without the tests at its foot.
    pub code: String,
    /// The whole text, for rules that only comments follow.
    pub text: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), code: without_comments(before_tests(text)), text: text.to_owned() }
    }

    /// The module of the file, from the crate's root: `src/store/redis/mod.rs` is `store::redis`.
    pub fn module(&self) -> Vec<String> {
        let inside = self.path.strip_prefix("src/").unwrap_or(&self.path).trim_end_matches(".rs");
        let mut parts: Vec<String> = inside.split('/').map(str::to_owned).collect();
        parts.pop_if(|last| last == "mod" || last == "lib");
        parts
    }

    /// The first level below `src` to which the file belongs.
    pub fn room(&self) -> String {
        self.module().into_iter().next().unwrap_or_else(|| "lib".to_owned())
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the directory is part of the repository") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every file of the crate, except files that hold only tests.
pub fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    for path in files(&root().join("src"), "rs") {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let path = path.strip_prefix(root()).expect("it is below").to_string_lossy().into_owned();
        if !path.ends_with("/tests.rs") && !path.contains("/tests/") {
            sources.push(Source::new(&path, &text));
        }
    }
    sources
}

pub fn before_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or_default()
}

/// Replaces comment lines by empty ones, so that the numbers of the other lines stay.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// Code without the contents of texts and characters, and without comments after code.
pub fn bare(code: &str) -> String {
    let chars: Vec<char> = code.chars().collect();
    let (mut bare, mut at) = (String::with_capacity(code.len()), 0);
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => end_of_line(&chars, at),
            '"' => end_of_text(&chars, at),
            'r' if is_raw(&chars, at) => end_of_raw(&chars, at),
            '\'' if chars.get(at + 1) == Some(&'\\') => end_of_char(&chars, at + 3),
            '\'' if chars.get(at + 2) == Some(&'\'') => at + 3,
            c => {
                bare.push(c);
                at += 1;
                continue;
            }
        };
        bare.extend(chars[at..end.min(chars.len())].iter().filter(|c| **c == '\n'));
        at = end;
    }
    bare
}

fn end_of_line(chars: &[char], from: usize) -> usize {
    chars[from..].iter().position(|c| *c == '\n').map_or(chars.len(), |length| from + length)
}

fn end_of_text(chars: &[char], from: usize) -> usize {
    let mut at = from + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn end_of_char(chars: &[char], from: usize) -> usize {
    chars[from..].iter().position(|c| *c == '\'').map_or(chars.len(), |length| from + length + 1)
}

fn is_raw(chars: &[char], at: usize) -> bool {
    let is_word = at > 0 && (chars[at - 1].is_alphanumeric() && chars[at - 1] != 'b' || chars[at - 1] == '_');
    let after = chars[at + 1..].iter().find(|c| **c != '#');
    !is_word && after == Some(&'"')
}

fn end_of_raw(chars: &[char], from: usize) -> usize {
    let hashes = chars[from + 1..].iter().take_while(|c| **c == '#').count();
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let first = from + 2 + hashes;
    let rest = &chars[first.min(chars.len())..];
    rest.windows(end.len()).position(|window| window == end).map_or(chars.len(), |at| first + at + end.len())
}
