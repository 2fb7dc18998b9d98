//! Metrics, options, variables, routes and problems that the documentation names exist, and the documentation names
//! all that it has to.

use std::collections::BTreeSet;

use rollcall::clock::{Clock, Timestamp};
use rollcall::config::file::options;
use rollcall::telemetry::{EngineWarning, Telemetry};

use super::{Page, none, pages, read, root, sources};
use crate::reference::all_leaves;

/// The code that names metrics: all of it, and the file in which metrics are named with `rollcall_` in front.
struct Metrics {
    code: String,
    series: String,
}

impl Metrics {
    fn read() -> Metrics {
        Metrics { code: sources("src").into_values().collect(), series: read("src/telemetry/series.rs") }
    }

    fn has(&self, name: &str) -> bool {
        let short = name.strip_prefix("rollcall_").unwrap_or_default();
        self.code.contains(&format!("\"{name}\"")) || self.series.contains(&format!("\"{short}\""))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// The words of a text that begin like a metric of Rollcall and are no name of a rule's record.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c)));
    // A package of Debian has its version behind its name.
    let is_named = |word: &&str| {
        let name = word.strip_prefix("rollcall_");
        name.is_some_and(|name| !name.starts_with(|c: char| c.is_ascii_digit())) && !word.contains(':')
    };
    let words = words.filter(is_named);
    let part = |word: &str| {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|part| word.strip_suffix(part));
        base.unwrap_or(word).to_owned()
    };
    words.map(part).collect()
}

#[test]
fn every_metric_that_is_named_exists_and_every_one_has_a_row() {
    let known = Metrics::read();
    let mut found = BTreeSet::new();
    for page in pages().iter().filter(|page| !page.path.starts_with("benches")) {
        let gone =
            named(&page.text).into_iter().filter(|name| !known.has(name) && name != "rollcall_instance");
        found.extend(gone.map(|name| format!("{}: {name} is not a metric", page.path.display())));
    }
    let rows = read("docs/metrics.md");
    let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
    for family in telemetry.gather().iter().filter(|one| one.name().starts_with("rollcall_")) {
        if !rows.contains(&format!("| `{}` |", family.name())) {
            found.insert(format!("docs/metrics.md has no row of {}", family.name()));
        }
    }
    for rule in crate::rules::rules().iter().filter_map(|rule| rule["record"].as_str()) {
        if !rows.contains(&format!("| `{rule}` |")) {
            found.insert(format!("docs/metrics.md has no row of {rule}"));
        }
    }
    none(found);
}

/// Options by their paths, without the signs of lists, and every section.
fn known_options() -> BTreeSet<String> {
    let paths = all_leaves(&options()).into_keys().map(|path| path.replace("[]", ""));
    let mut known = BTreeSet::new();
    for path in paths {
        let mut part = path.as_str();
        known.insert(part.to_owned());
        while let Some((section, _)) = part.rsplit_once('.') {
            known.insert(section.to_owned());
            part = section;
        }
    }
    known
}

#[test]
fn every_option_and_every_variable_that_is_named_exists() {
    let known = known_options();
    let sections: BTreeSet<&str> = known.iter().filter_map(|path| path.split('.').next()).collect();
    let stack = read("docker-compose.yml");
    let (mut found, mut count) = (BTreeSet::new(), 0);
    // The columns of the embedded engine are named like options.
    for page in pages().into_iter().filter(|page| !page.path.ends_with("broken-values.md")) {
        let says = |what: &str| format!("{}: {what} is not an option", page.path.display());
        for code in page.code() {
            let word = code.split(|c: char| c.is_whitespace() || c == '=').next().unwrap_or_default();
            let Some((section, key)) = word.split_once('.') else { continue };
            let is_file = word.ends_with(".rs") || word.ends_with(".md") || word.ends_with(".conf");
            if is_file || !key.bytes().all(|b| b.is_ascii_lowercase() || b"_.".contains(&b)) {
                continue;
            }
            let path = if section == "retry" { format!("receiver.{word}") } else { word.to_owned() };
            if sections.contains(section) || section == "retry" {
                count += 1;
                found.extend((!known.contains(&path)).then(|| says(word)));
            }
        }
        for rest in page.text.split("ROLLCALL_").skip(1) {
            let end = rest.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
            let name = &rest[..end.unwrap_or(rest.len())];
            let path = name.to_lowercase().replace("__", ".");
            let is_known =
                ["", "CONFIG", "URL", "TOKEN", "TOKEN_FILE"].contains(&name) || known.contains(&path);
            found.extend((!is_known && !stack.contains(&format!("ROLLCALL_{name}"))).then(|| says(name)));
        }
    }
    assert!(count > 50, "{count} options were found");
    none(found);
}

#[test]
fn the_page_of_readiness_has_every_problem() {
    let mut known: BTreeSet<String> = EngineWarning::ALL.iter().map(|one| one.as_str().to_owned()).collect();
    let problems = read("src/telemetry/problems.rs");
    let constants = problems.split(": &str = \"").skip(1).filter_map(|rest| rest.split('"').next());
    known.extend(constants.filter(|name| is_name(name)).map(str::to_owned));
    known.insert("mirror_not_filled".to_owned());
    assert!(known.len() > 20, "{known:?}");
    let page = Page::new("docs/readiness.md");
    let heads = page.text.lines().filter_map(|line| line.strip_prefix("### "));
    let heads: BTreeSet<String> = heads.map(str::to_owned).collect();
    let differ = known.symmetric_difference(&heads);
    none(
        differ
            .map(|name| format!("{name} is not both a problem and a section of docs/readiness.md"))
            .collect(),
    );
}

#[test]
fn the_page_of_http_has_every_route() {
    let routes: BTreeSet<String> = sources("src/http")
        .values()
        .flat_map(|code| {
            // A path that is used in several places is a constant.
            let named = code.split("const PATH: &str = \"").skip(1);
            let written = code.split(".route(\"").skip(1).chain(named);
            written.filter_map(|rest| rest.split('"').next()).map(str::to_owned)
        })
        .collect();
    let page = Page::new("docs/http.md");
    let rows = page.text.lines().filter_map(|line| line.strip_prefix("| `/")?.split('`').next());
    let rows: BTreeSet<String> = rows.map(|path| format!("/{path}")).collect();
    assert!(routes.len() > 8, "{routes:?}");
    assert_eq!(rows, routes, "the first table of docs/http.md and the router differ");
}

/// Folders of the repository that paths in the documentation begin with.
const FOLDERS: [&str; 7] = ["src/", "tests/", "benches/", "config/", "docs/", "dashboards/", ".ci/"];

#[test]
fn every_file_and_every_name_of_the_code_that_is_named_exists() {
    let code: String = ["src", "tests"].into_iter().flat_map(|dir| sources(dir).into_values()).collect();
    let (mut found, mut count) = (BTreeSet::new(), 0);
    for page in pages() {
        let is_for_contributors = page.path.ends_with("CONTRIBUTING.md");
        for word in page.code() {
            let is_below = FOLDERS.iter().any(|folder| word.starts_with(folder));
            let is_in_src = is_for_contributors && (word.ends_with(".rs") || word.ends_with('/'));
            if (is_below || is_in_src) && !word.contains(' ') {
                count += 1;
                // Contributors read paths below src/ without it.
                let is_there =
                    root().join(&word).exists() || is_in_src && root().join("src").join(&word).exists();
                found.extend((!is_there).then(|| format!("{}: no file {word}", page.path.display())));
            }
            let is_type =
                word.chars().all(|c| c.is_alphanumeric() || c == '_') && word.starts_with(char::is_uppercase);
            let is_gone = is_for_contributors && is_type && !code.contains(&word);
            found.extend(is_gone.then(|| format!("{}: no {word} in the code", page.path.display())));
        }
    }
    assert!(count > 50, "{count} files were found");
    none(found);
}

#[test]
fn the_runbook_and_the_page_of_broken_values_are_pages_of_the_book() {
    let summary = read("docs/SUMMARY.md");
    for page in ["runbook.md", "broken-values.md", "glossary.md"] {
        assert!(summary.contains(&format!("]({page})")), "{page}");
    }
}

#[test]
fn the_words_of_the_glossary_are_sorted_and_stand_once() {
    let page = read("docs/glossary.md");
    let mut count = 0;
    for section in page.split("\n## ").skip(1) {
        let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let words: Vec<String> = rows.skip(1).map(str::to_lowercase).collect();
        for pair in words.windows(2) {
            assert!(pair[0] < pair[1], "{:?} stands before {:?}", pair[0], pair[1]);
        }
        count += words.len();
    }
    assert!(count > 80, "{count} words");
}

#[test]
fn a_name_that_does_not_exist_is_found() {
    assert_eq!(
        named("rollcall_gone_bucket{x}, receiver:rollcall_x:sum").into_iter().collect::<Vec<_>>(),
        ["rollcall_gone"]
    );
    let known = Metrics::read();
    assert!(!known.has("rollcall_nowhere") && known.has("rollcall_unit_up") && known.has("rollcall_blind"));
    assert!(
        known_options().contains("receiver.retry.give_up_after") && !known_options().contains("mqtt.qso")
    );
}
