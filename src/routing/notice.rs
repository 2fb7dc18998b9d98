//! How far the notification of an open silence has come: for a line of a list. [`super::told`] says it in full, for one
//! unit.

use crate::clock::Timestamp;

/// The facts about the notification of an open silence.
#[derive(Clone, Debug, Default)]
pub struct NoticeFacts {
    /// The receivers that took a notification of it, and when.
    pub delivered: Vec<(String, Timestamp)>,
    /// The receivers for which a notification of it was sealed, and whether one of its group waits for the receiver.
    pub sealed: Vec<(String, bool)>,
    /// Until when alert silences cover it.
    pub silenced_until: Option<Timestamp>,
    /// Whether a route that it takes names a receiver that is notified at once.
    pub has_receiver: bool,
    /// Receivers to which its routes escalate, if none is notified at once.
    pub escalated_to: Vec<String>,
}

/// Which receivers were notified of an open silence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilenceNotice {
    /// These receivers were notified, the last of them at that moment; a notification waits for the others.
    Notified {
        receivers: Vec<String>,
        at: Option<Timestamp>,
        waiting: Vec<String>,
    },
    /// No receiver was notified yet: a notification waits for these receivers.
    OnItsWay(Vec<String>),
    Silenced(Timestamp),
    /// Its group waits.
    Waits,
    /// No receiver is notified at once. These are, if it lasts.
    Escalates(Vec<String>),
    NoReceiver,
}

impl SilenceNotice {
    pub fn of(facts: NoticeFacts) -> SilenceNotice {
        let NoticeFacts { delivered, sealed, silenced_until, has_receiver, escalated_to } = facts;
        let at = delivered.iter().map(|(_, at)| *at).max();
        let mut receivers: Vec<String> = delivered.into_iter().map(|(name, _)| name).collect();
        let (mut waiting, mut taken): (Vec<_>, Vec<_>) = sealed.into_iter().partition(|(_, waits)| *waits);
        // The record of attempts forgets before the silence ends.
        receivers.extend(taken.drain(..).map(|(name, _)| name));
        receivers.sort();
        receivers.dedup();
        waiting.retain(|(name, _)| !receivers.contains(name));
        let waiting: Vec<String> = waiting.into_iter().map(|(name, _)| name).collect();
        match (receivers.is_empty(), waiting.is_empty(), silenced_until) {
            (false, ..) => SilenceNotice::Notified { receivers, at, waiting },
            (true, false, _) => SilenceNotice::OnItsWay(waiting),
            (true, true, Some(until)) => SilenceNotice::Silenced(until),
            (true, true, None) if has_receiver => SilenceNotice::Waits,
            (true, true, None) if !escalated_to.is_empty() => SilenceNotice::Escalates(escalated_to),
            (true, true, None) => SilenceNotice::NoReceiver,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_was_notified_if_it_took_the_notification_or_none_waits_for_it() {
        let at = Timestamp::from_millis;
        let delivered = |names: &[(&str, i64)]| {
            names.iter().map(|(name, ms)| ((*name).to_owned(), at(*ms))).collect::<Vec<_>>()
        };
        let sealed = |names: &[(&str, bool)]| {
            names.iter().map(|(name, waits)| ((*name).to_owned(), *waits)).collect::<Vec<_>>()
        };
        let notified = |receivers: &[&str], ms: Option<i64>, waiting: &[&str]| SilenceNotice::Notified {
            receivers: receivers.iter().map(|name| (*name).to_owned()).collect(),
            at: ms.map(at),
            waiting: waiting.iter().map(|name| (*name).to_owned()).collect(),
        };
        // (delivered, sealed, silenced, has_receiver, notice)
        let cases = [
            (&[][..], &[][..], None, false, SilenceNotice::NoReceiver),
            (&[], &[], None, true, SilenceNotice::Waits),
            (&[], &[], Some(9), true, SilenceNotice::Silenced(at(9))),
            (&[], &[("mail", true)], None, true, SilenceNotice::OnItsWay(vec!["mail".to_owned()])),
            (&[("mail", 3)], &[("mail", false)], None, true, notified(&["mail"], Some(3), &[])),
            // Another silence of the group waits for mail; hook has not got this one.
            (
                &[("mail", 3)],
                &[("mail", true), ("hook", true)],
                None,
                true,
                notified(&["mail"], Some(3), &["hook"]),
            ),
            // Its attempts are no longer on record.
            (&[], &[("mail", false)], None, true, notified(&["mail"], None, &[])),
            // An alert silence that was created later does not undo what was sent.
            (&[("b", 1), ("a", 2)], &[], Some(9), true, notified(&["a", "b"], Some(2), &[])),
        ];
        for (took, names, silenced, has_receiver, expected) in cases {
            let facts = NoticeFacts {
                delivered: delivered(took),
                sealed: sealed(names),
                silenced_until: silenced.map(at),
                has_receiver,
                escalated_to: Vec::new(),
            };
            assert_eq!(SilenceNotice::of(facts.clone()), expected, "{facts:?}");
        }
        let boss = vec!["boss".to_owned()];
        let facts = NoticeFacts { escalated_to: boss.clone(), ..NoticeFacts::default() };
        assert_eq!(SilenceNotice::of(facts), SilenceNotice::Escalates(boss));
    }
}
