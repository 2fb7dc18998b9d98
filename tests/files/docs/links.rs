//! Every relative link leads to a file, and every anchor to a heading.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use super::{Page, book_pages, none, pages, read, root};

/// The anchors of a page, as GitHub and mdBook make them from its headings.
fn anchors(page: &Page) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let prose = page.prose();
    let heads = prose.lines().filter(|line| line.starts_with('#'));
    heads
        .map(|line| {
            let anchor = anchor(line.trim_start_matches('#').trim());
            let count = seen.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        })
        .collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

/// The targets of the links and pictures of a page.
fn targets(page: &Page) -> Vec<String> {
    let prose = page.prose();
    // A link may have code as its text, but never as its target.
    prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect()
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// The error of a link of a page.
fn dead(page: &Page, target: &str) -> Option<String> {
    let says = |what: &str| Some(format!("{}: {target} {what}", page.path.display()));
    if target.contains("://") {
        return None;
    }
    let (file, fragment) =
        target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = match file {
        "" => page.path.clone(),
        file => plain(&page.path.parent().unwrap().join(file)),
    };
    if !root().join(&path).exists() {
        return says("leads to no file");
    }
    let is_page = path.extension().is_some_and(|it| it == "md");
    if is_page && page.path.starts_with("docs") && !path.starts_with("docs") {
        return says("leaves the book, where there is no such page");
    }
    match fragment {
        Some(_) if !is_page => says("has an anchor in a file that is not a page"),
        Some(anchor) if !anchors(&Page::new(path.to_str().unwrap())).contains(anchor) => {
            says("leads to no heading")
        }
        _ => None,
    }
}

#[test]
fn every_link_leads_somewhere() {
    let (mut found, mut count) = (BTreeSet::new(), 0);
    for page in pages() {
        for target in targets(&page) {
            count += 1;
            found.extend(dead(&page, &target));
        }
    }
    assert!(count > 150, "{count} links were found");
    none(found);
}

#[test]
fn a_page_of_a_package_leads_to_no_file_that_is_not_packed() {
    let (dist, dir) = (read(".ci/dist"), tempfile::tempdir().unwrap());
    let packed = dist.lines().find_map(|line| line.strip_prefix("cp -r ")).expect("files are copied");
    let packed = packed.split(' ').filter(|word| !word.starts_with('"')).map(|file| root().join(file));
    let copied = Command::new("cp").arg("-r").args(packed).arg(dir.path()).status();
    assert!(copied.unwrap().success());
    for (script, folder) in [(".ci/dist", "package"), (".ci/pack", "doc")] {
        assert!(read(script).contains(&format!("\n.ci/plain-links \"${folder}\"\n")), "{script}");
    }
    let made = Command::new(root().join(".ci/plain-links")).arg(dir.path()).status();
    assert!(made.unwrap().success());
    let (mut found, mut count) = (BTreeSet::new(), 0);
    for path in pages().into_iter().map(|page| page.path).filter(|path| dir.path().join(path).exists()) {
        let page = Page { text: std::fs::read_to_string(dir.path().join(&path)).unwrap(), path };
        for target in targets(&page).into_iter().filter(|target| !target.contains("://")) {
            count += 1;
            let file = page.path.parent().unwrap().join(target.split('#').next().unwrap());
            if !dir.path().join(file).exists() {
                found.insert(format!("{}: {target} is not packed", page.path.display()));
            }
        }
    }
    assert!(count > 150, "{count} links are left");
    none(found);
    let readme = std::fs::read_to_string(dir.path().join("README.md")).unwrap();
    assert!(readme.contains(": figures, [sizes](docs/sizes.md)"), "{readme}");
}

#[test]
fn the_summary_lists_every_page_once() {
    let listed = targets(&Page::new("docs/SUMMARY.md"));
    let summary = Path::new("docs/SUMMARY.md");
    let there = book_pages().into_iter().filter(|path| path != summary);
    let there: Vec<String> =
        there.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let mut sorted = listed.clone();
    sorted.sort();
    assert_eq!(sorted, there, "docs/SUMMARY.md and the files beside it differ");
}

#[test]
fn a_dead_link_is_found() {
    let page = Page { path: "docs/x.md".into(), text: "# A `b` c\n```\n](gone.md)\n```\n## A b c\n".into() };
    assert_eq!(anchors(&page).into_iter().collect::<Vec<_>>(), ["a-b-c", "a-b-c-1"]);
    assert!(targets(&page).is_empty(), "a block has no links");
    for (target, what) in [
        ("gone.md", "no file"),
        ("glossary.md#gone", "no heading"),
        ("../README.md", "leaves the book"),
        ("../Makefile#x", "not a page"),
    ] {
        assert!(dead(&page, target).is_some_and(|says| says.contains(what)), "{target}");
    }
    assert_eq!(dead(&page, "glossary.md#words-of-rollcall"), None);
    assert_eq!(dead(&page, "../Makefile"), None);
    assert!(read("docs/SUMMARY.md").contains("](glossary.md)"));
}
