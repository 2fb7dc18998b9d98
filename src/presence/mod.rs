//! The rules of presence: units, heartbeats, deadlines, silence, return, blindness.
//!
//! Pure rules: no I/O, no clock, no async. A decision reads a [`Snapshot`] of one unit as it is
//! stored and answers with a [`Change`]; both engines, every loop and every test share these rules.

mod ahead;
mod announcement;
mod availability;
mod blindness;
mod broker_name;
mod brokers;
mod cadence;
mod decision;
mod facts;
mod filters;
mod flapping;
mod grouping;
mod hearing;
mod heartbeat;
mod incident;
mod mass_offline;
mod name;
mod pace;
mod past_counts;
mod place;
mod policy;
mod record;
mod reminding;
mod rhythm;
mod roster;
mod round_trip;
mod shown;
mod sleep;
mod timer;
mod unit;
mod unit_name;

pub use ahead::{as_corrected, corrected, future_moment};
pub use announcement::{Announced, Announcement, AnnouncementResult, Departure, TAKEOVER};
pub use availability::{TimeSpent, UnitTimes, seconds};
pub use blindness::{Interval, Ledger};
pub use broker_name::BrokerName;
pub use cadence::{CadenceClass, Cadences, Forecast};
pub use decision::{
    HeartbeatResult, MAX_PAUSE, Registration, Renaming, StateSince, UnitSettings, Verdict, acknowledge,
    announce, announce_all, check_deadline, configure, deadline, hear, is_declared, is_pause, pause,
    recheck_deadline, register, rename, retire, state, state_since, unwatch,
};
pub use facts::{
    Change, Facts, IndexChange, KeyChange, Known, Lifecycle, Silence, Snapshot, State, TimeoutRule,
};
pub use filters::{
    DEFAULT_SETTLE, FilterBlindness, FilterProofs, Filters, Hearing, Probed, RemovedFilter, ShareHeard,
    covers, is_of_share, proof_of_share, prove,
};
pub use flapping::{FlapCheck, FlapNotification, FlapRule, Flaps};
pub use grouping::{
    GATHERS, GroupTimes, Joining, Left, MAX_MEMBERS, MemberTransition, Pace, Recoveries, Sealed, Stage,
    WaitingMember, is_detected_again,
};
pub use hearing::{
    BLIND_RETENTION, BlindInterval, CanaryEffect, Gap, HearingState, MemberState, NotAMember, SessionState,
    ShareMember, Subscription,
};
pub use heartbeat::{
    Declared, Heartbeat, Labels, MAX_LABEL, MAX_LABELS, MAX_LABELS_IN_ALL, Place, is_label_name,
    is_label_value,
};
pub use incident::{FirstUnit, Incident, Judgement, LEAST, Members, earlier_from, judge_incident};
pub use mass_offline::{FleetCount, HELD_FOR, MassOfflineRule, Release, ReleaseReason, Trip, release};
pub use name::{MAX_ID, may_stand_in_topic};
pub use pace::{MISSING_CANARIES, blind_gap, canary_period, probe_gap, probe_period};
pub use past_counts::{
    CountBucket, CountRange, CountedPart, FleetMoment, HourCounts, IncidentMark, MinuteCounts, StateCounts,
    add_mark, floor, partitions_digest,
};
pub use place::{Move, PlacesLeft};
pub use policy::{
    DEFAULT_MAX_UNITS, DEFAULT_TIMEOUT, KindRules, MAX_TIMEOUT, MIN_TIMEOUT, Override, Policy, Registry,
    TimeSource, is_archived, is_timeout,
};
pub use record::{Acknowledgement, Cause, Closing, OfflineRecord, RecordId, RecordIdError, Transition};
pub use reminding::{DueReminders, OngoingSilence, due_reminders};
pub use rhythm::Rhythm;
pub use roster::{EngineTime, FARTHEST_AHEAD, MAX_LEASE, Renewed, RosterState, is_plausible};
pub use round_trip::{MAX_ROUND_TRIP, Progress, RoundTrip, least_canary_period, least_probe_period};
pub use shown::{Shown, is_visible};
pub use timer::{
    DEFAULT_MOST_OF_CLASS, DEFAULT_MOST_TIMERS, DEFAULT_TIMER_KEEP, DueTimer, FiredTimer, Forgotten,
    Guarantee, MAX_TIMER_BYTES, NewTimer, Receipt, Timer, TimerCancelled, TimerClass, TimerData, TimerError,
    TimerId, TimerLifecycle, TimerRegistered, TimerState, TimerType,
};
pub use unit::{Kind, NameError, PROBE, Unit, UnitId};
pub use unit_name::{ComposeError, UnitName, UnitNameError};
