//! How far the notification of an open silence has come: for a line of a list. [`super::told`] says it in full, for one
//! unit.

use super::told::Why;
use crate::clock::Timestamp;

/// What became of the notification of an open silence that was sealed for a receiver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SealedNotice {
    Taken,
    /// A notification of its group waits for the receiver.
    Waits,
    /// It was given up. Its dead letter, if that was not removed, has this id.
    GivenUp(String),
}

impl SealedNotice {
    /// From what is stored as long as the silence is open. The record of attempts forgets sooner, and an operator may
    /// remove the dead letter.
    pub fn of(is_waiting: bool, given_up: Option<String>) -> SealedNotice {
        match given_up {
            Some(letter) => SealedNotice::GivenUp(letter),
            None if is_waiting => SealedNotice::Waits,
            None => SealedNotice::Taken,
        }
    }
}

/// Which receivers were notified of an open silence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilenceNotice {
    /// A notification was sealed for these receivers. `at`: when the last of `notified` took it, while that is on record.
    Sealed { notified: Vec<String>, at: Option<Timestamp>, waiting: Vec<String>, given_up: Vec<String> },
    /// No notification is sealed, for this reason.
    Untold(Why),
}

impl SilenceNotice {
    /// `delivered`: the receivers that took a notification of it, and when. `sealed`: the receivers for which one was
    /// sealed, by the groups of the silence. `untold`: the reason if there are none.
    pub fn of(
        delivered: Vec<(String, Timestamp)>,
        sealed: Vec<(String, SealedNotice)>,
        untold: Why,
    ) -> SilenceNotice {
        let at = delivered.iter().map(|(_, at)| *at).max();
        let taken = delivered.into_iter().map(|(name, _)| (name, SealedNotice::Taken));
        let mut all: Vec<(String, SealedNotice)> = taken.chain(sealed).collect();
        // The first of a receiver is the best that it got.
        all.sort();
        all.dedup_by(|later, first| later.0 == first.0);
        if all.is_empty() {
            return SilenceNotice::Untold(untold);
        }
        let (mut notified, mut waiting, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
        for (name, became) in all {
            match became {
                SealedNotice::Taken => notified.push(name),
                SealedNotice::Waits => waiting.push(name),
                SealedNotice::GivenUp(_) => given_up.push(name),
            }
        }
        SilenceNotice::Sealed { notified, at, waiting, given_up }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_was_notified_if_nothing_waits_for_it_and_nothing_was_given_up() {
        let dead = || Some("ntf_1".to_owned());
        for (is_waiting, given_up, became) in [
            (false, None, SealedNotice::Taken),
            (true, None, SealedNotice::Waits),
            (false, dead(), SealedNotice::GivenUp("ntf_1".to_owned())),
            // What waits is a reminder, or another silence of the group.
            (true, dead(), SealedNotice::GivenUp("ntf_1".to_owned())),
        ] {
            assert_eq!(SealedNotice::of(is_waiting, given_up), became);
        }
    }

    #[test]
    fn a_receiver_is_listed_once_with_the_best_that_it_got() {
        use SealedNotice::{Taken, Waits};
        let gone = || SealedNotice::GivenUp("ntf_1".to_owned());
        let at = Timestamp::from_millis;
        let listed = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let notice = |notified: &[&str], ms: Option<i64>, waiting: &[&str], given_up: &[&str]| {
            let (notified, waiting, given_up) = (listed(notified), listed(waiting), listed(given_up));
            SilenceNotice::Sealed { notified, at: ms.map(at), waiting, given_up }
        };
        // (delivered, sealed, notice)
        let cases = [
            (&[][..], vec![], SilenceNotice::Untold(Why::Flapping)),
            (&[], vec![("mail", Waits)], notice(&[], None, &["mail"], &[])),
            (&[("mail", 3)], vec![("mail", Taken)], notice(&["mail"], Some(3), &[], &[])),
            // Another silence of the group waits for mail; hook has not got this one.
            (
                &[("mail", 3)],
                vec![("mail", Waits), ("hook", Waits)],
                notice(&["mail"], Some(3), &["hook"], &[]),
            ),
            // Its attempts are no longer on record.
            (&[], vec![("mail", Taken)], notice(&["mail"], None, &[], &[])),
            (&[("b", 1), ("a", 2)], vec![], notice(&["a", "b"], Some(2), &[], &[])),
            // Its reminder was delivered, after its first notification was given up.
            (&[("mail", 3)], vec![("mail", gone())], notice(&["mail"], Some(3), &[], &[])),
            (&[], vec![("hook", gone()), ("mail", Taken)], notice(&["mail"], None, &[], &["hook"])),
            // Two routes name it.
            (&[], vec![("hook", gone()), ("hook", Waits)], notice(&[], None, &["hook"], &[])),
        ];
        for (took, sealed, expected) in cases {
            let delivered = took.iter().map(|(name, ms)| ((*name).to_owned(), at(*ms))).collect();
            let sealed = sealed.into_iter().map(|(name, became)| (name.to_owned(), became)).collect();
            assert_eq!(SilenceNotice::of(delivered, sealed, Why::Flapping), expected);
        }
    }
}
