//! Rows of CSV, as RFC 4180 has them, in which no cell is a formula.
//!
//! Depending on the country, a spreadsheet separates cells at semicolons or tabs, and then ignores the quotation marks
//! around a cell. So the part of a cell after such a character, or after a line break, is treated like a cell.

use std::borrow::Cow;

/// A cell that begins with one of these characters is a formula to a spreadsheet.
const FORMULA: [char; 7] = ['=', '+', '-', '@', '\t', '\r', '\n'];
/// Characters within a cell that may separate cells or rows.
const SEPARATORS: [char; 4] = [';', '\t', '\r', '\n'];

/// A row with its end. A cell, or a part of it, that a spreadsheet would run as a formula begins with an apostrophe.
pub fn csv_row<T: AsRef<str>>(cells: impl IntoIterator<Item = T>) -> String {
    let mut row = String::new();
    for (index, text) in cells.into_iter().enumerate() {
        if index > 0 {
            row.push(',');
        }
        push_cell(&mut row, text.as_ref());
    }
    row.push_str("\r\n");
    row
}

fn push_cell(row: &mut String, text: &str) {
    let safe = with_apostrophes(text);
    if safe == text && !text.contains([',', '"', '\n', '\r']) {
        return row.push_str(text);
    }
    row.push('"');
    row.push_str(&safe.replace('"', "\"\""));
    row.push('"');
}

/// The text with an apostrophe before each part that is a formula. A part that begins with an apostrophe may get
/// another one, so that [`without_apostrophes`] restores the text.
fn with_apostrophes(text: &str) -> Cow<'_, str> {
    if !parts(text).any(is_formula) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(parts(text).flat_map(|one| [if is_formula(one) { "'" } else { "" }, one.1]).collect())
}

/// A cell without the apostrophes of [`csv_row`].
pub fn without_apostrophes(cell: &str) -> Cow<'_, str> {
    if !cell.contains('\'') {
        return Cow::Borrowed(cell);
    }
    let restored = |(at, part)| {
        let rest: Option<&str> = str::strip_prefix(part, "'");
        rest.filter(|rest| is_formula((at, rest))).unwrap_or(part)
    };
    Cow::Owned(parts(cell).map(restored).collect())
}

/// The parts of a cell by their positions; each ends with its separator.
fn parts(cell: &str) -> impl Iterator<Item = (usize, &str)> {
    cell.split_inclusive(SEPARATORS).enumerate()
}

/// Returns whether a spreadsheet that ignores the quotation marks could run a part. Leading white space counts only at
/// the beginning of a cell.
fn is_formula((at, part): (usize, &str)) -> bool {
    let signs = if at == 0 { &FORMULA[..] } else { &FORMULA[..4] };
    part.trim_start_matches(['\'', '"']).starts_with(signs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula_or_ends_its_row() {
        let cases = [
            ("north", "north"),
            ("", ""),
            ("=HYPERLINK(\"x\")", "\"'=HYPERLINK(\"\"x\"\")\""),
            ("+1", "\"'+1\""),
            ("-1,5", "\"'-1,5\""),
            ("@SUM", "\"'@SUM\""),
            ("\tx", "\"'\tx\""),
            ("\rx", "\"'\rx\""),
            ("\n=1", "\"'\n'=1\""),
            ("x;=1", "\"x;'=1\""),
            ("x\t@SUM", "\"x\t'@SUM\""),
            ("x\r\n-1", "\"x\r\n'-1\""),
            ("x;\"=1\"", "\"x;'\"\"=1\"\"\""),
            ("x;y; =1", "x;y; =1"),
            ("'=1", "\"''=1\""),
            ("a\r\nb", "\"a\r\nb\""),
            ("a=b", "a=b"),
            ("a,\"b\"", "\"a,\"\"b\"\"\""),
        ];
        for (text, expected) in cases {
            assert_eq!(csv_row([text, "ü"]), format!("{expected},ü\r\n"), "{text}");
        }
    }

    #[test]
    fn the_apostrophes_of_formulas_are_removed_and_no_others() {
        let cases = [("'=1", "=1"), ("'\n", "\n"), ("'a", "'a"), ("''=1", "'=1"), ("'", "'"), ("=1", "=1")];
        for (cell, expected) in cases {
            assert_eq!(without_apostrophes(cell), expected, "{cell:?}");
        }
        let signs = ["=", "-", "'", "\"", ";", "\t", "\n", "x"];
        let texts = (0..signs.len().pow(4)).map(|mut number| {
            let next = |_| {
                let sign = signs[number % signs.len()];
                number /= signs.len();
                sign
            };
            (0..4).map(next).collect::<String>()
        });
        for text in texts {
            assert_eq!(without_apostrophes(&with_apostrophes(&text)), text, "{text:?}");
        }
    }
}
