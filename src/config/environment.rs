//! Options from the environment: `ROLLCALL_ENGINE__URL` is `engine.url`.
//!
//! Every option outside a list can be set this way, and wins over the file. Each variable is checked on its own first,
//! so that a bad value is reported under the name of the variable. A variable that names no option is an error:
//! otherwise a misspelt override would have no effect, and the operator would notice it months later.
//!
//! # Why not a layering library
//! [`File`](super::file::File) has the type of every option, so a variable is read as that type and nothing is guessed:
//! a password of digits stays text, `yes` is not a boolean.

use std::collections::BTreeSet;

use serde_json::Value as Options;
use toml::{Table, Value};

use super::file::options;
use super::problem::{Problem, may_be_secret, suggest, without_value};

/// The prefix of every variable.
pub(super) const PREFIX: &str = "ROLLCALL_";
/// Variables that other modules read.
const OTHERS: [&str; 4] = ["ROLLCALL_CONFIG", "ROLLCALL_URL", "ROLLCALL_TOKEN", "ROLLCALL_TOKEN_FILE"];

/// The options of the file and the environment.
pub(super) struct Overlaid {
    pub table: Table,
    /// The paths of the options that variables have set.
    pub variables: BTreeSet<String>,
    /// Variables that are wrong.
    pub problems: Vec<Problem>,
}

/// Sets the variables in `table`, which holds the file.
pub(super) fn overlay(mut table: Table, variables: impl IntoIterator<Item = (String, String)>) -> Overlaid {
    let options = options();
    let (mut problems, mut paths) = (Vec::new(), BTreeSet::new());
    for (name, text) in variables {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        if OTHERS.contains(&name.as_str()) || is_service_link(rest) {
            continue;
        }
        match setting(&options, rest, &text) {
            Ok((path, _)) if table.get(&path[0]).is_some_and(Value::is_array) => {
                let text = format!("[[{}]] stands in the file as a list; write it there", path[0]);
                problems.push(Problem::new(name, text));
            }
            Ok((path, value)) => {
                insert(&mut table, &path, value);
                paths.insert(path.join("."));
            }
            Err(text) => problems.push(Problem::new(name, text)),
        }
    }
    Overlaid { table, variables: paths, problems }
}

/// The variable of an option.
pub(super) fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").to_ascii_uppercase())
}

/// The path and the value of a variable.
fn setting(options: &Options, name: &str, text: &str) -> Result<(Vec<String>, Value), String> {
    let path: Vec<String> = name.split("__").map(str::to_ascii_lowercase).collect();
    let option =
        path.iter().try_fold(options, |at, key| at.get(key)).ok_or_else(|| unknown(options, name))?;
    let read = |value: &Value| {
        let mut alone = Table::new();
        insert(&mut alone, &path, value.clone());
        super::read(&alone).map(|_| ())
    };
    let value = match option {
        Options::Bool(_) => match text.parse() {
            Ok(is_so) => Value::Boolean(is_so),
            // The option also accepts a word.
            Err(_) if read(&Value::String(text.to_owned())).is_ok() => Value::String(text.to_owned()),
            Err(_) => return Err("write true or false".to_owned()),
        },
        Options::Number(_) => {
            text.parse().map(Value::Integer).map_err(|_| "write a whole number".to_owned())?
        }
        Options::Array(_) => return Err("a list cannot be set here; write it into the file".to_owned()),
        Options::Object(_) => return Err(unknown(options, name)),
        Options::String(_) | Options::Null => Value::String(text.to_owned()),
    };
    let Err(error) = read(&value) else { return Ok((path, value)) };
    // The option accepts a word or a number.
    match text.parse().map(Value::Integer) {
        Ok(number) if read(&number).is_ok() => Ok((path, number)),
        _ => Err(describe(&path, &error)),
    }
}

/// The error, without the value if that may be a secret.
fn describe(path: &[String], error: &toml::de::Error) -> String {
    let message = error.message().trim_end();
    match path.last() {
        Some(key) if may_be_secret(key) => without_value(message),
        _ => super::problem::rephrase(message),
    }
}

fn unknown(options: &Options, name: &str) -> String {
    let mut known = Vec::new();
    scalars(options, "", &mut known);
    match suggest(name, known.iter().map(String::as_str)) {
        Some(meant) => format!("there is no such option; did you mean {PREFIX}{meant}?"),
        None => "there is no such option; config/reference.toml has them all, and a dot in a name is \
                 written as two underscores"
            .to_owned(),
    }
}

/// The names of all variables, without the prefix.
fn scalars(options: &Options, prefix: &str, names: &mut Vec<String>) {
    let Some(section) = options.as_object() else { return };
    for (key, value) in section {
        let name = format!("{prefix}{}", key.to_ascii_uppercase());
        match value {
            Options::Object(_) => scalars(value, &format!("{name}__"), names),
            Options::Array(_) => {}
            _ => names.push(name),
        }
    }
}

/// Kubernetes sets variables for every service of a namespace; a service with the name
/// `rollcall` or `rollcall-redis` must not keep Rollcall from starting.
fn is_service_link(name: &str) -> bool {
    let name = format!("_{name}");
    !name.contains("__")
        && (name.ends_with("_SERVICE_HOST")
            || name.contains("_SERVICE_PORT")
            || name.ends_with("_PORT")
            || name.contains("_PORT_") && (name.contains("_TCP") || name.contains("_UDP")))
}

fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [key] => {
            table.insert(key.clone(), value);
        }
        [section, rest @ ..] => {
            let inner = table.entry(section.clone()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}
