//! Text from outside, made safe to show: names, labels and answers of servers may hold
//! anything, and end up in headers, mails, HTML and logs.

use crate::presence::Shown;

/// The text on one line: line ends become spaces; characters that are invisible, or reverse the text, are escaped.
pub fn plain(text: &str) -> String {
    let line: String = text.chars().map(|c| if matches!(c, '\r' | '\n' | '\t') { ' ' } else { c }).collect();
    Shown(&line).to_string()
}

/// A name as one word among others: in quotes if it could be read as more than a name, such as `a (site=north)`.
pub fn word(text: &str) -> String {
    let text = plain(text);
    if text.contains(['=', ',', ';', '(', ')', '"']) {
        format!("\"{}\"", text.replace('"', "\\\""))
    } else {
        text
    }
}

/// The text on one line and at most `most` characters long.
pub fn short(text: &str, most: usize) -> String {
    cut(&plain(text), most)
}

/// The text, at most `most` characters long. A text that is cut ends with `…`, which counts.
pub fn cut(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    let Some(room) = most.checked_sub(1) else { return String::new() };
    text.chars().take(room).chain(['…']).collect()
}

/// The text on one line, escaped for HTML, also within an attribute.
pub fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_breaks_or_reverses_its_line() {
        let shown = "a  Bcc: x\\u{85}\\u{2028}\\u{202e}b\\u{0}";
        assert_eq!(plain("a\r\nBcc: x\u{85}\u{2028}\u{202e}b\0"), shown);
    }

    #[test]
    fn a_name_cannot_be_read_as_more_than_a_name() {
        for same in ["unit-7", "Halle 3", "a:b@c", "水泵"] {
            assert_eq!(word(same), same);
        }
        assert_eq!(word("a (site=north)"), "\"a (site=north)\"");
        assert_eq!(word("x\", site=\"y"), r#""x\", site=\"y""#);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let cases = [(0, ""), (1, "…"), (2, "é…"), (3, "ééé"), (4, "ééé")];
        for (most, expected) in cases {
            assert_eq!(short("ééé", most), expected, "{most}");
        }
    }

    #[test]
    fn no_text_becomes_markup() {
        assert_eq!(html("<b title=\"x\">'&'</b>"), "&lt;b title=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/b&gt;");
    }
}
