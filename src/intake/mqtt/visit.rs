//! One connection from its beginning to its end: what was asked of the broker, and what comes next.
//!
//! A plain subscription asks for everything at once. A member of a shared subscription first asks
//! for nothing but its own canary. When one has come back and was recorded, the way there and back
//! and the engine are proved; the engine then knows that it attends, and only then it asks for its
//! share. One that is refused or deaf is never given anything, so it holds up nobody.
//!
//! To leave in order a member asks to be given no more. What the broker has given it before comes
//! before the canary that it sends after the answer; when that is recorded, everything is.
//!
//! # Why a member is impatient
//! What is given to a member nobody else is given. One that hears nothing, or whose canaries are not
//! recorded, closes its connection, and the broker hands its share to the others. A plain
//! subscription keeps its connection and its backlog. A process that was frozen finds its time up
//! when it goes on, and closes the connection before it reads what is left in it.

use std::sync::Arc;
use std::time::Duration;

use rumqttc::AsyncClient;
use tokio::time::Instant;

use super::link::Held;
use super::nap::Nap;
use super::session::Patience;
use super::words;

/// How long leaving in order may take.
const LEAVING: Duration = Duration::from_secs(3);

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// What is asked for first is not granted yet.
    Joining,
    /// A member whose canary has yet to come back.
    Proving,
    /// A member that attends, and asked for its share.
    Entering,
    /// Everything is granted.
    Hearing,
    /// A member that asked to be given no more.
    Leaving,
    /// It is given no more; the canary with this number is the last thing that comes.
    Last(u64),
    /// Nothing more is taken.
    Closed,
}

/// A connection.
pub struct Visit {
    pub client: AsyncClient,
    pub stage: Stage,
    /// Rollcall is stopping, and it knows.
    pub is_stopping: bool,
    patience: Patience,
    /// When the last packet came.
    came: Instant,
    /// When something was last recorded, or it began to attend.
    proved: Instant,
    leave_until: Instant,
    /// Packets since anything else was seen to.
    burst: u32,
    /// What is slept while messages come fast.
    pub nap: Nap,
    /// What came and is not acknowledged.
    pub held: Arc<Held>,
}

impl Visit {
    pub fn new(client: AsyncClient, patience: Patience, now: Instant) -> Visit {
        let (stage, is_stopping) = (Stage::Joining, false);
        Visit {
            client,
            stage,
            is_stopping,
            patience,
            came: now,
            proved: now,
            leave_until: now + LEAVING,
            burst: 0,
            nap: Nap::default(),
            held: Arc::default(),
        }
    }

    /// Whether canaries are sent.
    pub fn sings(&self) -> bool {
        matches!(self.stage, Stage::Proving | Stage::Hearing | Stage::Last(_))
    }

    /// Whether fewer than `most` packets have come in a row; if not, the next row begins.
    pub fn is_in_burst(&mut self, most: u32) -> bool {
        self.burst = if self.burst < most { self.burst + 1 } else { 0 };
        self.burst > 0
    }

    /// Something came.
    pub fn came(&mut self, at: Instant) {
        self.came = at;
    }

    /// Something of this connection was recorded.
    pub fn proved(&mut self, at: Instant) {
        self.proved = self.proved.max(at);
    }

    /// It asked for its share.
    pub fn enter(&mut self, now: Instant) {
        self.stage = Stage::Entering;
        self.proved = now;
    }

    /// It asked to be given no more.
    pub fn leave(&mut self, now: Instant) {
        self.stage = Stage::Leaving;
        self.leave_until = now + LEAVING;
    }

    /// The next moment at which [`Visit::overdue`] or [`Visit::has_left_too_slowly`] may have
    /// something to say.
    pub fn next_check(&self) -> Instant {
        let mut next = self.came + self.silence();
        if let Some(unproved) = self.unproved() {
            next = next.min(self.proved + unproved);
        }
        if self.is_leaving() { next.min(self.leave_until) } else { next }
    }

    /// Why this connection is of no use any more, if it is not.
    pub fn overdue(&self, now: Instant) -> Option<String> {
        let (silence, unproved) = (self.silence(), self.unproved());
        if now.duration_since(self.came) >= silence {
            return Some(words::silence(silence));
        }
        unproved.filter(|unproved| now.duration_since(self.proved) >= *unproved).map(words::unproved)
    }

    /// Whether leaving in order has taken too long.
    pub fn has_left_too_slowly(&self, now: Instant) -> bool {
        self.is_leaving() && now >= self.leave_until
    }

    fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving | Stage::Last(_))
    }

    fn is_attending(&self) -> bool {
        matches!(self.stage, Stage::Entering | Stage::Hearing | Stage::Leaving | Stage::Last(_))
    }

    fn silence(&self) -> Duration {
        match self.patience.of_member {
            Some(of_member) if self.is_attending() => of_member.silence,
            _ => self.patience.silence,
        }
    }

    fn unproved(&self) -> Option<Duration> {
        self.patience.of_member.filter(|_| self.is_attending()).map(|of_member| of_member.unproved)
    }
}
