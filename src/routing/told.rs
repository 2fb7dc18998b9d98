//! Which receivers were notified of a silence, and why others were not: one sentence for an operator.
//!
//! The cause is decided only here, from the stored facts: [`NewestSilence`]. The page of a unit, the command and the
//! API show the same sentence. Of several causes the one counts that an operator has to end first: a route without a
//! receiver never notifies one, and a group that is held waits however long `group_wait` is.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Part, Said};
use crate::clock::{Timestamp, shown_span};

/// How much later than `ready_at` a group may be due without waiting for `group_interval`: a silence joins its group
/// within this time of its detection, and a group gathers silences for a second.
const JOINS: Duration = Duration::from_secs(10);

/// The path of a route of which a group is left, and that the configuration no longer has.
pub const FORMER_ROUTE: &str = "its former route";

/// The stored facts about the newest silence of a unit.
#[derive(Clone, Debug)]
pub struct NewestSilence {
    pub now: Timestamp,
    /// The begin of the record of attempts.
    pub attempts_from: Timestamp,
    pub holds: SilenceHolds,
    /// The routes that the silence takes or, once it has joined its groups, the routes of the groups.
    pub routes: Vec<RouteState>,
    /// By their names.
    pub receivers: BTreeMap<String, ReceiverState>,
    /// The author of the acknowledgement of the open record.
    pub acknowledged_by: Option<String>,
    /// When the unit was heard again; `None`: it is offline.
    pub back_at: Option<Timestamp>,
}

/// Why single silences, or all groups, are held.
#[derive(Clone, Debug, Default)]
pub struct SilenceHolds {
    /// The id and the author of the alert silence that covers it longest, and its end.
    pub silenced: Option<(String, String, Timestamp)>,
    /// Units that inhibit it, and until when it is held at least.
    pub inhibited: Option<(Vec<String>, Timestamp)>,
    pub is_flapping: bool,
    /// When the mass-offline breaker is released at the latest.
    pub breaker_until: Option<Timestamp>,
}

/// One route of a silence.
#[derive(Clone, Debug, Default)]
pub struct RouteState {
    /// Its place in the configuration: `route.routes[0]`; or [`FORMER_ROUTE`].
    pub path: String,
    /// The receivers in the current configuration, without those of escalations.
    pub receivers: Vec<String>,
    /// How long after the notification the first escalation is due, if the route has one.
    pub escalates: Option<Duration>,
    pub stage: GroupStage,
    pub muted_until: Option<Timestamp>,
    /// The end of `for`.
    pub lasts_until: Timestamp,
    /// The end of `group_wait` and `for`.
    pub ready_at: Timestamp,
    /// When its group is sealed next.
    pub due: Option<Timestamp>,
    /// The end of `group_interval` after the last notification of its group; `None`: it had none.
    pub interval_until: Option<Timestamp>,
    pub has_recoveries: bool,
}

/// How far a silence has come in the group of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GroupStage {
    /// The silence has not joined the group.
    #[default]
    Outside,
    Waits,
    /// A notification was sealed for these receivers.
    Sealed(Vec<String>),
}

/// When a receiver took its first notification of a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstNotice {
    At(Timestamp),
    /// The first one is on record no longer: the oldest reminder that is.
    Before(Timestamp),
    /// None is on record any more.
    Forgotten,
}

impl FirstNotice {
    fn part(self) -> Part {
        match self {
            FirstNotice::At(moment) => Part::At(moment),
            FirstNotice::Before(reminded) => Part::Before(reminded),
            FirstNotice::Forgotten => Part::Text("(when is on record no longer)".to_owned()),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct ReceiverState {
    /// When the receiver took the first notification of the silence, and of the return.
    pub notified: Option<FirstNotice>,
    pub notified_of_return: Option<FirstNotice>,
    pub is_configured: bool,
    /// Whether it has a rate limit.
    pub is_limited: bool,
    /// Whether a notification of the group waits for it.
    pub has_waiting: bool,
    /// Since when the receiver takes nothing, and why.
    pub failing: Option<(Timestamp, String)>,
    /// What says that the notification was given up.
    pub given_up: Option<Why>,
}

/// Why receivers are not notified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The unit is not offline, for this reason.
    Paused(Option<Timestamp>),
    Sleeps(Timestamp),
    /// Rollcall has not heard the kind since then.
    Unheard(Option<Timestamp>),
    NotOffline,
    NoReceiver(String),
    /// The route has no receiver of its own, and escalates after that time.
    Escalates(String, Duration),
    /// The route had no receiver when the notification was sealed.
    HadNoReceiver(String),
    Silenced(String, String, Timestamp),
    Inhibited(Vec<String>, Timestamp),
    Flapping,
    Breaker(Timestamp),
    Muted(String, Timestamp),
    Lasts(Timestamp),
    GroupWait(Timestamp),
    GroupInterval(Timestamp),
    /// Its group is due then, for a cause that is over or not stored: a hold, a wait of the route before it was changed,
    /// or an earlier return of the unit that comes first.
    Due(Timestamp),
    Joins,
    Sealed,
    NotConfigured,
    Dead(Timestamp, String),
    /// It was given up, and the dead letter is removed.
    GivenUp,
    Down(Timestamp, String),
    Limited,
    UnderWay,
    Added,
    BackInTime(Timestamp),
    BackBefore,
    /// The record of attempts does not reach back to it.
    Forgotten,
    NoRecoveries(String),
}

impl Why {
    /// In one piece: it has one sentence for each cause.
    pub fn said(&self) -> Said {
        let because = |why: &str| if why.is_empty() { String::new() } else { format!(" ({why})") };
        let until = |before: &str, moment: &Timestamp| Said::from(before).then(Part::Until(*moment));
        match self {
            Why::Paused(Some(end)) => until("the unit is paused ", end),
            Why::Paused(None) => "the unit is paused".into(),
            Why::Sleeps(end) => until("the unit announced a silence ", end),
            Why::Unheard(Some(heard)) => Said::from("its kind is blind: Rollcall has no proof that it hears the kind ")
                .then(Part::Since(*heard))
                .then(", and marks no unit of it offline"),
            Why::Unheard(None) => {
                "its kind is blind: Rollcall has no proof yet that it hears the kind, and marks no unit of it offline"
                    .into()
            }
            Why::NotOffline => "the unit is not offline and was not before".into(),
            Why::NoReceiver(path) if path == FORMER_ROUTE => {
                format!("{path} has no receiver; the next silence takes another route").into()
            }
            Why::NoReceiver(path) => {
                format!("{} has no receiver; name one in {path}.receivers and reload", named(path)).into()
            }
            Why::HadNoReceiver(path) => format!(
                "{} had no receiver when the silence was due to be notified; the next silence is notified",
                named(path)
            )
            .into(),
            Why::Escalates(path, after) => format!(
                "{} has no receiver of its own, and escalates a silence {} after its group was due",
                named(path),
                shown_span(*after)
            )
            .into(),
            Why::Silenced(id, author, end) => until(&format!("silence {id} of {author} covers it "), end),
            Why::Inhibited(by, end) => until(&format!("it is inhibited by {}, at least ", by.join(", ")), end),
            Why::Flapping => "the unit flaps: receivers are notified of the flapping alone".into(),
            Why::Breaker(end) => {
                until("the mass-offline breaker holds notifications ", end)
                    .then(" at the latest; see rollcall breaker show")
            }
            Why::Muted(path, end) => until(&format!("{} is muted ", named(path)), end),
            Why::Lasts(end) => until("the silence must last ", end).then(" (for)"),
            Why::GroupWait(end) => until("its group waits ", end).then(" (group_wait)"),
            Why::GroupInterval(end) => {
                until("its group was notified before and waits ", end).then(" (group_interval)")
            }
            Why::Due(due) => Said::from("its group is due ").then(Part::At(*due)),
            Why::Joins => "it has not joined its group yet".into(),
            Why::Sealed => "its group is due, and its notification is made now".into(),
            Why::NotConfigured => "the receiver is not configured any more".into(),
            Why::Dead(at, why) => Said::from("the notification became a dead letter ")
                .then(Part::At(*at))
                .then(because(why)),
            Why::GivenUp => "the notification was given up, and its dead letter is removed".into(),
            Why::Down(since, why) => {
                Said::from("the receiver has taken nothing ").then(Part::Since(*since)).then(because(why))
            }
            Why::Limited => "its rate limit is reached, and a digest follows".into(),
            Why::UnderWay => "the notification is on its way".into(),
            Why::Added => "the receiver came to the route after the notification was sealed".into(),
            Why::BackInTime(ready_at) => {
                Said::from("the unit was back before the end of the wait (group_wait, for) ")
                    .then(Part::At(*ready_at))
            }
            Why::BackBefore => "the unit was back before a receiver was notified".into(),
            Why::Forgotten => "that is on record no longer (records.keep_deliveries)".into(),
            Why::NoRecoveries(path) => format!("{} notifies of no return (recoveries = false)", named(path)).into(),
        }
    }
}

/// A route by its place in the configuration.
fn named(path: &str) -> &str {
    if path == "route" { "the root route" } else { path }
}

/// The receivers that were notified of a silence, with the moments, and why others were not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub told: Vec<(String, FirstNotice)>,
    /// `None`: it concerns all receivers of a route.
    pub untold: Vec<(Option<String>, Why)>,
    pub told_of_return: Vec<(String, FirstNotice)>,
    /// Why no receiver is notified of the return.
    pub return_untold: Option<Why>,
    pub acknowledged_by: Option<String>,
    /// Whether the silence has ended.
    pub is_over: bool,
}

impl Told {
    /// There is no silence.
    pub fn none(why: Why) -> Told {
        Told { untold: vec![(None, why)], ..Told::default() }
    }

    pub fn of(state: &NewestSilence) -> Told {
        let (acknowledged_by, is_over) = (state.acknowledged_by.clone(), state.back_at.is_some());
        let mut told = Told { acknowledged_by, is_over, ..Told::default() };
        for (name, receiver) in &state.receivers {
            told.told.extend(receiver.notified.map(|first| (name.clone(), first)));
            told.told_of_return.extend(receiver.notified_of_return.map(|first| (name.clone(), first)));
        }
        for route in &state.routes {
            for one in state.causes_in(route) {
                if !told.untold.contains(&one) {
                    told.untold.push(one);
                }
            }
        }
        if let Some(back_at) = state.back_at {
            told.untold = state.given_up();
            if told.told.is_empty() && told.untold.is_empty() {
                told.untold.push((None, state.untold_before(back_at)));
            } else if !told.told.is_empty() && told.told_of_return.is_empty() {
                let silent = state.routes.iter().find(|route| !route.has_recoveries);
                told.return_untold = silent.map(|route| Why::NoRecoveries(route.path.clone()));
            }
        }
        told
    }
}

impl NewestSilence {
    /// Why no notification is sealed so far. A route without a receiver counts only if no other has one.
    pub fn untold(&self) -> Why {
        let whys = self.routes.iter().flat_map(|route| self.causes_in(route)).map(|(_, why)| why);
        let (without, with): (Vec<Why>, Vec<Why>) = whys.partition(|why| matches!(why, Why::NoReceiver(_)));
        with.into_iter().chain(without).next().unwrap_or(Why::Joins)
    }

    /// The receivers whose notification of the silence was given up.
    fn given_up(&self) -> Vec<(Option<String>, Why)> {
        let given_up =
            |(name, one): (&String, &ReceiverState)| Some((Some(name.clone()), one.given_up.clone()?));
        self.receivers.iter().filter_map(given_up).collect()
    }

    /// Why no receiver was notified of a silence that is over, as far as that is known.
    fn untold_before(&self, back_at: Timestamp) -> Why {
        if let Some(why) = self.routes.iter().find_map(RouteState::cause_without_receiver) {
            return why;
        }
        if self.holds.is_flapping {
            return Why::Flapping;
        }
        match self.routes.iter().map(|route| route.ready_at).min() {
            Some(ready_at) if back_at <= ready_at => Why::BackInTime(ready_at),
            Some(ready_at) if ready_at < self.attempts_from => Why::Forgotten,
            _ => Why::BackBefore,
        }
    }

    /// Why receivers of a route are not notified.
    fn causes_in(&self, route: &RouteState) -> Vec<(Option<String>, Why)> {
        match &route.stage {
            GroupStage::Sealed(names) => self.causes_of(route, names),
            GroupStage::Outside | GroupStage::Waits => vec![(None, self.cause_before(route))],
        }
    }

    /// Why the notification of a route is not sealed.
    fn cause_before(&self, route: &RouteState) -> Why {
        let now = self.now;
        let ahead = |at: &Timestamp| *at > now;
        let due = route.due.filter(ahead);
        // A silence that is only escalated waits for the same before.
        if route.receivers.is_empty() && route.escalates.is_none() {
            return Why::NoReceiver(route.path.clone());
        }
        if let Some((id, author, until)) = self.holds.silenced.clone() {
            return Why::Silenced(id, author, until);
        }
        if let Some((by, until)) = self.holds.inhibited.clone() {
            return Why::Inhibited(by, until);
        }
        if self.holds.is_flapping {
            return Why::Flapping;
        }
        if let Some(until) = self.holds.breaker_until {
            return Why::Breaker(until);
        }
        if let Some(until) = route.muted_until.filter(ahead) {
            return Why::Muted(route.path.clone(), until);
        }
        if ahead(&route.lasts_until) {
            return Why::Lasts(route.lasts_until);
        }
        match (due, route.stage == GroupStage::Outside) {
            (Some(due), _) if due > route.ready_at + JOINS => match route.interval_until {
                Some(until) if due <= until => Why::GroupInterval(due),
                _ => Why::Due(due),
            },
            (due, _) if ahead(&route.ready_at) => Why::GroupWait(due.unwrap_or_default().max(route.ready_at)),
            (Some(due), _) => Why::GroupWait(due),
            (None, true) => Why::Joins,
            (None, false) => Why::Sealed,
        }
    }

    /// Why the receivers `names` have not got a notification that was sealed for them.
    fn causes_of(&self, route: &RouteState, names: &[String]) -> Vec<(Option<String>, Why)> {
        let none = ReceiverState::default();
        let of = |name: &String| self.receivers.get(name).unwrap_or(&none);
        let not_told = |name: &&String| of(name).notified.is_none();
        let mut causes: Vec<(Option<String>, Why)> =
            names.iter().filter(not_told).map(|name| (Some(name.clone()), of(name).cause())).collect();
        let others = route.receivers.iter().filter(|name| !names.contains(name)).filter(not_told);
        // The receivers of a former route did not come to it.
        let added = (route.path != FORMER_ROUTE).then_some(Why::Added);
        causes.extend(others.filter_map(|name| {
            Some((Some(name.clone()), of(name).given_up.clone().or_else(|| added.clone())?))
        }));
        if !names.is_empty() || self.receivers.values().any(|one| one.given_up.is_some()) {
            return causes;
        }
        let had_none = || Why::HadNoReceiver(route.path.clone());
        vec![(None, route.cause_without_receiver().unwrap_or_else(had_none))]
    }
}

impl RouteState {
    /// Why a notification of the route goes to no receiver; `None`: it names one.
    fn cause_without_receiver(&self) -> Option<Why> {
        let path = || self.path.clone();
        let escalates = || self.escalates.map(|after| Why::Escalates(path(), after));
        self.receivers.is_empty().then(|| escalates().unwrap_or_else(|| Why::NoReceiver(path())))
    }
}

impl ReceiverState {
    /// Why the receiver has not got a notification that was sealed for it.
    fn cause(&self) -> Why {
        if let Some(why) = self.given_up.clone() {
            return why;
        }
        if !self.is_configured {
            return Why::NotConfigured;
        }
        if let Some((since, why)) = self.failing.clone() {
            return Why::Down(since, why);
        }
        if self.is_limited && self.has_waiting {
            return Why::Limited;
        }
        Why::UnderWay
    }
}

impl Told {
    /// One sentence, and a second one for the rest.
    pub fn said(&self) -> Said {
        let one = |(name, first): &(String, FirstNotice)| Said::from(format!("{name} ")).then(first.part());
        let listed = |told: &[(String, FirstNotice)]| Said::joined(told.iter().map(one), ", ");
        let mut said = match self.told.as_slice() {
            [] if self.untold == [(None, Why::Forgotten)] => {
                Said::from("Which receivers were notified: ").then(Why::Forgotten.said())
            }
            [] => {
                let whys = self.untold.iter().map(|(name, why)| match name {
                    Some(name) => Said::from(format!("{name}: ")).then(why.said()),
                    None => why.said(),
                });
                Said::from("No receiver was notified: ").then(Said::joined(whys, "; "))
            }
            told => {
                let untold = self.untold.iter().map(|(name, why)| match name {
                    Some(name) => Said::from(format!("; not {name}: ")).then(why.said()),
                    None => Said::from("; others are not: ").then(why.said()),
                });
                Said::from("Notified of the silence: ").then(listed(told)).then(Said::joined(untold, ""))
            }
        }
        .then(".");
        if !self.told_of_return.is_empty() {
            said = said.then(" Notified of the return: ").then(listed(&self.told_of_return)).then(".");
        }
        if let Some(why) = &self.return_untold {
            said = said.then(" No receiver was notified of the return: ").then(why.said()).then(".");
        }
        match (&self.acknowledged_by, self.is_over) {
            (Some(author), false) => {
                said.then(format!(" Acknowledged by {author}: reminders and escalations stop."))
            }
            (Some(author), true) => said.then(format!(" It was acknowledged by {author}.")),
            (None, _) => said,
        }
    }
}

#[cfg(test)]
mod tests;
