//! Checks `[history]`: years of records, in PostgreSQL.

use std::path::Path;
use std::time::Duration;

use super::file::{History, HistoryKeep};
use super::problem::Problems;
use super::{Span, secrets, tls};
use crate::history::{DatabaseAccess, DatabaseAddress, HistoryConfig, HistoryRetention};

/// How many entries a statement may have.
const BATCH: std::ops::RangeInclusive<u32> = 50..=50_000;

/// History, if it is configured. `kept`: how long the engine keeps records and attempts to deliver.
pub(super) fn history(
    history: &History,
    kept: (Duration, Duration),
    base: &Path,
    problems: &mut Problems,
) -> Option<HistoryConfig> {
    let limit = (Span::from_secs(1), Span::from_hours(1));
    let statement_timeout =
        problems.span("history.statement_timeout", history.statement_timeout, limit.0, limit.1);
    let keep = keep(&history.keep, problems);
    if !BATCH.contains(&history.batch) {
        problems.error(
            "history.batch",
            format!("is {}; write {} to {}", history.batch, BATCH.start(), BATCH.end()),
        );
    }
    if !is_schema(&history.schema) {
        let text = "is no name of a schema; write up to 63 of a-z, 0-9 and _, with a letter first";
        problems.error("history.schema", text);
    }
    if history.url.is_empty() {
        return None;
    }
    // Each connection reads it again; a file that cannot be read is said now.
    secrets::read("history.password_file", &history.password_file, base, problems);
    let password_file = (!history.password_file.is_empty()).then(|| base.join(&history.password_file));
    let address = DatabaseAddress::parse(&history.url);
    let address = address.map_err(|why| problems.error("history.url", why)).ok()?;
    if address.has_password() && password_file.is_some() {
        problems.error("history.url", "has a password, and there is history.password_file; keep one");
    }
    let named = [&*history.ca_file, &*history.client_cert_file, &*history.client_key_file];
    let unused = (!address.is_encrypted())
        .then(|| "is not used, because history.url is without TLS; add ?sslmode=require".to_owned());
    let tls = tls::files("history", named, unused, base, problems);
    let schema = history.schema.clone();
    let access = DatabaseAccess { address, password_file, tls, schema, statement_timeout };
    let (keep_records, keep_deliveries) = kept;
    Some(HistoryConfig { access, batch: history.batch as usize, keep, keep_records, keep_deliveries })
}

/// Zero means for ever.
fn keep(keep: &HistoryKeep, problems: &mut Problems) -> HistoryRetention {
    let mut of = |name: &str, span: Span| {
        let (shortest, longest) = (Span::from_days(31), Span::from_days(36_500));
        let option = format!("history.keep.{name}");
        (span > Span::from_secs(0)).then(|| problems.span(&option, span, shortest, longest))
    };
    HistoryRetention {
        transitions: of("transitions", keep.transitions),
        blind: of("blind", keep.blind),
        operations: of("operations", keep.operations),
        notifications: of("notifications", keep.notifications),
        daily: of("daily", keep.daily),
    }
}

/// Returns whether the name needs no quotes.
fn is_schema(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.len() <= 63
        && name.chars().all(is_plain)
        && !name.starts_with("pg_")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_password_is_in_the_address_or_in_a_file_and_not_in_both() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("password"), "other").unwrap();
        let source = dir.path().join("rollcall.toml");
        for (user, file, why) in [
            ("ana", "password", None),
            ("ana:secret", "", None),
            ("ana:secret", "password", Some("history.url: has a password")),
            ("ana", "absent", Some("absent cannot be read")),
        ] {
            let text = format!(
                "[history]\nurl = \"postgres://{user}@127.0.0.1/fleet\"\npassword_file = \"{file}\"\n"
            );
            let read = crate::config::parse(&text, Some(&source), []);
            let read = read.map(|config| config.history.unwrap().access.password_file);
            match why {
                None => assert_eq!(read.unwrap(), (!file.is_empty()).then(|| dir.path().join(file))),
                Some(why) => {
                    let error = read.unwrap_err().to_string();
                    assert!(error.contains(why), "{error}");
                }
            }
        }
    }
}
