//! The entries of a batch as they arrive: elements of a JSON array, or lines. Hostile until parsed.
//!
//! This module only finds where entries begin and end, so a batch is never in memory as a whole. Its caller parses
//! them. A byte order mark at the begin of the body is left out.

use serde::de::IgnoredAny;

/// The longest entry, in bytes: the data of a timer, with room for escapes and the other fields.
pub(super) const MAX_ENTRY: usize = 128 * 1024;

/// How entries are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryFormat {
    /// A JSON array.
    Array,
    /// A JSON value on each line.
    Lines,
}

/// Why the rest of an array cannot be read.
pub(super) type BrokenArray = &'static str;

/// The text of an entry, or the fact that it is too long.
pub(super) type BatchEntry = Result<Vec<u8>, TooLong>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// The byte order mark of UTF-8, which some libraries write.
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// What comes next in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextInArray {
    /// The bracket that begins the array.
    Begin,
    /// The first element, or the bracket that ends an empty array.
    First,
    Element,
    /// A comma, or the bracket that ends the array.
    Separator,
    Nothing,
}

/// An incomplete element is parsed again only after this many more bytes: otherwise small pieces would cost a parse
/// each.
const READ_AGAIN: usize = 4096;

/// Cuts a body into its entries.
pub(super) struct EntrySplitter {
    format: EntryFormat,
    /// How much of the mark may still come.
    mark: &'static [u8],
    next: NextInArray,
    /// The unread bytes: less than an entry.
    rest: Vec<u8>,
    /// The length of `rest` at which it is parsed again.
    read_at: usize,
    is_too_long: bool,
}

impl EntrySplitter {
    pub fn new(format: EntryFormat) -> EntrySplitter {
        let next = NextInArray::Begin;
        EntrySplitter { format, mark: MARK, next, rest: Vec::new(), read_at: 0, is_too_long: false }
    }

    /// Calls `take` with each entry that ends in `bytes`.
    ///
    /// # Errors
    /// The body is not an array; the rest cannot be read.
    pub fn cut(&mut self, bytes: &[u8], take: &mut dyn FnMut(BatchEntry)) -> Result<(), BrokenArray> {
        let bytes = self.without_mark(bytes);
        match self.format {
            EntryFormat::Lines => {
                self.cut_lines(bytes, take);
                Ok(())
            }
            EntryFormat::Array => {
                self.rest.extend_from_slice(bytes);
                if self.rest.len() < self.read_at { Ok(()) } else { self.read_array(take) }
            }
        }
    }

    /// Ends the body; the last line needs no line feed.
    ///
    /// # Errors
    /// The array has no end.
    pub fn finish(&mut self, take: &mut dyn FnMut(BatchEntry)) -> Result<(), BrokenArray> {
        if self.format == EntryFormat::Lines {
            self.end_line(take);
            return Ok(());
        }
        self.read_array(take)?;
        match self.next {
            NextInArray::Nothing => Ok(()),
            NextInArray::Begin => Err("the body is empty; send a JSON array"),
            _ => Err("the array has no end"),
        }
    }

    /// The bytes after the mark. It may come in pieces; a part of it is no text, so nothing is missed without it.
    fn without_mark<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while let (Some(byte), Some((next, more))) = (bytes.first(), self.mark.split_first()) {
            let is_mark = byte == next;
            self.mark = if is_mark { more } else { &[] };
            bytes = if is_mark { &bytes[1..] } else { bytes };
        }
        bytes
    }

    fn cut_lines(&mut self, bytes: &[u8], take: &mut dyn FnMut(BatchEntry)) {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        // The bytes after the last line feed are the beginning of a line.
        let rest = lines.next_back().unwrap_or_default();
        for line in lines {
            self.add(line);
            self.end_line(take);
        }
        self.add(rest);
    }

    fn end_line(&mut self, take: &mut dyn FnMut(BatchEntry)) {
        let line = std::mem::take(&mut self.rest);
        if std::mem::take(&mut self.is_too_long) {
            take(Err(TooLong));
        } else if !line.trim_ascii().is_empty() {
            take(Ok(line));
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.rest.len() + bytes.len() > MAX_ENTRY {
            self.is_too_long = true;
            // An entry that is too long is not stored.
            self.rest = Vec::new();
        } else if !self.is_too_long {
            self.rest.extend_from_slice(bytes);
        }
    }

    /// Takes the complete elements, which a comma or a bracket follows.
    fn read_array(&mut self, take: &mut dyn FnMut(BatchEntry)) -> Result<(), BrokenArray> {
        let mut at = 0;
        loop {
            at += self.rest[at..].len() - self.rest[at..].trim_ascii_start().len();
            let rest = &self.rest[at..];
            let Some(first) = rest.first() else { break };
            self.next = match (self.next, first) {
                (NextInArray::Begin, b'[') => NextInArray::First,
                (NextInArray::Begin, _) => return Err("the body is no JSON array"),
                (NextInArray::First, b']') | (NextInArray::Separator, b']') => NextInArray::Nothing,
                (NextInArray::First | NextInArray::Element, b',' | b']' | b'}') => {
                    return Err("the array has an empty element");
                }
                (NextInArray::First | NextInArray::Element, _) => match element(rest)? {
                    Some(length) if length <= MAX_ENTRY => {
                        take(Ok(rest[..length].to_vec()));
                        at += length;
                        self.next = NextInArray::Separator;
                        continue;
                    }
                    None if rest.len() <= MAX_ENTRY => break,
                    _ => return Err("an element of the array has more than 128 KiB"),
                },
                (NextInArray::Separator, b',') => NextInArray::Element,
                (NextInArray::Separator, b'}') => return Err("the array has a bracket too many"),
                (NextInArray::Separator, _) => {
                    return Err("a comma is missing between two elements of the array");
                }
                (NextInArray::Nothing, _) => return Err("there is something after the array"),
            };
            at += 1;
        }
        self.rest.drain(..at);
        self.read_at = self.rest.len() + READ_AGAIN;
        Ok(())
    }
}

/// The length of the JSON value at the beginning of `bytes`; `None` if it is not complete.
fn element(bytes: &[u8]) -> Result<Option<usize>, BrokenArray> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
    match values.next() {
        // A number at the end of the bytes may have more digits.
        Some(Ok(_)) => Ok(Some(values.byte_offset()).filter(|end| *end < bytes.len())),
        Some(Err(error)) if !error.is_eof() => Err("an element of the array is no JSON"),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits a body that comes in pieces of that size; returns its entries and its end.
    fn cut(
        format: EntryFormat,
        body: &[u8],
        piece: usize,
    ) -> (Vec<Result<String, TooLong>>, Result<(), BrokenArray>) {
        let mut entries = Vec::new();
        let mut take = |entry: BatchEntry| entries.push(entry.map(|text| String::from_utf8(text).unwrap()));
        let mut cutter = EntrySplitter::new(format);
        let read = body.chunks(piece).try_for_each(|bytes| cutter.cut(bytes, &mut take));
        let ended = read.and_then(|()| cutter.finish(&mut take));
        (entries, ended)
    }

    #[test]
    fn an_array_is_cut_into_its_elements_however_it_arrives() {
        let body = r#" [ {"a": "]}, \" [", "b": [1, [2]]} ,{} , 7,"x,y", null ] "#;
        let expected = [r#"{"a": "]}, \" [", "b": [1, [2]]}"#, "{}", "7", r#""x,y""#, "null"];
        for piece in 1..=body.len() {
            let (entries, ended) = cut(EntryFormat::Array, body.as_bytes(), piece);
            let entries: Vec<String> =
                entries.into_iter().map(|entry| entry.unwrap().trim().to_owned()).collect();
            assert_eq!(
                (entries, ended),
                (expected.map(str::to_owned).into(), Ok(())),
                "in pieces of {piece}"
            );
        }
        assert_eq!(cut(EntryFormat::Array, b" [ ] ", 1), (vec![], Ok(())));
    }

    #[test]
    fn a_byte_order_mark_before_the_body_is_left_out_however_it_arrives() {
        for (format, body) in [(EntryFormat::Array, "\u{feff}[1,2]"), (EntryFormat::Lines, "\u{feff}1\n2")] {
            for piece in 1..=body.len() {
                let expected = (vec![Ok("1".to_owned()), Ok("2".to_owned())], Ok(()));
                assert_eq!(cut(format, body.as_bytes(), piece), expected, "{format:?} in pieces of {piece}");
            }
        }
        let again = cut(EntryFormat::Lines, "\u{feff}1\n\u{feff}2".as_bytes(), 1);
        assert_eq!(again.0[1], Ok("\u{feff}2".to_owned()), "only at the begin");
    }

    #[test]
    fn what_is_no_array_is_refused_where_it_stops_to_be_one() {
        let cases = [
            ("", 0, "the body is empty"),
            ("{}", 0, "no JSON array"),
            ("[1,2", 1, "has no end"),
            ("[{\"a\": \"]", 0, "has no end"),
            ("[1,]", 1, "an empty element"),
            ("[,1]", 0, "an empty element"),
            ("[1}", 1, "a bracket too many"),
            ("[1 2]", 1, "a comma is missing"),
            ("[1,{\"a\":},2]", 1, "no JSON"),
            ("[1] [2]", 1, "after the array"),
        ];
        for (body, count, why) in cases {
            let (entries, ended) = cut(EntryFormat::Array, body.as_bytes(), 3);
            assert_eq!(entries.len(), count, "{body}");
            assert!(ended.unwrap_err().contains(why), "{body}");
        }
    }

    #[test]
    fn lines_are_entries_without_the_empty_ones_and_the_last_needs_no_end() {
        let body = b"{\"a\":1}\r\n\n  \n{\"b\":2}\n[3]";
        for piece in 1..=body.len() {
            let (entries, ended) = cut(EntryFormat::Lines, body, piece);
            let entries: Vec<String> =
                entries.into_iter().map(|entry| entry.unwrap().trim().to_owned()).collect();
            assert_eq!((entries.join(" ").as_str(), ended), ("{\"a\":1} {\"b\":2} [3]", Ok(())));
        }
        assert_eq!(cut(EntryFormat::Lines, b"", 1), (vec![], Ok(())));
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out_alone_and_an_element_ends_its_array() {
        let long = "x".repeat(MAX_ENTRY + 1);
        let (lines, array) = (format!("1\n{long}\n2"), format!("[1,\"{long}\",2]"));
        let left_out = (vec![Ok("1".into()), Err(TooLong), Ok("2".into())], Ok(()));
        assert_eq!(cut(EntryFormat::Lines, lines.as_bytes(), 1000), left_out);
        for piece in [1000, array.len()] {
            let ends = (vec![Ok("1".into())], Err("an element of the array has more than 128 KiB"));
            assert_eq!(cut(EntryFormat::Array, array.as_bytes(), piece), ends);
        }
    }
}
