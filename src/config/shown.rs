//! The options as pages show them: each with its value and the place that sets it.
//!
//! A value is shown only if its option is known to hold no secret; of a URL, the part up to its port is shown. The
//! tables in a list, such as receivers, show only the options that are written.

use std::collections::BTreeSet;

use serde_json::Value;
use toml::Table;
use url::Url;

use super::file::File;
use super::problem::may_be_secret;
use crate::http::{ShownOption, ShownValue, ValueOrigin};

/// Options whose names sound secret, but which hold no secret.
const OPEN: [&str; 3] = ["user_header", "user_role", "user_roles"];

/// Options that may hold a secret although their names do not say so: the topic of a push service is a secret, and a
/// body may hold one.
const CLOSED: [&str; 2] = ["topic", "body"];

/// Options with URLs.
const URLS: [&str; 4] = ["url", "urls", "smtp", "external_url"];

/// The options that are written in the file and the environment.
pub(super) struct Written<'a> {
    pub table: &'a Table,
    /// The paths that variables have set.
    pub variables: &'a BTreeSet<String>,
}

impl Written<'_> {
    /// Every option of the file, in the order of their names.
    pub fn options(&self, file: &File) -> Vec<ShownOption> {
        let mut found = Vec::new();
        if let Ok(Value::Object(sections)) = serde_json::to_value(file) {
            for (name, section) in &sections {
                self.add(name, name, section, self.table.get(name), &mut found);
            }
        }
        found
    }

    /// `key`: the last word of the path. `written`: the value in the file or the environment.
    fn add(
        &self,
        path: &str,
        key: &str,
        value: &Value,
        written: Option<&toml::Value>,
        found: &mut Vec<ShownOption>,
    ) {
        match value {
            Value::Object(options) if !is_closed(key) => {
                for (name, option) in options {
                    let written = written.and_then(|table| table.get(name));
                    self.add(&format!("{path}.{name}"), name, option, written, found);
                }
            }
            Value::Array(tables) if tables.first().is_some_and(Value::is_object) => {
                for (at, table) in tables.iter().enumerate() {
                    let Some(written) = written.and_then(|list| list.get(at)) else { continue };
                    let names = table.as_object().into_iter().flatten();
                    for (name, option) in names {
                        if let Some(written) = written.get(name) {
                            self.add(&format!("{path}[{at}].{name}"), name, option, Some(written), found);
                        }
                    }
                }
            }
            value => {
                let origin = match written {
                    None => ValueOrigin::Default,
                    Some(_) if self.variables.contains(path) => ValueOrigin::Environment,
                    Some(_) => ValueOrigin::File,
                };
                found.push(ShownOption { path: path.to_owned(), value: shown(key, value), origin });
            }
        }
    }
}

fn is_closed(key: &str) -> bool {
    CLOSED.contains(&key) || may_be_secret(key) && !OPEN.contains(&key)
}

fn shown(key: &str, value: &Value) -> ShownValue {
    let text = |value: &Value| match value {
        Value::Null => "\"\"".to_owned(),
        value => value.to_string(),
    };
    let is_empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(table) => table.is_empty(),
        _ => false,
    };
    if is_empty || !is_closed(key) {
        return ShownValue::Text(text(value));
    }
    match value {
        Value::String(url) if URLS.contains(&key) => {
            server(url).map_or(ShownValue::Hidden, |server| ShownValue::Text(text(&Value::String(server))))
        }
        _ => ShownValue::Hidden,
    }
}

/// The scheme, host and port of a URL: the other parts may be a secret.
fn server(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    Some(format!("{}://{}{port}", url.scheme(), url.host_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        engine.url = "redis://roll:hunter2@10.0.0.5:6380/0"
        http.user_roles = { ana = "admin" }
        [[kind]]
        name = "detector"
        timeout = "10m"
        [[receiver]]
        name = "hook"
        type = "webhook"
        url = "https://hooks.example.org/services/hunter2"
        secret = "hunter2"
        headers = { authorization = "hunter2" }
        [[receiver]]
        name = "push"
        type = "ntfy"
        url = "no url, hunter2"
        topic = "hunter2"
        token_file = "/run/secrets/ntfy"
    "#;

    #[test]
    fn each_option_has_its_origin_and_no_secret_is_shown() {
        let table: Table = toml::from_str(TEXT).unwrap();
        let file = super::super::read(&table).unwrap();
        let variables = BTreeSet::from(["engine.url".to_owned()]);
        let options = Written { table: &table, variables: &variables }.options(&file);
        let all = format!("{options:?}");
        assert!(!all.contains("hunter2"), "{all}");
        let text = |text: &str| ShownValue::Text(text.to_owned());
        let cases = [
            ("engine.url", text("\"redis://10.0.0.5:6380\""), ValueOrigin::Environment),
            ("mqtt.url", text("\"mqtt://127.0.0.1:1883\""), ValueOrigin::Default),
            ("mqtt.username", text("\"\""), ValueOrigin::Default),
            ("http.user_roles.ana", text("\"admin\""), ValueOrigin::File),
            ("kind[0].timeout", text("\"10m\""), ValueOrigin::File),
            ("receiver[0].url", text("\"https://hooks.example.org\""), ValueOrigin::File),
            ("receiver[0].secret", ShownValue::Hidden, ValueOrigin::File),
            ("receiver[0].headers", ShownValue::Hidden, ValueOrigin::File),
            ("receiver[1].url", ShownValue::Hidden, ValueOrigin::File),
            ("receiver[1].topic", ShownValue::Hidden, ValueOrigin::File),
            ("receiver[1].token_file", text("\"/run/secrets/ntfy\""), ValueOrigin::File),
        ];
        for (path, value, origin) in cases {
            let wanted = ShownOption { path: path.to_owned(), value, origin };
            assert!(options.contains(&wanted), "{wanted:?} in {all}");
        }
        assert!(!options.iter().any(|option| option.path == "receiver[0].topic"), "{all}");
    }
}
