//! The fields of a line for people: `message name=value name="a value"`.
//!
//! A value of more than one plain word is quoted, and invisible characters are escaped, so that
//! no value can be read as a field, a line or another text.

use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use crate::presence::{Shown, is_visible};

/// Writes the message as it is and each field as `name=value`.
pub(super) struct FieldFormat;

impl<'writer> FormatFields<'writer> for FieldFormat {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = FieldWriter { writer, begun: false, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct FieldWriter<'writer> {
    writer: Writer<'writer>,
    begun: bool,
    result: fmt::Result,
}

impl FieldWriter<'_> {
    fn add(&mut self, field: &Field, value: &str) -> fmt::Result {
        if std::mem::replace(&mut self.begun, true) {
            self.writer.write_char(' ')?;
        }
        if field.name() == "message" {
            return write_message(&mut self.writer, value);
        }
        if self.writer.has_ansi_escapes() {
            write!(self.writer, "\x1b[3m{}\x1b[0m\x1b[2m=\x1b[0m", field.name())?;
        } else {
            write!(self.writer, "{}=", field.name())?;
        }
        write_value(&mut self.writer, value)
    }
}

impl Visit for FieldWriter<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if self.result.is_ok() {
            self.result = self.add(field, value);
        }
    }
}

/// A message may hold text from devices. A message with a `=` is quoted, so that no part of it is read as a field.
fn write_message(out: &mut impl Write, text: &str) -> fmt::Result {
    if text.contains('=') || text.starts_with('"') {
        quote(out, text)
    } else {
        write!(out, "{}", Shown(text))
    }
}

fn write_value(out: &mut impl Write, text: &str) -> fmt::Result {
    let plain = |c: char| is_visible(c) && !matches!(c, ' ' | '"' | '=' | '\\');
    if !text.is_empty() && text.chars().all(plain) { out.write_str(text) } else { quote(out, text) }
}

fn quote(out: &mut impl Write, text: &str) -> fmt::Result {
    out.write_char('"')?;
    for part in text.split_inclusive(['"', '\\']) {
        match part.char_indices().next_back() {
            Some((at, last @ ('"' | '\\'))) => write!(out, "{}\\{last}", Shown(&part[..at]))?,
            _ => write!(out, "{}", Shown(part))?,
        }
    }
    out.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> String {
        let mut out = String::new();
        write_value(&mut out, text).unwrap();
        out
    }

    #[test]
    fn a_value_of_one_plain_word_has_no_quotes_and_no_value_can_be_read_as_a_field() {
        for plain in ["detector:pump-7", "水泵", "2026-03-01T12:00:00.000Z", "12"] {
            assert_eq!(value(plain), plain);
        }
        let cases = [
            ("", r#""""#),
            ("a severity=error", r#""a severity=error""#),
            (r#"x" severity="error"#, r#""x\" severity=\"error""#),
            ("back\\", r#""back\\""#),
            ("a\nWARN b", r#""a\nWARN b""#),
            ("\u{202e}7-pmup", r#""\u{202e}7-pmup""#),
        ];
        for (text, shown) in cases {
            assert_eq!(value(text), shown);
        }
    }

    #[test]
    fn a_message_that_could_be_read_as_a_field_stands_in_quotes() {
        let message = |text: &str| {
            let mut out = String::new();
            write_message(&mut out, text).unwrap();
            out
        };
        assert_eq!(message("unit \"a b\" is offline"), "unit \"a b\" is offline");
        assert_eq!(message("unit a level=error is\noffline"), r#""unit a level=error is\noffline""#);
    }
}
