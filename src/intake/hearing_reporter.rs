//! Reports hearing to the engine: the canaries of this process, and the last wills of other members.
//!
//! Events come in order, each after all messages before it were recorded. A plain subscription reports its canaries
//! ([`canary::to_report`] selects them). A member of a shared subscription attends with the first canary that comes
//! back, and later canaries prove its hearing.
//!
//! Probes since the last canary are reported with the next canary: everything before them is recorded then, and one
//! call reports all.
//!
//! # When the engine does not know a member that has a connection
//! Another client reported to the engine that the broker had dropped the member. If that is true, its connection ends
//! by itself, and the next one attends again; the same holds for a process that was frozen and finds old canaries in
//! its queue. If it is false (a forged last will, from a client that may write to Rollcall's topics), the member has
//! missed no message: a canary proves that if it is hardly older than a round trip. So the member joins again from that
//! canary on, and the reported time does not count as blind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::canary::{self, ReportedCanary};
use super::engine_writer::EngineWriter;
use super::mqtt::{Link, Proof, UNPROVED_TRIPS};
use super::probe::{Probe, Probes};
use crate::clock::{Timestamp, monotonic};
use crate::fleet::{BrokerPace, Roll};
use crate::presence::{Announcement, Kind, Probed};
use crate::store::{ShareMember, Subscription};

/// Something to report to the engine, or to check against a canary.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HearingEvent {
    /// A canary of that connection came back.
    Canary { connection: u64, sent_at: Timestamp },
    /// The probe of the filter with this index came back.
    Probe { index: usize, sent_at: Timestamp },
    /// The broker has dropped a member.
    MemberLost { member: ShareMember, at: Timestamp },
    /// A unit is announced as gone; nothing to report to the engine.
    Announced { connection: u64, announcement: Box<Announcement>, arrived: Timestamp },
    /// The bridge of this kind ended; nothing to report to the engine.
    BridgeLost { kind: Kind },
    /// This connection has unsubscribed from its share, and all its messages are recorded.
    Unsubscribed { connection: u64 },
}

pub(super) struct HearingReporter {
    /// The name of the broker.
    broker: String,
    client_id: String,
    /// The share of a member; `None` for a plain subscription.
    share: Option<String>,
    /// The proof of the share at one of several brokers: its name among the proofs, and the kinds that are heard there.
    of_share: Option<(String, Vec<Kind>)>,
    /// How long the broker keeps the session of a plain subscription.
    session_expiry: Duration,
    proof: watch::Sender<Proof>,
    /// The number of the first connection of this process that reported a canary.
    first: Option<u64>,
    /// The number of the connection that attends.
    attends: u64,
    /// The last canary that was reported: the number of its connection, and when it was sent.
    last_canary: Option<(u64, Timestamp)>,
    probes: ProbeReports,
    /// Devices connect straight to Rollcall.
    has_no_broker: bool,
    /// Other brokers hear other messages, so the end of a connection is blind time for its kinds, although the fleet is
    /// heard.
    is_one_of_several: bool,
}

impl HearingReporter {
    /// A reporter for the connection of client `client_id` to the broker with this name; it publishes its proofs
    /// through `proof`. `share`: for a member of a shared subscription; `session_expiry`: how long the broker keeps the
    /// session of a plain subscription.
    pub fn new(
        (broker, client_id): (&str, &str),
        share: Option<String>,
        session_expiry: Duration,
        proof: watch::Sender<Proof>,
        probes: Arc<Probes>,
    ) -> HearingReporter {
        HearingReporter {
            broker: broker.to_owned(),
            client_id: client_id.to_owned(),
            share,
            of_share: None,
            session_expiry,
            proof,
            first: None,
            attends: 0,
            last_canary: None,
            probes: ProbeReports::new(probes),
            has_no_broker: false,
            is_one_of_several: false,
        }
    }

    /// `proof_of_share`: the name of the share among the proofs, if there is one.
    pub fn one_of_several(self, proof_of_share: Option<String>) -> HearingReporter {
        let kinds: BTreeSet<Kind> = self.probes.kinds().cloned().collect();
        let of_share = proof_of_share.map(|proof| (proof, kinds.into_iter().collect()));
        HearingReporter { is_one_of_several: true, of_share, ..self }
    }

    /// The reporter of the listener. Its ticks do not queue behind the messages of a connection that is held back, so a
    /// tick that was recorded late proves nothing: time without the engine is blind.
    #[cfg(feature = "broker")]
    pub fn without_broker(self) -> HearingReporter {
        HearingReporter { has_no_broker: true, ..self }
    }

    /// Reports events. Returns `false` if not all of them were reported, because Rollcall is stopping and the engine is
    /// away.
    pub async fn report(
        &mut self,
        writer: &EngineWriter,
        events: &[HearingEvent],
        link: &watch::Receiver<Link>,
    ) -> bool {
        let reported = async {
            let gap = self.pace(writer).gap();
            let oldest = if self.has_no_broker { writer.clock.now() - gap } else { Timestamp::ZERO };
            let due = self.to_report(events, gap, oldest);
            for event in events {
                match event {
                    HearingEvent::Canary { connection, sent_at } => {
                        let own = (connection, sent_at);
                        if let Some((_, canary)) =
                            due.iter().find(|(of, canary)| (of, &canary.sent_at) == own)
                        {
                            self.canary(writer, *connection, *canary, link).await?;
                        }
                    }
                    HearingEvent::Probe { index, sent_at } => self.probes.returned(*index, *sent_at),
                    HearingEvent::MemberLost { member, at } => {
                        self.member_lost(writer, member, *at, link).await?
                    }
                    HearingEvent::Announced { .. } | HearingEvent::BridgeLost { .. } => {}
                    HearingEvent::Unsubscribed { connection } => {
                        self.unsubscribed(writer, *connection).await?
                    }
                }
            }
            Some(())
        };
        reported.await.is_some()
    }

    /// The canaries among these events that must be reported, by connection: a canary of an earlier connection closes
    /// no gap before a new one.
    fn to_report(
        &self,
        events: &[HearingEvent],
        gap: Duration,
        oldest: Timestamp,
    ) -> Vec<(u64, ReportedCanary)> {
        let came = events.iter().filter_map(HearingEvent::canary).filter(|(_, sent_at)| *sent_at >= oldest);
        let came: Vec<(u64, Timestamp)> = came.collect();
        let of_one = came.chunk_by(|a, b| a.0 == b.0).flat_map(|canaries| {
            let connection = canaries[0].0;
            let times: Vec<Timestamp> = canaries.iter().map(|(_, sent_at)| *sent_at).collect();
            let last = self.last_canary.filter(|(of, _)| *of == connection).map(|(_, sent_at)| sent_at);
            let due = canary::to_report(&times, last, gap);
            due.into_iter().map(move |canary| (connection, canary))
        });
        of_one.collect()
    }

    async fn canary(
        &mut self,
        writer: &EngineWriter,
        connection: u64,
        ReportedCanary { sent_at, unbroken }: ReportedCanary,
        link: &watch::Receiver<Link>,
    ) -> Option<()> {
        let subscription = match self.member(connection) {
            Some(member) if self.attends != connection => {
                return self.attend(writer, &member, sent_at, link).await;
            }
            Some(member) => match &self.of_share {
                None => Subscription::Member(member),
                Some((proof, kinds)) => {
                    let of_kind = |kind: &Kind| {
                        let (kind, filter) = (kind.clone(), proof.clone());
                        Probed { kind, filter, sent_at, gap: unbroken }
                    };
                    Subscription::MemberAtBroker { member, proofs: kinds.iter().map(of_kind).collect() }
                }
            },
            None => self.plain(connection, link.borrow().taken_since),
        };
        if self.is_one_of_several && self.last_canary.is_some_and(|(of, _)| of != connection) {
            self.probes.cut();
        }
        let probed = self.probes.probed(&writer.roll, &self.pace(writer), sent_at);
        if writer
            .ask_until_answered("canaries", || {
                writer.roll.canary_of(&subscription, (sent_at, unbroken), &probed, writer.clock.now())
            })
            .await?
        {
            self.probes.reported();
            self.probes.probes.broker_answered(sent_at);
            writer.telemetry.canary_returned(&self.broker, writer.clock.now().since(sent_at));
            self.last_canary = Some((connection, sent_at));
            self.proof.send_modify(|proof| {
                proof.at = Some(monotonic());
                proof.canary = sent_at;
            });
        } else if let Some(member) = subscription.member() {
            self.attend_again(writer, member, sent_at, link).await?;
        }
        Some(())
    }

    /// Handles a canary of a member that the engine does not know.
    async fn attend_again(
        &self,
        writer: &EngineWriter,
        member: &ShareMember,
        sent_at: Timestamp,
        link: &watch::Receiver<Link>,
    ) -> Option<()> {
        let (number, release) = link.borrow().current();
        if number != member.connection || writer.clock.now().since(sent_at) > self.pace(writer).most_age() {
            return Some(());
        }
        tracing::warn!(
            client_id = member.client_id,
            "the engine does not know this connection any more, which is open: the engine lost its data, or another \
             client reported that the broker had dropped the connection; does any client but Rollcall write to {}#?",
            canary::PREFIX
        );
        self.probes.probes.members_forgotten(writer.clock.now() + release);
        writer.ask_until_answered("members", || writer.roll.attend(member, sent_at, release)).await
    }

    /// Handles a canary of a connection that does not attend yet.
    async fn attend(
        &mut self,
        writer: &EngineWriter,
        member: &ShareMember,
        sent_at: Timestamp,
        link: &watch::Receiver<Link>,
    ) -> Option<()> {
        let (number, release) = link.borrow().current();
        // A late canary of an earlier connection proves nothing about this one.
        if number != member.connection {
            return Some(());
        }
        let now = writer.clock.now();
        let round_trip = self.pace(writer).round_trip();
        let release = release + UNPROVED_TRIPS * round_trip;
        writer.ask_until_answered("members", || writer.roll.attend(member, now, release)).await?;
        self.probes.probes.broker_answered(sent_at);
        writer.telemetry.canary_returned(&self.broker, now.since(sent_at));
        self.attends = member.connection;
        self.last_canary = Some((member.connection, now));
        self.proof.send_replace(Proof {
            attends: self.attends,
            at: Some(monotonic()),
            canary: sent_at,
            left: false,
            round_trip,
        });
        Some(())
    }

    async fn member_lost(
        &self,
        writer: &EngineWriter,
        member: &ShareMember,
        at: Timestamp,
        link: &watch::Receiver<Link>,
    ) -> Option<()> {
        if writer.ask_until_answered("members", || writer.roll.depart(member, Some(at))).await? {
            tracing::warn!(
                share = member.share,
                client_id = member.client_id,
                "the broker has dropped a member of the shared subscription; the messages that it was given are lost, \
                 and that time does not count as silence"
            );
        }
        link.borrow().remove_will(&member.client_id);
        Some(())
    }

    async fn unsubscribed(&mut self, writer: &EngineWriter, connection: u64) -> Option<()> {
        let Some(member) = self.member(connection).filter(|_| self.attends == connection) else {
            return Some(());
        };
        writer.ask_until_answered("members", || writer.roll.depart(&member, None)).await?;
        self.attends = 0;
        self.proof.send_modify(|proof| proof.left = true);
        Some(())
    }

    fn plain(&mut self, connection: u64, taken_since: Option<Timestamp>) -> Subscription {
        let first = *self.first.get_or_insert(connection);
        let (client_id, span) = (self.client_id.clone(), self.session_expiry);
        Subscription::Kept { client_id, connection, was_cut: connection != first, taken_since, span }
    }

    fn pace(&self, writer: &EngineWriter) -> BrokerPace {
        writer.roll.pace().at(&self.broker)
    }

    fn member(&self, connection: u64) -> Option<ShareMember> {
        let share = self.share.clone()?;
        Some(ShareMember { share, client_id: self.client_id.clone(), connection })
    }
}

impl HearingEvent {
    /// A canary: the number of its connection, and when it was sent.
    pub fn canary(&self) -> Option<(u64, Timestamp)> {
        match self {
            HearingEvent::Canary { connection, sent_at } => Some((*connection, *sent_at)),
            _ => None,
        }
    }
}

/// The most probes of a filter that wait for a canary; beyond it the oldest are dropped, and their time is blind.
const MAX_PROBES: usize = 1000;

/// Probes that are not reported yet.
struct ProbeReports {
    probes: Arc<Probes>,
    /// For each filter, the send times of the probes that came back since the last report.
    returned: Vec<Vec<Timestamp>>,
    /// For each filter, the send time of the last reported probe.
    reported: Vec<Option<Timestamp>>,
    /// For each filter, whether an ended connection may have lost messages since that probe.
    is_cut: Vec<bool>,
}

impl ProbeReports {
    /// The kinds that the filters hear.
    fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.probes.all().iter().flat_map(|probe| &probe.kinds).map(|rules| &rules.kind)
    }

    fn new(probes: Arc<Probes>) -> ProbeReports {
        let count = probes.all().len();
        ProbeReports {
            probes,
            returned: vec![Vec::new(); count],
            reported: vec![None; count],
            is_cut: vec![false; count],
        }
    }

    fn returned(&mut self, index: usize, sent_at: Timestamp) {
        let returned = &mut self.returned[index];
        if returned.len() == MAX_PROBES {
            returned.remove(0);
        }
        returned.push(sent_at);
    }

    /// A connection ended, and another client may have used its session.
    fn cut(&mut self) {
        self.is_cut.fill(true);
    }

    /// The proofs to report with a canary that was sent at `sent_at`.
    fn probed(&mut self, roll: &Roll, pace: &BrokerPace, sent_at: Timestamp) -> Vec<Probed> {
        let mut probed = Vec::new();
        let gap_of = |kind: &Kind| {
            roll.shared_rules().of(kind.as_str()).map_or(pace.gap(), |rules| pace.probe_gap(&rules))
        };
        let probes = self.probes.clone();
        for (index, probe) in probes.all().iter().enumerate() {
            let Probe { kinds, proof, .. } = probe;
            let mut gap = kinds.iter().map(|rules| gap_of(&rules.kind)).min().unwrap_or_default();
            let status = probe.status();
            if status.refused.is_some() {
                // Units publish at their own pace, and their messages after the canary are not recorded yet.
                gap = kinds.iter().map(|rules| pace.shortest_of(rules)).min().unwrap_or(gap).max(gap);
                let heard = status.unit_heard.map(|heard| heard.min(sent_at));
                let is_later =
                    |heard: &Timestamp| self.returned[index].last().is_none_or(|last| last < heard);
                heard.filter(is_later).into_iter().for_each(|heard| self.returned(index, heard));
            }
            let proofs = canary::to_report(&self.returned[index], self.reported[index], gap);
            for rules in kinds.iter().filter(|rules| !probes.is_held(&rules.kind)) {
                probed.extend(proofs.iter().map(|ReportedCanary { sent_at, unbroken }| Probed {
                    kind: rules.kind.clone(),
                    filter: proof.clone(),
                    sent_at: *sent_at,
                    gap: match self.is_cut[index] {
                        true => Duration::ZERO,
                        false => gap_of(&rules.kind).max(*unbroken),
                    },
                }));
            }
        }
        probed
    }

    fn reported(&mut self) {
        let each = self.returned.iter_mut().zip(&mut self.reported).zip(&mut self.is_cut);
        for ((returned, reported), is_cut) in each {
            *is_cut &= returned.is_empty();
            *reported = returned.drain(..).max().max(*reported);
        }
    }
}
