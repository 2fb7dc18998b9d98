//! Rows of CSV, as RFC 4180 has them, in which no cell is a formula.

/// A cell that begins with one of these is a formula to a spreadsheet.
const FORMULA: [char; 7] = ['=', '+', '-', '@', '\t', '\r', '\n'];

/// A row with its end. A cell that a spreadsheet would run as a formula begins with an apostrophe.
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
    let is_formula = text.starts_with(FORMULA);
    if !is_formula && !text.contains([',', '"', '\n', '\r']) {
        return row.push_str(text);
    }
    row.push('"');
    if is_formula {
        row.push('\'');
    }
    row.push_str(&text.replace('"', "\"\""));
    row.push('"');
}

/// A cell without the apostrophe of [`csv_row`].
pub fn without_apostrophe(cell: &str) -> &str {
    cell.strip_prefix('\'').filter(|rest| rest.starts_with(FORMULA)).unwrap_or(cell)
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
            ("\n=1", "\"'\n=1\""),
            ("a\r\nb", "\"a\r\nb\""),
            ("a=b", "a=b"),
            ("a,\"b\"", "\"a,\"\"b\"\"\""),
        ];
        for (text, expected) in cases {
            assert_eq!(csv_row([text, "ü"]), format!("{expected},ü\r\n"), "{text}");
        }
    }

    #[test]
    fn the_apostrophe_of_a_formula_is_removed_and_no_other() {
        let cases = [("'=1", "=1"), ("'\n", "\n"), ("'a", "'a"), ("''=1", "''=1"), ("'", "'"), ("=1", "=1")];
        for (cell, expected) in cases {
            assert_eq!(without_apostrophe(cell), expected, "{cell:?}");
        }
    }
}
