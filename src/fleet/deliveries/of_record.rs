//! The notifications of one record, as the record of attempts has them: each attempt with what it told its receiver.
//!
//! A silence that lasts for a week has hundreds of reminders. Every notification that was delivered is here, so that the
//! first one of each receiver is. The attempts that failed before it are looked up for the first notifications and for
//! the newest ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Deliveries;
use crate::clock::Timestamp;
use crate::presence::{RecordId, Transition};
use crate::store::{Attempt, Result};

/// For how many of the newest notifications of a record the attempts that failed are looked up.
const WITH_FAILURES: usize = 10;

/// An attempt, and what it told its receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    pub attempt: Attempt,
    pub notice: NoticeType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeType {
    Silence,
    /// The silence lasted, and was escalated to this receiver.
    Escalation,
    Reminder,
    Return,
}

impl NoticeType {
    pub fn transition(self) -> Transition {
        match self {
            NoticeType::Return => Transition::Online,
            NoticeType::Silence | NoticeType::Escalation | NoticeType::Reminder => Transition::Offline,
        }
    }
}

/// The attempts of one record, in no order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordNotices {
    pub made: Vec<Notice>,
    /// Whether attempts that failed are left out.
    pub is_cut: bool,
}

impl Deliveries {
    /// The attempts at the notifications of a record.
    pub async fn of_record(&self, id: &RecordId) -> Result<RecordNotices> {
        // Only the delivered attempt names its records.
        let delivered = named(self.attempts.of_record(id).await?, id);
        let asked = with_failures(&delivered);
        let groups: BTreeSet<(String, String)> = asked
            .iter()
            .map(|at| (delivered[*at].attempt.group.clone(), delivered[*at].attempt.notification.clone()))
            .collect();
        let groups: Vec<(String, String)> = groups.into_iter().collect();
        let others = self.attempts.of_notifications(&groups).await?;
        let told: BTreeMap<(&str, &str), NoticeType> = asked
            .iter()
            .map(|at| &delivered[*at])
            .map(|one| ((one.attempt.notification.as_str(), one.attempt.receiver.as_str()), one.notice))
            .collect();
        let failed = others.into_iter().filter(|one| !super::is_delivered(one)).filter_map(|attempt| {
            let notice = *told.get(&(attempt.notification.as_str(), attempt.receiver.as_str()))?;
            Some(Notice { attempt, notice })
        });
        let (failed, is_cut) = (failed.collect::<Vec<_>>(), asked.len() < delivered.len());
        Ok(RecordNotices { made: delivered.into_iter().chain(failed).collect(), is_cut })
    }
}

/// What each of these delivered attempts told of the record. A group is sealed once for a silence: what the group
/// notifies of it later is an escalation, unless it is a reminder, or goes to a fallback.
fn named(delivered: Vec<Attempt>, id: &RecordId) -> Vec<Notice> {
    let mut sealed: BTreeMap<String, Timestamp> = BTreeMap::new();
    for one in &delivered {
        let first = sealed.entry(one.group.clone()).or_insert(one.sealed_at);
        *first = one.sealed_at.min(*first);
    }
    let notice = |one: &Attempt| match one.online.contains(id) {
        true => NoticeType::Return,
        false if one.reminder => NoticeType::Reminder,
        false if one.meant_for.is_some() => NoticeType::Silence,
        false if sealed.get(&one.group).is_some_and(|first| *first < one.sealed_at) => NoticeType::Escalation,
        false => NoticeType::Silence,
    };
    delivered.into_iter().map(|attempt| Notice { notice: notice(&attempt), attempt }).collect()
}

/// The places of the notices whose failed attempts are shown: the first notice of each receiver, and the newest ones.
fn with_failures(delivered: &[Notice]) -> BTreeSet<usize> {
    let mut newest: Vec<usize> = (0..delivered.len()).collect();
    newest.sort_by_key(|at| Reverse(delivered[*at].attempt.at));
    let mut first = BTreeMap::new();
    for at in &newest {
        let one = &delivered[*at];
        first.insert((one.attempt.receiver.as_str(), one.notice.transition() == Transition::Online), *at);
    }
    newest.truncate(WITH_FAILURES);
    newest.into_iter().chain(first.into_values()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notices(attempts: &[(&str, i64, bool)]) -> Vec<Notice> {
        let id: RecordId = "detector:a:1700000000000".parse().expect("an id");
        let attempt = |(receiver, at, reminder): &(&str, i64, bool)| {
            let stored = format!(
                r#"{{"i":"n{at}","r":"{receiver}","g":"kind=pump","s":{at},"t":{at},"d":3,"n":1,"e":"delivered","m":{reminder}}}"#
            );
            serde_json::from_str(&stored).unwrap()
        };
        named(attempts.iter().map(attempt).collect(), &id)
    }

    #[test]
    fn a_notice_is_the_first_one_an_escalation_or_a_reminder() {
        let all = notices(&[("desk", 1, false), ("boss", 5, false), ("desk", 7, true), ("mail", 1, false)]);
        let said: Vec<NoticeType> = all.iter().map(|one| one.notice).collect();
        use NoticeType::{Escalation, Reminder, Silence};
        assert_eq!(said, [Silence, Escalation, Reminder, Silence]);
    }

    #[test]
    fn failures_are_shown_of_the_first_notice_of_each_receiver_and_of_the_newest() {
        let mut attempts = vec![("desk", 1, false), ("boss", 2, false)];
        attempts.extend((10..30).map(|at| ("desk", at, true)));
        let shown: Vec<usize> = with_failures(&notices(&attempts)).into_iter().collect();
        assert_eq!(shown, [vec![0, 1], (12..22).collect()].concat());
        assert_eq!(with_failures(&notices(&attempts[..3])).len(), 3);
    }
}
