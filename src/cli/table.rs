//! The output of a command: a table for people, or CSV for programs.

use std::fmt::Write;
use std::io::IsTerminal;

use crate::csv_row::csv_row;
use crate::presence::Shown;

/// Rows of text under heads.
#[derive(Debug, Default)]
pub(super) struct PrintedTable {
    pub heads: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl PrintedTable {
    pub fn new(heads: &[&'static str]) -> PrintedTable {
        PrintedTable { heads: heads.to_vec(), rows: Vec::new() }
    }

    /// Columns with blanks between them, the first line has the heads.
    pub fn to_text(&self, colours: bool) -> String {
        let shown: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| Shown(cell).to_string()).collect()).collect();
        let width = |column: usize| {
            let cells = shown.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([self.heads[column].len()]).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        let heads: Vec<String> = self.heads.iter().map(|head| head.to_uppercase()).collect();
        let mut text = String::new();
        for row in std::iter::once(&heads).chain(&shown) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let blanks = " ".repeat(width - cell.chars().count() + 2);
                line.push_str(&if colours { coloured(cell) } else { cell.clone() });
                line.push_str(&blanks);
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    pub fn to_csv(&self, with_heads: bool) -> String {
        let heads: Vec<String> = self.heads.iter().map(|head| head.replace(' ', "_")).collect();
        let heads = with_heads.then_some(heads);
        let mut text = String::new();
        for row in heads.iter().chain(&self.rows) {
            text.push_str(&csv_row(row));
        }
        text
    }
}

/// Returns whether standard output is a terminal that may show colours (no-color.org).
pub(super) fn has_colours() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// A state in its colour; other cells are unchanged.
fn coloured(cell: &str) -> String {
    let colour = match cell {
        "online" | "delivered" => 32,
        "offline" | "blind" | "dead" | "orphaned" | "failing" => 31,
        "late" | "failed" => 33,
        "paused" => 34,
        "unknown" | "never_seen" => 35,
        _ => return cell.to_owned(),
    };
    format!("\x1b[{colour}m{cell}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> PrintedTable {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        PrintedTable {
            rows: vec![row(["=1+1", "offline"]), row(["a,\"b\"\u{1b}[2J", "ü"])],
            ..PrintedTable::new(&["unit", "state"])
        }
    }

    #[test]
    fn a_table_is_aligned_and_has_no_control_sequences_of_devices() {
        let line = |unit: &str, state: &str| format!("{unit:<14}  {state}\n");
        let expected =
            [line("UNIT", "STATE"), line("=1+1", "offline"), line(r#"a,"b"\u{1b}[2J"#, "ü")].concat();
        assert_eq!(table().to_text(false), expected);
        assert!(table().to_text(true).contains("\u{1b}[31moffline\u{1b}[0m"));
    }

    #[test]
    fn csv_is_quoted_and_no_cell_is_a_formula() {
        let csv = table().to_csv(true);
        assert_eq!(csv, "unit,state\r\n\"'=1+1\",offline\r\n\"a,\"\"b\"\"\u{1b}[2J\",ü\r\n");
    }
}
