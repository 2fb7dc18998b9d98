//! Lines for machines: JSON in which invisible characters are written as `\uXXXX`, because people read it too.

use std::io::{self, Write};

use crate::presence::is_visible;

/// A writer of JSON. A line comes in one call; characters that are not ASCII stand only within strings.
pub(super) struct Escaped<W>(pub W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) if !bytes.is_ascii() => self.0.write_all(escape(text).as_bytes())?,
            _ => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() || is_visible(c) {
            escaped.push(c);
        } else {
            let units =
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
            escaped.push_str(&units);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_meaning_and_shows_invisible_characters() {
        let text = "ü\u{202e}\u{e0041}\u{1f6b0}";
        let line = format!("{}\n", serde_json::json!({ "unit": text }));
        let mut out = Escaped(Vec::new());
        out.write_all(line.as_bytes()).unwrap();
        let out = String::from_utf8(out.0).unwrap();
        assert_eq!(out, "{\"unit\":\"ü\\u202e\\udb40\\udc41\u{1f6b0}\"}\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap()["unit"], text);
    }
}
