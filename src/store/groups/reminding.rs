//! The notifications from one check of a group whose silences last.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, OngoingSilence, due_reminders};
use crate::store::notification::{Notification, notification_id};
use crate::store::receiver_list::lists;
use crate::store::{Destination, Group};

/// A member of the group whose silence lasts, and of which receivers were notified.
pub(super) struct OngoingMember {
    pub name: String,
    pub notified_at: Timestamp,
    /// The receivers, separated by commas.
    pub told: String,
    /// `None`: the record was not stored, and is closed or lost.
    pub record: Option<OfflineRecord>,
    /// Whether an operator takes care of the open record.
    pub is_acknowledged: bool,
}

/// The result of a check of some members of a group.
#[derive(Default)]
pub(super) struct Reminding {
    /// The new receivers of members, by their positions, separated by commas.
    pub receivers: Vec<(usize, String)>,
    pub notifications: Vec<RepeatNotification>,
    /// The next moment at which something is due.
    pub next: Option<Timestamp>,
}

/// A notification of silences that receivers know of.
pub(super) struct RepeatNotification {
    pub id: String,
    pub notification: Notification,
    pub receivers: Vec<String>,
}

impl Reminding {
    /// `idle`: the receivers of the group and of its escalations for which no notification of the group waits; the
    /// others are not reminded, because they would get all their reminders at once when they are back. `first`: when
    /// receivers were first notified of a lasting silence of the group. `due`: the moment of this check. `is_quiet`:
    /// whether a silence is covered or held now.
    pub fn new(
        group: &Group,
        (destination, idle): (&Destination, &[String]),
        members: &[OngoingMember],
        is_quiet: &dyn Fn(&OfflineRecord) -> bool,
        (first, due): (Timestamp, Timestamp),
        now: Timestamp,
    ) -> Reminding {
        let again = &destination.again;
        let lasting = members.iter().map(|member| {
            let knows = |name: &String| lists(&member.told, name);
            OngoingSilence {
                notified_at: member.notified_at,
                has_step: again.escalate.iter().map(|step| step.receivers.iter().all(knows)).collect(),
                // A silence without its record cannot be notified again.
                is_quiet: member
                    .record
                    .as_ref()
                    .is_none_or(|record| member.is_acknowledged || !record.is_silence() || is_quiet(record)),
            }
        });
        let lasting: Vec<OngoingSilence> = lasting.collect();
        let after: Vec<Duration> = again.escalate.iter().map(|step| step.after).collect();
        let found = due_reminders((again.repeat, &after), &lasting, first, due, now);
        let mut reminding = Reminding { receivers: Vec::new(), notifications: Vec::new(), next: found.next };
        let sealing = Sealing { group, members, is_shared: destination.pace.is_shared, now };
        let what = format!("reminder {}", due.as_millis());
        for (places, receivers) in reminders(idle, members, &found.reminded) {
            reminding.notifications.push(sealing.seal(&places, &receivers, &what, true));
        }
        // Receivers that came to the route later are not reminded of what they were never notified of.
        let own: Vec<String> =
            idle.iter().filter(|name| destination.receivers.contains(name)).cloned().collect();
        reminding.notify(&sealing, &own, &found.reminded, &format!("late {}", due.as_millis()));
        for (step, places) in again.escalate.iter().zip(&found.escalated) {
            reminding.notify(
                &sealing,
                &step.receivers,
                places,
                &format!("escalation {}", step.after.as_millis()),
            );
        }
        reminding
    }

    /// Notifies receivers of the silences that they do not know of yet, and adds them to those that do. `what` is a part
    /// of the ids of the notifications.
    fn notify(&mut self, sealing: &Sealing<'_>, receivers: &[String], places: &[usize], what: &str) {
        for (places, receivers) in self.unaware(receivers, sealing.members, places) {
            self.notifications.push(sealing.seal(&places, &receivers, what, false));
            for at in places {
                self.add_receivers(at, &sealing.members[at], &receivers);
            }
        }
    }

    /// The silences, with the receivers that do not know of them yet. Silences with the same receivers share a
    /// notification.
    fn unaware(
        &self,
        receivers: &[String],
        members: &[OngoingMember],
        places: &[usize],
    ) -> Vec<(Vec<usize>, Vec<String>)> {
        let mut unaware: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
        for at in places {
            let added = self.receivers.iter().find(|(other, _)| other == at);
            let known = added.map_or(&members[*at].told, |(_, known)| known);
            let others: Vec<String> = receivers.iter().filter(|name| !lists(known, name)).cloned().collect();
            match unaware.iter_mut().find(|(_, same)| *same == others) {
                Some((silences, _)) => silences.push(*at),
                None if others.is_empty() => {}
                None => unaware.push((vec![*at], others)),
            }
        }
        unaware
    }

    /// Adds receivers to a member, because they know of its silence now and are notified of its return.
    fn add_receivers(&mut self, at: usize, member: &OngoingMember, added: &[String]) {
        let known = match self.receivers.iter().position(|(other, _)| *other == at) {
            Some(known) => known,
            None => {
                self.receivers.push((at, member.told.clone()));
                self.receivers.len() - 1
            }
        };
        let (_, receivers) = &mut self.receivers[known];
        for name in added {
            if !lists(receivers, name) {
                let comma = if receivers.is_empty() { "" } else { "," };
                receivers.push_str(comma);
                receivers.push_str(name);
            }
        }
    }
}

/// The silences (by index) of which each receiver is reminded: those that it was notified of. Receivers of the same
/// silences share a notification.
fn reminders(
    idle: &[String],
    members: &[OngoingMember],
    reminded: &[usize],
) -> Vec<(Vec<usize>, Vec<String>)> {
    let mut reminders: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
    for name in idle {
        let knows = |at: &&usize| lists(&members[**at].told, name);
        let places: Vec<usize> = reminded.iter().filter(knows).copied().collect();
        match reminders.iter_mut().find(|(other, _)| *other == places) {
            Some((_, receivers)) => receivers.push(name.clone()),
            None if places.is_empty() => {}
            None => reminders.push((places, vec![name.clone()])),
        }
    }
    reminders
}

/// The members for the notifications.
struct Sealing<'a> {
    group: &'a Group,
    members: &'a [OngoingMember],
    /// Whether units share the group.
    is_shared: bool,
    now: Timestamp,
}

impl Sealing<'_> {
    /// A notification of the members at these positions; `what` is a part of its id.
    fn seal(&self, places: &[usize], receivers: &[String], what: &str, reminder: bool) -> RepeatNotification {
        let names: Vec<&str> = places.iter().map(|at| self.members[*at].name.as_str()).collect();
        let id = notification_id(&self.group.key, &format!("{what}\n{}", names.join("\n")));
        let notification = Notification {
            offline: places.iter().filter_map(|at| self.members[*at].record.clone()).collect(),
            reminder,
            escalation: self.is_shared && !reminder,
            receivers: (receivers.len() > 1).then(|| receivers.to_vec()),
            ..Notification::empty(self.group.clone(), self.now)
        };
        RepeatNotification { id, notification, receivers: receivers.to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::Pace;
    use crate::routing::{Escalation, FollowUps};

    #[test]
    fn a_receiver_is_reminded_only_of_silences_that_it_was_notified_of_and_is_notified_of_the_others() {
        let at = |minutes: u32| Timestamp::from_millis(1_700_000_000_000) + Duration::from_secs(60) * minutes;
        let member = |name: &str, told: &str| OngoingMember {
            name: name.to_owned(),
            notified_at: at(0),
            told: told.to_owned(),
            record: Some(OfflineRecord::open(name.parse().unwrap(), at(0), at(0), at(0))),
            is_acknowledged: false,
        };
        let own = ["chat", "new"].map(str::to_owned).to_vec();
        let again = FollowUps { repeat: Some(Duration::from_secs(3600)), escalate: Vec::new() };
        let destination = Destination::new(own.clone(), Pace::AT_ONCE).with(again);
        let members = [member("detector:a", "chat"), member("detector:b", "chat,new")];
        let group = Group { key: "all".to_owned(), labels: Default::default() };
        let to = (&destination, &own[..]);
        let found = Reminding::new(&group, to, &members, &|_| false, (at(0), at(60)), at(60));
        let line = |one: &RepeatNotification| {
            let Notification { reminder, offline, .. } = &one.notification;
            (one.receivers.join(","), offline.len(), *reminder)
        };
        let lines: Vec<_> = found.notifications.iter().map(line).collect();
        let expected = [("chat", 2, true), ("new", 1, true), ("new", 1, false)];
        assert_eq!(lines, expected.map(|(to, count, reminder)| (to.to_owned(), count, reminder)));
        assert_eq!(found.receivers, [(0, "chat,new".to_owned())], "its return goes to both");
    }

    #[test]
    fn an_escalation_is_notified_only_to_receivers_that_do_not_know_of_the_silence() {
        let minute = Duration::from_secs(60);
        let step = |minutes: u32, receivers: &[&str]| Escalation {
            after: minute * minutes,
            receivers: receivers.iter().map(|name| name.to_string()).collect(),
        };
        let escalate = vec![step(30, &["boss"]), step(60, &["boss", "ceo"])];
        let destination = Destination::new(vec!["chat".to_owned()], Pace::AT_ONCE);
        let destination = destination.with(FollowUps { repeat: None, escalate });
        let at = |minutes: u32| Timestamp::from_millis(1_700_000_000_000) + minute * minutes;
        let member = |unit: &str, receivers: &str| {
            let record = OfflineRecord::open(unit.parse().unwrap(), at(0), at(0), at(0));
            let (name, told) = (unit.to_owned(), receivers.to_owned());
            OngoingMember { name, notified_at: at(0), told, record: Some(record), is_acknowledged: false }
        };
        let group = Group { key: "all".to_owned(), labels: Default::default() };
        let reminded = |members: &[OngoingMember], now: u32| {
            let (quiet, moments) = (|_: &OfflineRecord| false, (at(0), at(now)));
            let found = Reminding::new(&group, (&destination, &[]), members, &quiet, moments, at(now));
            let to = |one: &RepeatNotification| (one.receivers.join(","), one.notification.offline.len());
            found.notifications.iter().map(to).collect::<Vec<_>>()
        };
        let both = [member("detector:a", "chat,boss"), member("detector:b", "chat")];
        assert_eq!(reminded(&both, 30), [("boss".to_owned(), 1)]);
        assert_eq!(reminded(&both[..1], 60), [("ceo".to_owned(), 1)], "the boss knows of it");
        // Both escalations at once, as after a stop.
        assert_eq!(reminded(&both, 60), [("boss".to_owned(), 1), ("ceo".to_owned(), 2)]);
    }
}
