//! Reads the input of [`Told`]: which receivers were notified of the newest silence of a unit, and why others were not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::breaker::breaker;
use super::http_error::HttpError;
use super::units::UnitDetails;
use super::{AlertRoutes, PageSources};
use crate::clock::Timestamp;
use crate::fleet::deliveries::{Notice, NoticeType};
use crate::fleet::{FlapDetector, Inhibitions, MassBreaker, Receivers, Roll, Silences};
use crate::presence::{OfflineRecord, Recoveries, State, Transition, Trip, Unit};
use crate::routing::told::{
    FORMER_ROUTE, FirstNotice, GroupStage, NewestSilence, ReceiverState, RouteState, SilenceHolds, Told, Why,
};
use crate::routing::{AlertSilences, Destinations, Inhibitors, MatchedRoute, SealedNotice};
use crate::store::{
    Attempt, AttemptResult, Cells, Documents, Group, Membership, StoredDeliveries, StoredGroups,
};
use crate::telemetry::Telemetry;

/// The newest dead letters of a receiver that are searched for a record that is over.
const LETTERS: usize = 200;

#[derive(Clone)]
pub(super) struct Notified {
    groups: StoredGroups,
    deliveries: StoredDeliveries,
    cells: Arc<dyn Cells>,
    silences: Arc<Silences>,
    routes: watch::Receiver<Arc<AlertRoutes>>,
    roll: Arc<Roll>,
    breaker: Arc<MassBreaker>,
    telemetry: Arc<Telemetry>,
    /// How long attempts stay on record.
    keep_deliveries: Duration,
}

/// A receiver for which a notification of an open silence was sealed, in this group.
pub(super) type SealedFor<'a> = (&'a str, &'a Group, &'a OfflineRecord);

/// When a group is due, and when it was sealed last.
type GroupMoments = (Option<Timestamp>, Option<Timestamp>);

/// Why open silences are held at a moment.
struct HoldsNow {
    silences: Arc<AlertSilences>,
    inhibitors: Arc<Inhibitors>,
    /// The trip of the breaker that holds notifications.
    trip: Option<Trip>,
}

impl Notified {
    pub fn new(sources: &PageSources) -> Notified {
        let PageSources {
            groups, deliveries, cells, silences, routes, roll, telemetry, keep_deliveries, ..
        } = sources.clone();
        let breaker = Arc::new(breaker(sources));
        Notified { groups, deliveries, cells, silences, routes, roll, breaker, telemetry, keep_deliveries }
    }

    /// The trip of the breaker that holds notifications now.
    pub async fn trip(&self) -> Result<Option<Trip>, HttpError> {
        if self.routes.borrow().breaker.is_none() {
            return Ok(None);
        }
        Ok(self.breaker.last().await?.filter(Trip::is_held))
    }

    /// Why no notification is sealed of each of these open silences, in order, of which `memberships` are the groups.
    /// Says nothing of silences for which one is.
    pub async fn untold(
        &self,
        silences: &[OfflineRecord],
        memberships: &[Vec<Membership>],
        now: Timestamp,
    ) -> Result<Vec<Why>, HttpError> {
        let config = self.routes.borrow().clone();
        let flapping = FlapDetector::new(self.cells.clone(), config.flapping.clone(), self.telemetry.clone());
        let flapping = flapping.lasting(silences.iter().map(|record| &record.id.unit)).await?;
        let holds = self.holds(&config, self.trip().await?).await?;
        let keys: Vec<String> = memberships.iter().flatten().map(|one| one.group.key.clone()).collect();
        let mut times = self.times_of(&keys).await?.into_iter();
        let destinations = destinations_at(&config, now);
        let untold = |(record, memberships): (&OfflineRecord, &Vec<Membership>)| {
            let times = times.by_ref().take(memberships.len()).collect();
            let silence = NewestSilence {
                now,
                attempts_from: now - self.keep_deliveries,
                holds: holds.of(record, flapping.contains_key(&record.id.unit), now),
                routes: routes_of((&config, &destinations), record, memberships, times, now),
                receivers: BTreeMap::new(),
                acknowledged_by: None,
                back_at: None,
            };
            silence.untold()
        };
        Ok(silences.iter().zip(memberships).map(untold).collect())
    }

    /// Explains the open record of a unit or, without one, its newest record. `attempts`: the attempts to notify
    /// receivers of it; `trip`: the trip of the breaker that holds notifications now.
    pub async fn of(
        &self,
        view: &UnitDetails,
        newest: Option<&OfflineRecord>,
        attempts: &[Notice],
        trip: Option<&Trip>,
        now: Timestamp,
    ) -> Result<Told, HttpError> {
        let record = view.record.as_ref().or(newest);
        let is_current = newest.map(|newest| &newest.id) == record.map(|record| &record.id);
        let attempts = if is_current { attempts } else { &[] };
        match (record, self.absent(view)) {
            (_, Some(why)) => Ok(Told::none(why)),
            (None, None) => Ok(Told::none(Why::NotOffline)),
            (Some(record), None) => Ok(Told::of(&self.state(view, record, attempts, trip, now).await?)),
        }
    }

    /// Why a unit is not marked offline now; it has no open record.
    fn absent(&self, view: &UnitDetails) -> Option<Why> {
        match view.state {
            State::Paused => Some(match view.sleeps_until.filter(|_| view.paused_until.is_none()) {
                Some(until) => Why::Sleeps(until),
                None => Why::Paused(view.paused_until),
            }),
            State::Unknown => {
                Some(Why::Unheard(self.roll.hearing().at(&view.kind, view.broker.as_ref()).heard))
            }
            State::Online | State::Late | State::Offline | State::NeverSeen => None,
        }
    }

    async fn state(
        &self,
        view: &UnitDetails,
        record: &OfflineRecord,
        attempts: &[Notice],
        trip: Option<&Trip>,
        now: Timestamp,
    ) -> Result<NewestSilence, HttpError> {
        let config = self.routes.borrow().clone();
        let memberships = match record.back_at {
            None => self.groups.memberships(&[record]).await?.pop().unwrap_or_default(),
            Some(_) => Vec::new(),
        };
        let keys: Vec<String> = memberships.iter().map(|one| one.group.key.clone()).collect();
        let times = self.times_of(&keys).await?;
        let routes = routes_of((&config, &destinations_at(&config, now)), record, &memberships, times, now);
        let receivers = self.receivers(&config, &routes, &memberships, (record, attempts)).await?;
        Ok(NewestSilence {
            now,
            attempts_from: now - self.keep_deliveries,
            holds: self.holds(&config, trip.cloned()).await?.of(record, view.flapping, now),
            routes,
            receivers,
            acknowledged_by: record.acknowledged.as_ref().map(|taken| taken.author.clone()),
            back_at: record.back_at,
        })
    }

    /// When these groups are due, and when they were sealed last.
    async fn times_of(&self, groups: &[String]) -> Result<Vec<GroupMoments>, HttpError> {
        let (due, sealed) = (self.groups.groups_due(groups).await?, self.groups.last_sealed(groups).await?);
        Ok(due.into_iter().zip(sealed).collect())
    }

    async fn holds(&self, config: &AlertRoutes, trip: Option<Trip>) -> Result<HoldsNow, HttpError> {
        let inhibitions =
            Inhibitions::new(self.cells.clone(), config.inhibition.clone(), self.telemetry.clone());
        let (silences, inhibitors) = (self.silences.current().await?, inhibitions.current().await?);
        Ok(HoldsNow { silences, inhibitors, trip })
    }

    /// What became of notifications that were sealed, in order.
    pub async fn sealed(&self, of: &[SealedFor<'_>]) -> Result<Vec<SealedNotice>, HttpError> {
        let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, (receiver, ..)) in of.iter().enumerate() {
            places.entry(receiver).or_default().push(at);
        }
        let mut became = vec![SealedNotice::Taken; of.len()];
        for (receiver, places) in places {
            let silences: Vec<_> = places.iter().map(|at| (of[*at].1, of[*at].2)).collect();
            let groups: Vec<String> = silences.iter().map(|(group, _)| group.key.clone()).collect();
            // The marks are read last: a notification that is given up in between would seem taken.
            let waiting = self.deliveries.have_waiting(receiver, &groups).await?;
            let given_up = self.deliveries.given_up(receiver, &silences).await?;
            for ((at, is_waiting), given_up) in places.into_iter().zip(waiting).zip(given_up) {
                became[at] = SealedNotice::of(is_waiting, given_up);
            }
        }
        Ok(became)
    }

    async fn receivers(
        &self,
        config: &AlertRoutes,
        routes: &[RouteState],
        memberships: &[Membership],
        (record, attempts): (&OfflineRecord, &[Notice]),
    ) -> Result<BTreeMap<String, ReceiverState>, HttpError> {
        let lines =
            Receivers { records: self.deliveries.clone(), documents: Documents::new(self.cells.clone()) };
        let lines = lines.list(&config.types).await?;
        let of: Vec<SealedFor<'_>> = memberships
            .iter()
            .flat_map(|one| one.receivers.iter().flatten().map(|name| (name.as_str(), &one.group, record)))
            .collect();
        let mut sealed: BTreeMap<&str, SealedNotice> = BTreeMap::new();
        for ((name, ..), became) in of.iter().zip(self.sealed(&of).await?) {
            let best = sealed.get(name).cloned().unwrap_or_else(|| became.clone()).min(became);
            sealed.insert(name, best);
        }
        let mut names: BTreeSet<String> = attempts.iter().map(|one| one.attempt.receiver.clone()).collect();
        names.extend(routes.iter().flat_map(|route| route.receivers.iter().cloned()));
        names.extend(sealed.keys().map(|name| (*name).to_owned()));
        let mut receivers = BTreeMap::new();
        for name in names {
            let taken = |which| first_taken(attempts, &name, which);
            let became = sealed.get(name.as_str());
            let forgotten = || (became == Some(&SealedNotice::Taken)).then_some(FirstNotice::Forgotten);
            let mut state = ReceiverState {
                notified: taken(Transition::Offline).or_else(forgotten),
                notified_of_return: taken(Transition::Online),
                is_configured: config.types.contains_key(&name),
                is_limited: config.limited.contains(&name),
                ..ReceiverState::default()
            };
            if state.notified.is_none() && record.back_at.is_some() {
                state.given_up = self.dead_letter(&name, record).await?;
            }
            if state.notified.is_none() && record.back_at.is_none() {
                state.has_waiting = became == Some(&SealedNotice::Waits);
                let health = lines.iter().find(|line| line.name == name).map(|line| &line.health);
                state.failing = health.and_then(|health| Some((health.failing_since?, health.why.clone())));
                if let Some(SealedNotice::GivenUp(letter)) = became {
                    let letter = self.deliveries.letter(&name, letter).await?;
                    let dead = letter.map(|letter| Why::Dead(letter.at, letter.reason));
                    state.given_up = Some(dead.unwrap_or(Why::GivenUp));
                }
            }
            receivers.insert(name, state);
        }
        Ok(receivers)
    }

    /// Why the notification of a silence that is over was given up, as its dead letter says.
    async fn dead_letter(&self, receiver: &str, record: &OfflineRecord) -> Result<Option<Why>, HttpError> {
        let letters = self.deliveries.dead_letters(receiver, LETTERS).await?;
        let tells =
            letters.into_iter().find(|letter| letter.delivery.offline.iter().any(|one| one.id == record.id));
        Ok(tells.map(|letter| Why::Dead(letter.at, letter.reason)))
    }
}

/// When a receiver took the first of these notifications that tells of this transition.
fn first_taken(attempts: &[Notice], receiver: &str, which: Transition) -> Option<FirstNotice> {
    let took = |one: &&Notice| {
        let Attempt { receiver: of, result, .. } = &one.attempt;
        of == receiver && one.notice.transition() == which && *result == AttemptResult::Delivered
    };
    let first = attempts.iter().filter(took).min_by_key(|one| one.attempt.at)?;
    let is_first = first.notice != NoticeType::Reminder;
    let notice = if is_first { FirstNotice::At } else { FirstNotice::Before };
    Some(notice(first.attempt.at))
}

impl HoldsNow {
    fn of(&self, record: &OfflineRecord, is_flapping: bool, now: Timestamp) -> SilenceHolds {
        let longest = self.silences.covering(record, now).max_by_key(|silence| silence.ends_at);
        let inhibited = self.inhibitors.held(record, now).map(|held| {
            let name = |source: &Unit| format!("{}/{}", source.kind, source.id);
            (held.by.iter().map(|source| name(&source.unit)).collect(), held.until)
        });
        SilenceHolds {
            silenced: longest.map(|one| (one.id.to_string(), one.author.clone(), one.ends_at)),
            inhibited,
            is_flapping,
            breaker_until: self.trip.as_ref().map(|trip| trip.until),
        }
    }
}

/// The destinations with the routes that are muted at a moment.
fn destinations_at(config: &AlertRoutes, now: Timestamp) -> Destinations {
    config.routes.destinations(config.receivers.clone()).at(now)
}

/// The routes that a silence takes or, once it has joined its groups, the routes of these.
fn routes_of(
    (config, destinations): (&AlertRoutes, &Destinations),
    record: &OfflineRecord,
    memberships: &[Membership],
    times: Vec<GroupMoments>,
    now: Timestamp,
) -> Vec<RouteState> {
    let taken = config.routes.of(record);
    match memberships {
        [] => taken.iter().map(|route| of_route(*route, record, now)).collect(),
        all => {
            let joined = all.iter().zip(times);
            joined.map(|(one, times)| of_membership(one, times, destinations, &taken, record)).collect()
        }
    }
}

/// A route whose group the silence has not joined.
fn of_route(taken: MatchedRoute<'_>, record: &OfflineRecord, now: Timestamp) -> RouteState {
    let route = taken.route;
    RouteState {
        path: taken.path.to_owned(),
        receivers: route.receivers.clone(),
        escalates: route.again.first_escalation(),
        stage: GroupStage::Outside,
        muted_until: route.times.muted_until(now),
        lasts_until: record.deadline + route.pace.lasts,
        ready_at: route.ready_at(record),
        due: None,
        interval_until: None,
        has_recoveries: route.pace.recoveries != Recoveries::None,
    }
}

/// The route of a group that the silence has joined; the configuration may no longer have that route.
fn of_membership(
    membership: &Membership,
    (due, sealed): GroupMoments,
    destinations: &Destinations,
    taken: &[MatchedRoute<'_>],
    record: &OfflineRecord,
) -> RouteState {
    let key = &membership.group.key;
    let route = taken.iter().find(|one| destinations.is_group_of(key, one.id));
    let destination = destinations.of(key);
    let pace = destination.pace;
    RouteState {
        path: route.map_or(FORMER_ROUTE, |route| route.path).to_owned(),
        receivers: destination.receivers.clone(),
        escalates: destination.again.first_escalation(),
        stage: membership.receivers.clone().map_or(GroupStage::Waits, GroupStage::Sealed),
        muted_until: destinations.mute_of(key, record),
        lasts_until: record.deadline + pace.lasts,
        ready_at: pace.ready_at(record),
        due,
        interval_until: sealed.map(|sealed| sealed + pace.interval),
        has_recoveries: pace.recoveries != Recoveries::None,
    }
}
