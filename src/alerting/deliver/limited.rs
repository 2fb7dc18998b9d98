//! The admission of a receiver that takes a limited number of messages, in front of its loop.
//!
//! One instance delivers to it, one message at a time: the owner of the partition of its digests. The admission decides
//! which delivery the loop gets when it leases. While as many notifications wait as there is room for, each is a
//! message. When more wait, all of them are merged into one [digest](crate::alerting::digest), which the loop leases,
//! attempts and ends like any other delivery. A receiver that needs a message for each unit merges nothing: there the
//! limit is a delay. Room is taken right before each message.
//!
//! # Why the notifications of a digest stay in the engine until it is delivered
//! They end as delivered, each with its attempt on record, after the receiver has the digest. Until then the digest,
//! its id, its lease and its notifications are in the [shared state](crate::alerting::limit): after a crash the same
//! digest is sent again. While it is open nothing else is sent, so that a group's notifications stay in order. A
//! digest that fails [`MAX_ATTEMPTS`] times is taken apart: its receiver is down, or refuses this digest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Deliver;
use super::engine_calls::{LeaseCall, Leased};
use crate::alerting::digest::{any_waits, gather, id_of, merged};
use crate::alerting::limit::{OpenDigest, ReceiverLimit};
use crate::alerting::{LEASE, MIN_WAIT, tick};
use crate::clock::Timestamp;
use crate::store::{AttemptEnd, Delivery, EndedLease, MAX_STEP, Result};

/// After how many attempts a digest is taken apart.
pub(in crate::alerting) const MAX_ATTEMPTS: u32 = 5;

impl Deliver {
    /// Leases the delivery of the next message, if there is room for it. `waiting`: how many groups have a
    /// notification.
    pub(super) async fn lease_admitted(
        &self,
        limit: &ReceiverLimit,
        call: &LeaseCall,
        own: &[u16],
        waiting: u64,
        now: Timestamp,
    ) -> Result<Leased> {
        if call.is_disabled {
            // Its notifications become dead letters, each by itself.
            limit.close(None).await?;
            return self.lease_due(own, call.most, now).await;
        }
        let known = limit.read().await?;
        if known.open.is_none() {
            limit.hold(None);
            if waiting == 0 {
                return Ok(Leased::nothing_for(tick(&self.ownership)));
            }
        }
        let room = match known.room(&limit.limit, now) {
            Ok(room) => room,
            Err(next) => return Ok(Leased::nothing_for(self.until(next))),
        };
        if let Some(open) = known.open {
            return self.lease_digest(limit, open, now).await;
        }
        let merges = !self.channel.is_pager() && !call.is_probe && waiting >= room as u64;
        // A group may have several waiting notifications, of which the engine counts one.
        let least = if waiting > room as u64 { 2 } else { room + 1 };
        if merges && self.open_digest(limit, (room, least), now).await? {
            return Ok(Leased::nothing_for(Duration::ZERO));
        }
        self.lease_due(own, call.most, now).await
    }

    /// Merges waiting notifications, if there are at least `least`. `false`: there is nothing to merge, or another
    /// instance has opened a digest.
    async fn open_digest(
        &self,
        limit: &ReceiverLimit,
        (room, least): (usize, usize),
        now: Timestamp,
    ) -> Result<bool> {
        let name = &self.receiver.name;
        let gathered = gather(&self.engine, name, room, now).await?;
        let is_blindness = gathered.first().is_some_and(|first| !first.blind.is_empty());
        if gathered.len() < least && !is_blindness {
            return Ok(false);
        }
        let gathered = self.engine.leave_out(name, gathered).await?;
        if gathered.iter().all(Delivery::is_empty) {
            self.end_empty(&gathered, now).await?;
            return Ok(true);
        }
        let mut members = Vec::new();
        for member in gathered {
            let Some(judged) = self.incidents.attempted(Arc::new(member), now).await else {
                return Ok(false);
            };
            members.push(Arc::unwrap_or_clone(judged));
        }
        limit.open(id_of(&members, now), members, now).await
    }

    /// Ends notifications that have no members left.
    async fn end_empty(&self, empty: &[Delivery], now: Timestamp) -> Result<()> {
        for step in in_steps(empty) {
            let step: Vec<Delivery> = step.into_iter().cloned().collect();
            self.engine.delivered(&step, now).await?;
        }
        self.telemetry.notifications_left_out(&self.receiver.name, empty.len() as u64);
        Ok(())
    }

    /// Leases the open digest, if it is due.
    async fn lease_digest(&self, limit: &ReceiverLimit, open: OpenDigest, now: Timestamp) -> Result<Leased> {
        if open.next > now {
            return Ok(Leased::nothing_for(self.until(open.next)));
        }
        if limit.members(&open.id).is_none() {
            // Another instance opened it, or this one did before a restart.
            let members = limit.stored_members().await?;
            if !self.is_up_to_date(&members).await? {
                limit.close(Some(&open.id)).await?;
                return Ok(Leased::nothing_for(Duration::ZERO));
            }
            limit.hold(Some((open.id.clone(), members)));
        }
        let members = limit.members(&open.id).unwrap_or_default();
        if !limit.lease(&open, now + LEASE).await? {
            return Ok(Leased::nothing_for(MIN_WAIT));
        }
        let digest = merged(&open.id, open.sealed_at, open.attempts + 1, &self.receiver.name, &members);
        Ok(Leased { deliveries: vec![digest], rest: Duration::ZERO })
    }

    /// Whether a digest still reports what receivers should know: one of its notifications waits, and it has no
    /// silences that ended while the receiver was not configured.
    async fn is_up_to_date(&self, members: &[Delivery]) -> Result<bool> {
        let name = &self.receiver.name;
        Ok(any_waits(&self.engine, name, members).await?
            && self.engine.leave_out(name, members.to_vec()).await? == members)
    }

    /// Writes how an attempt at a digest ended: for each of its notifications, if the receiver has it. Safe to repeat.
    pub(super) async fn end_digest(
        &self,
        limit: &ReceiverLimit,
        ended: &EndedLease,
        members: &[Delivery],
    ) -> Result<()> {
        if ended.end != AttemptEnd::Delivered {
            // The digest has no place in a queue: this only puts the attempt on record.
            let attempt = EndedLease { end: AttemptEnd::RetryAt(self.clock.now()), ..ended.clone() };
            self.end_attempts(&[attempt]).await?;
        }
        match ended.end {
            AttemptEnd::Delivered => {
                for step in in_steps(members) {
                    let step: Vec<EndedLease> =
                        step.into_iter().map(|member| end_of_member(member, members.len(), ended)).collect();
                    self.end_attempts(&step).await?;
                }
                limit.close(Some(ended.delivery.notification())).await?;
                self.telemetry.notifications_merged(&self.receiver.name, members.len() as u64);
                Ok(())
            }
            AttemptEnd::RetryAt(next) => limit.set_next(&ended.delivery, next).await.map(|_| ()),
            AttemptEnd::DeadLetter(_) => limit.close(Some(ended.delivery.notification())).await,
        }
    }
}

/// The end of one of the `count` notifications of a delivered digest.
fn end_of_member(member: &Delivery, count: usize, digest: &EndedLease) -> EndedLease {
    let attempt = digest.attempt.clone().map(|made| match count {
        1 => made,
        _ => made.in_digest(digest.delivery.notification()),
    });
    let delivery = Arc::new(Delivery { attempt: member.attempt + 1, ..member.clone() });
    EndedLease { delivery, end: AttemptEnd::Delivered, attempt }
}

/// Notifications in steps that can end together: a step has one of each group, because only the first of a group can
/// end.
fn in_steps(members: &[Delivery]) -> Vec<Vec<&Delivery>> {
    let mut steps: Vec<Vec<&Delivery>> = Vec::new();
    let mut of_group = HashMap::new();
    for member in members {
        let step: &mut usize = of_group.entry(member.group.key.as_str()).or_default();
        if steps.len() <= *step {
            steps.push(Vec::new());
        }
        steps[*step].push(member);
        *step += 1;
    }
    steps.iter().flat_map(|step| step.chunks(MAX_STEP)).map(<[&Delivery]>::to_vec).collect()
}
