//! CSV, as RFC 4180 has it.

/// A line with its end. A cell that a spreadsheet would run as a formula begins with an apostrophe.
pub fn csv_line<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let mut line = String::new();
    for (at, text) in cells.into_iter().enumerate() {
        if at > 0 {
            line.push(',');
        }
        line.push_str(&cell(text));
    }
    line.push_str("\r\n");
    line
}

fn cell(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    if guard.is_empty() && !text.contains([',', '"', '\n', '\r']) {
        return text.to_owned();
    }
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_none_is_a_formula() {
        let line = csv_line(["a", "", "-5", "=1+1", "a,\"b\"", "ü"]);
        assert_eq!(line, "a,,\"'-5\",\"'=1+1\",\"a,\"\"b\"\"\",ü\r\n");
    }
}
