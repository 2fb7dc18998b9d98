//! The filters of templates, beside those of the language: times and spans in the zone of the receiver, lengths, and
//! text that is safe within another language.

use std::time::Duration;

use minijinja::{Environment, Error, ErrorKind, Value};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::counts::{number, of_rest};
use super::zone::Zone;
use crate::alerting::text;
use crate::clock::{Timestamp, parse_moment, shown_span as span};

/// The room for the line that says how many lines are left out.
const LINE_OF_REST: usize = 32;

/// Adds the filters. `zone` is that of the receiver.
pub fn add(environment: &mut Environment<'static>, zone: &Zone) {
    let zone = zone.clone();
    environment.add_filter("time", move |at: Value, form: Option<String>| -> Result<String, Error> {
        let Some(at) = moment(&at)? else { return Ok(String::new()) };
        match form {
            None => Ok(zone.show(at)),
            Some(form) => zone.format(at, &form).map_err(invalid),
        }
    });
    environment.add_filter("epoch", |at: Value| -> Result<i64, Error> {
        Ok(moment(&at)?.unwrap_or_default().as_millis() / 1000)
    });
    environment.add_filter("span", |seconds: f64| -> String {
        // A span that has no room in a `Duration` is shown as the longest one.
        span(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
    });
    environment.add_filter("since", |to: Value, from: Value| -> Result<String, Error> {
        let (to, from) = (moment(&to)?, moment(&from)?);
        Ok(to.zip(from).map(|(to, from)| span(to.since(from))).unwrap_or_default())
    });
    environment.add_filter("cut", |text: String, most: usize| -> String { text::cut(&text, most) });
    environment.add_filter("fit", |text: String, most: usize| -> String { fit(&text, most) });
    environment.add_filter("slack", |text: String| -> String { by_line(&text, slack) });
    environment.add_filter("slack_plain", |text: String| -> String { by_line(&text, slack_plain) });
    environment.add_filter("html", |text: String| -> String { by_line(&text, text::html) });
    environment.add_filter("markdown", |text: String| -> String { by_line(&text, markdown) });
    environment.add_filter("urlencode", |text: String| -> String {
        utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string()
    });
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// A time of the notification; `None` for null.
fn moment(value: &Value) -> Result<Option<Timestamp>, Error> {
    if value.is_none() || value.is_undefined() {
        return Ok(None);
    }
    let moment = value.as_str().and_then(parse_moment);
    moment.map(Some).ok_or_else(|| invalid("not a time; times are fields such as timestamp".to_owned()))
}

/// As many whole lines as `most` characters hold, and how many are left out. The first line is cut if it alone is too
/// long.
fn fit(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let lines: Vec<&str> = text.lines().collect();
    let Some(room) = most.checked_sub(LINE_OF_REST).filter(|room| *room > 0 && lines.len() > 1) else {
        return text::cut(text, most);
    };
    let mut used = 0;
    let fits = |line: &&&str| {
        used += line.chars().count() + 1;
        used <= room
    };
    let taken = lines.iter().take_while(fits).count();
    let (shown, rest) = match taken {
        0 => (text::cut(lines[0], room), &lines[1..]),
        taken => (lines[..taken].join("\n"), &lines[taken..]),
    };
    match rest.iter().map(|line| lines_of(line)).sum() {
        0 => shown,
        1 => format!("{shown}\n… 1 line more"),
        count => format!("{shown}\n… {} lines more", number(count)),
    }
}

/// How many lines a line stands for: `and 1 948 more` for all that it counts.
fn lines_of(line: &str) -> u64 {
    match line.trim() {
        "" => 0,
        line => of_rest(line).unwrap_or(1),
    }
}

/// Escapes line by line: line breaks stay.
fn by_line(text: &str, escape: fn(&str) -> String) -> String {
    text.split('\n').map(escape).collect::<Vec<String>>().join("\n")
}

/// Escapes a line for an object of the type `plain_text`.
fn slack_plain(line: &str) -> String {
    text::plain(line).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Escapes a line for mrkdwn. Slack has no escape for its signs, so a zero-width space stands before a sign that
/// could begin or end a format. Words such as `pump_7` get no such space, so that the name can be copied.
fn slack(line: &str) -> String {
    const APART: char = '\u{200b}';
    let line = slack_plain(line);
    let mut safe = String::with_capacity(line.len());
    // Slack shows a line that begins with `&gt;` as a quotation.
    safe.extend(line.starts_with("&gt;").then_some(APART));
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        let rest = &line[at + c.len_utf8()..];
        let is_in_word = || before.is_alphanumeric() && rest.starts_with(char::is_alphanumeric);
        if c == '`' || matches!(c, '*' | '_' | '~') && !is_in_word() {
            safe.push(APART);
        }
        safe.push(c);
        if c == ':' && is_emoji(rest, before) {
            safe.push(APART);
        }
        before = c;
    }
    safe
}

/// Whether a colon begins the name of an emoji, such as `:fire:`. The minutes of `10:02:05` are none.
fn is_emoji(rest: &str, before: char) -> bool {
    let Some((name, _)) = rest.split_once(':') else { return false };
    let is_time = before.is_ascii_digit() && name.bytes().all(|byte| byte.is_ascii_digit());
    let is_sign = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '\'');
    !name.is_empty() && name.chars().all(is_sign) && !is_time
}

fn markdown(line: &str) -> String {
    let mut safe = String::with_capacity(line.len());
    for c in text::plain(line).chars() {
        if matches!(c, '\\' | '*' | '_' | '~' | '`' | '|' | '>' | '#' | '[' | ']' | '<' | '@') {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_fitted_by_whole_lines_and_says_how_many_are_left_out() {
        let text = (0..100).map(|at| format!("unit {at}")).collect::<Vec<_>>().join("\n");
        let fitted = fit(&text, 60);
        assert!(fitted.chars().count() <= 60, "{fitted}");
        assert!(fitted.starts_with("unit 0\nunit 1\n") && fitted.ends_with(" lines more"), "{fitted}");
        assert_eq!(fit("short", 5), "short");
        assert_eq!(fit("a single long line", 5), "a si…");
        assert_eq!(fit("two\nlines", 0), "");
        assert_eq!(fit(&format!("{}\nb\n\nc", "a".repeat(50)), 40), "aaaaaaa…\n… 2 lines more");
    }

    #[test]
    fn the_number_of_lines_that_are_left_out_has_those_that_the_text_left_out() {
        let listed = |count: usize| (0..count).map(|at| format!("unit {at:02}\n")).collect::<String>();
        let cases = [
            (listed(50) + "and 1 948 more", "… 1 995 lines more"),
            (listed(50), "… 47 lines more"),
            (listed(4) + &"x".repeat(30), "… 2 lines more"),
            (listed(2) + "and no more units are there, which is good", "… 1 line more"),
            (listed(2) + "and 99999999999999999999 more, more or less", "… 1 line more"),
        ];
        for (text, rest) in cases {
            let fitted = fit(&text, 56);
            assert_eq!(fitted.lines().last(), Some(rest), "{fitted}");
            assert!(fitted.chars().count() <= 56 && fitted.starts_with("unit 00\nunit 01\n"), "{fitted}");
        }
    }

    #[test]
    fn text_stays_text_within_another_language() {
        assert_eq!(by_line("a <b>\n& c", slack), "a &lt;b&gt;\n&amp; c");
        assert_eq!(by_line("_a_ <b>\n& :c:", slack_plain), "_a_ &lt;b&gt;\n&amp; :c:");
        assert_eq!(by_line("<b>\n*", text::html), "&lt;b&gt;\n*");
        assert_eq!(by_line("pump_7 [x](y)\n@all", markdown), "pump\\_7 \\[x\\](y)\n\\@all");
    }

    #[test]
    fn no_name_is_formatted_by_slack_and_ordinary_ones_stay_as_they_are() {
        let same = ["pump_7", "a*b", "10:02:05 UTC", "aa:bb", "http://a", "hall: b"];
        for name in same {
            assert_eq!(slack(name), name);
        }
        let cases = [
            ("_gw_", "\u{200b}_gw\u{200b}_"),
            ("det *gw*", "det \u{200b}*gw\u{200b}*"),
            ("~gw~", "\u{200b}~gw\u{200b}~"),
            ("a`b`c", "a\u{200b}`b\u{200b}`c"),
            (":fire: :+1: :100:", ":\u{200b}fire: :\u{200b}+1: :\u{200b}100:"),
            ("> a", "\u{200b}&gt; a"),
        ];
        for (name, expected) in cases {
            assert_eq!(slack(name), expected, "{name}");
        }
    }
}
