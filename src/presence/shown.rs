//! Names from outside, made safe to show.

use std::fmt::{self, Write};

/// A text that shows each invisible character, and each character that changes how others are drawn, as `\u{…}`, and
/// line breaks and tabs as `\n`, `\r` and `\t`. An id may hold such characters: U+202E reverses the rest of a line.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| {
            if is_visible(c) { f.write_char(c) } else { write!(f, "{}", c.escape_default()) }
        })
    }
}

/// Whether a character is drawn as itself: no control character, no format character, no space but the
/// ordinary one.
pub fn is_visible(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    !c.is_control() && !c.is_whitespace() && !formats(c)
}

/// The general category Cf of Unicode, and letters that are drawn as nothing.
fn formats(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
        | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
        | '\u{13430}'..='\u{1345f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_written_out_and_all_others_stay() {
        for same in ["pump 7", "Halle 3: ü%", "水泵", "насос", "a\"=\\b", "🚰"] {
            assert_eq!(Shown(same).to_string(), same);
        }
        let cases = [
            ("a\u{202e}b", "a\\u{202e}b"),
            ("\u{2066}x\u{2069}", "\\u{2066}x\\u{2069}"),
            ("a\u{200b}\u{a0}\u{2028}", "a\\u{200b}\\u{a0}\\u{2028}"),
            ("a\r\n\u{1b}[31m", "a\\r\\n\\u{1b}[31m"),
            ("\u{feff}\u{e0041}", "\\u{feff}\\u{e0041}"),
        ];
        for (text, shown) in cases {
            assert_eq!(Shown(text).to_string(), shown);
        }
    }
}
