//! How far the notification of an open silence has come: for a line of a list. [`super::told`] says it in full, for one
//! unit.

use super::told::Why;
use crate::clock::Timestamp;

/// Which receivers were notified of an open silence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilenceNotice {
    /// These receivers were notified, the last of them at that moment; a notification waits for the others.
    Notified { receivers: Vec<String>, at: Option<Timestamp>, waiting: Vec<String> },
    /// No receiver was notified yet: a notification waits for these receivers.
    OnItsWay(Vec<String>),
    /// No notification is sealed, for this reason.
    Untold(Why),
}

impl SilenceNotice {
    /// `delivered`: the receivers that took a notification of it, and when. `sealed`: those for which one was sealed, and
    /// whether one of its group waits for the receiver. `untold`: the reason if there are none.
    pub fn of(
        delivered: Vec<(String, Timestamp)>,
        sealed: Vec<(String, bool)>,
        untold: Why,
    ) -> SilenceNotice {
        let at = delivered.iter().map(|(_, at)| *at).max();
        let mut receivers: Vec<String> = delivered.into_iter().map(|(name, _)| name).collect();
        let (mut waiting, taken): (Vec<_>, Vec<_>) = sealed.into_iter().partition(|(_, waits)| *waits);
        // The record of attempts forgets before the silence ends.
        receivers.extend(taken.into_iter().map(|(name, _)| name));
        receivers.sort();
        receivers.dedup();
        waiting.retain(|(name, _)| !receivers.contains(name));
        let waiting: Vec<String> = waiting.into_iter().map(|(name, _)| name).collect();
        match (receivers.is_empty(), waiting.is_empty()) {
            (false, _) => SilenceNotice::Notified { receivers, at, waiting },
            (true, false) => SilenceNotice::OnItsWay(waiting),
            (true, true) => SilenceNotice::Untold(untold),
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
        // (delivered, sealed, notice)
        let cases = [
            (&[][..], &[][..], SilenceNotice::Untold(Why::Flapping)),
            (&[], &[("mail", true)], SilenceNotice::OnItsWay(vec!["mail".to_owned()])),
            (&[("mail", 3)], &[("mail", false)], notified(&["mail"], Some(3), &[])),
            // Another silence of the group waits for mail; hook has not got this one.
            (&[("mail", 3)], &[("mail", true), ("hook", true)], notified(&["mail"], Some(3), &["hook"])),
            // Its attempts are no longer on record.
            (&[], &[("mail", false)], notified(&["mail"], None, &[])),
            (&[("b", 1), ("a", 2)], &[], notified(&["a", "b"], Some(2), &[])),
        ];
        for (took, names, expected) in cases {
            assert_eq!(SilenceNotice::of(delivered(took), sealed(names), Why::Flapping), expected);
        }
    }
}
