//! Which file uses which: every path of the crate, also in groups, below `super` and through re-exports.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::source::{Source, bare};

/// Every module of the crate and its floor.
const FLOORS: [(&str, u8); 25] = [
    ("presence", 0),
    ("reports", 0),
    ("routing", 0),
    ("clock", 0),
    ("address", 0),
    ("backoff", 0),
    ("signature", 0),
    ("csv_row", 0),
    ("pages", 0),
    ("cause", 0),
    ("trust", 0),
    ("store", 1),
    ("fleet", 1),
    ("telemetry", 1),
    ("small_file", 1),
    ("intake", 2),
    ("expiry", 2),
    ("alerting", 2),
    ("http", 2),
    ("history", 2),
    ("deadman", 2),
    ("simulate", 2),
    ("service", 3),
    ("config", 3),
    ("engines", 3),
];
/// Rooms of the top floor that no other room imports.
const TOP: [&str; 3] = ["main", "lib", "cli"];
/// The loops and servers of this floor never call one another: they meet in the store.
const WORK: u8 = 2;
/// Modules on one floor of which only the second imports the first.
const ONE_WAY: [(&str, &str); 1] = [("store", "fleet")];
/// Engines meet in their traits, and share only modules above both.
const ENGINES: [&str; 2] = ["store::redis", "store::embedded"];

/// A file that uses another, both by their modules.
pub type Edges = BTreeMap<String, BTreeSet<String>>;

/// A path that the code names, absolute from the crate's root.
#[derive(Clone)]
struct Use {
    path: Vec<String>,
    /// The name under which `pub use` offers the path on.
    offered_as: Option<String>,
}

pub fn floor(room: &str) -> Option<u8> {
    if TOP.contains(&room) {
        return Some(3);
    }
    FLOORS.iter().find(|(name, _)| *name == room).map(|(_, floor)| *floor)
}

/// The imports of every file, and where the imported items are defined.
pub fn edges(sources: &[Source]) -> Edges {
    let uses: HashMap<String, Vec<Use>> =
        sources.iter().map(|source| (source.module().join("::"), uses(source, sources))).collect();
    let mut edges = Edges::new();
    for source in sources {
        let from = source.module().join("::");
        for used in uses[&from].iter().filter(|used| used.offered_as.is_none()) {
            let to = definition(&used.path, &uses, 0);
            if to != from {
                edges.entry(from.clone()).or_default().insert(to);
            }
        }
    }
    edges
}

/// The module in which what a path names is defined, through the modules that offer it on. A path of a module that
/// does not exist stays as it is.
fn definition(path: &[String], uses: &HashMap<String, Vec<Use>>, depth: usize) -> String {
    let is_module = |length: &usize| uses.contains_key(&path[..*length].join("::"));
    let Some(length) = (1..=path.len()).rev().find(is_module) else {
        return path.first().cloned().unwrap_or_default();
    };
    let module = path[..length].join("::");
    if let Some(item) = path.get(length).filter(|_| depth < 8) {
        let offered = uses[&module].iter().find(|used| used.offered_as.as_ref() == Some(item));
        if let Some(offered) = offered.filter(|offered| offered.path != path) {
            return definition(&offered.path, uses, depth + 1);
        }
    }
    module
}

/// The paths of the crate that a file names.
fn uses(source: &Source, sources: &[Source]) -> Vec<Use> {
    let code = bare(&source.code);
    let module = source.module();
    let children: BTreeSet<String> = sources
        .iter()
        .map(Source::module)
        .filter(|one| one.len() == module.len() + 1 && one.starts_with(&module))
        .filter_map(|mut one| one.pop())
        .collect();
    let mut found = Vec::new();
    let words = words(&code);
    let mut at = 0;
    while at < words.len() {
        let begins_path = at == 0 || words[at - 1] != "::" && words[at - 1] != ".";
        let is_use = words[at] == "use" && begins_path;
        if !(is_use || begins_path && words.get(at + 1).is_some_and(|next| *next == "::")) {
            at += 1;
            continue;
        }
        let is_offered = is_use && is_public(&words[..at]);
        let mut paths = Vec::new();
        at = tree(&words, at + usize::from(is_use), &mut Vec::new(), &mut paths).max(at + 1);
        for (path, alias) in paths {
            if let Some(path) = absolute(&path, &module, &children) {
                let offered_as = is_offered.then(|| alias.or_else(|| path.last().cloned())).flatten();
                found.push(Use { path, offered_as });
            }
        }
    }
    found
}

/// Whether the item after these words is offered on: `pub`, `pub(super)`, `pub(in a)`.
fn is_public(before: &[&str]) -> bool {
    match before.split_last() {
        Some((&"pub", _)) => true,
        Some((&")", rest)) => {
            rest.iter().rposition(|word| *word == "(").is_some_and(|open| open > 0 && rest[open - 1] == "pub")
        }
        _ => false,
    }
}

/// Words, `::` and single signs.
fn words(code: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        words.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    words
}

type Named = (Vec<String>, Option<String>);

/// Reads a path or a tree of paths from `at` on: `a::{b, c::{self, d as e}}`. Returns where it ends.
fn tree(words: &[&str], mut at: usize, before: &mut Vec<String>, found: &mut Vec<Named>) -> usize {
    let depth = before.len();
    while let Some(&word) = words.get(at) {
        if word == "{" {
            at += 1;
            while words.get(at).is_some_and(|word| *word != "}") {
                at = if words[at] == "," { at + 1 } else { tree(words, at, before, found).max(at + 1) };
            }
            before.truncate(depth);
            return at + 1;
        }
        if word == "::" {
            at += 1;
            continue;
        }
        if !word.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '*') {
            break;
        }
        if word != "self" || before.is_empty() {
            before.push(word.to_owned());
        }
        at += 1;
        if words.get(at).is_none_or(|next| *next != "::") {
            break;
        }
    }
    let alias = (words.get(at) == Some(&"as")).then(|| words.get(at + 1).map(|alias| (*alias).to_owned()));
    at += if alias.is_some() { 2 } else { 0 };
    found.push((before.clone(), alias.flatten()));
    before.truncate(depth);
    at
}

/// A path from the crate's root; `None` for one of another crate, or of the file itself.
fn absolute(path: &[String], module: &[String], children: &BTreeSet<String>) -> Option<Vec<String>> {
    let first = path.first()?;
    let supers = path.iter().take_while(|part| *part == "super").count();
    if first == "crate" {
        return Some(path[1..].to_vec());
    }
    if supers > 0 {
        let base = &module[..module.len().checked_sub(supers)?];
        return Some([base, &path[supers..]].concat());
    }
    if first == "self" {
        return Some([module, &path[1..]].concat());
    }
    children.contains(first).then(|| [module, path].concat())
}

fn room(module: &str) -> &str {
    module.split("::").next().filter(|room| !room.is_empty()).unwrap_or("lib")
}

/// Why a module may not use another.
pub fn forbidden(from: &str, to: &str) -> Option<String> {
    let engine = |module: &str| ENGINES.into_iter().find(|name| is_within(module, name));
    if let (Some(one), Some(other)) = (engine(from), engine(to))
        && one != other
    {
        return Some(format!("{from} uses {to}: engines meet in their traits"));
    }
    let (from, to) = (room(from), room(to));
    let (Some(above), Some(below)) = (floor(from), floor(to)) else {
        return Some(format!("{from} uses {to}: give both a floor in tests/files/house/imports.rs"));
    };
    if below > above {
        return Some(format!("{from} (floor {above}) uses {to} (floor {below}): imports go down only"));
    }
    if ONE_WAY.contains(&(from, to)) {
        return Some(format!("{from} uses {to}, which stands above it"));
    }
    let apart = above == WORK && below == WORK && from != to;
    apart.then(|| format!("{from} uses {to}: the rooms of floor {WORK} meet in the store"))
}

fn is_within(module: &str, room: &str) -> bool {
    module.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Circles of imports, the shortest through each file or room of the first level. A module and a module within it make
/// no circle: the parts of a noun know the noun.
pub fn circles(edges: &Edges) -> Vec<String> {
    let mut rooms = Edges::new();
    for (from, used) in edges {
        for to in used.iter().filter(|to| room(from) != room(to)) {
            rooms.entry(room(from).to_owned()).or_default().insert(room(to).to_owned());
        }
    }
    let mut found = BTreeSet::new();
    for edges in [edges, &rooms] {
        for module in edges.keys() {
            if let Some(mut circle) = shortest_circle(module, edges) {
                circle.sort_unstable();
                found.insert(format!("{} import one another", circle.join(" and ")));
            }
        }
    }
    found.into_iter().collect()
}

/// The modules of the shortest way along imports from a module back to it.
fn shortest_circle<'a>(module: &'a str, edges: &'a Edges) -> Option<Vec<&'a str>> {
    let used = |from: &str| {
        let of_it = edges.get(from).into_iter().flatten().map(String::as_str);
        of_it.filter(|to| !is_within(to, from) && !is_within(from, to)).collect::<Vec<&str>>()
    };
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = VecDeque::from([module]);
    while let Some(at) = next.pop_front() {
        for to in used(at) {
            if to == module {
                let way = std::iter::successors(Some(at), |at| came_from.get(at).copied());
                return Some(way.collect());
            }
            if !came_from.contains_key(to) {
                came_from.insert(to, at);
                next.push_back(to);
            }
        }
    }
    None
}
