//! The book that `make docs` builds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{none, root};

/// The folder in which `make docs` builds the book.
const BOOK: &str = "target/book";

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// `make docs` runs this test, after mdBook; an ordinary run of the tests leaves it out.
#[test]
#[ignore = "reads the book that `make docs` builds"]
fn no_link_of_the_built_book_is_dead() {
    let book = root().join(BOOK);
    let mut all = Vec::new();
    files(&book, &mut all);
    let pages = all.iter().filter(|path| path.extension().is_some_and(|it| it == "html"));
    let (mut found, mut count) = (BTreeSet::new(), 0);
    for page in pages {
        let text = std::fs::read_to_string(page).unwrap();
        let links = ["href=\"", "src=\""].into_iter().flat_map(|name| text.split(name).skip(1));
        for target in links.filter_map(|rest| rest.split('"').next()) {
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            if file.contains(':') || file.starts_with("//") {
                continue;
            }
            count += 1;
            let path = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let at = page.strip_prefix(&book).unwrap().display();
            if !path.exists() {
                found.insert(format!("{at}: {target} leads to no file"));
            } else if !fragment.is_empty() && path.extension().is_some_and(|it| it == "html") {
                let there = std::fs::read_to_string(&path).unwrap();
                if !there.contains(&format!("id=\"{fragment}\"")) {
                    found.insert(format!("{at}: {target} leads to no heading"));
                }
            }
        }
    }
    assert!(count > 500, "{count} links were found in {}", book.display());
    none(found);
}
