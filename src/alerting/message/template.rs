//! Templates of messages: minijinja, whose language is Jinja2's, with the filters of [`filters`].
//!
//! A template reads the data of its notification and nothing else: no files, no environment, no other template. A name
//! that does not exist is an error, except where a template only asks whether it is there. The steps of a template and
//! the length of its result are bounded.

use std::io;

use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};

use super::filters;
use super::zone::Zone;

/// The most steps of one rendering. A notification of a thousand records with a line for each takes a tenth of it.
const FUEL: u64 = 1_000_000;
/// The longest result, in bytes.
const MAX_OUTPUT: usize = 4 << 20;
/// The longest expression, in bytes. The parser is recursive, and its stack has some megabytes.
const MAX_EXPRESSION: usize = 4096;

/// The templates of one receiver.
pub struct Templates {
    environment: Environment<'static>,
}

impl Templates {
    pub fn new(zone: &Zone) -> Templates {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        // A template chooses between text and JSON with a filter.
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        filters::add(&mut environment, zone);
        Templates { environment }
    }

    /// Adds a template. Its errors begin with its name, which is the name of an option.
    pub fn add(&mut self, name: &str, source: &str) -> Result<(), String> {
        if expressions(source).any(|length| length > MAX_EXPRESSION) {
            return Err(format!("{name}: an expression has more than {MAX_EXPRESSION} bytes; divide it"));
        }
        let added = self.environment.add_template_owned(name.to_owned(), source.to_owned());
        added.map_err(|error| explained(name, source, &error))
    }

    /// Renders a template.
    ///
    /// # Errors
    /// The fault with its line, and the advice; no values.
    pub fn render(&self, name: &str, data: &serde_json::Value) -> Result<String, String> {
        let template = self.environment.get_template(name).map_err(|error| explained(name, "", &error))?;
        let failed = |error: Error| explained(name, template.source(), &error);
        let mut result = Limited(Vec::new());
        template.render_captured_to(Serde(data), &mut result).map_err(failed)?;
        Ok(String::from_utf8_lossy(&result.0).into_owned())
    }
}

/// The lengths of the expressions of a template, in bytes.
fn expressions(source: &str) -> impl Iterator<Item = usize> {
    let begins = source.match_indices("{{").chain(source.match_indices("{%"));
    begins.map(|(at, _)| {
        let rest = &source[at..];
        let ends = [rest.find("}}"), rest.find("%}")];
        ends.into_iter().flatten().min().unwrap_or(rest.len())
    })
}

fn explained(name: &str, source: &str, error: &Error) -> String {
    let line = error.line().map(|line| format!(", line {line}")).unwrap_or_default();
    let detail = error.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    let advice = match error.kind() {
        ErrorKind::UndefinedError if faulty_line(source, error).contains("timers") => {
            "only notifications of timers have timers, and the receiver may get other notifications, too: write \
             {% if timers %} around the part for timers"
        }
        ErrorKind::UndefinedError => {
            "docs/templates.md lists the names; a unit may lack any label: write {% if record.labels.site %} around one that \
             may be missing, or record.labels.site | default('')"
        }
        ErrorKind::UnknownFilter => "docs/templates.md lists the filters",
        ErrorKind::OutOfFuel => "it takes too many steps; loop over fewer records",
        ErrorKind::WriteFailure => "its result is too long; list fewer records",
        _ => "correct the template",
    };
    format!("{name}{line}: {}{detail}; {advice}", error.kind())
}

fn faulty_line<'a>(source: &'a str, error: &Error) -> &'a str {
    let before = error.line().unwrap_or_default().saturating_sub(1);
    source.lines().nth(before).unwrap_or_default()
}

/// A buffer that does not grow beyond [`MAX_OUTPUT`].
struct Limited(Vec<u8>);

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::other("the result is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::alerting::message::{Example, MessageConfig, ReceiverMessage};

    fn rendered(source: &str) -> Result<String, String> {
        let mut templates = Templates::new(&Zone::parse("Europe/Berlin").unwrap());
        templates.add("body", source)?;
        let data = json!({"name": "a\"b", "at": "2026-01-15T10:00:00.000Z", "none": null, "seconds": 125.5});
        templates.render("body", &data)
    }

    #[test]
    fn times_and_spans_are_shown_in_the_zone_of_the_receiver() {
        let cases = [
            ("{{ at | time }}", "2026-01-15 11:00:00 CET"),
            ("{{ at | time('%H:%M') }}", "11:00"),
            ("{{ none | time }}", ""),
            ("{{ at | epoch }}", "1768471200"),
            ("{{ seconds | span }}", "2m 5s"),
            ("{{ 1e308 | span }}", "213503982334601d 7h"),
            ("{{ -1.0 | span }}", "0s"),
            ("{{ name | cut(0) }}-", "-"),
            ("{{ '2026-01-15T12:30:00Z' | since(at) }}", "2h 30m"),
            ("{{ name | tojson }}", r#""a\"b""#),
            ("{% if nothing %}x{% endif %}-", "-"),
        ];
        for (source, expected) in cases {
            assert_eq!(rendered(source).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn every_name_is_documented() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/templates.md")).unwrap();
        let data = ReceiverMessage::new(&Example::Storm.delivery("hook")).data(&MessageConfig::default());
        let names: Vec<&String> = data.as_object().unwrap().keys().collect();
        let rows: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
        let missing =
            names.into_iter().filter(|name| !rows.iter().any(|row| row.contains(&format!("`{name}`"))));
        assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn an_error_says_where_it_is_and_what_to_do() {
        let cases = [
            ("a\n{{ nam }}", "body, line 2: "),
            ("{{ name", "body, line 1: "),
            ("{{ nam }}", "a unit may lack any label"),
            ("{% set timers = [] %}\n{{ timers[0].data }}", "write {% if timers %} around"),
            ("{{ name | tojsn }}", "docs/templates.md lists the filters"),
            ("{{ name | time }}", "not a time"),
            (
                "{% for a in range(2000) %}{% for b in range(2000) %}x{% endfor %}{% endfor %}",
                "too many steps",
            ),
            (
                "{% set s = 'x' * 9000 %}{% for a in range(900) %}{{ s }}{% endfor %}",
                "its result is too long",
            ),
        ];
        for (source, expected) in cases {
            let error = rendered(source).unwrap_err();
            assert!(error.starts_with("body") && error.contains(expected), "{source}: {error}");
            assert!(!error.contains("a\"b"), "{error}");
        }
        // Without the limit the parser would run out of its stack, and end the process.
        let terms = format!("{{{{ {} }}}}", vec!["1"; 30_000].join(" + "));
        assert!(rendered(&terms).unwrap_err().contains("an expression has more than"));
    }
}
