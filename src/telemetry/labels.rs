//! The values of labels in metrics and logs, as enums, so that devices cannot add any.

use crate::presence::{AnnouncementResult, HeartbeatResult};

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The value of the label in metrics and logs.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}

labels! {
    /// Why a message did not count as a heartbeat.
    Rejection {
        /// The topic fits no template.
        BadTopic => "bad_topic",
        /// `{unit}` is not a unit id.
        BadUnit => "bad_unit",
        /// `{kind}` is not configured.
        UnknownKind => "unknown_kind",
        /// A retained message: it may be of any age.
        Retained => "retained",
        /// A message on a topic of announcements without any of their words.
        UnknownState => "unknown_state",
        /// Older than `max_age`.
        TooOld => "too_old",
        /// A canary that Rollcall did not send.
        ForgedCanary => "forged_canary",
        /// A probe that Rollcall did not send.
        ForgedProbe => "forged_probe",
        /// A state of Rollcall as a Sparkplug host application that is not believed.
        ForgedState => "forged_state",
        /// A message without an acknowledgement that found the queue full.
        Overflow => "overflow",
        /// Over HTTP: no object with kind and unit, or too long.
        Unreadable => "unreadable",
        /// Over HTTP: the token is not for this unit.
        Forbidden => "forbidden",
        /// Over HTTP: a request of a token that has to wait.
        RateLimited => "rate_limited",
    }
}

labels! {
    /// The effect of an announcement that a unit is gone.
    AnnouncementOutcome {
        /// The unit is late, or offline at once.
        Taken => "taken",
        /// The unit is paused until it is heard.
        Paused => "paused",
        /// Older than a heartbeat, repeated, or from a session that was taken over.
        Stale => "stale",
        /// The unit is unknown, removed, never heard or offline.
        NotPresent => "not_present",
        /// The unit is in a planned absence.
        Planned => "planned",
        /// From a blind time.
        Blind => "blind",
        /// The connection ended before the broker proved that it lives.
        Lost => "lost",
        /// Too many announcements at once.
        Overflow => "overflow",
    }
}

impl AnnouncementOutcome {
    pub fn of(result: AnnouncementResult) -> AnnouncementOutcome {
        match result {
            AnnouncementResult::Taken => AnnouncementOutcome::Taken,
            AnnouncementResult::Paused => AnnouncementOutcome::Paused,
            AnnouncementResult::Stale => AnnouncementOutcome::Stale,
            AnnouncementResult::NotPresent => AnnouncementOutcome::NotPresent,
            AnnouncementResult::Planned => AnnouncementOutcome::Planned,
            AnnouncementResult::Blind => AnnouncementOutcome::Blind,
        }
    }
}

labels! {
    /// The outcome of publishing the state of a unit.
    PublishedOutcome {
        /// Handed to the broker.
        Published => "published",
        /// The state of a unit that is gone was removed.
        Removed => "removed",
        /// The broker refuses the topic, or has no room to retain it.
        Refused => "refused",
    }
}

labels! {
    /// The outcome of registering or cancelling a timer.
    TimerOutcome {
        Created => "created",
        /// The timer was waiting, and now has another moment or other data.
        Changed => "changed",
        /// The timer has already fired for this moment.
        HasFired => "has_fired",
        Cancelled => "cancelled",
        /// The timer to cancel had fired, was already cancelled or never existed.
        NotWaiting => "not_waiting",
        /// Refused: a field is missing or wrong.
        Bad => "bad",
        /// Refused: its type is not configured.
        UnknownClass => "unknown_class",
        /// Refused: the id is taken, and the client wanted a new one.
        Exists => "exists",
        /// Refused: the class has its most waiting timers.
        ClassFull => "class_full",
        /// Refused: all classes together have their most waiting timers.
        Full => "full",
        /// Refused: the token asks for more timers a second than its limit.
        Rate => "rate",
        /// Refused: no room for more requests over MQTT.
        Overflow => "overflow",
        /// Refused: the stored value of this id cannot be read.
        Unreadable => "unreadable",
    }
}

labels! {
    /// A request that the in-process broker refused, or changed.
    BrokerRefusal {
        /// A name or password was wrong, or a handshake failed.
        Login => "login",
        /// The client id belongs to another user.
        ClientId => "client_id",
        /// There are too many connections.
        Connection => "connection",
        /// The user may not publish on the topic.
        Publish => "publish",
        /// The user may not subscribe to the filter.
        Subscribe => "subscribe",
        /// A packet is too large or not allowed, or of a version of MQTT that is not served.
        Packet => "packet",
        /// A message was routed but not retained.
        Retained => "retained",
        /// The subscriber does not read its messages.
        Reader => "reader",
        /// The client speaks another version of MQTT.
        Version => "version",
        /// Another connection with the same client id took its place.
        TakenOver => "taken_over",
    }
}

labels! {
    /// Why a connection to the broker ended, or failed.
    ConnectionLoss {
        /// Another client connected with the same client id.
        TakenOver => "taken_over",
        /// The broker refuses the connection or a subscription.
        Refused => "refused",
        /// No packet came within the keep-alive.
        Silent => "silent",
        /// Any other reason, such as a broker that is not reachable.
        Broken => "broken",
    }
}

labels! {
    /// A part of a payload that was ignored; the message still counts as a heartbeat.
    PayloadIssue {
        /// The payload starts like JSON, but is not JSON.
        BrokenJson => "broken_json",
        /// `ts` is not a plausible time.
        BadTimestamp => "bad_timestamp",
        /// `timeout` is no timeout or out of bounds.
        BadTimeout => "bad_timeout",
        /// The name or the value of a label is not valid.
        BadLabel => "bad_label",
        /// `sleep` is no duration or out of bounds.
        BadSleep => "bad_sleep",
        /// The field of a metric has another type.
        BadValue => "bad_value",
        /// The payload was not read: it is larger than `max_payload`, or large payloads came too fast.
        TooLarge => "too_large",
    }
}

labels! {
    /// The outcome of a value that a unit sent.
    ValueOutcome {
        /// The value is in the engine, or a newer value is.
        Written => "written",
        /// The unit of the value is not in the fleet.
        UnknownUnit => "unknown_unit",
        /// Too many values waited; the next message of the unit brings the value again.
        Overflow => "overflow",
    }
}

labels! {
    /// The source of a deadline check.
    CheckSource {
        /// An expiry notification.
        Notification => "notification",
        /// The deadline index.
        Sweep => "sweep",
        /// The walk over the mirror.
        Walk => "walk",
        /// An announcement that is proof.
        Announcement => "announcement",
    }
}

labels! {
    /// The result of a deadline check.
    CheckOutcome {
        /// The unit is offline, and this caller wrote the record.
        Offline => "offline",
        /// The unit has time left.
        Alive => "alive",
        /// Rollcall has not heard far enough to decide.
        Undecided => "undecided",
        /// Another caller was faster, or the unit changed meanwhile.
        Superseded => "superseded",
    }
}

labels! {
    /// The outcome of an attempt to deliver.
    DeliveryOutcome {
        Delivered => "delivered",
        /// The delivery is tried again.
        Retry => "retry",
        /// The delivery failed for good and is a dead letter.
        Dead => "dead",
        /// Not attempted, because all of its transitions were over.
        LeftOut => "left_out",
    }
}

labels! {
    /// Why the web server closed or refused a connection.
    CutReason {
        /// The connection was idle, and another connection needed its slot.
        Idle => "idle",
        /// The client did not read the answer.
        SlowReader => "slow_reader",
        /// Every slot was in use.
        NoSlot => "no_slot",
    }
}

impl CutReason {
    /// The advice to operators.
    pub(super) fn text(self) -> &'static str {
        match self {
            CutReason::Idle => {
                "it was idle, and a new connection took its place, because all were in use; see which clients hold \
                 connections"
            }
            CutReason::SlowReader => {
                "its client did not read the answer in time; check that client and its network"
            }
            CutReason::NoSlot => "every connection is in use; see which clients connect so often",
        }
    }
}

labels! {
    /// A problem of an engine that still works.
    EngineWarning {
        /// The fleet in the engine is not the one at the start.
        LostItsData => "engine_lost_its_data",
        KeysEvicted => "keys_evicted",
        /// The engine would evict keys if it were full.
        EvictionPossible => "eviction_possible",
        /// A restart loses its data.
        PersistenceOff => "persistence_off",
        /// The disk of the engine has little room left.
        DiskNearlyFull => "disk_nearly_full",
        /// The engine does not publish expiry notifications.
        NotificationsOff => "notifications_off",
        /// Replicas of the engine do not confirm transitions in time.
        ReplicasLate => "replicas_late",
        /// A primary that is cut off from its replicas accepts writes that will be lost.
        MinReplicasOff => "min_replicas_off",
        /// A primary has no replica that could take over.
        ReplicaMissing => "replica_missing",
        /// A replica does not have the newest writes.
        ReplicaLags => "replica_lags",
        /// One of several primaries does not answer.
        ServerDown => "server_down",
        /// A server that a failover needs does not answer: a replica, or a sentinel.
        ServerMissing => "server_missing",
        /// Slots of a cluster have no server.
        SlotsMissing => "slots_missing",
        /// The user at the engine lacks rights.
        RightsMissing => "rights_missing",
        /// The clock of the engine differs from the clock of this machine.
        ClockOff => "clock_off",
        /// The clocks of the servers of the engine differ.
        ServerClockOff => "server_clock_off",
    }
}

labels! {
    /// A loop, or a part of a loop, that calls the engine. Each has its own failure, because the engine may refuse the
    /// calls of one loop and answer those of another.
    Loop {
        /// Records heartbeats and canaries.
        Intake => "intake",
        /// Checks units that may be due.
        Sweep => "sweep",
        /// Opens and closes offline records.
        Records => "records",
        /// Renews the lease of this instance.
        Lease => "lease",
        /// Lets transitions join groups, and seals groups.
        Dispatch => "dispatch",
        /// Leases deliveries and records their outcomes.
        Delivery => "delivery",
        /// Fires timers.
        Timers => "timers",
        /// Writes the memory of the embedded engine to its disk.
        WriteBehind => "write_behind",
        /// Fills the mirror.
        Mirror => "mirror",
        /// Compares the mirror.
        Walk => "walk",
        /// Writes values of units.
        Values => "values",
        /// Reads the states of units for publication.
        States => "states",
        /// Sends notes about changes to the owners of partitions.
        Notes => "notes",
        /// Examines the engine.
        Examination => "examination",
        /// Shares the number of units with other instances.
        Census => "census",
        /// Writes the counts of units over time.
        PastCounts => "past_counts",
        /// Writes and reads the rhythms of units.
        Rhythms => "rhythms",
    }
}

impl Loop {
    /// The work that stops while the loop fails.
    pub(super) fn undone(self) -> &'static str {
        match self {
            Loop::Intake => "heartbeats and canaries are not recorded",
            Loop::Sweep => "units that are due cannot be checked",
            Loop::Records => "offline records cannot be written or closed",
            Loop::Lease => "the lease of this instance cannot be renewed",
            Loop::Dispatch => "transitions do not reach their groups",
            Loop::Delivery => "deliveries cannot be leased or recorded",
            Loop::Timers => "timers do not fire",
            Loop::WriteBehind => "heartbeats are not written to disk",
            Loop::Mirror => "units cannot be read from the engine; counts and lists are old",
            Loop::Walk => "units cannot be compared with the engine; counts and lists may be old",
            Loop::Values => "values of units are not written; they wait",
            Loop::States => "states of units are not published; they wait",
            Loop::Notes => "other instances learn late of changes in their partitions",
            Loop::Examination => "the engine cannot be examined",
            Loop::Census => {
                "the numbers of units of other instances are not known; max_units may be exceeded"
            }
            Loop::PastCounts => "units are not counted over time; the chart has a gap",
            Loop::Rhythms => "rhythms of units are not kept; a restart loses what was learned",
        }
    }

    /// Returns whether Rollcall cannot do its work while the loop fails.
    pub(super) fn stops_work(self) -> bool {
        use Loop::*;
        matches!(self, Intake | Sweep | Records | Lease | Dispatch | Delivery | Timers | WriteBehind)
    }
}

/// The result of a heartbeat with a new id, if its kind is full.
pub(super) const TOO_MANY: &str = "too_many_units";
pub(super) const TWO_PLACES: &str = "unit_at_two_places";

labels! {
    /// The sorts of stored values that may be unreadable.
    Stored {
        /// The facts of a unit.
        Facts => "facts",
        /// The expiry key of a unit.
        ExpiryKey => "expiry_key",
        /// The deadline index.
        Deadlines => "deadlines",
        /// A record, or an index of records.
        Record => "record",
        /// An entry of an outbox.
        Outbox => "outbox",
        /// A group or one of its members.
        Group => "group",
        /// A notification or its entry in a queue.
        Delivery => "delivery",
        DeadLetter => "dead_letter",
        /// The record of attempts to deliver.
        Attempt => "attempt",
        /// A timer, or an index of timers.
        Timer => "timer",
        /// A value that a unit sent.
        Value => "value",
        /// The state of hearing and the ledger.
        Hearing => "hearing",
        /// The roster of instances, their addresses and the clock.
        Roster => "roster",
        /// Notes for owners of partitions.
        Notes => "notes",
        AlertSilence => "alert_silence",
        /// The changes that operators made.
        Audit => "audit",
        Other => "other",
    }
}

pub(super) const HEARD: [HeartbeatResult; 7] = [
    HeartbeatResult::New,
    HeartbeatResult::Refreshed,
    HeartbeatResult::Back,
    HeartbeatResult::Stale,
    HeartbeatResult::Unregistered,
    HeartbeatResult::Retired,
    HeartbeatResult::TooMany,
];

/// The value of the label in metrics.
pub(super) fn heard_as_str(heard: HeartbeatResult) -> &'static str {
    match heard {
        HeartbeatResult::New => "new",
        HeartbeatResult::Refreshed => "refreshed",
        HeartbeatResult::Back => "back",
        HeartbeatResult::Stale => "stale",
        HeartbeatResult::Unregistered => "unregistered",
        HeartbeatResult::Retired => "retired",
        HeartbeatResult::TooMany => TOO_MANY,
    }
}
