//! Rows that the database refuses for what they hold, such as a text that one of its types cannot have.
//!
//! # Why a batch is halved
//! A batch is one statement, so one such row refuses all of it, however often it is tried. Halves of it are written
//! until the row stands alone: it is left out and reported, and everything else is written.

use std::ops::Range;

use super::database::{HistoryError, Result};

/// The most rows of one batch that are left out. If there are more, it is no matter of single rows, so the error stands
/// and nothing passes them.
const MAX_REFUSED: usize = 100;

/// The pieces in which a batch is written, one transaction each: the whole batch, unless the database refuses it.
pub(super) struct Pieces {
    waiting: Vec<Range<usize>>,
    /// The places of the rows that are left out, each with the reason.
    pub refused: Vec<(usize, String)>,
}

impl Pieces {
    /// The pieces of a batch of so many rows.
    pub fn of(rows: usize) -> Pieces {
        let all = 0..rows;
        Pieces { waiting: vec![all], refused: Vec::new() }
    }

    /// The next piece, and whether it is the last one, with which the cursor moves. The last one may be empty.
    pub fn next(&mut self) -> Option<(Range<usize>, bool)> {
        let piece = self.waiting.pop()?;
        Some((piece, self.waiting.is_empty()))
    }

    /// Takes note of how a piece was written. Answers how many rows that were.
    pub fn note(&mut self, piece: Range<usize>, written: Result<u64>) -> Result<u64> {
        let why = match written {
            Err(HistoryError::RefusedRows(why)) if !piece.is_empty() && self.refused.len() < MAX_REFUSED => {
                why
            }
            written => return written,
        };
        let Range { start, end } = piece;
        if end - start > 1 {
            let middle = start.midpoint(end);
            self.waiting.extend([middle..end, start..middle]);
            return Ok(0);
        }
        self.refused.push((start, why));
        if self.waiting.is_empty() {
            self.waiting.push(end..end);
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes rows of which some are refused. Answers those that were written, those that were left out, and how often
    /// the cursor was moved.
    fn written(rows: usize, refused: &[usize]) -> Result<(Vec<usize>, Vec<usize>, usize)> {
        let (mut pieces, mut written, mut moved) = (Pieces::of(rows), Vec::new(), 0);
        while let Some((piece, is_last)) = pieces.next() {
            if piece.clone().any(|row| refused.contains(&row)) {
                pieces.note(piece, Err(HistoryError::RefusedRows("a zero".to_owned())))?;
                continue;
            }
            moved += usize::from(is_last);
            written.extend(piece.clone());
            pieces.note(piece, Ok(0))?;
        }
        Ok((written, pieces.refused.into_iter().map(|(row, _)| row).collect(), moved))
    }

    #[test]
    fn all_rows_are_written_in_order_but_those_that_are_refused_and_then_the_cursor_moves_once() {
        for (rows, refused) in [
            (0, vec![]),
            (1, vec![]),
            (1, vec![0]),
            (7, vec![0, 3]),
            (500, vec![499]),
            (100, (0..100).collect()),
        ] {
            let others = (0..rows).filter(|row| !refused.contains(row)).collect();
            assert_eq!(written(rows, &refused).unwrap(), (others, refused, 1));
        }
        let all: Vec<usize> = (0..500).collect();
        assert!(matches!(written(500, &all), Err(HistoryError::RefusedRows(_))), "it is none of single rows");
    }
}
