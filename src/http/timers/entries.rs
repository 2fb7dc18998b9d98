//! The entries of a batch as they arrive: the elements of a JSON array, or lines. Hostile until parsed.
//!
//! This module only finds where entries begin and end, so a batch is never in memory as a whole. Its caller parses
//! them.

/// The longest entry, in bytes: the data of a timer, with room for escapes and the other fields.
pub(super) const MAX_ENTRY: usize = 128 * 1024;

/// How entries are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// A JSON array.
    Array,
    /// One JSON value a line.
    Lines,
}

/// Why an array cannot be read on.
pub(super) type BrokenArray = &'static str;

/// An entry: its text, or that it is too long.
pub(super) type Entry = Result<Vec<u8>, TooLong>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Where the bytes that come next stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the bracket that begins the array.
    Begin,
    /// Before an element; the second also before the bracket that ends an empty array.
    Before,
    BeforeFirst,
    /// In an element, that many brackets deep.
    In(u32),
    /// In a text of an element; after a backslash.
    InText(u32),
    Escaped(u32),
    /// After the bracket that ends the array.
    End,
}

/// Cuts a body into its entries.
pub(super) struct EntrySplitter {
    format: Format,
    place: Place,
    entry: Vec<u8>,
    is_too_long: bool,
}

impl EntrySplitter {
    pub fn new(format: Format) -> EntrySplitter {
        EntrySplitter { format, place: Place::Begin, entry: Vec::new(), is_too_long: false }
    }

    /// Gives the entries that end in `bytes` to `take`.
    ///
    /// # Errors
    /// The body is not an array; nothing after that can be read.
    pub fn cut(&mut self, bytes: &[u8], take: &mut dyn FnMut(Entry)) -> Result<(), BrokenArray> {
        match self.format {
            Format::Lines => {
                self.cut_lines(bytes, take);
                Ok(())
            }
            Format::Array => bytes.iter().try_for_each(|byte| self.step(*byte, take)),
        }
    }

    /// The body is over: the last line needs no end.
    ///
    /// # Errors
    /// The array has none.
    pub fn finish(mut self, take: &mut dyn FnMut(Entry)) -> Result<(), BrokenArray> {
        match (self.format, self.place) {
            (Format::Lines, _) => {
                self.end_line(take);
                Ok(())
            }
            (Format::Array, Place::End) => Ok(()),
            (Format::Array, Place::Begin) => Err("the body is empty; send a JSON array"),
            (Format::Array, _) => Err("the array has no end"),
        }
    }

    fn cut_lines(&mut self, bytes: &[u8], take: &mut dyn FnMut(Entry)) {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        // The bytes after the last line feed are the beginning of a line.
        let rest = lines.next_back().unwrap_or_default();
        for line in lines {
            self.add(line);
            self.end_line(take);
        }
        self.add(rest);
    }

    fn end_line(&mut self, take: &mut dyn FnMut(Entry)) {
        if self.is_too_long || !self.entry.trim_ascii().is_empty() {
            self.end(take);
        }
        self.entry.clear();
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.entry.len() + bytes.len() > MAX_ENTRY {
            self.is_too_long = true;
            // The rest of it is not kept.
            self.entry = Vec::new();
        } else if !self.is_too_long {
            self.entry.extend_from_slice(bytes);
        }
    }

    fn end(&mut self, take: &mut dyn FnMut(Entry)) {
        let entry = std::mem::take(&mut self.entry);
        take(if std::mem::take(&mut self.is_too_long) { Err(TooLong) } else { Ok(entry) });
    }

    /// Where the bytes after this one stand.
    fn step(&mut self, byte: u8, take: &mut dyn FnMut(Entry)) -> Result<(), BrokenArray> {
        let is_space = byte.is_ascii_whitespace();
        self.place = match (self.place, byte) {
            (Place::Begin | Place::BeforeFirst | Place::Before | Place::End, _) if is_space => self.place,
            (Place::Begin, b'[') => Place::BeforeFirst,
            (Place::Begin, _) => return Err("the body is no JSON array"),
            (Place::BeforeFirst, b']') => Place::End,
            (Place::BeforeFirst | Place::Before, b',' | b']' | b'}') => {
                return Err("the array has an empty element");
            }
            (Place::BeforeFirst | Place::Before, _) => self.within(0, byte),
            (Place::In(0), b',' | b']') => {
                self.end(take);
                if byte == b',' { Place::Before } else { Place::End }
            }
            (Place::In(0), b'}') => return Err("the array has a bracket too many"),
            (Place::In(depth), _) => self.within(depth, byte),
            (Place::InText(depth), _) => {
                self.add(&[byte]);
                match byte {
                    b'"' => Place::In(depth),
                    b'\\' => Place::Escaped(depth),
                    _ => Place::InText(depth),
                }
            }
            (Place::Escaped(depth), _) => {
                self.add(&[byte]);
                Place::InText(depth)
            }
            (Place::End, _) => return Err("there is something after the array"),
        };
        Ok(())
    }

    /// A byte of an element, outside of its texts.
    fn within(&mut self, depth: u32, byte: u8) -> Place {
        self.add(&[byte]);
        match byte {
            b'"' => Place::InText(depth),
            b'[' | b'{' => Place::In(depth.saturating_add(1)),
            // Whether it is the right bracket is seen when the element is parsed.
            b']' | b'}' => Place::In(depth.saturating_sub(1)),
            _ => Place::In(depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries of a body that comes in pieces of that size, and how it ends.
    fn cut(
        format: Format,
        body: &[u8],
        piece: usize,
    ) -> (Vec<Result<String, TooLong>>, Result<(), BrokenArray>) {
        let mut entries = Vec::new();
        let mut take = |entry: Entry| entries.push(entry.map(|text| String::from_utf8(text).unwrap()));
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
            let (entries, ended) = cut(Format::Array, body.as_bytes(), piece);
            let entries: Vec<String> =
                entries.into_iter().map(|entry| entry.unwrap().trim().to_owned()).collect();
            assert_eq!(
                (entries, ended),
                (expected.map(str::to_owned).into(), Ok(())),
                "in pieces of {piece}"
            );
        }
        assert_eq!(cut(Format::Array, b" [ ] ", 1), (vec![], Ok(())));
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
            ("[1}", 0, "a bracket too many"),
            ("[1] [2]", 1, "after the array"),
        ];
        for (body, count, why) in cases {
            let (entries, ended) = cut(Format::Array, body.as_bytes(), 3);
            assert_eq!(entries.len(), count, "{body}");
            assert!(ended.unwrap_err().contains(why), "{body}");
        }
    }

    #[test]
    fn lines_are_entries_without_the_empty_ones_and_the_last_needs_no_end() {
        let body = b"{\"a\":1}\r\n\n  \n{\"b\":2}\n[3]";
        for piece in 1..=body.len() {
            let (entries, ended) = cut(Format::Lines, body, piece);
            let entries: Vec<String> =
                entries.into_iter().map(|entry| entry.unwrap().trim().to_owned()).collect();
            assert_eq!((entries.join(" ").as_str(), ended), ("{\"a\":1} {\"b\":2} [3]", Ok(())));
        }
        assert_eq!(cut(Format::Lines, b"", 1), (vec![], Ok(())));
    }

    #[test]
    fn an_entry_that_is_too_long_is_left_out_alone() {
        let long = "x".repeat(MAX_ENTRY + 1);
        for (format, body) in
            [(Format::Lines, format!("1\n{long}\n2")), (Format::Array, format!("[1,\"{long}\",2]"))]
        {
            let (entries, ended) = cut(format, body.as_bytes(), 1000);
            assert_eq!((entries, ended), (vec![Ok("1".into()), Err(TooLong), Ok("2".into())], Ok(())));
        }
    }
}
