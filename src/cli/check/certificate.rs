//! The findings about the certificates of the web server and of the in-process broker: its files, whether the key is
//! its key, and until when it is valid.

use std::time::Duration;

use super::Finding;
use crate::clock::Timestamp;
use crate::small_file::read_file;
use crate::trust::{ServerFiles, Validity, server_key};

/// A certificate that ends within this time should have been renewed.
const RENEWAL_TIME: Duration = Duration::from_secs(14 * 86_400);

/// `section`: the section of the options.
pub(super) fn examine(section: &str, files: Option<&ServerFiles>, now: Timestamp) -> Option<Finding> {
    let (files, name) = (files?, format!("{section} certificate"));
    Some(match server_key(section, files, read_file) {
        Err(why) => Finding::fail(&name, why.to_string()),
        Ok((key, _)) => {
            let validity = key.cert.iter().map(|one| Validity::of(one)).collect::<Option<Vec<Validity>>>();
            of_times(&name, files, &validity.unwrap_or_default(), now)
        }
    })
}

/// `all`: the validity of the certificate and of the intermediate ones. The first of them that expires makes all
/// useless.
fn of_times(name: &str, files: &ServerFiles, all: &[Validity], now: Timestamp) -> Finding {
    let file = files.cert.display();
    let (from, until) = (all.iter().map(|one| one.from).max(), all.iter().map(|one| one.until).min());
    let Some((from, until)) = from.zip(until) else {
        return Finding::warn(name, format!("{file} belongs to its key, and its times cannot be read"));
    };
    if now < from {
        let todo = "compare the clock of this machine, or wait";
        Finding::fail(name, format!("{file} is not valid before {from}; {todo}"))
    } else if now >= until {
        Finding::fail(
            name,
            format!("{file} expired at {until}; renew it, and Rollcall takes it within seconds"),
        )
    } else if now + RENEWAL_TIME > until {
        Finding::warn(
            name,
            format!("{file} expires at {until}; renew it, and Rollcall takes it within seconds"),
        )
    } else {
        Finding::ok(name, format!("{file} belongs to its key and is valid until {until}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::FindingOutcome::{self, Fail, Ok, Warn};

    #[test]
    fn a_certificate_is_warned_of_two_weeks_before_its_chain_ends() {
        let day = |day: i64| Timestamp::from_millis(day * 86_400_000);
        let files = ServerFiles { cert: "server.pem".into(), key: "server.key".into(), client_ca: None };
        let of = |from: i64, until: i64| Validity { from: day(from), until: day(until) };
        let chain = [of(10, 100), of(0, 90)];
        let cases: [(&[Validity], i64, FindingOutcome); 7] = [
            (&chain, 9, Fail),
            (&chain, 10, Ok),
            (&chain, 76, Ok),
            (&chain, 77, Warn),
            (&chain, 89, Warn),
            (&chain, 90, Fail),
            (&[], 50, Warn),
        ];
        for (all, now, outcome) in cases {
            assert_eq!(of_times("a", &files, all, day(now)).outcome, outcome, "day {now}");
        }
    }
}
