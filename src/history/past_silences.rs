//! Alert silences of the past, rebuilt from the changes by operators: an entry of the audit has the matchers and the
//! times of an alert silence after the change.

use std::collections::HashMap;

use crate::clock::{Timestamp, parse_moment};
use crate::routing::alert_silence::MAX_SILENCES;
use crate::routing::{AlertSilence, Matcher, SilenceId, parse_label_matchers};

/// Alert silences, each with the times in which it was in force.
pub(super) struct PastAlertSilences {
    since: Timestamp,
    all: Vec<AlertSilence>,
    /// The place of the version of each silence that is in force.
    newest: HashMap<SilenceId, usize>,
    unreadable: usize,
}

impl PastAlertSilences {
    /// Alert silences that ended before `since` are left out.
    pub fn since(since: Timestamp) -> PastAlertSilences {
        PastAlertSilences { since, all: Vec::new(), newest: HashMap::new(), unreadable: 0 }
    }

    /// Applies a change; changes come in the order of time.
    pub fn change(&mut self, at: Timestamp, id: &str, text: &str) {
        let Ok(id) = id.parse::<SilenceId>() else { return };
        if let Some(before) = self.newest.remove(&id) {
            let before = &mut self.all[before];
            before.ends_at = before.ends_at.min(at);
        }
        let Some((matchers, starts_at, ends_at)) = read(text).filter(|_| self.all.len() < MAX_SILENCES)
        else {
            self.unreadable += 1;
            return;
        };
        let starts_at = starts_at.max(at);
        if ends_at <= starts_at || ends_at <= self.since {
            return;
        }
        self.newest.insert(id, self.all.len());
        let (author, comment) = (String::new(), String::new());
        self.all.push(AlertSilence { id, matchers, starts_at, ends_at, updated_at: at, author, comment });
    }

    /// The number of changes that could not be read.
    pub fn unreadable(&self) -> usize {
        self.unreadable
    }

    pub fn into_all(self) -> Vec<AlertSilence> {
        self.all
    }
}

/// Reads `<matchers> from <moment> until <moment>: <comment>`. The values of matchers are quoted, so no text in them is
/// read as times: only whole matchers may stand before the times.
fn read(text: &str) -> Option<(Vec<Matcher>, Timestamp, Timestamp)> {
    text.match_indices(" from ").find_map(|(at, between)| {
        let (from, rest) = text[at + between.len()..].split_once(" until ")?;
        let (until, _) = rest.split_once(": ")?;
        let times = (parse_moment(from)?, parse_moment(until)?);
        let matchers = parse_label_matchers(&text[..at]).ok().filter(|all| !all.is_empty())?;
        Some((matchers, times.0, times.1))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(minutes: u64) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000) + Duration::from_secs(minutes * 60)
    }

    #[test]
    fn the_text_of_a_change_reads_back_whatever_is_in_it() {
        let times = format!(" from {} until {}: ", at(1), at(2));
        for (matchers, comment) in [
            ("site=\"north\"", "works"),
            ("site=\"north\", unit=~\"a.*\", \"rack.no\"!=\"7\"", ""),
            ("site=\"a from b until c: d\"", "from then until now: x"),
            (&*format!("site=\"x{times}\""), &*times),
        ] {
            let (read, from, until) = read(&format!("{matchers}{times}{comment}")).unwrap();
            let read: Vec<String> = read.iter().map(ToString::to_string).collect();
            assert_eq!((read.join(", ").as_str(), from, until), (matchers, at(1), at(2)));
        }
        for text in ["", "site=\"north\"", "site=\"nor…", &*format!("site=\"nor…{times}"), &*times] {
            assert!(read(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn each_version_of_an_alert_silence_counts_from_its_change_until_the_next_one() {
        let mut past = PastAlertSilences::since(at(0));
        let id = |n: u128| SilenceId::of_random(n).to_string();
        let text =
            |matchers: &str, from, until| format!("{matchers} from {} until {}: x", at(from), at(until));
        past.change(at(10), &id(1), &text("site=\"north\"", 10, 100));
        past.change(at(20), &id(2), &text("site=\"south\"", 30, 40));
        past.change(at(50), &id(1), &text("site=\"north\"", 10, 60));
        past.change(at(55), &id(1), &text("site=\"north\"", 10, 55));
        past.change(at(56), &id(3), "site=\"cut…");
        past.change(at(57), "none", &text("site=\"north\"", 10, 60));
        assert_eq!(past.unreadable(), 1);
        let times: Vec<_> = past.into_all().iter().map(|one| (one.starts_at, one.ends_at)).collect();
        assert_eq!(times, [(at(10), at(50)), (at(30), at(40)), (at(50), at(55))]);
        let mut late = PastAlertSilences::since(at(100));
        late.change(at(10), &id(1), &text("site=\"north\"", 10, 100));
        assert!(late.into_all().is_empty(), "it ended before");
    }
}
