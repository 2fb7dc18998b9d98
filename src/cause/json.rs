//! Errors of JSON in words for operators: the place, the value found there, and the value that belongs there. The
//! parser words its errors for programmers.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::{Category, Error};

/// The parser's errors for a text that is not JSON, and their meaning.
const SYNTAX: [(&str, &str); 14] = [
    ("recursion limit exceeded", "it is nested too deeply"),
    ("trailing characters", "something follows after its end"),
    ("trailing comma", "a comma stands before a closing bracket"),
    ("key must be a string", "a name stands in double quotation marks"),
    ("expected `:`", "a colon is missing after a name"),
    ("expected `,`", "a comma or a closing bracket is missing"),
    (
        "expected",
        "a text stands in double quotation marks; else write a number, true, false, null, […] or {…}",
    ),
    ("control character", "a text holds a control character; write \\n or \\u0009"),
    ("invalid escape", "a text holds a \\ that begins no escape; write \\\\"),
    ("invalid unicode", "a text is not UTF-8, or holds half a character"),
    ("lone leading surrogate", "a text holds half a character"),
    ("unexpected end of hex escape", "a text holds half a character"),
    ("invalid number", "a number is not written as JSON has it"),
    ("number out of range", "a number is too large"),
];

/// The parser's names of expected types, and ours.
const TYPES: [(&str, &str); 9] = [
    ("struct", "an object"),
    ("a map", "an object"),
    ("a sequence", "a list"),
    ("tuple", "a list"),
    ("a string", "a text"),
    ("a borrowed string", "a text"),
    ("a boolean", "true or false"),
    ("f", "a number"),
    ("a Duration", "a span"),
];

/// Reads JSON; an error says in words why it cannot be read.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| {
        // Parse again only after an error: to track the path costs time, which valid JSON does not pay.
        let mut again = serde_json::Deserializer::from_slice(json);
        let path =
            serde_path_to_error::deserialize::<_, T>(&mut again).err().map(|one| one.path().to_string());
        at(path.as_deref(), &error)
    })
}

/// Reads a value; an error says in words why it cannot be read.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value)
        .map_err(|error| at(Some(&error.path().to_string()), error.inner()))
}

/// An error of the parser in words.
pub fn words(error: &Error) -> String {
    let text = error.to_string();
    // The place in a text, if there is one.
    let (said, place) = match text.rsplit_once(" at line ") {
        Some((said, _)) if error.line() > 0 => {
            (said, format!(", at line {}, column {}", error.line(), error.column()))
        }
        _ => (text.as_str(), String::new()),
    };
    match error.classify() {
        Category::Eof if (error.line(), error.column()) <= (1, 0) => "it is empty; write JSON".to_owned(),
        Category::Eof => format!("it is cut off: a text or a bracket does not end{place}"),
        Category::Syntax => {
            let why = SYNTAX.iter().find(|(begin, _)| said.starts_with(begin)).map_or(said, |(_, why)| why);
            format!("it is no JSON: {why}{place}")
        }
        Category::Data => of_data(said).unwrap_or_else(|| said.to_owned()),
        Category::Io => {
            super::of_io(&std::io::Error::from(std::io::ErrorKind::UnexpectedEof)).unwrap_or(text)
        }
    }
}

/// The error, with the name of the field where it arose in front.
fn at(path: Option<&str>, error: &Error) -> String {
    let words = words(error);
    let is_place = |path: &&str| error.is_data() && !path.is_empty() && *path != "." && !path.contains('?');
    // An error about an unknown field names that field already.
    let path = path.map(|path| match path.rsplit_once('.').unwrap_or(("", path)) {
        (parent, last) if words.starts_with(&format!("there is no field {last:?}")) => parent,
        _ => path,
    });
    match path.filter(is_place) {
        // The words begin with the field already.
        Some(path) if words.starts_with(&format!("{path} is ")) => words,
        Some(path) => format!("{path}: {words}"),
        None => words,
    }
}

/// The error for a value whose type the field does not allow; `None`: the text is one of Rollcall's own.
pub fn of_data(said: &str) -> Option<String> {
    let quoted = |text: &str, lead: &str| {
        text.strip_prefix(lead)?.split_once('`').map(|(word, rest)| (word.to_owned(), rest.to_owned()))
    };
    let known = |rest: &str| rest.split('`').skip(1).step_by(2).collect::<Vec<&str>>().join(", ");
    if let Some((name, rest)) = quoted(said, "unknown field `") {
        return Some(match known(&rest) {
            none if none.is_empty() => format!("there is no field {name:?}"),
            known => format!("there is no field {name:?}; known here: {known}"),
        });
    }
    if let Some((name, rest)) = quoted(said, "unknown variant `") {
        return Some(format!("{name:?} is unknown; write one of {}", known(&rest)));
    }
    if let Some((name, _)) = quoted(said, "missing field `") {
        return Some(format!("{name} is missing"));
    }
    if let Some((name, _)) = quoted(said, "duplicate field `") {
        return Some(format!("{name} is given twice"));
    }
    if said == "number out of range" {
        return Some("the number is too large".to_owned());
    }
    let leads = ["invalid type: ", "invalid value: ", "invalid length "];
    let rest = leads.iter().find_map(|lead| said.strip_prefix(lead))?;
    let (found, wanted) = rest.rsplit_once(", expected ")?;
    Some(format!("write {}, not {}", type_name(wanted), value_name(found)))
}

/// The name of the type that a field allows.
fn type_name(wanted: &str) -> String {
    let is_number = |text: &str| text.parse::<u16>().is_ok();
    if wanted.strip_prefix(['u', 'i']).is_some_and(|size| is_number(size) || size == "size") {
        let is_positive = wanted.starts_with('u');
        return if is_positive { "a whole number from 0 on" } else { "a whole number" }.to_owned();
    }
    let is_type = |name: &str| match name {
        "f" => wanted.strip_prefix('f').is_some_and(is_number),
        name => wanted.starts_with(name),
    };
    TYPES.iter().find(|(name, _)| is_type(name)).map_or(wanted, |(_, name)| name).to_owned()
}

/// The name of the value that was found.
fn value_name(found: &str) -> String {
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" | "unit value" => "null".to_owned(),
        _ => match found.split_once(' ') {
            Some(("string", text)) => format!("the text {text}"),
            _ => found.split('`').nth(1).unwrap_or(found).to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Wanted {
        name: String,
        count: Option<u64>,
        share: Option<f64>,
        on: Option<bool>,
        list: Option<Vec<InnerObject>>,
        labels: Option<BTreeMap<String, String>>,
        mode: Option<ModeOption>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct InnerObject {
        depth: i8,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum ModeOption {
        Fast,
        Slow,
    }

    #[test]
    fn every_error_says_where_and_what_belongs_there() {
        let deep = "[".repeat(200);
        for (json, said) in [
            ("", "it is empty; write JSON"),
            ("{\"name\": \"a", "it is cut off: a text or a bracket does not end"),
            ("{\"name\": \"a\"} x", "it is no JSON: something follows after its end"),
            ("{\"name\": \"a\",}", "it is no JSON: a comma stands before a closing bracket"),
            ("{name: 1}", "it is no JSON: a name stands in double quotation marks"),
            ("{\"name\" 1}", "it is no JSON: a colon is missing after a name"),
            ("{\"name\": \"a\" 1}", "it is no JSON: a comma or a closing bracket is missing"),
            (
                "{\"name\": a}",
                "it is no JSON: a text stands in double quotation marks; else write a number, true, false, null, […] or {…}",
            ),
            ("{\"name\": \"\t\"}", "it is no JSON: a text holds a control character; write \\n or \\u0009"),
            ("{\"name\": \"\\x\"}", "it is no JSON: a text holds a \\ that begins no escape; write \\\\"),
            ("{\"name\": \"\\ud800\"}", "it is no JSON: a text holds half a character"),
            ("{\"name\": \"a\", \"count\": 01}", "it is no JSON: a number is not written as JSON has it"),
            ("{\"name\": \"a\", \"share\": 1e999}", "it is no JSON: a number is too large"),
            (&deep, "it is no JSON: it is nested too deeply"),
            ("null", "write an object, not null"),
            ("{}", "name is missing"),
            ("{\"name\": 5}", "name: write a text, not 5"),
            ("{\"name\": \"a\", \"name\": \"b\"}", "name is given twice"),
            (
                "{\"name\": \"a\", \"colour\": 1}",
                "there is no field \"colour\"; known here: name, count, share, on, list, labels, mode",
            ),
            ("{\"name\": \"a\", \"count\": -1}", "count: write a whole number from 0 on, not -1"),
            ("{\"name\": \"a\", \"count\": 1.5}", "count: write a whole number from 0 on, not 1.5"),
            ("{\"name\": \"a\", \"share\": \"x\"}", "share: write a number, not the text \"x\""),
            ("{\"name\": \"a\", \"on\": \"yes\"}", "on: write true or false, not the text \"yes\""),
            ("{\"name\": \"a\", \"list\": {}}", "list: write a list, not an object"),
            ("{\"name\": \"a\", \"list\": [{\"depth\": 1}, {}]}", "list[1]: depth is missing"),
            (
                "{\"name\": \"a\", \"list\": [{\"depth\": null}]}",
                "list[0].depth: write a whole number, not null",
            ),
            ("{\"name\": \"a\", \"labels\": {\"site\": true}}", "labels.site: write a text, not true"),
            ("{\"name\": \"a\", \"mode\": \"idle\"}", "mode: \"idle\" is unknown; write one of fast, slow"),
        ] {
            // Read the test's document as nested arrays: a nested value is read before it is compared.
            let error = match json.starts_with("[[") {
                true => read::<Value>(json.as_bytes()).unwrap_err(),
                false => read::<Wanted>(json.as_bytes()).unwrap_err(),
            };
            assert_eq!(error.split(", at line ").next(), Some(said), "{json}");
            if let Ok(Err(error)) = serde_json::from_str::<Value>(json).map(from_value::<Wanted>) {
                assert_eq!(error, said, "{json}, as a value");
            }
        }
        // A struct would accept a list as its fields in order.
        let error = read::<serde_json::Map<String, Value>>(b"[1]").unwrap_err();
        assert_eq!(error, "write an object, not a list");
        let error = read::<Value>(b"{\"name\": \"a\",\n} x").unwrap_err();
        assert_eq!(error, "it is no JSON: a comma stands before a closing bracket, at line 2, column 1");
    }
}
