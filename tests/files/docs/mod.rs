//! The documentation is true: its links lead somewhere, its configurations load, its commands run, the metrics,
//! options and pages that it names exist, and its table of log lines is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

mod blocks;
mod book;
mod certificates;
mod links;
mod log_lines;
mod names;
mod running;

/// The longest README, in lines.
const MAX_README: usize = 200;

/// A page of Markdown.
struct Page {
    /// The path of the page below the root of the repository.
    path: PathBuf,
    text: String,
}

/// A fenced block of a page.
struct Block {
    /// The page and the line of the fence.
    place: String,
    language: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every page that operators and contributors read.
fn pages() -> Vec<Page> {
    let mut paths =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benches/FIGURES.md"].map(PathBuf::from).to_vec();
    paths.extend(book_pages());
    paths.into_iter().map(|path| Page { text: read(&path), path }).collect()
}

/// The pages of the book, and its summary.
fn book_pages() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<PathBuf> = entries.map(|name| Path::new("docs").join(name)).collect();
    names.retain(|path| path.extension().is_some_and(|it| it == "md"));
    names.sort();
    assert!(names.len() > 20, "the pages are gone: {names:?}");
    names
}

impl Page {
    fn new(path: &str) -> Page {
        Page { path: path.into(), text: read(path) }
    }

    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<(usize, Block)> = None;
        for (number, line) in self.text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    let place = format!("{}:{}", self.path.display(), number + 1);
                    open =
                        Some((indent, Block { place, language: language.to_owned(), text: String::new() }));
                }
                (Some(_), Some(_)) => blocks.extend(open.take().map(|(_, block)| block)),
                (None, Some((indent, block))) => {
                    block.text += line.get(*indent..).unwrap_or_default();
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block has no end", self.path.display());
        blocks
    }

    /// The text of the page without fenced blocks.
    fn prose(&self) -> String {
        let mut inside = false;
        let mut prose = String::new();
        for line in self.text.lines() {
            if line.trim_start().starts_with("```") {
                inside = !inside;
            } else if !inside {
                prose += line;
                prose.push('\n');
            }
        }
        prose
    }

    /// The texts in backticks within the prose of the page.
    fn code(&self) -> Vec<String> {
        self.prose().split('`').skip(1).step_by(2).map(|code| code.replace('\n', " ")).collect()
    }
}

/// The blocks of every page in one of these languages.
fn blocks(languages: &[&str]) -> Vec<Block> {
    let all = pages().into_iter().flat_map(|page| page.blocks());
    all.filter(|block| languages.contains(&block.language.as_str())).collect()
}

/// Every source below a folder, by its path, without the tests at its foot.
fn sources(dir: &str) -> BTreeMap<String, String> {
    fn collect(dir: &Path, found: &mut BTreeMap<String, String>) {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                let text = read(&path);
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
                found.insert(name, code.to_owned());
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(&root().join(dir), &mut found);
    found
}

fn none(found: BTreeSet<String>) {
    assert!(found.is_empty(), "\n{}\n", found.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines < MAX_README, "README.md has {lines} lines; move what operators look up into docs/");
}
