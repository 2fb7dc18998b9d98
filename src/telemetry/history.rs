//! History in PostgreSQL: written rows, lag and losses.

use std::fmt::Display;
use std::time::Duration;

use super::Telemetry;
use super::problems::{HISTORY_DOWN, HISTORY_INCOMPLETE, Severity};
use crate::clock::Timestamp;

impl Telemetry {
    /// Rows that were missing and are written now.
    pub fn history_written(&self, table: &str, rows: u64) {
        self.series.history_rows.with_label_values(&[table]).inc_by(rows);
    }

    /// The time of a source that is not written yet.
    pub fn history_lag(&self, source: &str, lag: Duration) {
        self.series.history_lag.with_label_values(&[source]).set(lag.as_secs_f64());
    }

    /// Writing history failed; it will be tried again.
    pub fn history_failed(&self, why: &dyn Display) {
        let text = format!("history is not written; the engine keeps what is missing for a while: {why}");
        if self.problems.set(HISTORY_DOWN, "", text.clone(), Severity::Warning) {
            tracing::warn!("{text}");
        } else if let Some(suppressed) = self.samples.admit(HISTORY_DOWN) {
            tracing::warn!(suppressed, "{text}");
        }
    }

    /// History is written again.
    pub fn history_answers(&self) {
        if self.problems.clear(HISTORY_DOWN, "") {
            tracing::info!("history is written again");
        }
    }

    /// Rows of this time left the engine before they were written.
    pub fn history_lost(&self, table: &'static str, from: Timestamp, until: Timestamp) {
        let text = format!(
            "history may lack rows of {table} from {from} until {until}: they left the engine before they were written; \
             keep them for longer (records.keep, records.keep_deliveries), or mend the database sooner"
        );
        self.lost(table, text);
    }

    /// The database refused a row for what it holds, and everything else goes on. `why` names the row.
    pub fn history_refused(&self, table: &'static str, why: &str) {
        let text = format!(
            "history lacks a row of {table}, and has all others: {why}; the engine keeps it for a while: report this, \
             and after an update run rollcall history backfill"
        );
        self.lost(table, text);
    }

    fn lost(&self, table: &'static str, text: String) {
        self.series.history_losses.with_label_values(&[table]).inc();
        tracing::error!("{text}");
        self.problems.set(HISTORY_INCOMPLETE, table, text, Severity::Warning);
    }
}
