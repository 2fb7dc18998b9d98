//! The state of a connection to the broker, over all its losses: a state machine without I/O.
//!
//! Its inputs are packets, ticks, answers and the current time; its outputs are [`Action`]s, in the order in which they
//! have to be carried out. The loop in [`super`] polls the client, carries the actions out and reports the publications
//! that the client had room for.
//!
//! # The stages of a connection
//! A plain subscription requests everything at once. A member of a shared subscription first requests only its own
//! canary. When a canary has come back and is recorded, both the round trip to the broker and the engine are proved.
//! Only after the engine knows that the member attends does the member request its share. A refused or deaf member
//! never receives a message of the fleet, so it delays no unit.
//!
//! To leave in order a member unsubscribes from its share. Earlier messages arrive before the canary that it publishes
//! after the broker's answer; when that canary is recorded, all of them are.
//!
//! # Why a member has short limits
//! The broker gives each message of a share to one member alone. A member that receives nothing, or whose canaries are
//! not recorded, closes its connection, and the broker gives its share to the others. A plain subscription keeps its
//! connection and its backlog. A process that was frozen finds its limit exceeded when it continues, and closes the
//! connection before it reads the remaining packets.
//!
//! # Why it watches for silence itself
//! The library pings after a time without *sending*. Canaries are sent at least every minute, so a broker that
//! disappeared without closing the connection would never be pinged. A connection on which nothing arrives for two
//! keep-alives, not even the canary, is dead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rumqttc::{ConnAck, Packet, PubAckReason, Publish, QoS, SubAck};

use super::canaries::CanarySequence;
use super::failure::no_share;
use super::link::{BrokerAck, Proof};
use super::message_age::MessageAge;
use super::probe_schedule::{ProbeOutcome, ProbeSchedule};
use super::redelivery::RedeliveryFilter;
use super::session::{Grants, Session};
use crate::clock::{Timestamp, monotonic};
use crate::fleet::BrokerPace;
use crate::intake::canary::Canary;
use crate::intake::drops;
use crate::intake::reader::{Content, Incoming};
use crate::intake::record::{Ack, QueuedMessage};
use crate::intake::standstill::Standstill;
use crate::telemetry::ConnectionLoss;

mod action;
mod liveness;

pub use action::{Action, Actions, Now, Requests};
use liveness::Liveness;

pub use liveness::UNPROVED_TRIPS;

/// The longest time for leaving in order.
const LEAVING: Duration = Duration::from_secs(3);
/// The round trips of leaving in order: the answer of the broker, and a canary.
const LEAVING_TRIPS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    /// The first requests are not granted yet.
    Subscribing,
    /// A member waits for its first canary to come back.
    Proving,
    /// A member attends, and has requested its share.
    SubscribingShare,
    /// Everything is granted.
    Hearing,
    /// A member unsubscribes from its share.
    Unsubscribing,
    /// A member without a share waits for the canary with this number, its last message.
    Draining(u64),
    /// No more messages are taken.
    Closed,
}

pub(in crate::intake) struct ConnectionState {
    session: Arc<Session>,
    /// The pace of canaries, and the gap between them that is blind time.
    pace: BrokerPace,
    /// The number of the connection; it grows by one for each. The first number is random, so that a client that cannot
    /// read the last wills of members cannot forge one.
    number: u64,
    stage: ConnectionStage,
    is_stopping: bool,
    liveness: Liveness,
    leave_until: Instant,
    canaries: CanarySequence,
    transit: MessageAge,
    /// Its signs are packets of any kind.
    standstill: Standstill,
    /// The longest time between two of them while the broker runs; `None` until the first canary has measured the way.
    longest_silence: Option<Duration>,
    /// When reading last resumed after a stop.
    read_again: Timestamp,
    redelivery: RedeliveryFilter,
    /// Canaries that were sent up to this moment prove nothing.
    deaf_until: Timestamp,
    /// The probes; only one connection has them.
    probes: Option<ProbeSchedule>,
}

impl ConnectionState {
    /// `heard`: how far an earlier process has heard with this session. `instance`: names this process in its
    /// canaries.
    pub fn new(
        session: Arc<Session>,
        pace: BrokerPace,
        heard: Option<Timestamp>,
        instance: &str,
        probes: Option<ProbeSchedule>,
        number: u64,
    ) -> ConnectionState {
        let now = monotonic();
        ConnectionState {
            number,
            stage: ConnectionStage::Closed,
            is_stopping: false,
            liveness: Liveness::new(session.limits, now),
            leave_until: now,
            canaries: CanarySequence::new(instance),
            transit: MessageAge::new(heard, pace.most_age()),
            standstill: Standstill::default(),
            longest_silence: None,
            read_again: Timestamp::ZERO,
            // Twice as many, because the same number of acknowledgements may be on their way to the broker.
            redelivery: RedeliveryFilter::new(2 * session.most_unacknowledged),
            deaf_until: Timestamp::ZERO,
            probes,
            session,
            pace,
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// The time between two canaries.
    pub fn period(&self) -> Duration {
        self.pace.period(self.session.canary_period)
    }

    /// The room in the queue for messages with an acknowledgement: reading stops at one message more than may be
    /// unacknowledged.
    pub fn reserved(&self) -> usize {
        self.session.most_unacknowledged + 1
    }

    pub fn is_sending_canaries(&self) -> bool {
        matches!(
            self.stage,
            ConnectionStage::Proving | ConnectionStage::Hearing | ConnectionStage::Draining(_)
        )
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Returns whether nothing is lost if the connection ends now.
    pub fn has_left(&self, proof: &Proof) -> bool {
        !self.is_member() || proof.left || proof.attends != self.number
    }

    pub fn on_connect(&mut self, now: Instant) {
        self.number += 1;
        self.stage = ConnectionStage::Subscribing;
        self.is_stopping = false;
        self.liveness = Liveness::new(self.session.limits, now);
        self.standstill.looked_away();
        self.longest_silence = None;
        self.canaries.connecting();
    }

    /// Takes a packet, while the queue has `room`. `read` reads a new message.
    pub fn on_packet(
        &mut self,
        packet: &Packet,
        now: Now,
        room: usize,
        read: impl FnOnce(&Incoming) -> Content,
        actions: &mut Actions,
    ) {
        // This check comes first: a process that was frozen is too late for the waiting packets.
        if self.end_if_overdue(now.instant, actions) {
            return;
        }
        self.liveness.packet_arrived(now.instant);
        self.standstill.sign(now.instant, now.clock, self.longest_silence);
        match packet {
            Packet::Publish(publish) => self.on_publish(publish, now, room, read, actions),
            Packet::ConnAck(answer) => {
                self.liveness.requested(now.instant);
                self.on_connack(answer, now.clock, actions);
            }
            Packet::SubAck(answer) => {
                self.liveness.answered();
                self.on_suback(answer, now.clock, actions);
            }
            Packet::UnsubAck(_) if self.stage == ConnectionStage::Unsubscribing => {
                self.stage = ConnectionStage::Draining(self.canaries.next());
                actions.push(Action::TickNow);
            }
            _ => {}
        }
    }

    fn on_connack(&mut self, answer: &ConnAck, now: Timestamp, actions: &mut Actions) {
        if let Some(why) = no_share(answer).filter(|_| self.is_member()) {
            return actions.push(Action::End(ConnectionLoss::Refused, why.to_owned()));
        }
        if !answer.session_present {
            self.redelivery.session_began();
            self.transit.session_began(now);
        }
        // The broker may set another keep-alive than the requested one.
        let theirs = answer.properties.as_ref().and_then(|properties| properties.server_keep_alive);
        let theirs = theirs.map_or(Duration::ZERO, |seconds| Duration::from_secs(seconds.into()));
        let release = self.session.release(self.session.keep_alive.max(theirs));
        actions.push(Action::Accept { release });
        // Subscribe in an old session too, because the topics may be new.
        actions.push(Action::Subscribe(Requests::First));
    }

    fn on_suback(&mut self, answer: &SubAck, now: Timestamp, actions: &mut Actions) {
        let requests = match self.stage {
            ConnectionStage::Subscribing => &self.session.first,
            ConnectionStage::SubscribingShare => &self.session.share_requests,
            _ => return actions.push(Action::TickNow),
        };
        let grants = Grants::of(answer, requests);
        let (refused, is_nothing_granted) = (grants.refusal(), grants.is_nothing_granted);
        actions.push(Action::ReportGrants(grants));
        if let Some(why) = refused {
            if self.stage == ConnectionStage::SubscribingShare && is_nothing_granted {
                // The member received no message, so its end must leave no trace in the engine.
                actions.push(Action::Record(self.queued(Content::Unsubscribed, now, None)));
            }
            return actions.push(Action::End(ConnectionLoss::Refused, why));
        }
        if self.stage == ConnectionStage::Subscribing && self.is_member() {
            self.stage = ConnectionStage::Proving;
        } else {
            self.stage = ConnectionStage::Hearing;
            actions.push(Action::ReportConnected);
        }
        actions.push(Action::TickNow);
    }

    /// In one piece: each step handles what the previous step left of the message.
    fn on_publish(
        &mut self,
        publish: &Publish,
        Now { clock: now, instant }: Now,
        room: usize,
        read: impl FnOnce(&Incoming) -> Content,
        actions: &mut Actions,
    ) {
        let (topic, payload) = (&publish.topic, &publish.payload);
        if topic.as_ref() == drops::TOPIC.as_bytes() {
            return actions.push(Action::CountBrokerDrops);
        }
        if self.stage == ConnectionStage::Closed {
            return;
        }
        let is_acknowledged = publish.qos != QoS::AtMostOnce;
        let ack = is_acknowledged
            .then_some(Ack::Broker(BrokerAck { connection: self.number, packet: publish.pkid }));
        let is_new =
            !is_acknowledged || self.redelivery.is_new(publish.pkid, publish.dup, topic, payload, now);
        let mut content = if is_new {
            let (sent_after, sent_before) = (self.transit.sent_after(), self.transit.sent_before(now));
            let reply_to = publish.properties.as_ref().and_then(|properties| {
                let correlation = properties.correlation_data.as_deref().unwrap_or_default();
                Some((properties.response_topic.as_deref()?, correlation))
            });
            let stood_still = self.standstill.is_recent(instant);
            let retain = publish.retain;
            read(&Incoming { topic, payload, retain, sent_after, sent_before, stood_still, reply_to })
        } else {
            // Queue this message after the original, so that it is acknowledged after the original is recorded.
            Content::Nothing
        };
        let mut is_last = false;
        if let Content::OfAnother(topic, probe) = content {
            actions.push(Action::TellOfProbe(topic, probe));
            content = Content::Nothing;
        }
        if let Some(after) = content.canary_after() {
            actions.push(Action::TickAfter(after));
        }
        match &content {
            Content::Heartbeat(_) | Content::Several(_) if self.transit.is_unbounded(now) => {
                self.deaf_until = self.deaf_until.max(now);
            }
            Content::Canary(canary) => {
                is_last = matches!(self.stage, ConnectionStage::Draining(seq) if canary.seq >= seq);
                if !self.is_proof(canary, now) {
                    content = Content::Nothing;
                }
            }
            _ => {}
        }
        let counts = content != Content::Nothing;
        if !is_acknowledged && !counts {
            return;
        }
        if !is_acknowledged && room <= self.reserved() {
            if !matches!(content, Content::Timer(_)) {
                self.deaf_until = now + self.deafness();
            }
            return actions.push(Action::RejectOverflow);
        }
        actions.push(Action::Record(self.queued(content, now, ack)));
        if is_last && counts {
            actions.push(Action::Record(self.queued(Content::Unsubscribed, now, None)));
            self.close(actions);
        }
    }

    /// Returns whether a canary that came back proves that the messages before it were heard.
    fn is_proof(&mut self, canary: &Canary, now: Timestamp) -> bool {
        let returned = self.canaries.returned(canary);
        self.standstill.canary_returned(canary.sent_at());
        if self.transit.canary_returned(canary.sent_at(), now) {
            self.redelivery.canary_returned(canary.sent_at());
            if returned.is_proof {
                let sent = canary.sent_at().max(self.read_again);
                self.pace.canary_returned(&self.session.client_id, sent, now);
                self.longest_silence = Some(self.period() + self.pace.round_trip());
            }
        }
        if let Some(before) = returned.lost_after {
            self.deaf_until = self.deaf_until.max(before + self.deafness());
        }
        returned.is_proof && canary.sent_at() > self.deaf_until
    }

    /// A period has passed: sends probes and a canary.
    pub fn on_tick(&mut self, now: Instant, actions: &mut Actions) {
        self.transit.set_gap(self.pace.most_age());
        // Send probes before the canary: when the canary is recorded, the probes are too.
        if let Some(probes) = self.probes.as_ref().filter(|_| self.stage == ConnectionStage::Hearing) {
            let due = probes.due(now, &self.pace, self.period());
            actions.extend(due.map(Action::PublishProbe));
        }
        if self.canaries.has_room(now, self.pace.gap() / 2) {
            actions.push(Action::SendCanary(self.canaries.next()));
        }
    }

    /// Notes that the client had room for a canary. A canary without room is missing later, but the broker did not
    /// lose it.
    pub fn canary_sent(&mut self, seq: u64, now: Instant) {
        self.canaries.sent(seq, now);
    }

    /// Notes that the client had room for a probe.
    pub fn probe_published(&mut self, index: usize, now: Instant) {
        self.probes.iter_mut().for_each(|probes| probes.published(index, now));
    }

    /// Takes the broker's answer to a probe; `None` if no answer will come.
    pub fn on_probe_answer(
        &mut self,
        index: usize,
        answer: Option<PubAckReason>,
        now: Instant,
        actions: &mut Actions,
    ) {
        let outcome = self.probes.as_mut().and_then(|probes| probes.answered(index, answer, now));
        actions.extend(outcome.map(|outcome| Action::ProbeAnswered(index, outcome)));
    }

    /// Takes a new proof of the recorder.
    pub fn on_proof(&mut self, proof: &Proof, now: Now, actions: &mut Actions) {
        if let Some(at) = proof.at {
            self.liveness.proved(at);
            self.redelivery.acknowledged(proof.canary, now.clock);
        }
        if self.stage == ConnectionStage::Proving && proof.attends == self.number {
            self.stage = ConnectionStage::SubscribingShare;
            self.liveness.attend(now.instant, proof.round_trip);
            self.liveness.requested(now.instant);
            actions.push(Action::Subscribe(Requests::Share));
        }
    }

    pub fn on_stop(&mut self, now: Instant, actions: &mut Actions) {
        self.is_stopping = true;
        if self.stage == ConnectionStage::Hearing && self.is_member() {
            self.stage = ConnectionStage::Unsubscribing;
            self.leave_until = now + LEAVING + LEAVING_TRIPS * self.pace.round_trip();
            actions.push(Action::UnsubscribeShare);
        } else {
            self.close(actions);
        }
    }

    /// Notes that reading resumes after a stop of this length. A stop of a period or more waited for the engine:
    /// canaries that waited with it prove nothing about the way to the broker.
    pub fn on_read_again(&mut self, stopped: Duration, now: Timestamp) {
        if stopped >= self.period() {
            self.read_again = now;
        }
        self.standstill.looked_away();
    }

    /// The next moment at which [`ConnectionState::on_timer`] may have an action.
    pub fn next_timer(&self) -> Instant {
        let limit = self.liveness.limit();
        if self.is_leaving() { limit.min(self.leave_until) } else { limit }
    }

    /// Handles an expired timer. `is_held_back`: reading has stopped, so the broker does not count as silent.
    pub fn on_timer(&mut self, now: Instant, is_held_back: bool, actions: &mut Actions) {
        if is_held_back {
            self.liveness.held_back(now);
        }
        if self.is_leaving() && now >= self.leave_until {
            self.close(actions);
        }
        self.end_if_overdue(now, actions);
    }

    /// Handles the report of the client that the connection has ended.
    pub fn on_disconnect(&mut self, loss: ConnectionLoss, why: String, now: Instant, actions: &mut Actions) {
        if !self.end_if_overdue(now, actions) {
            actions.push(Action::End(loss, why));
        }
    }

    /// Handles the end of the connection; `loss`: the reason, unless Rollcall ended it.
    pub fn on_end(&mut self, loss: Option<ConnectionLoss>, now: Instant, actions: &mut Actions) {
        self.redelivery.connection_lost();
        self.pace.connection_ended(&self.session.client_id);
        if let (Some(probes), Some(loss)) = (&mut self.probes, loss) {
            let given_up = probes.connection_lost(loss, now).into_iter();
            actions.extend(given_up.map(|index| Action::ProbeAnswered(index, ProbeOutcome::EndsConnection)));
        }
    }

    fn end_if_overdue(&self, now: Instant, actions: &mut Actions) -> bool {
        let why = self.liveness.exceeded(now);
        let is_overdue = why.is_some();
        actions.extend(why.map(|why| Action::End(ConnectionLoss::Silent, why)));
        is_overdue
    }

    /// How long canaries prove nothing after a loss, so that this time becomes blind.
    fn deafness(&self) -> Duration {
        self.pace.gap() + self.session.canary_period
    }

    fn is_member(&self) -> bool {
        self.session.share.is_some()
    }

    fn is_leaving(&self) -> bool {
        matches!(self.stage, ConnectionStage::Unsubscribing | ConnectionStage::Draining(_))
    }

    fn close(&mut self, actions: &mut Actions) {
        self.stage = ConnectionStage::Closed;
        self.liveness.close();
        actions.push(Action::StopTaking);
    }

    fn queued(&self, content: Content, arrived: Timestamp, ack: Option<Ack>) -> QueuedMessage {
        QueuedMessage { content, arrived, connection: self.number, ack }
    }
}

#[cfg(test)]
mod tests;
