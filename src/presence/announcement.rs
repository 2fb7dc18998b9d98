//! Announcements of a unit's presence by a device or a broker: a last will, or a state that a device publishes.
//!
//! An announcement that a unit is there is a heartbeat. An announcement that it is gone is checked: a broker
//! publishes the will of a session that was taken over after the device has come back, and its own end looks like the
//! end of all devices. So an announcement moves the deadline of its unit to an earlier moment, and the deadline is
//! checked as every other one: with the heartbeats since then, with pauses, and with the proof that Rollcall heard up
//! to it.
//!
//! | trust | the deadline |
//! |---|---|
//! | hint | the announcement and a time (`settle`) in which the unit may be heard; until then it is late |
//! | proof | the announcement |
//!
//! Announcements of a unit count in their order. Of two that it is gone, the one with the earlier deadline counts; one over
//! HTTP goes before one from a broker, which may still become void. A unit that plans its silence was there.
//!
//! A session ends at the broker where it was. So where a unit was last heard at another one of several brokers, or over
//! HTTP, the announcement is of a session that it left: it says nothing of the unit.
//!
//! # Over HTTP
//! No broker passes it on, so no end of a broker can have caused it: it counts also in blind time, and as a proof it needs
//! no further proof.

use std::time::Duration;

use super::{BrokerName, Cause, Ledger, Unit};
use crate::clock::Timestamp;

/// An announcement that a unit is gone or will be silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub unit: Unit,
    /// The earliest moment at which it was sent.
    pub at: Timestamp,
    pub says: Announced,
    /// The broker that delivered it, if its kind is heard at several; or HTTP.
    pub broker: Option<BrokerName>,
    /// Whether the unit announced that it is there a moment before: then this is the will of its former session.
    pub follows_birth: bool,
    /// Whether it may be the will of a session that another one took over: the birth of that one comes within
    /// [`TAKEOVER`]. `false` where the broker says which sessions were taken over.
    pub may_be_former: bool,
    /// Whether it may have come over a bridge from a broker that ends: that bridge ends soon then.
    pub is_bridged: bool,
    /// Whether another instance may have received such an announcement: see [`TAKEOVER`].
    pub is_unsure: bool,
    /// Whether the devices of the unit are gone with it: the units whose ids begin with its own and a dot.
    pub has_devices: bool,
}

/// How long after the birth of a session the will of the former session may come.
pub const TAKEOVER: Duration = Duration::from_millis(250);

/// How long after the first will that a broker sends over a bridge, while it ends, the bridge may end.
const BRIDGE_ENDS: Duration = Duration::from_secs(1);

impl Announcement {
    /// An announcement of which nothing else is known.
    pub fn of(unit: Unit, at: Timestamp, says: Announced) -> Announcement {
        let (broker, follows_birth, may_be_former, is_bridged, is_unsure, has_devices) = Default::default();
        Announcement {
            unit,
            at,
            says,
            broker,
            follows_birth,
            may_be_former,
            is_bridged,
            is_unsure,
            has_devices,
        }
    }

    /// How long after the announcement a canary has to be sent to prove it.
    pub fn wait(&self) -> Duration {
        match (self.is_bridged, self.may_be_former) {
            (true, _) => BRIDGE_ENDS,
            (false, true) => TAKEOVER,
            (false, false) => Duration::ZERO,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The unit is gone.
    Gone {
        cause: Cause,
        /// How long it may take to be heard; zero: the announcement is proof.
        settle: Duration,
    },
    /// The unit is silent on purpose until it is heard again, at most for this long.
    Away(Duration),
}

impl Announced {
    /// Whether it says nothing at `at`, because that moment is blind, or a part of the time in which the unit may be heard:
    /// the end of the broker may have caused it, and the unit may have come back unheard. The timeout finds the unit if
    /// it is gone.
    pub(super) fn is_blind(&self, at: Timestamp, ledger: &Ledger) -> bool {
        let settle = match self {
            Announced::Gone { settle, .. } => *settle,
            Announced::Away(_) => Duration::ZERO,
        };
        ledger.intervals().iter().any(|blind| blind.from <= at + settle && at < blind.to)
    }
}

/// The announced end of a unit; void after a newer heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Departure {
    pub at: Timestamp,
    pub settle: Duration,
    pub cause: Cause,
    /// It came over HTTP, so the end of a broker cannot have caused it.
    pub over_http: bool,
}

impl Departure {
    /// Whether it holds whatever Rollcall hears: the unit says of itself that it is gone.
    pub(super) fn is_certain(&self) -> bool {
        self.over_http && self.settle.is_zero()
    }

    /// How far the proof of canaries may lag behind the deadline. A proof needs hearing up to itself: a broker that
    /// ends publishes the wills of all devices, and nothing after them.
    pub(super) fn slack(&self) -> Duration {
        self.settle / 10
    }

    /// Whether it counts instead of a former announcement that still holds.
    pub(super) fn replaces(&self, held: &Departure) -> bool {
        match self.over_http == held.over_http {
            true => self.at + self.settle < held.at + held.settle,
            false => self.over_http,
        }
    }

    pub(super) fn is_blind(&self, ledger: &Ledger) -> bool {
        !self.over_http
            && Announced::Gone { cause: self.cause, settle: self.settle }.is_blind(self.at, ledger)
    }
}

/// The effect of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnouncementResult {
    /// The deadline of the unit is earlier now.
    Taken,
    /// The silence of the unit is planned now.
    Paused,
    /// Older than the newest heartbeat, of a session that was taken over, or from another broker than the newest
    /// heartbeat; or an earlier announcement holds and says as much: changes nothing.
    Stale,
    /// Of a unit that is not present: unknown, removed, never heard or offline already.
    NotPresent,
    /// Of a unit in a planned absence.
    Planned,
    /// From a time that is blind; of a hint, also if a part of the time is blind in which the unit may be heard.
    Blind,
}
