//! The syntax of matchers, as Alertmanager documents it.
//!
//! There are two: the UTF-8 one, in which names and values are quoted or hold no reserved character, and the classic
//! one, in which an unquoted value holds almost anything and an unknown escape stays as it is. As in Alertmanager by
//! default, a text is read as UTF-8 if that is possible, else as classic; where both read it differently, the classic
//! one counts.

use super::alert_silence::{MAX_MATCHERS, MAX_MATCHERS_BYTES};
use super::matcher::is_matcher_name;
use super::{Matcher, Operator};

/// Why a text holds no matchers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {text}")]
pub struct SyntaxError {
    /// The character at which the error was found, from 1.
    pub column: usize,
    pub text: String,
}

/// One matcher as it is written, and where its name and its value begin (bytes).
#[derive(Debug)]
struct WrittenMatcher {
    name: String,
    operator: Operator,
    value: String,
    name_at: usize,
    value_at: usize,
}

impl WrittenMatcher {
    fn same(&self, other: &WrittenMatcher) -> bool {
        (&self.name, self.operator, &self.value) == (&other.name, other.operator, &other.value)
    }
}

/// An error at a byte.
type Error = (usize, String);

/// The matchers of a route, separated by commas, with or without braces around all of them.
pub fn parse_matchers(text: &str) -> Result<Vec<Matcher>, SyntaxError> {
    parse(text, of_route)
}

/// The matchers of an alert silence or of a filter of alerts, whose labels may have any name.
pub fn parse_label_matchers(text: &str) -> Result<Vec<Matcher>, SyntaxError> {
    parse_all_label_matchers(&[text.to_owned()]).map_err(|(_, error)| error)
}

/// The matchers of several texts. Lengths and numbers are checked before the first expression is compiled.
///
/// # Errors
/// The text at fault, and why.
pub fn parse_all_label_matchers<'a>(texts: &'a [String]) -> Result<Vec<Matcher>, (&'a str, SyntaxError)> {
    let error = |text: String| SyntaxError { column: 1, text };
    let (mut all, mut length): (Vec<(&str, WrittenMatcher)>, usize) = (Vec::new(), 0);
    for text in texts {
        length += text.len();
        // A quoted text is at most twice as long as what it says.
        if length > 2 * MAX_MATCHERS_BYTES {
            let why = format!("all matchers together have more than {} bytes", 2 * MAX_MATCHERS_BYTES);
            return Err((clipped(text), error(why)));
        }
        let read = written(text).map_err(|error| (clipped(text), error))?;
        all.extend(read.into_iter().map(|one| (text.as_str(), one)));
        if all.len() > MAX_MATCHERS {
            return Err((clipped(text), error(format!("there are more than {MAX_MATCHERS} matchers"))));
        }
    }
    let of = |(text, one): (&'a str, WrittenMatcher)| {
        of_any_label(one).map_err(|error| (clipped(text), at_column(text, error)))
    };
    all.into_iter().map(of).collect()
}

/// The begin of a text, for an error.
fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(200)]
}

fn parse(
    text: &str,
    matcher: fn(WrittenMatcher) -> Result<Matcher, Error>,
) -> Result<Vec<Matcher>, SyntaxError> {
    written(text)?.into_iter().map(|one| matcher(one).map_err(|error| at_column(text, error))).collect()
}

fn at_column(text: &str, (at, what): Error) -> SyntaxError {
    SyntaxError { column: text[..at].chars().count() + 1, text: what }
}

/// The matchers of a text as they are written; at least one.
fn written(text: &str) -> Result<Vec<WrittenMatcher>, SyntaxError> {
    let error = |why| at_column(text, why);
    let written = match (utf8(text), classic(text)) {
        (Ok(one), Some(other)) => {
            let is_same = one.len() == other.len() && one.iter().zip(&other).all(|(a, b)| a.same(b));
            if is_same { one } else { other }
        }
        (Ok(one), None) | (Err(_), Some(one)) => one,
        (Err(why), None) => return Err(error(why)),
    };
    if written.is_empty() {
        return Err(error((0, "there is no matcher; write one like site=\"north\"".to_owned())));
    }
    Ok(written)
}

fn of_any_label(
    WrittenMatcher { name, operator, value, name_at, value_at }: WrittenMatcher,
) -> Result<Matcher, Error> {
    if name.is_empty() {
        return Err((name_at, "a label has a name".to_owned()));
    }
    Matcher::new(name, operator, value).map_err(|error| (value_at, error))
}

fn of_route(written: WrittenMatcher) -> Result<Matcher, Error> {
    let WrittenMatcher { name, operator, value, name_at, value_at } = written;
    if !is_matcher_name(&name) {
        let text = format!("{name:?} is neither kind, unit, state, cause nor the name of a label");
        return Err((name_at, text));
    }
    let matcher = Matcher::in_force(name, operator, value).map_err(|error| (value_at, error))?;
    if matcher.name() == "state" && !matcher.is_match("offline") {
        let text = "never matches: a route is chosen by the silence, whose state is \"offline\", and its return \
                    goes the same way";
        return Err((name_at, text.to_owned()));
    }
    Ok(matcher)
}

/// A reader of the UTF-8 syntax.
struct MatcherReader<'a> {
    text: &'a str,
    at: usize,
}

fn utf8(text: &str) -> Result<Vec<WrittenMatcher>, Error> {
    let mut reader = MatcherReader { text, at: 0 };
    let mut all = Vec::new();
    let is_braced = reader.takes('{');
    loop {
        if reader.peek().is_none_or(|c| c == '}') {
            break;
        }
        let (name_at, name) = reader.word("the name of a label")?;
        let operator = reader.operator()?;
        let (value_at, value) = reader.word("a value; write \"\" for an empty one")?;
        all.push(WrittenMatcher { name, operator, value, name_at, value_at });
        if !reader.takes(',') {
            break;
        }
    }
    if is_braced && !reader.takes('}') {
        return Err(reader.expected("a comma or }"));
    }
    match reader.peek() {
        None => Ok(all),
        Some(_) => Err(reader.expected("a comma or the end; quote a value with such characters")),
    }
}

impl MatcherReader<'_> {
    /// The next character that is no white space.
    fn peek(&mut self) -> Option<char> {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest.chars().next()
    }

    fn takes(&mut self, c: char) -> bool {
        let is_next = self.peek() == Some(c);
        self.at += if is_next { c.len_utf8() } else { 0 };
        is_next
    }

    fn expected(&mut self, what: &str) -> Error {
        let found = self.peek().map_or("the end".to_owned(), |c| format!("{:?}", c.to_string()));
        (self.at, format!("{found} stands where there should be {what}"))
    }

    fn operator(&mut self) -> Result<Operator, Error> {
        self.peek();
        let rest = &self.text[self.at..];
        let Some(operator) = Operator::ALL.into_iter().find(|one| rest.starts_with(one.as_str())) else {
            return Err(self.expected("=, !=, =~ or !~"));
        };
        self.at += operator.as_str().len();
        Ok(operator)
    }

    /// A quoted text, or characters that are not reserved; and where it begins.
    fn word(&mut self, what: &str) -> Result<(usize, String), Error> {
        if self.peek() == Some('"') {
            return self.quoted();
        }
        let (begin, rest) = (self.at, &self.text[self.at..]);
        let is_reserved = |c: char| c.is_whitespace() || "{}!=~,\\\"'`".contains(c);
        let length = rest.find(is_reserved).unwrap_or(rest.len());
        if length == 0 {
            return Err(self.expected(what));
        }
        self.at += length;
        Ok((begin, rest[..length].to_owned()))
    }

    fn quoted(&mut self) -> Result<(usize, String), Error> {
        let begin = self.at;
        let mut bytes = Vec::new();
        let mut chars = self.text[begin + 1..].char_indices();
        while let Some((at, c)) = chars.next() {
            let at = begin + 1 + at;
            match c {
                '"' => {
                    self.at = at + 1;
                    let text = String::from_utf8(bytes);
                    return text
                        .map(|text| (begin, text))
                        .map_err(|_| (begin, "the text is not UTF-8".to_owned()));
                }
                '\n' => break,
                '\\' => escape(chars.as_str(), &mut bytes)
                    .map(|length| chars.by_ref().take(length).for_each(drop))
                    .ok_or_else(|| (at, "there is no such escape; write \\\\ for a backslash".to_owned()))?,
                c => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        Err((begin, "the quotation mark has no other".to_owned()))
    }
}

/// Reads an escape of Go's strings, without its backslash. Answers its length in characters.
fn escape(rest: &str, bytes: &mut Vec<u8>) -> Option<usize> {
    let c = rest.chars().next()?;
    let plain = match c {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' | '"' => c as u8,
        _ => 0,
    };
    if plain != 0 {
        bytes.push(plain);
        return Some(1);
    }
    let number = |from: usize, length: usize, radix: u32| {
        let digits = rest.get(from..from + length)?;
        digits.chars().all(|c| c.is_digit(radix)).then(|| u32::from_str_radix(digits, radix).ok())?
    };
    let (length, code) = match c {
        'x' => (3, number(1, 2, 16)?),
        'u' => (5, number(1, 4, 16)?),
        'U' => (9, number(1, 8, 16)?),
        _ => (3, number(0, 3, 8)?),
    };
    match c {
        'u' | 'U' => bytes.extend(char::from_u32(code)?.encode_utf8(&mut [0; 4]).bytes()),
        _ => bytes.push(u8::try_from(code).ok()?),
    }
    Some(length)
}

/// Reads the classic syntax; `None`: the text is not in this syntax.
fn classic(text: &str) -> Option<Vec<WrittenMatcher>> {
    let begin = usize::from(text.starts_with('{'));
    let inner = &text[begin..];
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let (mut parts, mut from) = (Vec::new(), 0);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, c) in inner.char_indices() {
        match c {
            ',' if !is_quoted => {
                parts.push(from..at);
                from = at + 1;
            }
            '"' if !is_escaped => is_quoted = !is_quoted,
            _ => {}
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    // A comma may stand at the end.
    if from < inner.len() {
        parts.push(from..inner.len());
    }
    parts.into_iter().map(|part| classic_one(&inner[part.clone()], begin + part.start)).collect()
}

fn classic_one(text: &str, begin: usize) -> Option<WrittenMatcher> {
    let rest = text.trim_start();
    let name_at = text.len() - rest.len();
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let length = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
    let name = rest[..length].to_owned();
    if !name.starts_with(|c: char| is_of_name(c) && !c.is_ascii_digit()) {
        return None;
    }
    let rest = rest[length..].trim_start();
    let operator = Operator::ALL.into_iter().find(|one| rest.starts_with(one.as_str()))?;
    let rest = rest[operator.as_str().len()..].trim_start();
    let value_at = begin + text.len() - rest.len();
    let value = classic_value(rest.trim_end())?;
    Some(WrittenMatcher { name, operator, value, name_at: begin + name_at, value_at })
}

fn classic_value(raw: &str) -> Option<String> {
    let (raw, is_quoted) = raw.strip_prefix('"').map_or((raw, false), |raw| (raw, true));
    let inner = if is_quoted { raw.strip_suffix('"')? } else { raw };
    let (mut value, mut chars) = (String::new(), inner.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => return None,
            '\\' => match chars.next() {
                Some('n') => value.push('\n'),
                Some(c @ ('"' | '\\')) => value.push(c),
                // An unknown escape stays as it is, and so does a backslash at the end of a text without quotes.
                Some(c) => value.extend(['\\', c]),
                None if is_quoted => return None,
                None => value.push('\\'),
            },
            c => value.push(c),
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse_matchers(text) {
            Ok(all) => all.iter().map(Matcher::to_string).collect::<Vec<_>>().join(","),
            Err(error) => format!("! {error}"),
        }
    }

    #[test]
    fn matchers_are_read_as_alertmanager_reads_them() {
        // The text, and the matchers in one spelling.
        let cases = [
            (r#"site="north""#, r#"site="north""#),
            ("site=north", r#"site="north""#),
            (" site != north ", r#"site!="north""#),
            (r#"kind=~"gate.*""#, r#"kind=~"gate.*""#),
            (r#"unit !~ "a|b""#, r#"unit!~"a|b""#),
            (r#"{site="north",kind="gate"}"#, r#"site="north",kind="gate""#),
            (r#"site="north", kind="gate","#, r#"site="north",kind="gate""#),
            (r#"site="a,b",kind=gate"#, r#"site="a,b",kind="gate""#),
            (r#""site"="north""#, r#"site="north""#),
            (r#"site="""#, r#"site="""#),
            ("site=", r#"site="""#),                     // classic
            ("site=a b", r#"site="a b""#),               // classic
            ("site=~[a-z]{2}x", r#"site=~"[a-z]{2}x""#), // classic
            (r#"site=~"\d+""#, r#"site=~"\\d+""#),       // classic: no such escape in UTF-8
            (r#"site="\u00e9""#, r#"site="\\u00e9""#),   // both, and different: classic
            (r#"site="a\tb""#, r#"site="a\\tb""#),       // the same
            (r#""site"="\u00e9""#, r#"site="é""#),       // UTF-8 alone: a quoted name
            (r#"site="say \"x\"\\\n""#, r#"site="say \"x\"\\\n""#),
            ("site=münchen", r#"site="münchen""#),
            (r#"site="日本""#, r#"site="日本""#),
            ("site==x", r#"site="=x""#),
            (r#"{site="a""#, r#"site="a""#), // classic
            (r#"site="a"}"#, r#"site="a""#), // classic
            (r#"cause="never_seen",state="offline""#, r#"cause="never_seen",state="offline""#),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn a_matcher_is_shown_in_a_spelling_that_is_read_as_the_same() {
        let texts = ["site", "foo.bar", "a b", "a=b", "sité", "0x", "say \"x\"", "a\\b\n", "a,{b}~'`"];
        for (name, value) in texts.iter().flat_map(|name| texts.map(|value| (name, value))) {
            let one = Matcher::new(name.to_string(), Operator::NotEqual, value.to_owned()).unwrap();
            assert_eq!(parse_label_matchers(&one.to_string()).unwrap(), std::slice::from_ref(&one), "{one}");
            assert_eq!(parse_label_matchers(&format!("{{{one},{one}}}")).unwrap(), [one.clone(), one]);
        }
    }

    #[test]
    fn a_bad_matcher_is_refused_with_its_column() {
        let cases = [
            ("", "column 1: there is no matcher"),
            ("{}", "column 1: there is no matcher"),
            ("site", "column 5: the end stands where there should be =, !=, =~ or !~"),
            ("site north", "column 6: \"n\" stands where there should be =, !=, =~ or !~"),
            ("=north", "column 1: \"=\" stands where there should be the name of a label"),
            (r#"site="north"#, "column 6: the quotation mark has no other"),
            (r#"site="a"b"#, "column 9: \"b\" stands where there should be a comma or the end"),
            (r#"{site="a" b"#, "column 11: \"b\" stands where there should be a comma or }"),
            ("site=a,,kind=b", "column 8: \",\" stands where there should be the name of a label"),
            (r#"kind="é",sité="a""#, "column 10: \"sité\" is neither kind, unit, state, cause nor"),
            (r#"kind="a",site=~"(""#, "column 16: unclosed group"),
            ("site=~a)|(b", "column 7: unopened group"),
            (r#"site=~"(a{999}){999}""#, "column 7: the expression is too large"),
            (r#"state="online""#, "column 1: never matches"),
            (r#"state!="offline""#, "column 1: never matches"),
            (r#"transition="x""#, "column 1: \"transition\" is neither"),
            ("'site'='a'", "column 1: \"'\" stands where there should be the name of a label"),
        ];
        for (text, expected) in cases {
            assert!(shown(text).starts_with(&format!("! {expected}")), "{text}: {}", shown(text));
        }
    }

    #[test]
    fn expressions_are_anchored_and_a_missing_label_is_empty() {
        // A matcher, a value, whether it matches.
        let cases = [
            ("site=a", "a", true),
            ("site=a", "ab", false),
            ("site!=a", "", true),
            ("site=~a", "ab", false),
            ("site=~a|b", "b", true),
            ("site=~a|b", "ab", false),
            ("site=~a.*", "abc", true),
            ("site!~a.*", "abc", false),
            ("site!~a.*", "", true),
            ("site=~.+", "", false),
            ("site=~.*", "", true),
            (r#"site="""#, "", true),
            ("site=~(?i)North", "nOrth", true),
        ];
        for (text, value, expected) in cases {
            let all = parse_matchers(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(all[0].is_match(value), expected, "{text} on {value:?}");
        }
    }
}
