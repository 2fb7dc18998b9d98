//! The tables of cells, and the indexes of their names: how engines name each, and in which partition a cell is.

use std::borrow::Cow;
use std::fmt::{self, Display};

use super::member_names::of_member;
use super::partition::partition_of_timer;
use super::receiver_name::ReceiverName;
use super::{partition_of, partition_of_group};
use crate::telemetry::Stored;

/// The tables of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// A unit → its last transitions, where its kind has flap detection: see `presence/flapping.rs`.
    Flaps,
    /// A unit that flaps → the record of its episode.
    Episodes,
    /// A unit whose silence is unusual → the notice of it: see `fleet/unusual.rs`.
    Unusual,
    /// A group → the incident of its silences that lasts: see `alerting/incidents.rs`.
    Incidents,
    /// A table that instances keep a copy of → its version, another one after each change.
    Versions,
    /// Alert silences by their ids.
    Silences,
    /// A unit whose silence inhibits others → its last record: see `fleet/inhibitions.rs`.
    Sources,
    /// `trip` → the last trip of the mass-offline breaker: see `fleet/mass_breaker.rs`.
    Breaker,
    /// A receiver with a rate limit → when messages were sent to it, and its open digest: see `alerting/limit.rs`.
    Limits,
    /// A receiver with an open digest → the notifications in it.
    Digests,
    /// A receiver → how the attempts at it ended: see `fleet/receivers.rs`.
    Receivers,
    /// The SHA-256 of the cookie of a session that was ended → when it would have ended: see `http/ended_sessions.rs`.
    Sessions,
    /// A node that died → its death, until its devices are marked: see `fleet/node_deaths.rs`.
    NodeDeaths,
    /// `fleet` → since when it is watched: see `fleet/beginning.rs`.
    Watched,
    /// `fleet` → the timeouts and graces of its kinds, until history has them: see `history/policies.rs`.
    Policies,
    /// An hour → the counts of the fleet, by the minute: see `fleet/past_counts.rs`.
    MinuteCounts,
    /// A day → the counts of the fleet, by the hour.
    HourCounts,
    /// A partition and a block of it → the rhythms of the units there: see `fleet/rhythms.rs`.
    Rhythms,
    /// The changes that operators made: see `store/audit.rs`.
    Audit,
    /// An instance → its address for metrics: see `store/roster.rs`.
    Addresses,
    /// An instance → the counts of its own units.
    InstanceCounts,
    /// A group → its labels, and when it was sealed last: see `store/groups/`.
    Groups,
    /// A group → how often members began to wait or to last there. A changed value means that there may be other
    /// members now.
    GroupVersions,
    /// `<group>`, line break, `<member>` → the state of the member: see `store/groups/member.rs`.
    Members,
    /// The member of a record → the groups that the events of the record join, in the partition of the unit.
    GroupsOf,
    /// The record of attempts to deliver: see `store/attempts.rs`. A name begins with the number of its partition.
    Attempts,
    /// A word of attempts → the cells of [`Table::Attempts`] that have it: see `store/attempts.rs`. A name begins with the
    /// number of its partition, too.
    AttemptsOf,
    /// Numbers of a partition, by what they count: `attempts`, the bytes of its record of attempts.
    Counts,
    /// A timer that waits → its type, moment and data: see `store/timers/stored.rs`.
    Timers,
    /// A timer that fired or was cancelled → its type, moment, data and receipts.
    PastTimers,
    /// A type of timers → how many of them wait.
    TimerCounts,
    /// The id of a notification that waits for receivers → the notification: see `store/notification.rs`.
    Notifications,
    /// The id of a notification → how many receivers have not got it yet, if more than one.
    Owed,
    /// A receiver that is or was configured: see `store/deliveries/absence.rs`.
    ReceiverList,
    /// A receiver with a fallback that takes nothing → since when.
    Down,
    /// A group → its notifications that wait for this receiver: see `store/deliveries/lane.rs`.
    Lanes(ReceiverName),
    /// The id of a notification → the dead letter of this receiver.
    DeadLetters(ReceiverName),
    /// A silence that this receiver was not notified of → why: see `store/unnotified.rs`.
    Unnotified(ReceiverName),
    /// A group → its last notification that the fallback got too, while this receiver takes nothing.
    FallbackDone(ReceiverName),
}

impl Table {
    /// The tables that belong to no receiver.
    const SHARED: [Table; 35] = [
        Table::Flaps,
        Table::Episodes,
        Table::Unusual,
        Table::Incidents,
        Table::Groups,
        Table::GroupVersions,
        Table::Members,
        Table::GroupsOf,
        Table::Versions,
        Table::Silences,
        Table::Sources,
        Table::Breaker,
        Table::Limits,
        Table::Digests,
        Table::Receivers,
        Table::Sessions,
        Table::NodeDeaths,
        Table::Watched,
        Table::Policies,
        Table::MinuteCounts,
        Table::HourCounts,
        Table::Rhythms,
        Table::Audit,
        Table::Addresses,
        Table::InstanceCounts,
        Table::Attempts,
        Table::AttemptsOf,
        Table::Counts,
        Table::Timers,
        Table::PastTimers,
        Table::TimerCounts,
        Table::Notifications,
        Table::Owed,
        Table::ReceiverList,
        Table::Down,
    ];
    const OF_RECEIVER: [fn(ReceiverName) -> Table; 4] =
        [Table::Lanes, Table::DeadLetters, Table::Unnotified, Table::FallbackDone];

    /// All tables; the tables of a receiver for each of these receivers.
    pub fn all(receivers: &[ReceiverName]) -> impl Iterator<Item = Table> {
        let of_receivers = receivers.iter().flat_map(|name| Table::OF_RECEIVER.map(|table| table(*name)));
        Table::SHARED.into_iter().chain(of_receivers)
    }

    /// The name without the receiver.
    pub fn as_str(self) -> &'static str {
        match self {
            Table::Flaps => "flaps",
            Table::Episodes => "episodes",
            Table::Unusual => "unusual",
            Table::Incidents => "incidents",
            Table::Versions => "versions",
            Table::Silences => "silences",
            Table::Sources => "sources",
            Table::Breaker => "breaker",
            Table::Limits => "limits",
            Table::Digests => "digests",
            Table::Receivers => "receivers",
            Table::Sessions => "sessions",
            Table::NodeDeaths => "node_deaths",
            Table::Watched => "watched",
            Table::Policies => "policies",
            Table::MinuteCounts => "minute_counts",
            Table::HourCounts => "hour_counts",
            Table::Rhythms => "rhythms",
            Table::Audit => "audit",
            Table::Addresses => "addresses",
            Table::InstanceCounts => "instance_counts",
            Table::Groups => "groups",
            Table::GroupVersions => "group_versions",
            Table::Members => "members",
            Table::GroupsOf => "groups_of",
            Table::Attempts => "attempts",
            Table::AttemptsOf => "attempts_of",
            Table::Counts => "counts",
            Table::Timers => "timers",
            Table::PastTimers => "past_timers",
            Table::TimerCounts => "timer_counts",
            Table::Notifications => "notifications",
            Table::Owed => "owed",
            Table::ReceiverList => "receiver_list",
            Table::Down => "down",
            Table::Lanes(_) => "lanes",
            Table::DeadLetters(_) => "dead_letters",
            Table::Unnotified(_) => "unnotified",
            Table::FallbackDone(_) => "fallback_done",
        }
    }

    /// The name in an engine: with the receiver behind a colon.
    pub fn place(self) -> Cow<'static, str> {
        place(self.as_str(), self.receiver())
    }

    /// The receiver, if it is a table of one.
    pub fn receiver(self) -> Option<ReceiverName> {
        match self {
            Table::Lanes(name)
            | Table::DeadLetters(name)
            | Table::Unnotified(name)
            | Table::FallbackDone(name) => Some(name),
            _ => None,
        }
    }

    pub fn named(name: &str) -> Option<Table> {
        let (name, receiver) = read_place(name);
        let receiver = receiver.map(ReceiverName::of);
        Table::all(receiver.as_slice()).find(|table| (table.as_str(), table.receiver()) == (name, receiver))
    }

    /// The word for its values in the log and in metrics.
    pub fn what(self) -> Stored {
        match self {
            Table::Flaps | Table::Episodes | Table::Unusual | Table::Incidents => Stored::Group,
            Table::Groups | Table::GroupVersions | Table::Members | Table::GroupsOf => Stored::Group,
            Table::Silences => Stored::AlertSilence,
            Table::Limits | Table::Digests | Table::Receivers => Stored::Delivery,
            Table::Notifications | Table::Owed | Table::ReceiverList | Table::Down => Stored::Delivery,
            Table::Lanes(_) | Table::FallbackDone(_) => Stored::Delivery,
            Table::DeadLetters(_) | Table::Unnotified(_) => Stored::DeadLetter,
            Table::Attempts | Table::AttemptsOf => Stored::Attempt,
            Table::Audit => Stored::Audit,
            Table::Addresses | Table::InstanceCounts => Stored::Roster,
            Table::Timers | Table::PastTimers | Table::TimerCounts => Stored::Timer,
            Table::Versions | Table::Sources | Table::Breaker | Table::NodeDeaths => Stored::Other,
            Table::Sessions | Table::Watched | Table::Policies | Table::Counts => Stored::Other,
            Table::MinuteCounts | Table::HourCounts | Table::Rhythms => Stored::Other,
        }
    }

    /// The word for the values in this place of an engine: a table, or a page of it.
    pub(super) fn what_in(place: &str) -> Option<Stored> {
        let name = read_place(place).0;
        Table::all(&[ReceiverName::ANY]).find(|table| table.as_str() == name).map(Table::what)
    }

    /// The partition of a cell, by its name; the number after the last is that of the fleet.
    pub fn partition(self, name: &str, partitions: u16) -> u16 {
        match self {
            // The name is that of a unit or of a group.
            Table::Flaps | Table::Episodes | Table::Unusual | Table::Incidents => {
                partition_of_group(name, partitions)
            }
            Table::Lanes(_) | Table::FallbackDone(_) => partition_of_group(name, partitions),
            Table::Groups | Table::GroupVersions => partition_of_group(name, partitions),
            Table::Members => {
                let group = name.split_once('\n').map_or(name, |(group, _)| group);
                partition_of_group(group, partitions)
            }
            Table::GroupsOf => {
                of_member(name).map_or(partitions, |(_, id)| partition_of(&id.unit, partitions))
            }
            Table::Attempts | Table::AttemptsOf | Table::Rhythms => {
                let number = name.split_once('.').and_then(|(number, _)| number.parse().ok());
                number.unwrap_or(partitions).min(partitions)
            }
            Table::Timers | Table::PastTimers => partition_of_timer(name, partitions),
            _ => partitions,
        }
    }

    /// Whether the table has millions of small cells. Redis packs a small hash of small values, so such a table is
    /// split into pages by the checksums of the names; that saves a third of its memory.
    pub(super) fn is_paged(self) -> bool {
        self == Table::Timers
    }
}

/// The indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Index {
    /// The units of [`Table::Flaps`], by their next check (ms).
    FlapChecks,
    /// The entries of [`Table::Attempts`], by when they were written (ms).
    AttemptsWritten,
    /// The groups of [`Table::Groups`] in which members wait, by when they are due to be sealed (ms).
    GroupsDue,
    /// The members of [`Table::Members`] that wait: see `store/groups/names.rs`. All are at zero.
    Waiting,
    /// The members with a held return: `<group>`, line break, `<unit>`, by since when the return waits (ms).
    Returning,
    /// The members whose receivers know of a silence that lasts: see `store/groups/names.rs`. All are at zero.
    Lasting,
    /// The groups of [`Index::Lasting`], by their next check for a reminder or an escalation (ms).
    Reminders,
    /// The members of [`Table::Members`] that are over, by since when (ms).
    Over,
    /// The timers of [`Table::Timers`], by their moment (ms); timers of a type that is not configured, by when an
    /// instance checks them again.
    Timers,
    /// The timers of [`Table::PastTimers`], by their moment (ms).
    TimersEnded,
    /// The timers of [`Table::PastTimers`], by until when they are kept (ms).
    TimersKept,
    /// The timers of [`Table::PastTimers`] with a single attempt that has no outcome, by when the last of them began
    /// (ms).
    OnlyAttempts,
    /// The entries of [`Table::Audit`], by when the change was made (ms).
    Audited,
    /// The pages of units that another instance changed: see `store/notes.rs`. All are at zero.
    Noted,
    /// The groups of [`Table::Lanes`], by their next attempt (ms).
    Queue(ReceiverName),
    /// The notifications of [`Table::DeadLetters`], by when they were given up (ms).
    Dead(ReceiverName),
}

impl Index {
    const SHARED: [Index; 14] = [
        Index::GroupsDue,
        Index::Waiting,
        Index::Returning,
        Index::Lasting,
        Index::Reminders,
        Index::Over,
        Index::FlapChecks,
        Index::AttemptsWritten,
        Index::Timers,
        Index::TimersEnded,
        Index::TimersKept,
        Index::OnlyAttempts,
        Index::Audited,
        Index::Noted,
    ];

    /// All indexes; the indexes of a receiver for each of these receivers.
    pub fn all(receivers: &[ReceiverName]) -> impl Iterator<Item = Index> {
        let of_receivers = receivers.iter().flat_map(|name| [Index::Queue(*name), Index::Dead(*name)]);
        Index::SHARED.into_iter().chain(of_receivers)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Index::GroupsDue => "groups_due",
            Index::Waiting => "waiting",
            Index::Returning => "returning",
            Index::Lasting => "lasting",
            Index::Reminders => "reminders",
            Index::Over => "over",
            Index::FlapChecks => "flap_checks",
            Index::AttemptsWritten => "attempts_written",
            Index::Timers => "timers",
            Index::TimersEnded => "timers_ended",
            Index::TimersKept => "timers_kept",
            Index::OnlyAttempts => "only_attempts",
            Index::Audited => "audited",
            Index::Noted => "noted",
            Index::Queue(_) => "queue",
            Index::Dead(_) => "dead",
        }
    }

    /// The name in an engine: with the receiver behind a colon.
    pub fn place(self) -> Cow<'static, str> {
        place(self.as_str(), self.receiver())
    }

    /// The receiver, if it is an index of one.
    pub fn receiver(self) -> Option<ReceiverName> {
        self.table()?.receiver()
    }

    pub fn named(name: &str) -> Option<Index> {
        let (name, receiver) = read_place(name);
        let receiver = receiver.map(ReceiverName::of);
        Index::all(receiver.as_slice()).find(|index| (index.as_str(), index.receiver()) == (name, receiver))
    }

    /// The table with the cells of its names.
    fn table(self) -> Option<Table> {
        Some(match self {
            Index::GroupsDue | Index::Reminders => Table::Groups,
            Index::Waiting | Index::Returning | Index::Lasting | Index::Over => Table::Members,
            Index::FlapChecks => Table::Flaps,
            Index::AttemptsWritten => Table::Attempts,
            Index::Timers => Table::Timers,
            Index::TimersEnded | Index::TimersKept | Index::OnlyAttempts => Table::PastTimers,
            Index::Audited => Table::Audit,
            Index::Noted => return None,
            Index::Queue(name) => Table::Lanes(name),
            Index::Dead(name) => Table::DeadLetters(name),
        })
    }

    /// The word for its entries in the log and in metrics.
    pub fn what(self) -> Stored {
        self.table().map_or(Stored::Notes, Table::what)
    }

    /// The word for the entries in this place of an engine.
    pub(super) fn what_in(place: &str) -> Option<Stored> {
        let name = read_place(place).0;
        Index::all(&[ReceiverName::ANY]).find(|index| index.as_str() == name).map(Index::what)
    }
}

/// The name of a table or an index, with the receiver behind a colon.
fn place(name: &'static str, receiver: Option<ReceiverName>) -> Cow<'static, str> {
    receiver.map_or(Cow::Borrowed(name), |receiver| format!("{name}:{receiver}").into())
}

/// The name and the receiver of a [`place`].
fn read_place(place: &str) -> (&str, Option<&str>) {
    place.split_once(':').map_or((place, None), |(name, of)| (name, Some(of)))
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())
    }
}

impl Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())
    }
}
