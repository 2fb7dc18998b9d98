//! Translates regular expressions from the syntax of RE2, which is Alertmanager's, into that of the `regex` crate.
//!
//! Both know the same constructs, but some signs differ. In RE2 `\d`, `\s`, `\w` and their opposites are ASCII, a `[`
//! in a class is itself, `&&` and `--` in a class are no operations, an escaped sign that is neither letter nor digit
//! is itself, a `{` that begins no repetition is itself, and `\Q…\E` quotes. Each such place is rewritten so that it
//! keeps its meaning. Constructs that only the `regex` crate knows stay as they are.

use std::iter::Peekable;
use std::str::Chars;

/// The longest text within the braces of a repetition, in characters.
const MAX_COUNT: usize = 24;
/// What `\d`, `\s` and `\w` stand for within a class.
const DIGITS: &str = "0-9";
const SPACES: &str = r"\t\n\x0C\r ";
const WORDS: &str = "0-9A-Za-z_";
/// The names of classes, as in `[[:alpha:]]`.
const NAMED: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

/// The expression in the syntax of the `regex` crate.
pub(super) fn from_re2(expression: &str) -> String {
    let mut reader = ExpressionReader { rest: expression.chars().peekable(), text: String::new() };
    while let Some(sign) = reader.rest.next() {
        match sign {
            '\\' => reader.escape(),
            '[' => reader.class(),
            '{' => reader.brace(),
            _ => reader.text.push(sign),
        }
    }
    reader.text
}

struct ExpressionReader<'a> {
    rest: Peekable<Chars<'a>>,
    /// The expression so far, in the syntax of the `regex` crate.
    text: String,
}

impl ExpressionReader<'_> {
    fn literal(&mut self, sign: char) {
        self.text.push_str(&regex::escape(sign.encode_utf8(&mut [0; 4])));
    }

    /// Whether the rest begins with this text.
    fn is_before(&self, text: &str) -> bool {
        let mut rest = self.rest.clone();
        text.chars().all(|sign| rest.next() == Some(sign))
    }

    /// Reads on after a backslash that is in no class.
    fn escape(&mut self) {
        match self.rest.peek() {
            Some('Q') => self.quoted(),
            Some('b') => {
                self.rest.next();
                self.text.push_str(r"(?-u:\b)");
            }
            Some('d' | 'D' | 's' | 'S' | 'w' | 'W') => {
                self.text.push('[');
                self.item();
                self.text.push(']');
            }
            _ => {
                self.item();
            }
        }
    }

    /// Everything up to `\E` is itself.
    fn quoted(&mut self) {
        self.rest.next();
        while let Some(sign) = self.rest.next() {
            if sign == '\\' && self.rest.peek() == Some(&'E') {
                self.rest.next();
                return;
            }
            self.literal(sign);
        }
    }

    /// Reads on after a backslash, in a class or outside. Answers whether the item is one character, from which a
    /// range may begin.
    fn item(&mut self) -> bool {
        let Some(sign) = self.rest.next() else {
            self.text.push('\\');
            return false;
        };
        let set = match sign.to_ascii_lowercase() {
            'd' => DIGITS,
            's' => SPACES,
            'w' => WORDS,
            _ => "",
        };
        let is_octal = |next: Option<&char>| next.is_some_and(|next| ('0'..='7').contains(next));
        match sign {
            _ if !set.is_empty() && sign.is_ascii_uppercase() => self.text.push_str(&format!("[^{set}]")),
            _ if !set.is_empty() => self.text.push_str(set),
            'p' | 'P' | 'x' => self.braced(sign),
            // A digit alone would be a reference to a group.
            '0'..='7' if sign == '0' || is_octal(self.rest.peek()) => self.octal(sign),
            _ if sign.is_ascii_alphanumeric() => self.text.extend(['\\', sign]),
            _ => self.literal(sign),
        }
        set.is_empty() && !matches!(sign, 'p' | 'P')
    }

    /// `\p{Greek}`, `\p{^Greek}`, `\x{1F600}`, and the same without braces.
    fn braced(&mut self, sign: char) {
        let is_opposite = sign != 'x' && self.is_before("{^");
        let letter = match (is_opposite, sign) {
            (false, _) => sign,
            (true, 'p') => 'P',
            (true, _) => 'p',
        };
        self.text.extend(['\\', letter]);
        if self.rest.peek() != Some(&'{') {
            return;
        }
        for next in self.rest.by_ref() {
            if !(is_opposite && next == '^') {
                self.text.push(next);
            }
            if next == '}' {
                return;
            }
        }
    }

    /// A character by its number: up to three octal digits.
    fn octal(&mut self, first: char) {
        let mut code = first.to_digit(8).unwrap_or_default();
        for _ in 0..2 {
            let Some(digit) = self.rest.peek().and_then(|next| next.to_digit(8)) else { break };
            self.rest.next();
            code = code * 8 + digit;
        }
        self.literal(char::from_u32(code).unwrap_or_default());
    }

    /// Reads on after the `[` of a class.
    fn class(&mut self) {
        self.text.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.text.push('^');
        }
        let mut is_first = true;
        while let Some(sign) = self.rest.next() {
            match sign {
                ']' if !is_first => return self.text.push(']'),
                '[' if let Some(name) = self.named() => self.text.push_str(&name),
                _ => self.member(sign),
            }
            is_first = false;
        }
    }

    /// After the `[` of a named class within a class: `[:alpha:]`, `[:^alpha:]`.
    fn named(&mut self) -> Option<String> {
        let name = NAMED.iter().flat_map(|name| [format!(":{name}:]"), format!(":^{name}:]")]);
        let name = name.into_iter().find(|name| self.is_before(name))?;
        self.rest.by_ref().take(name.len()).for_each(drop);
        Some(format!("[{name}"))
    }

    /// A sign of a class, or a range from it.
    fn member(&mut self, sign: char) {
        let is_character = self.sign(sign);
        let mut next = self.rest.clone();
        let is_range = next.next() == Some('-') && next.next().is_some_and(|end| end != ']');
        if is_character && is_range {
            self.rest.next();
            self.text.push('-');
            if let Some(end) = self.rest.next() {
                self.sign(end);
            }
        }
    }

    fn sign(&mut self, sign: char) -> bool {
        if sign == '\\' {
            return self.item();
        }
        self.literal(sign);
        true
    }

    /// Reads on after a `{`, which stands for itself unless it begins a repetition.
    fn brace(&mut self) {
        // No count that compiles is longer. Else each `{` would read the whole rest.
        let count: String = self.rest.clone().take(MAX_COUNT).take_while(|sign| *sign != '}').collect();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        let is_repetition = self.rest.clone().nth(count.chars().count()) == Some('}')
            && match count.split_once(',') {
                Some((least, most)) => is_number(least) && (most.is_empty() || is_number(most)),
                None => is_number(&count),
            };
        if is_repetition { self.text.push('{') } else { self.literal('{') }
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;
    use crate::routing::{Matcher, Operator};

    #[test]
    fn an_expression_matches_what_it_matches_in_alertmanager() {
        let cases: [(&str, &[&str], &[&str]); 33] = [
            (r"\w+", &["a_1"], &["müll", "ſ"]),
            (r"\W", &["é", "-"], &["a"]),
            (r"\d+|\D", &["12", "x"], &["٣1"]),
            (r"a\sb|\S", &["a b", "a\tb", "é"], &["a\u{a0}b", "a\u{b}b"]),
            (r"\w\b-.*", &["a-"], &["é-"]),
            ("[[a]]", &["[]", "a]"], &["a", "[a]"]),
            ("[[a]+", &["[", "a[a"], &["]"]),
            ("[a&&b]+", &["a", "&&", "b"], &[]),
            ("[a~~b]+", &["~a"], &[]),
            ("[a--b]", &[], &[]),
            ("[+--]", &["+", ",", "-"], &["."]),
            ("[--/]", &["-", ".", "/"], &[","]),
            (r"[\w-z]", &["-", "z", "Q"], &["é"]),
            (r"[^\d\s]", &["a"], &["1", " "]),
            (r"[\D]", &["a", "٣"], &["1"]),
            (r"[\]\-^]", &["]", "-", "^"], &["\\"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[^]a]", &["b"], &["]", "a"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[[:alpha:]_]+", &["ab_"], &["é", "1"]),
            ("[[:^alpha:]]", &["é", "1"], &["a"]),
            (r"\<a\>", &["<a>"], &["a"]),
            ("a{ 1}", &["a{ 1}"], &["a"]),
            ("a{2}", &["aa"], &["a", "a{2}"]),
            ("a{1,}b{1,2}", &["aab", "abb"], &["abbb"]),
            ("{|a{|a{b}|a{,5}|pump{1", &["{", "a{", "a{b}", "a{,5}", "pump{1"], &["a"]),
            (r"\Qa.b\E+", &["a.b", "a.bb"], &["axb"]),
            (r"\Q[", &["["], &[]),
            (r"\07|\101", &["\u{7}", "A"], &["07"]),
            (r"\p{^L}", &["1"], &["a"]),
            (r"\P{^Greek}|\pN", &["λ", "7"], &["a"]),
            (r"\x41\x{1F600}", &["A😀"], &[]),
            (r"(?i)NORTH-\.é", &["north-.É"], &["north-xÉ"]),
        ];
        for (expression, matching, others) in cases {
            let expected = if expression == "[a--b]" { None } else { Some(()) };
            let read = from_re2(expression);
            let compiled = Regex::new(&format!("^(?:{read})$"));
            assert_eq!(compiled.as_ref().ok().map(drop), expected, "{expression}: {read}");
            let Ok(compiled) = compiled else { continue };
            for value in matching {
                assert!(compiled.is_match(value), "{expression} ({read}): {value}");
            }
            for value in others {
                assert!(!compiled.is_match(value), "{expression} ({read}): {value}");
            }
        }
    }

    #[test]
    fn matchers_read_their_expressions_so() {
        let matcher = Matcher::new("site".to_owned(), Operator::Matches, r"\w+".to_owned()).unwrap();
        assert!(matcher.is_match("north_1") && !matcher.is_match("müll"));
    }

    #[test]
    fn no_expression_that_both_know_is_another_one() {
        for expression in [
            "",
            "a.*b|c?",
            "(a|b)+?",
            "(?P<name>x)",
            "(?s:.)",
            "^a$",
            r"\.\*\\",
            r"\a\f\n\r\t\v\A\z",
            "é{2,3}",
        ] {
            assert_eq!(from_re2(expression), expression);
        }
        for broken in ["(", "a)", "[", "[a", r"\", "*", r"\1", "[z-a]"] {
            let read = from_re2(broken);
            assert!(Regex::new(&read).is_err(), "{broken}: {read}");
        }
    }
}
