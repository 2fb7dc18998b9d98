//! Every shipped configuration loads, and the reference shows every option.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rollcall::config::file::{File, options};
use rollcall::config::{self, Config};
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The reference with every option in force: `#key = value` without the sign.
fn uncommented() -> String {
    let text = read(&root().join("config/reference.toml"));
    let option = |line: &str| {
        let plain = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#']));
        plain.unwrap_or(line).to_owned()
    };
    text.lines().map(option).collect::<Vec<_>>().join("\n")
}

/// Every option below `value` by its path. All elements of an array of tables share one path, so
/// two examples of receivers together show the options of both types.
fn leaves(path: &str, value: &Value, found: &mut BTreeMap<String, Vec<Value>>) {
    match value {
        Value::Object(section) => {
            let dot = if path.is_empty() { "" } else { "." };
            for (key, value) in section {
                leaves(&format!("{path}{dot}{key}"), value, found);
            }
        }
        Value::Array(tables) if tables.first().is_some_and(Value::is_object) => {
            tables.iter().for_each(|table| leaves(&format!("{path}[]"), table, found));
        }
        value => found.entry(path.to_owned()).or_default().push(value.clone()),
    }
}

pub fn all_leaves(value: &Value) -> BTreeMap<String, Vec<Value>> {
    let mut found = BTreeMap::new();
    leaves("", value, &mut found);
    found
}

/// Whether an option has a default; an option without a default is shown by an example.
fn has_default(value: &Value) -> bool {
    !(value.is_null() || value.as_str() == Some("") || *value == Value::Array(Vec::new()))
}

#[test]
fn the_reference_names_every_option() {
    let shown: toml::Table = toml::from_str(&uncommented()).unwrap();
    let shown = all_leaves(&serde_json::to_value(shown).unwrap());
    let missing: Vec<_> = all_leaves(&options()).into_keys().filter(|key| !shown.contains_key(key)).collect();
    assert!(missing.is_empty(), "config/reference.toml has no line for {missing:?}");
}

#[test]
fn the_reference_shows_every_option_at_its_default() {
    let file: File = toml::from_str(&uncommented()).unwrap_or_else(|error| panic!("{error}"));
    let shown = all_leaves(&serde_json::to_value(file).unwrap());
    let mut wrong = Vec::new();
    for (option, defaults) in all_leaves(&options()) {
        let listed = option.contains("[]");
        for value in &shown[&option] {
            if (has_default(&defaults[0]) || !listed) && *value != defaults[0] {
                wrong.push(format!("{option} is shown as {value}, the default is {}", defaults[0]));
            }
        }
    }
    assert!(wrong.is_empty(), "config/reference.toml:\n{}", wrong.join("\n"));
}

#[test]
fn every_line_of_the_reference_is_explained_or_an_option() {
    let mut tables = 0;
    for line in read(&root().join("config/reference.toml")).lines() {
        assert!(line.is_empty() || line.starts_with('#'), "an option of the reference is in force: {line}");
        tables += usize::from(line.starts_with("#["));
    }
    assert!(tables >= 12, "the sign before the options changed, and nothing was tested");
}

#[test]
fn every_file_in_config_loads() {
    let mut count = 0;
    for path in files(&root().join("config")) {
        load(&read(&path), &path);
        count += 1;
    }
    assert!(count >= 3, "the examples are gone");
}

/// Loads a configuration in a directory in which every file that it names exists.
pub fn load(text: &str, shown_in: &Path) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for line in text.lines().filter(|line| line.contains("_file")) {
        for name in line.split('"').skip(1).step_by(2).filter(|name| !name.is_empty()) {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            let text = match () {
                () if name.ends_with(".pem") => certificate.cert.pem(),
                () if name.ends_with(".key") => certificate.signing_key.serialize_pem(),
                () if line.contains("url_file") => "https://example.org/check".to_owned(),
                () => "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned(),
            };
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
        }
    }
    config::parse(text, Some(&dir.path().join("rollcall.toml")), [])
        .unwrap_or_else(|error| panic!("{}:\n{error}", shown_in.display()))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|it| it == "toml") {
            found.push(path);
        }
    }
    found
}
