//! The page of `rollcall top`: lines of text, no wider and not more than the terminal has room for.

use serde_json::Value;

use super::super::fleet::counts;
use super::super::output::text;
use super::super::table::PrintedTable;
use super::lateness::Delays;
use crate::clock::{Timestamp, parse_moment, shown_span};
use crate::presence::Shown;

/// The most problems, and the most rows of kinds and labels: units need room, too.
const PROBLEMS: usize = 4;
const COUNTS: usize = 12;

pub(super) struct TopPage<'a> {
    pub place: &'a str,
    pub now: Timestamp,
    pub summary: &'a Value,
    pub units: &'a Value,
    /// The delays of the last minute, and the delays since the start of the instance.
    pub lately: &'a Delays,
    pub all: &'a Delays,
    /// The reason why there is no newer answer.
    pub failure: Option<&'a str>,
}

impl TopPage<'_> {
    pub fn draw(&self, width: u16, height: u16, colours: bool) -> Vec<String> {
        let mut lines = vec![format!("Rollcall at {} at {}  (q quits)", Shown(self.place), self.now)];
        lines.extend(self.state(colours));
        lines.push(String::new());
        let counts = counts(self.summary).to_text(colours);
        lines.extend(counts.lines().take(1 + COUNTS).map(str::to_owned));
        lines.push(String::new());
        lines.push(self.lateness());
        lines.push(String::new());
        lines.extend(self.silent().to_text(colours).lines().map(str::to_owned));
        lines.truncate(height.into());
        lines.iter().map(|line| clip(line, width.into())).collect()
    }

    /// The line that says whether the numbers can be trusted.
    fn state(&self, colours: bool) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(failure) = self.failure {
            lines.push(format!("no newer numbers: {}", Shown(failure)));
        }
        if self.summary["hearing"]["blind"] == true {
            lines.push(
                "Rollcall is blind: it cannot prove that it hears the fleet, and declares no unit offline"
                    .to_owned(),
            );
        }
        if self.summary["breaker_tripped"] == true {
            lines.push("the mass-offline breaker holds notifications: rollcall breaker show".to_owned());
        }
        let problems = self.summary["problems"].as_array().map_or(&[][..], Vec::as_slice);
        lines.extend(problems.iter().take(PROBLEMS).map(|problem| {
            format!("{}: {}", Shown(&text(&problem["instance"])), Shown(&text(&problem["text"])))
        }));
        if problems.len() > PROBLEMS {
            lines.push(format!("and {} more problems: rollcall summary", problems.len() - PROBLEMS));
        }
        for note in self.summary["notes"].as_array().into_iter().flatten() {
            lines.push(Shown(&text(note)).to_string());
        }
        let missing = text(&self.summary["incomplete"]);
        if !missing.is_empty() {
            lines.push(format!("units are missing: {} does not answer, or is being read", Shown(&missing)));
        }
        let (is_well, colour) = (lines.is_empty(), if lines.is_empty() { 32 } else { 31 });
        if is_well {
            lines.push("Rollcall is well".to_owned());
        }
        if colours {
            lines.iter_mut().for_each(|line| *line = format!("\x1b[{colour}m{line}\x1b[0m"));
        }
        lines
    }

    fn lateness(&self) -> String {
        match (self.lately.sentence(), self.all.sentence()) {
            (Some(lately), _) => format!("in the last minute {lately}, by this instance"),
            (None, Some(all)) => format!("no silence in the last minute; before, {all}, by this instance"),
            (None, None) => "this instance has found no silence since its start".to_owned(),
        }
    }

    /// The units that fell silent last.
    fn silent(&self) -> PrintedTable {
        let row = |unit: &Value| {
            let [kind, id, state, since, seen, labels] =
                ["kind", "unit", "state", "offline_since", "last_seen", "labels"]
                    .map(|field| text(&unit[field]));
            let span = parse_moment(&since).map(|since| shown_span(self.now.since(since)));
            let taken = text(&unit["acknowledged"]["author"]);
            vec![format!("{kind}/{id}"), state, span.unwrap_or_default(), seen, taken, labels]
        };
        let rows = self.units.as_array().into_iter().flatten().map(row).collect();
        PrintedTable {
            rows,
            ..PrintedTable::new(&["unit", "state", "for", "last_seen", "acknowledged_by", "labels"])
        }
    }
}

/// The first characters of a line; sequences for colours do not count.
fn clip(line: &str, width: usize) -> String {
    let (mut room, mut clipped, mut rest) = (width, String::new(), line);
    while let Some(c) = rest.chars().next() {
        let end = match rest.starts_with('\x1b').then(|| rest.find('m')).flatten() {
            Some(last) => {
                clipped.push_str(&rest[..=last]);
                last + 1
            }
            None => {
                if room > 0 {
                    room -= 1;
                    clipped.push(c);
                }
                c.len_utf8()
            }
        };
        rest = &rest[end..];
    }
    clipped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn draw(failure: Option<&str>, width: u16, height: u16, colours: bool) -> Vec<String> {
        let states =
            json!({ "offline": 2, "late": 0, "online": 7, "never_seen": 0, "paused": 0, "unknown": 0 });
        let problem = json!({ "instance": "one", "text": "the\u{1b}[2Jbroker is away" });
        let summary = json!({
            "states": states, "kinds": [{ "kind": "detector", "states": states }], "labels": [],
            "hearing": { "blind": false }, "problems": if failure.is_some() { json!([problem]) } else { json!([]) },
            "incomplete": [], "notes": if failure.is_some() { json!(["messages came on \u{1b}a topic"]) } else { json!([]) },
        });
        let units = json!([{
            "kind": "detector", "unit": "a\u{1b}[31mb\u{202e}", "state": "offline",
            "offline_since": "2026-11-25T02:00:00Z", "last_seen": "2026-11-25T01:59:00Z",
            "labels": { "site": "north" }, "acknowledged": { "author": "ana" },
        }]);
        let page = TopPage {
            place: "http://127.0.0.1:8080",
            now: parse_moment("2026-11-25T03:01:05Z").unwrap(),
            summary: &summary,
            units: &units,
            lately: &Delays::default(),
            all: &Delays::default(),
            failure,
        };
        page.draw(width, height, colours)
    }

    #[test]
    fn the_page_has_counts_and_the_units_that_fell_silent_and_no_sequence_of_devices() {
        let lines = draw(None, 200, 50, false);
        let text = lines.join("\n");
        assert!(lines[0].starts_with("Rollcall at http://127.0.0.1:8080 at 2026-11-25T03:01:05"), "{text}");
        assert_eq!(lines[1], "Rollcall is well");
        assert!(text.contains("kind=detector  2        0     7"), "{text}");
        assert!(
            text.contains("detector/a\\u{1b}[31mb\\u{202e}  offline  1h 1m  2026-11-25T01:59:00Z  ana"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(draw(None, 200, 50, true).join("").contains("\u{1b}[31moffline\u{1b}[0m"));
    }

    #[test]
    fn what_an_operator_has_to_know_stands_above() {
        let lines = draw(Some("it does not answer"), 200, 50, false);
        assert_eq!(lines[1], "no newer numbers: it does not answer");
        assert_eq!(lines[2], "one: the\\u{1b}[2Jbroker is away");
        assert_eq!(lines[3], "messages came on \\u{1b}a topic");
        assert!(!lines.contains(&"Rollcall is well".to_owned()));
    }

    #[test]
    fn lines_fit_the_terminal_also_with_colours() {
        for (width, height) in [(80, 24), (20, 5), (1, 1)] {
            let lines = draw(Some("away"), width, height, true);
            assert!(lines.len() <= height.into());
            for line in &lines {
                let plain = line.replace("\u{1b}[31m", "").replace("\u{1b}[32m", "").replace("\u{1b}[0m", "");
                assert!(plain.chars().count() <= width.into(), "{line:?}");
                let begun = line.matches("\u{1b}[3").count();
                assert_eq!(line.matches("\u{1b}[0m").count(), begun, "every colour ends: {line:?}");
            }
        }
        assert_eq!(clip("aü\u{1b}[31mbc\u{1b}[0md", 3), "aü\u{1b}[31mb\u{1b}[0m");
    }
}
