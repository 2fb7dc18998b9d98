//! A report as a table of text: for a terminal, and as CSV.

use super::{AvailabilityReport, GroupBy, ReportRow, percent};
use crate::csv_row::csv_row;
use crate::presence::Shown;

/// The heads of the columns.
pub fn heads(report: &AvailabilityReport) -> Vec<&'static str> {
    let mut heads =
        vec!["group", "units", "online %", "outages", "offline s", "longest s", "between s", "return s"];
    heads.extend(["blind s", "paused s", "unknown s"]);
    heads.extend(report.target.map(|_| "budget spent %"));
    heads
}

/// The rows for readers, and the row of the whole as the last one, unless it is the only one.
pub fn cells(report: &AvailabilityReport) -> impl Iterator<Item = Vec<String>> {
    let shown = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    rows(report).map(move |row| row.into_iter().map(shown).collect())
}

/// The cells of each row; `None`: there is no value.
fn rows(report: &AvailabilityReport) -> impl Iterator<Item = Vec<Option<String>>> {
    let total = (report.group != GroupBy::Fleet).then_some((&report.total, "all"));
    let rows = report.rows.iter().map(|row| (row, row.name.as_str()));
    rows.chain(total).map(|(row, name)| row_cells(report, row, name))
}

fn row_cells(report: &AvailabilityReport, row: &ReportRow, name: &str) -> Vec<Option<String>> {
    let line = report.line(row);
    let figures = &line.figures;
    let seconds = |seconds: Option<f64>| seconds.map(|seconds| format!("{seconds:.0}"));
    let mut cells = vec![
        Some(name.to_owned()),
        Some(line.units.to_string()),
        figures.online_share.map(percent),
        Some(figures.outages.to_string()),
    ];
    cells.extend(
        [
            Some(figures.offline_seconds),
            Some(figures.longest_outage_seconds),
            figures.mean_seconds_between_outages,
            figures.mean_seconds_to_return,
            Some(figures.blind_seconds),
            Some(figures.paused_seconds),
            Some(figures.unknown_seconds),
        ]
        .map(seconds),
    );
    let spent = |spent: Option<f64>| spent.map(|spent| format!("{:.1}", 100.0 * spent));
    cells.extend(report.target.map(|_| spent(line.budget_spent)));
    cells
}

/// A device may choose the name, so unsafe characters are escaped.
fn shown(row: Vec<String>) -> Vec<String> {
    row.iter().map(|cell| Shown(cell).to_string()).collect()
}

/// The notes and the table as text, with lines of any length.
pub fn text(report: &AvailabilityReport) -> String {
    let heads: Vec<String> = heads(report).into_iter().map(str::to_owned).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(cells(report).map(shown)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{}  {cell:<width$}", ""));
        cells.collect::<String>().trim().to_owned()
    };
    let rows: Vec<String> = rows.iter().map(line).collect();
    format!("{}\n\n{}", report.notes().join("\n"), rows.join("\n"))
}

/// The whole table as CSV.
pub fn csv(report: &AvailabilityReport) -> String {
    let mut text = csv_row(heads(report).iter().map(|head| head.replace(' ', "_")));
    let cells = rows(report).map(|row| row.into_iter().map(Option::unwrap_or_default));
    cells.for_each(|row| text.push_str(&csv_row(row)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::TimeSpent;

    #[test]
    fn a_cell_without_a_value_is_empty_as_csv_and_a_dash_for_readers() {
        let mut report = crate::reports::tests::october();
        (report.rows[0].spent, report.rows[0].name) = (TimeSpent::default(), "-1".to_owned());
        let row = csv(&report).lines().nth(1).unwrap().to_owned();
        assert_eq!(row, "\"'-1\",10,,0,0,0,,,0,0,0,");
        let shown = cells(&report).next().unwrap();
        assert_eq!((&*shown[0], &*shown[2], &*shown[6]), ("-1", "-", "-"));
    }

    #[test]
    fn a_row_has_a_cell_for_each_head() {
        let report = crate::reports::tests::october();
        let lines: Vec<String> = csv(&report).split("\r\n").map(str::to_owned).collect();
        assert_eq!(
            lines[..3],
            [
                "group,units,online_%,outages,offline_s,longest_s,between_s,return_s,blind_s,paused_s,unknown_s,\
                 budget_spent_%",
                "north,10,98.883,2,299000,299000,13242500,149500,0,0,0,223.3",
                "south,20,99.998,1,1000,1000,53567000,1000,0,0,0,0.4",
            ]
        );
        assert!(lines[3].starts_with("all,30,99.626,3,300000,"), "{}", lines[3]);
        let without = report.with_target(None);
        assert!(cells(&without).all(|row| row.len() == heads(&without).len()));
    }
}
