//! The labels in metrics and logs: labels come from these, never from devices.

use crate::presence::Heard;

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// Every variant.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The word for it in metrics and logs.
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
        /// `{unit}` is no unit id.
        BadUnit => "bad_unit",
        /// `{kind}` is not configured.
        UnknownKind => "unknown_kind",
        /// The payload is larger than allowed.
        TooLarge => "too_large",
        /// A retained message: it may be of any age.
        Retained => "retained",
        /// Older than `max_age`.
        TooOld => "too_old",
        /// A canary that Rollcall did not send.
        ForgedCanary => "forged_canary",
        /// A probe that Rollcall did not send.
        ForgedProbe => "forged_probe",
        /// It was not acknowledged and came faster than it could be recorded.
        Overflow => "overflow",
    }
}

labels! {
    /// What the broker within the process refused, or did not do as it was asked.
    BrokerRefusal {
        /// A name or password was wrong, or a handshake failed.
        Login => "login",
        /// The client id belongs to another.
        ClientId => "client_id",
        /// There are too many connections.
        Connection => "connection",
        /// It may not publish there.
        Publish => "publish",
        /// It may not subscribe to that.
        Subscribe => "subscribe",
        /// A packet is too large or not allowed.
        Packet => "packet",
        /// A message was passed on and not retained.
        Retained => "retained",
        /// It does not read what it subscribed to.
        Reader => "reader",
    }
}

labels! {
    /// Why a connection to the broker ended, or could not be made.
    ConnectionLoss {
        /// Another client came with the same client id.
        TakenOver => "taken_over",
        /// The broker does not let us in, or does not grant what is asked for.
        Refused => "refused",
        /// Nothing came any more.
        Silent => "silent",
        /// Anything else, such as a broker that is not there.
        Broken => "broken",
    }
}

labels! {
    /// Something in a payload that was passed over; the message still proves life.
    PayloadIssue {
        /// Starts like JSON and is not.
        BrokenJson => "broken_json",
        /// `ts` is no plausible time.
        BadTimestamp => "bad_timestamp",
        /// `timeout` is no timeout or out of bounds.
        BadTimeout => "bad_timeout",
        /// A label's name or value cannot be one.
        BadLabel => "bad_label",
        /// `sleep` is no duration or out of bounds.
        BadSleep => "bad_sleep",
        /// A field that is a metric holds something of another type.
        BadValue => "bad_value",
    }
}

labels! {
    /// What became of a value that a unit told of itself.
    ValueOutcome {
        /// It is in the engine, or a newer one is.
        Written => "written",
        /// Its unit is not one of the fleet.
        UnknownUnit => "unknown_unit",
        /// Too many waited; the unit's next message brings it again.
        Overflow => "overflow",
    }
}

labels! {
    /// What asked for a unit's deadline to be checked.
    CheckSource {
        /// An expiry notification.
        Notification => "notification",
        /// The deadline index.
        Sweep => "sweep",
        /// The walk over the mirror.
        Walk => "walk",
    }
}

labels! {
    /// What a check of a unit's deadline came to.
    CheckOutcome {
        /// The unit is offline, and this caller wrote the record.
        Offline => "offline",
        /// The unit has time left.
        Alive => "alive",
        /// Not heard far enough to say.
        Undecided => "undecided",
        /// Another caller was faster, or the unit changed meanwhile.
        Superseded => "superseded",
    }
}

labels! {
    /// How an attempt to deliver ended.
    DeliveryOutcome {
        /// The receiver has it.
        Delivered => "delivered",
        /// To be tried again.
        Retry => "retry",
        /// Given up.
        Dead => "dead",
        /// Not attempted: nothing of it was to be told any more.
        LeftOut => "left_out",
    }
}

labels! {
    /// Why the web server closed a connection, or took none.
    Cut {
        /// It used its place for nothing, and another one came.
        StoodStill => "stood_still",
        /// Its reader did not read.
        SlowReader => "slow_reader",
        /// Every place was in use.
        NoPlace => "no_place",
    }
}

impl Cut {
    /// What to do, for people.
    pub(super) fn text(self) -> &'static str {
        match self {
            Cut::StoodStill => {
                "it waited, and another one came while all places were taken; see which clients hold connections"
            }
            Cut::SlowReader => {
                "its reader did not take the answer in time; see what is wrong with that client or its network"
            }
            Cut::NoPlace => "every place is in use; see which clients ask so often",
        }
    }
}

labels! {
    /// What may be wrong with an engine that works all the same.
    EngineWarning {
        /// The fleet in it is another one than at the start.
        LostItsData => "engine_lost_its_data",
        /// It has thrown keys away for want of memory.
        KeysEvicted => "keys_evicted",
        /// It would do so if it were full.
        EvictionPossible => "eviction_possible",
        /// A restart loses what it holds.
        PersistenceOff => "persistence_off",
        /// The disk that it writes to has little room left.
        DiskNearlyFull => "disk_nearly_full",
        /// It does not tell when keys expire.
        NotificationsOff => "notifications_off",
        /// Its user may not do all that is needed.
        RightsMissing => "rights_missing",
        /// Its clock and ours are apart.
        ClockOff => "clock_off",
    }
}

labels! {
    /// A loop, or a part of one, that asks the engine for something and tells whether it was done. Each
    /// keeps its own failure: what one of them is refused another may be granted.
    Loop {
        /// Heartbeats and canaries are recorded.
        Intake => "intake",
        /// Units that may be due are looked at.
        Sweep => "sweep",
        /// Offline records are written and closed.
        Records => "records",
        /// The lease of this instance is renewed.
        Lease => "lease",
        /// Transitions join groups, and groups are sealed.
        Telling => "telling",
        /// Deliveries are handed out and their ends written down.
        Delivery => "delivery",
        /// What is in the memory of the embedded engine is written to its disk.
        WriteBehind => "write_behind",
        /// The mirror is filled.
        Mirror => "mirror",
        /// The mirror is compared.
        Walk => "walk",
        /// Values that units tell of themselves are written.
        Values => "values",
        /// Owners of partitions are told what changed there.
        Notes => "notes",
        /// The engine is examined.
        Examination => "examination",
        /// Instances tell each other how many units they count.
        Census => "census",
    }
}

impl Loop {
    /// What is not done while it fails.
    pub(super) fn undone(self) -> &'static str {
        match self {
            Loop::Intake => "heartbeats and canaries are not recorded",
            Loop::Sweep => "units that are due cannot be looked at",
            Loop::Records => "offline records cannot be written or closed",
            Loop::Lease => "the lease of this instance cannot be renewed",
            Loop::Telling => "transitions do not reach their groups",
            Loop::Delivery => "deliveries cannot be fetched or ended",
            Loop::WriteBehind => "heartbeats are not written to disk",
            Loop::Mirror => "units cannot be read from the engine; counts and lists are old",
            Loop::Walk => "units cannot be compared with the engine; counts and lists may be old",
            Loop::Values => "values of units are not written; they wait",
            Loop::Notes => "other instances learn late what changed in their partitions",
            Loop::Examination => "the engine cannot be examined",
            Loop::Census => "how many units other instances count is not known; max_units may be exceeded",
        }
    }

    /// Whether Rollcall does its work while it fails.
    pub(super) fn is_serious(self) -> bool {
        use Loop::*;
        matches!(self, Intake | Sweep | Records | Lease | Telling | Delivery | WriteBehind)
    }
}

/// Of a heartbeat from an id that a kind has no room for.
pub(super) const TOO_MANY: &str = "too_many_units";

labels! {
    /// What is stored, as far as values that cannot be read are told apart.
    Stored {
        /// The facts of a unit.
        Facts => "facts",
        /// The expiry key of a unit.
        ExpiryKey => "expiry_key",
        /// The index of deadlines.
        Deadlines => "deadlines",
        /// A record, or an index of records.
        Record => "record",
        /// An entry of an outbox.
        Outbox => "outbox",
        /// A group or one of its members.
        Group => "group",
        /// A notification or its place in a queue.
        Delivery => "delivery",
        /// A dead letter.
        DeadLetter => "dead_letter",
        /// A value that a unit told of itself.
        Value => "value",
        /// How far was heard, by whom, and the ledger.
        Hearing => "hearing",
        /// The roster of instances, their addresses and the clock.
        Roster => "roster",
        /// Notes for owners of partitions.
        Notes => "notes",
        /// Anything else.
        Other => "other",
    }
}

/// Everything that a heartbeat may turn out to be.
pub(super) const HEARD: [Heard; 7] = [
    Heard::New,
    Heard::Refreshed,
    Heard::Back,
    Heard::Stale,
    Heard::Stranger,
    Heard::Retired,
    Heard::TooMany,
];

/// The word for it in metrics.
pub(super) fn heard_as_str(heard: Heard) -> &'static str {
    match heard {
        Heard::New => "new",
        Heard::Refreshed => "refreshed",
        Heard::Back => "back",
        Heard::Stale => "stale",
        Heard::Stranger => "stranger",
        Heard::Retired => "retired",
        Heard::TooMany => TOO_MANY,
    }
}
