//! Which ids a list selects: by how they begin, and by a part of them.
//!
//! # Why windows
//! Ids lie end to end in long texts, and most rows have theirs in the order of the rows. A search of one id costs its
//! beginning, many times the cost of a few bytes; so one search covers the ids of some tens of rows.

use memchr::memmem::Finder;

use super::partition_table::PartitionTable;
use super::row::Row;

/// The bytes that one search covers.
const WINDOW: usize = 1024;

/// Compares ids with the conditions of a list.
pub(super) struct IdMatch<'a> {
    prefix: &'a [u8],
    part: Option<Finder<'a>>,
    /// In the texts of the current chunk, the part begins at no position from the first until the second.
    none: (usize, usize),
    /// Whether the part begins at the second position.
    is_found: bool,
}

impl<'a> IdMatch<'a> {
    /// Matches ids that begin with `prefix` and contain `part`; either may be empty.
    pub fn new(prefix: &'a str, part: &'a str) -> IdMatch<'a> {
        let part = (!part.is_empty()).then(|| Finder::new(part));
        IdMatch { prefix: prefix.as_bytes(), part, none: (0, 0), is_found: false }
    }

    /// Whether every id matches.
    pub fn has_all(&self) -> bool {
        self.prefix.is_empty() && self.part.is_none()
    }

    /// The rows that come next are read under another lock, or of another table: their texts may be others.
    pub fn begin(&mut self) {
        (self.none, self.is_found) = ((0, 0), false);
    }

    pub fn has(&mut self, table: &PartitionTable, row: &Row) -> bool {
        let text = table.rows.text_from(row);
        let length = usize::from(row.length);
        if !self.begins(text, length) {
            return false;
        }
        let Some(part) = &self.part else { return true };
        let size = part.needle().len();
        if length < size {
            return false;
        }
        // A part of this id begins within `start..end`.
        let start = row.name as usize;
        let end = start + length - size + 1;
        let is_covered =
            (self.none.0..=self.none.1).contains(&start) && (self.is_found || end <= self.none.1);
        if !is_covered {
            let window = &text[..text.len().min(WINDOW.max(length))];
            let found = part.find(window);
            self.none = (start, start + found.unwrap_or(window.len() - size + 1));
            self.is_found = found.is_some();
        }
        self.is_found && self.none.1 < end
    }

    /// Whether an id of that length begins with the prefix; `text` begins with the id.
    fn begins(&self, text: &[u8], length: usize) -> bool {
        let Some(last) = self.prefix.last() else { return true };
        // Ids of one fleet differ at the end of a prefix more often than at its begin.
        let size = self.prefix.len();
        length >= size && text.get(size - 1) == Some(last) && text.starts_with(self.prefix)
    }
}
