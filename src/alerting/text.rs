//! Text from outside, made fit to be shown: names, labels and answers of servers may hold
//! anything, and end up in headers, mails, HTML and logs.

/// The text on one line: control characters and the marks that turn text around become spaces.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect()
}

/// The text on one line and at most `most` characters long.
pub fn short(text: &str, most: usize) -> String {
    let text = plain(text);
    match text.char_indices().nth(most) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The text on one line as it stands in an HTML document, also within an attribute.
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

/// Line ends, other controls, and the marks by which a name could show itself backwards.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_breaks_its_line_or_turns_it_around() {
        assert_eq!(plain("a\r\nBcc: x\u{85}\u{2028}\u{202e}b\0"), "a  Bcc: x   b ");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(short("ééé", 2), "éé…");
        assert_eq!(short("ééé", 3), "ééé");
    }

    #[test]
    fn no_text_becomes_markup() {
        assert_eq!(html("<b title=\"x\">'&'</b>"), "&lt;b title=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/b&gt;");
    }
}
