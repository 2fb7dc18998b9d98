//! Hearing: the rules of [`crate::presence::HearingState`], applied to the stored state.
//!
//! Each step reads the state, lets the rule change a copy, and writes the difference if the state is unchanged: see
//! `conditional.rs`. `ledger.rs` reads the ledger of blind intervals; `fleet_loss.rs` detects the loss of the fleet.
//!
//! # Why a canary is recorded by the servers of one view
//! If a server is replaced, heartbeats that it has acknowledged may be lost. Whether a server was replaced is decided
//! from the servers in the view. If a new primary outside of the view recorded that decision, its lost heartbeats
//! would count as heard. So if servers change during the call, the call decides again.
//!
//! # Why a smaller `heard` is blind time
//! A server that starts again without its last writes has lost heartbeats as well. Its `heard` is then earlier than
//! the `heard` that this instance knows was stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::{FromRedisValue, Pipeline, pipe};

use super::RedisEngine;
use super::conditional::{ConditionalWrite, Expect, HashFields};
use super::hearing_fields::{HearingFields, filter_field, membership, parse_filter};
use super::ledger::{HearingReply, TAKEN};
use super::reading::milliseconds;
use super::topology::ServerView;
use super::watermarks::{HAS_WATERMARKS, Watermarks, primaries};
use crate::clock::{Stopwatch, Timestamp};
use crate::presence::{
    BLIND_RETENTION, BlindInterval, CanaryEffect, FilterBlindness, Gap, Hearing, HearingState, Interval,
    Kind, Probed, ShareHeard, ShareMember, Subscription, is_plausible, prove,
};
use crate::store::{Advance, DataLoss, EngineError, HearingStore, Result};

/// The field with the partitions whose loss was written, until each partition has its watermark again.
const EMPTIED: &[u8] = b"emptied";
/// The field with the moment at which the fleet or partitions were last lost: earlier reads are outdated, also those
/// of other instances.
pub(super) const EMPTIED_AT: &[u8] = b"emptied_at";
/// How long a canary is decided again while the servers change.
const MAX_WAIT: Duration = Duration::from_secs(2);

#[async_trait]
impl HearingStore for RedisEngine {
    async fn hearing(&self) -> Result<Hearing> {
        let last = self.server_clock.lock().last_renewal();
        let mut short = pipe();
        self.add_hearing_reads(&mut short);
        let stored = self.topology.send("hearing", &short).await?;
        self.hearing_of(stored, last).await
    }

    async fn advance(&self, subscription: &Subscription, sent_at: Timestamp, gap: Gap) -> Result<Advance> {
        self.advance_and::<()>(subscription, sent_at, gap, &pipe()).await.map(|(advance, ())| advance)
    }

    async fn advance_and_hear(
        &self,
        subscription: &Subscription,
        sent_at: Timestamp,
        gap: Gap,
    ) -> Result<(Advance, Hearing)> {
        let last = self.server_clock.lock().last_renewal();
        let mut reads = pipe();
        self.add_hearing_reads(&mut reads);
        let (advance, stored): (Advance, HearingReply) =
            self.advance_and(subscription, sent_at, gap, &reads).await?;
        Ok((advance, self.hearing_of(stored, last).await?))
    }

    async fn prove(&self, probed: &[Probed]) -> Result<()> {
        let keys = [self.keys.filters(), self.keys.heard()];
        let decide = |read: &[&HashFields], _: bool, write: &mut ConditionalWrite<'_>| {
            let [filters, heard] = read else { unreachable!("as many as keys") };
            let proofs = FilterChanges::new(filters, |_| probed.to_vec());
            proofs.expect(write);
            write.expect_some(heard, proofs.version().map(|name| (name, Expect::Same)).into_iter());
            self.write_proofs(&proofs, heard, write);
        };
        self.write_if_unchanged("prove", &keys, &pipe(), decide).await.map(|((), ())| ())
    }

    async fn heard_by(&self, client_id: &str) -> Result<Option<Timestamp>> {
        let mut one = pipe();
        one.get(self.keys.session(client_id));
        // A value that is not a moment counts as absent: the time of that session is blind.
        let (heard,): (Option<Vec<u8>>,) = self.topology.send("heard_by", &one).await?;
        Ok(heard.as_deref().and_then(milliseconds).map(Timestamp::from_millis))
    }

    async fn attend(&self, member: &ShareMember, now: Timestamp, release: Duration) -> Result<()> {
        self.change_members("attend", |state| state.attend(member, now, release)).await
    }

    fn key(&self) -> &str {
        &self.key
    }

    async fn depart(&self, member: &ShareMember, dropped: Option<Timestamp>) -> Result<bool> {
        self.change_members("depart", |state| state.depart(member, dropped)).await
    }
}

/// How proofs change the stored proofs of filters.
struct FilterChanges<'a> {
    stored: &'a HashFields,
    before: BTreeMap<(Kind, String), Timestamp>,
    proved: BTreeMap<(Kind, String), Timestamp>,
    /// The fields of the filters that are proved.
    names: BTreeSet<Vec<u8>>,
    blind: Vec<(Kind, FilterBlindness)>,
}

impl<'a> FilterChanges<'a> {
    /// Lets `probed` determine the new proofs, from the stored proofs.
    fn new(
        stored: &'a HashFields,
        probed: impl FnOnce(&BTreeMap<(Kind, String), Timestamp>) -> Vec<Probed>,
    ) -> FilterChanges<'a> {
        let before: BTreeMap<_, _> = stored.iter().filter_map(|(name, at)| parse_filter(name, at)).collect();
        let (mut proved, probed) = (before.clone(), probed(&before));
        let blind = prove(&mut proved, &probed);
        let names = probed.iter().map(|one| filter_field(&one.kind, &one.filter)).collect();
        FilterChanges { stored, before, proved, names, blind }
    }

    /// The proofs of a share, from how far it has heard.
    fn of_share(stored: &'a HashFields, proofs: &[Probed], share: Option<ShareHeard>) -> FilterChanges<'a> {
        FilterChanges::new(stored, |proved| {
            share.map(|share| Probed::of_share(proofs, proved, share)).unwrap_or_default()
        })
    }

    /// Expects the next hash to have the proofs of filters on which the change depends. If the change ends no blind
    /// interval, a later proof by another instance does not void it.
    fn expect(&self, write: &mut ConditionalWrite<'_>) {
        let expect = if self.blind.is_empty() { Expect::SameOrLater } else { Expect::Same };
        if self.names.iter().all(|name| self.stored.contains_key(name)) {
            write.expect_some(self.stored, self.names.iter().map(|name| (name.as_slice(), expect)));
        } else {
            write.expect_all(self.stored, |_| expect);
        }
    }

    /// The field with the version of the ledgers of kinds, if a ledger changes.
    fn version(&self) -> Option<&'static [u8]> {
        (!self.blind.is_empty()).then_some(b"kinds".as_slice())
    }
}

/// The effect of a canary.
enum Advanced {
    Heard {
        heard: Option<Timestamp>,
        blind: Option<BlindInterval>,
    },
    NotAMember,
    /// Nothing was written: the server holds another fleet than the one known here.
    AnotherFleet,
}

impl RedisEngine {
    /// Advances hearing, and then runs the commands in `behind`.
    async fn advance_and<U: FromRedisValue>(
        &self,
        subscription: &Subscription,
        sent_at: Timestamp,
        gap: Gap,
        behind: &Pipeline,
    ) -> Result<(Advance, U)> {
        let began = Stopwatch::start();
        loop {
            let view = self.topology.view().await?;
            match self.advance_under(&view, (subscription, sent_at, gap), behind).await {
                Err(EngineError::Passing(_))
                    if self.topology.has_changed_since(&view) && began.elapsed() < MAX_WAIT => {}
                answer => return answer,
            }
        }
    }

    /// Detects a loss of the fleet, then advances hearing by the servers of a view.
    async fn advance_under<U: FromRedisValue>(
        &self,
        view: &Arc<ServerView>,
        canary: (&Subscription, Timestamp, Gap),
        behind: &Pipeline,
    ) -> Result<(Advance, U)> {
        let mut loss = None;
        let (mut advanced, mut others) = self.try_to_advance(view, canary, behind).await?;
        if matches!(advanced, Advanced::AnotherFleet) {
            loss = self.notice_loss(canary.1, canary.2.tell_after).await?;
            (advanced, others) = self.try_to_advance(view, canary, behind).await?;
        }
        let advance = match advanced {
            Advanced::NotAMember => Advance::NotAMember,
            Advanced::Heard { blind, .. } => Advance::Heard(blind.map(|blind| blind.interval).or(loss)),
            Advanced::AnotherFleet => {
                let why = "the server lost its data again while a loss was handled";
                return Err(EngineError::Unavailable(why.to_owned()));
            }
        };
        Ok((advance, others))
    }

    async fn try_to_advance<U: FromRedisValue>(
        &self,
        view: &Arc<ServerView>,
        canary: (&Subscription, Timestamp, Gap),
        behind: &Pipeline,
    ) -> Result<(Advanced, U)> {
        let watermarks = self.read_watermarks().await?;
        if self.topology.has_changed_since(view) {
            let why = "other primaries were learned while a canary was recorded";
            return Err(EngineError::Passing(why.to_owned()));
        }
        let primaries = primaries(view);
        let is_replaced = self.known_primaries.is_one_replaced(&primaries);
        let mut keys = vec![self.keys.heard(), self.keys.members(), self.keys.floors()];
        match canary.0 {
            Subscription::Plain | Subscription::Member(_) => {}
            Subscription::Kept { .. } => keys.push(self.keys.plain()),
            Subscription::MemberAtBroker { .. } => keys.push(self.keys.filters()),
        }
        let decide = |read: &[&HashFields], is_contended: bool, write: &mut ConditionalWrite<'_>| {
            let [heard, members, floors, more @ ..] = read else { unreachable!("as many as keys") };
            let more = more.first().copied();
            let (sessions, filters) = match canary.0 {
                Subscription::MemberAtBroker { .. } => (None, more),
                _ => (more, None),
            };
            let fields = HearingFields { heard, members, floors, sessions };
            // Another instance may have noticed a loss.
            self.known_fleet.lock().emptied_at = heard.get(EMPTIED_AT).and_then(|ms| milliseconds(ms));
            self.advance_by((fields, filters), (&watermarks, is_replaced), canary, is_contended, write)
        };
        let emptied_before = self.known_fleet.lock().emptied_at;
        let (advanced, others) = self.write_under(Some(view), "advance", &keys, behind, decide).await?;
        if self.known_fleet.lock().emptied_at != emptied_before {
            // The examination shows the loss on `/readyz`.
            self.topology.request_examination();
        }
        if let Advanced::Heard { heard: Some(heard), blind } = &advanced {
            self.known_fleet.lock().has_stored(*heard, blind.is_some());
            self.raise_watermarks(view, *heard, &watermarks).await?;
            // A canary that was not the furthest has ended no blind interval.
            if !is_replaced || blind.is_some() {
                self.known_primaries.keep(primaries);
            }
        }
        Ok((advanced, others))
    }

    /// Decides the effect of a canary from the stored state, and adds the writes.
    fn advance_by(
        &self,
        (stored, filters): (HearingFields<'_>, Option<&HashFields>),
        (watermarks, is_replaced): (&Watermarks, bool),
        (subscription, sent_at, gap): (&Subscription, Timestamp, Gap),
        is_contended: bool,
        write: &mut ConditionalWrite<'_>,
    ) -> Advanced {
        let known = self.known_fleet.lock().clone();
        let mut state = stored.state();
        let is_true = |heard: &Timestamp| is_plausible(*heard, &[sent_at]);
        let stored_at = state.heard.filter(is_true);
        // If the stored state is lost, the heartbeats since then are lost too; if a server was replaced, some of them
        // may be.
        state.heard = stored_at.or(known.heard.filter(is_true));
        let is_lost = stored_at.map_or(known.heard.is_some(), |stored| Some(stored) < known.furthest);
        let before = state.heard;
        let has_lost = before.is_some_and(|heard| watermarks.have_lost(heard, gap));
        state.is_lost |= is_replaced || is_lost || has_lost;
        // Heartbeats after the oldest watermark are lost.
        state.heard = state.heard.map(|heard| watermarks.oldest.map_or(heard, |oldest| heard.min(oldest)));
        let is_known = stored.heard.get(b"fleet".as_slice()).is_some_and(|id| id == known.id.as_bytes());
        let advanced =
            if is_known { state.advance(subscription, sent_at, gap) } else { Ok(CanaryEffect::default()) };
        let effect = advanced.unwrap_or_default();
        let proofs =
            filters.map(|filters| FilterChanges::of_share(filters, subscription.proofs(), effect.share));
        let others = if is_contended { Expect::SameOrLater } else { Expect::Same };
        let at = if effect.blind.is_some() { Expect::Same } else { others };
        let version = proofs.as_ref().and_then(FilterChanges::version);
        let names = [b"fleet".as_slice(), EMPTIED, HAS_WATERMARKS].into_iter().chain(version);
        let expected = names.map(|name| (name, Expect::Same)).chain([(b"at".as_slice(), at)]);
        write.expect_some(stored.heard, expected);
        stored.write(write, &self.keys, is_known.then_some(&state), others);
        if let Some(proofs) = &proofs {
            proofs.expect(write);
            self.write_proofs(proofs, stored.heard, write);
        }
        if !is_known {
            return Advanced::AnotherFleet;
        }
        if let Subscription::Kept { client_id, span, .. } = subscription {
            let span = span.as_millis().max(1).to_string();
            let sent = sent_at.as_millis().to_string();
            write.write("PSETEX", &self.keys.session(client_id), &[span.as_bytes(), sent.as_bytes()]);
        }
        if let Some(heard) = state.heard.filter(|heard| Some(*heard) != before) {
            match stored_at {
                Some(_) => write.raise(&self.keys.heard(), b"at", heard.as_millis().to_string().as_bytes()),
                None => write.set(&self.keys.heard(), b"at", heard.as_millis().to_string().as_bytes()),
            }
        }
        let Ok(CanaryEffect { blind, .. }) = advanced else { return Advanced::NotAMember };
        let lost = self.emptied_by(stored.heard, watermarks, before, sent_at, write);
        let blind = lost.map(|loss| loss.blindness(gap.tell_after)).or(blind);
        if let Some(blind) = &blind {
            self.write_blind(write, blind, sent_at);
        }
        Advanced::Heard { heard: state.heard, blind }
    }

    /// The loss of emptied partitions, unless it is already written.
    fn emptied_by(
        &self,
        heard: &HashFields,
        watermarks: &Watermarks,
        from: Option<Timestamp>,
        to: Timestamp,
        write: &mut ConditionalWrite<'_>,
    ) -> Option<DataLoss> {
        let key = self.keys.heard();
        if !heard.contains_key(HAS_WATERMARKS) || !watermarks.were_complete {
            // The first watermarks are written one after the other, and an instance may die in between.
            if watermarks.are_complete() {
                write.set(&key, HAS_WATERMARKS, b"1");
            }
            return None;
        }
        let stored = heard.get(EMPTIED);
        if watermarks.emptied.is_empty() {
            if stored.is_some() {
                write.remove(&key, EMPTIED);
            }
            return None;
        }
        let names: Vec<String> = watermarks.emptied.iter().map(u16::to_string).collect();
        let names = names.join(",");
        if stored.is_some_and(|stored| *stored == names.as_bytes()) {
            return None;
        }
        let from = from?;
        tracing::error!(
            partitions = names,
            "servers of the cluster lost the units of these partitions: a unit is known again after its next \
             heartbeat, a unit that stays silent is not; compare with your registry"
        );
        write.set(&key, EMPTIED, names.as_bytes());
        write.set(&key, EMPTIED_AT, to.as_millis().to_string().as_bytes());
        let interval = Interval { from, to: to.max(from + Duration::from_millis(1)) };
        let loss = DataLoss { interval, partitions: Some(watermarks.emptied.len() as u16) };
        self.write_loss(write, &loss);
        Some(loss)
    }

    pub(super) fn write_blind(
        &self,
        write: &mut ConditionalWrite<'_>,
        blind: &BlindInterval,
        sent_at: Timestamp,
    ) {
        let BlindInterval { interval, is_taken, is_notified } = blind;
        let to = interval.to.as_millis().to_string();
        let text = format!("{} {to}", interval.from.as_millis());
        let score =
            if *is_taken { format!("{}", interval.to.as_millis() as f64 + TAKEN) } else { to.clone() };
        let outdated = (sent_at - BLIND_RETENTION).as_millis().to_string();
        let (key, heard) = (self.keys.blind(), self.keys.heard());
        write.write("ZADD", &key, &[score.as_bytes(), text.as_bytes()]);
        write.write("ZREMRANGEBYSCORE", &key, &[b"-inf", outdated.as_bytes()]);
        write.set(&heard, b"ledger", to.as_bytes());
        if *is_notified {
            let outbox = self.keys.outbox(self.keys.partitions());
            write.write("XADD", &outbox, &[b"blind", text.as_bytes()]);
        }
    }

    /// Changes members and floors by a rule.
    async fn change_members<T>(
        &self,
        name: &'static str,
        change: impl Fn(&mut HearingState) -> T,
    ) -> Result<T> {
        let keys = [self.keys.members(), self.keys.floors()];
        let nothing = HashFields::new();
        let decide = |read: &[&HashFields], _: bool, write: &mut ConditionalWrite<'_>| {
            let [members, floors] = read else { unreachable!("as many as keys") };
            let mut state = membership(members, floors);
            let changed = change(&mut state);
            let stored = HearingFields { heard: &nothing, members, floors, sessions: None };
            stored.write(write, &self.keys, Some(&state), Expect::Same);
            changed
        };
        self.write_if_unchanged(name, &keys, &pipe(), decide).await.map(|(changed, ())| changed)
    }

    /// Adds the writes of proofs.
    fn write_proofs(&self, proofs: &FilterChanges<'_>, heard: &HashFields, write: &mut ConditionalWrite<'_>) {
        for ((kind, filter), at) in &proofs.proved {
            if proofs.before.get(&(kind.clone(), filter.clone())) != Some(at) {
                write.raise(
                    &self.keys.filters(),
                    &filter_field(kind, filter),
                    at.as_millis().to_string().as_bytes(),
                );
            }
        }
        let blind = &proofs.blind;
        for (kind, FilterBlindness { filter, interval }) in blind {
            let (key, to) = (self.keys.blind_of(kind), interval.to.as_millis().to_string());
            let text = format!("{} {to} {filter}", interval.from.as_millis());
            let outdated = (interval.to - BLIND_RETENTION).as_millis().to_string();
            write.write("ZADD", &key, &[to.as_bytes(), text.as_bytes()]);
            write.write("ZREMRANGEBYSCORE", &key, &[b"-inf", outdated.as_bytes()]);
        }
        if !blind.is_empty() {
            let version = heard.get(b"kinds".as_slice()).and_then(|text| milliseconds(text)).unwrap_or(0);
            let next = version + blind.len() as i64;
            write.set(&self.keys.heard(), b"kinds", next.to_string().as_bytes());
        }
    }
}
