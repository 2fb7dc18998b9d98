//! When receivers are reminded of silences that last, and when the receivers of an escalation are notified of them.
//!
//! A group with lasting silences is checked at certain moments. A reminder is due in equal steps after receivers were
//! first notified of a lasting silence; an escalation is due for each silence, some time after its notification. Both
//! end with the silence and with its acknowledgement, and an alert silence holds them back.
//!
//! A check has no memory: the due reminders follow from the receivers that were notified, the moments of their
//! notifications, and the moment of the check. So a check that is repeated after a crash finds the same reminders.

use std::time::Duration;

use crate::clock::Timestamp;

/// How soon a silence that is quiet is checked again for an escalation.
const LOOKS_AGAIN: Duration = Duration::from_secs(60);

/// A silence that receivers were notified of.
#[derive(Clone, Debug)]
pub struct OngoingSilence {
    pub notified_at: Timestamp,
    /// For each step of escalation, whether its receivers know of the silence.
    pub has_step: Vec<bool>,
    /// Whether an operator takes care of it, or an alert silence covers it.
    pub is_quiet: bool,
}

/// The result of a check of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueReminders {
    /// The silences of which receivers are reminded, by their places; empty if no reminder is due.
    pub reminded: Vec<usize>,
    /// For each step of escalation the silences of which its receivers are notified.
    pub escalated: Vec<Vec<usize>>,
    /// The next moment at which something is due, if nothing changes.
    pub next: Option<Timestamp>,
}

/// Checks silences of a group. `first`: when receivers were first notified of a silence that lasts. `due`: the moment
/// for which the check was set. `after`: when each step of escalation is due.
pub fn due_reminders(
    (repeat, after): (Option<Duration>, &[Duration]),
    silences: &[OngoingSilence],
    first: Timestamp,
    due: Timestamp,
    now: Timestamp,
) -> DueReminders {
    let open = || silences.iter().enumerate().filter(|(_, silence)| !silence.is_quiet);
    let mut found = DueReminders { escalated: vec![Vec::new(); after.len()], ..DueReminders::default() };
    let mut next = Vec::new();
    if let Some(repeat) = repeat.filter(|repeat| !repeat.is_zero()) {
        let times = (now.since(first).as_millis() / repeat.as_millis()) as u32;
        if times > 0 && first + repeat * times >= due {
            found.reminded = open().map(|(at, _)| at).collect();
        }
        if !silences.is_empty() {
            next.push(first + repeat * (times + 1));
        }
    }
    for (step, after) in after.iter().enumerate() {
        for (at, silence) in silences.iter().enumerate().filter(|(_, silence)| !silence.has_step[step]) {
            let moment = silence.notified_at + *after;
            if moment > now {
                next.push(moment);
            } else if silence.is_quiet {
                // The acknowledgement may be taken back, and the alert silence may end.
                next.push(now + (*after).min(LOOKS_AGAIN));
            } else {
                found.escalated[step].push(at);
            }
        }
    }
    found.next = next.into_iter().min();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(minutes: u32) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000) + MINUTE * minutes
    }

    fn silence(minutes: u32, has_step: &[bool]) -> OngoingSilence {
        OngoingSilence { notified_at: at(minutes), has_step: has_step.to_vec(), is_quiet: false }
    }

    #[test]
    fn receivers_are_reminded_in_equal_steps_while_a_silence_lasts() {
        let silences = [silence(0, &[]), silence(50, &[])];
        let checked = |due: u32, now: u32| {
            let checked = due_reminders((Some(60 * MINUTE), &[]), &silences, at(0), at(due), at(now));
            (checked.reminded.len(), checked.next)
        };
        assert_eq!(checked(60, 60), (2, Some(at(120))));
        // Late, as after a stop: one reminder for all that were missed.
        assert_eq!(checked(60, 200), (2, Some(at(240))));
        // Checked for another reason.
        assert_eq!(checked(70, 70), (0, Some(at(120))));
        assert_eq!(checked(10, 10), (0, Some(at(60))));
        let acknowledged = [OngoingSilence { is_quiet: true, ..silence(0, &[]) }];
        let none = super::due_reminders((Some(60 * MINUTE), &[]), &acknowledged, at(0), at(60), at(60));
        assert_eq!((none.reminded, none.next), (vec![], Some(at(120))), "it may be taken back");
        assert_eq!(
            super::due_reminders((Some(60 * MINUTE), &[]), &[], at(0), at(60), at(60)),
            DueReminders::default()
        );
    }

    #[test]
    fn each_silence_is_escalated_once_to_each_step() {
        let after = [30 * MINUTE, 60 * MINUTE];
        let silences =
            [silence(0, &[true, false]), silence(20, &[false, false]), silence(55, &[false, false])];
        let found = due_reminders((None, &after), &silences, at(0), at(55), at(55));
        assert_eq!(found.escalated, [vec![1], vec![]]);
        assert_eq!(found.next, Some(at(60)));
        let found = due_reminders((None, &after), &silences, at(0), at(60), at(200));
        assert_eq!(found.escalated, [vec![1, 2], vec![0, 1, 2]]);
        assert_eq!((found.reminded, found.next), (vec![], None));
        let acknowledged = [OngoingSilence { is_quiet: true, ..silence(0, &[false, true]) }];
        let found = due_reminders((None, &after), &acknowledged, at(0), at(30), at(30));
        assert_eq!((found.escalated, found.next), (vec![vec![], vec![]], Some(at(31))));
        // Both at once.
        let found = due_reminders((Some(60 * MINUTE), &after), &silences, at(0), at(60), at(60));
        assert_eq!((found.reminded, found.escalated), (vec![0, 1, 2], vec![vec![1], vec![0]]));
        assert_eq!(found.next, Some(at(80)));
    }
}
