//! Which receivers were notified of a silence, and why others were not: one sentence for an operator.
//!
//! The cause is decided only here, from the stored facts: [`NewestSilence`]. The page of a unit, the command and the
//! API show the same sentence. Of several causes the one counts that an operator has to end first: a route without a
//! receiver never notifies one, and a group that is held waits however long `group_wait` is.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::clock::Timestamp;

/// How much later than `ready_at` a group may be due without waiting for `group_interval`: a silence joins its group
/// within this time of its detection, and a group gathers silences for a second.
const JOINS: Duration = Duration::from_secs(10);

/// The stored facts about the newest silence of a unit.
#[derive(Clone, Debug)]
pub struct NewestSilence {
    pub now: Timestamp,
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
    /// Its place in the configuration: `route.routes[0]`.
    pub path: String,
    /// The receivers in the current configuration.
    pub receivers: Vec<String>,
    pub stage: GroupStage,
    pub muted_until: Option<Timestamp>,
    /// The end of `for`.
    pub lasts_until: Timestamp,
    /// The end of `group_wait` and `for`.
    pub ready_at: Timestamp,
    /// When its group is sealed next.
    pub due: Option<Timestamp>,
    pub has_recoveries: bool,
}

/// How far a silence has come in the group of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GroupStage {
    /// The silence has not joined the group.
    #[default]
    Outside,
    Waits,
    /// A notification was sealed for these receivers; receivers with a dead letter are left out.
    Sealed(Vec<String>),
}

#[derive(Clone, Debug, Default)]
pub struct ReceiverState {
    /// When the receiver took the notification of the silence, and of the return.
    pub notified_at: Option<Timestamp>,
    pub notified_of_return_at: Option<Timestamp>,
    pub is_configured: bool,
    /// Whether it has a rate limit.
    pub is_limited: bool,
    /// Whether a notification of the group waits for it.
    pub has_waiting: bool,
    /// Since when the receiver takes nothing, and why.
    pub failing: Option<(Timestamp, String)>,
    /// When the notification was given up, and why.
    pub dead: Option<(Timestamp, String)>,
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
    Joins,
    Sealed,
    NotConfigured,
    Dead(Timestamp, String),
    Down(Timestamp, String),
    Limited,
    UnderWay,
    Added,
    BackInTime(Timestamp),
    BackBefore,
    NoRecoveries(String),
}

impl fmt::Display for Why {
    /// Long, but straight: one sentence for each cause.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let because = |f: &mut fmt::Formatter<'_>, why: &str| match why {
            "" => Ok(()),
            why => write!(f, " ({why})"),
        };
        match self {
            Why::Paused(Some(until)) => write!(f, "the unit is paused until {until}"),
            Why::Paused(None) => f.write_str("the unit is paused"),
            Why::Sleeps(until) => write!(f, "the unit announced a silence until {until}"),
            Why::Unheard(Some(heard)) => write!(
                f,
                "its kind is blind: Rollcall has no proof that it hears the kind after {heard}, and marks no unit of it offline"
            ),
            Why::Unheard(None) => f.write_str(
                "its kind is blind: Rollcall has no proof yet that it hears the kind, and marks no unit of it offline",
            ),
            Why::NotOffline => f.write_str("the unit is not offline and was not before"),
            Why::NoReceiver(path) => {
                write!(f, "{path} has no receiver; name one in {path}.receivers and reload")
            }
            Why::HadNoReceiver(path) => write!(
                f,
                "{path} had no receiver when the silence was due to be notified; the next silence is notified"
            ),
            Why::Silenced(id, author, until) => {
                write!(f, "silence {id} of {author} covers it until {until}")
            }
            Why::Inhibited(by, until) => {
                write!(f, "it is inhibited by {}, at least until {until}", by.join(", "))
            }
            Why::Flapping => f.write_str("the unit flaps: receivers are notified of the flapping alone"),
            Why::Breaker(until) => write!(
                f,
                "the mass-offline breaker holds notifications until {until} at the latest; see rollcall breaker show"
            ),
            Why::Muted(path, until) => write!(f, "{path} is muted until {until}"),
            Why::Lasts(until) => write!(f, "the silence must last until {until} (for)"),
            Why::GroupWait(until) => write!(f, "its group waits until {until} (group_wait)"),
            Why::GroupInterval(until) => write!(
                f,
                "its group was notified before and waits until {until} (group_interval)"
            ),
            Why::Joins => f.write_str("it has not joined its group yet"),
            Why::Sealed => f.write_str("its group is due, and its notification is made now"),
            Why::NotConfigured => f.write_str("the receiver is not configured any more"),
            Why::Dead(at, why) => {
                write!(f, "the notification became a dead letter at {at}")?;
                because(f, why)
            }
            Why::Down(since, why) => {
                write!(f, "the receiver has taken nothing since {since}")?;
                because(f, why)
            }
            Why::Limited => f.write_str("its rate limit is reached, and a digest follows"),
            Why::UnderWay => f.write_str("the notification is on its way"),
            Why::Added => f.write_str("the receiver came to the route after the notification was sealed"),
            Why::BackInTime(ready_at) => {
                write!(f, "the unit was back before the end of the wait (group_wait, for) at {ready_at}")
            }
            Why::BackBefore => f.write_str("the unit was back before a receiver was notified"),
            Why::NoRecoveries(path) => write!(f, "{path} notifies of no return (recoveries = false)"),
        }
    }
}

/// The receivers that were notified of a silence, with the moments, and why others were not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub told: Vec<(String, Timestamp)>,
    /// `None`: it concerns all receivers of a route.
    pub untold: Vec<(Option<String>, Why)>,
    pub told_of_return: Vec<(String, Timestamp)>,
    /// Why no receiver is notified of the return.
    pub return_untold: Option<Why>,
    pub acknowledged_by: Option<String>,
}

impl Told {
    /// There is no silence.
    pub fn none(why: Why) -> Told {
        Told { untold: vec![(None, why)], ..Told::default() }
    }

    pub fn of(state: &NewestSilence) -> Told {
        let mut told = Told { acknowledged_by: state.acknowledged_by.clone(), ..Told::default() };
        for (name, receiver) in &state.receivers {
            told.told.extend(receiver.notified_at.map(|at| (name.clone(), at)));
            told.told_of_return.extend(receiver.notified_of_return_at.map(|at| (name.clone(), at)));
        }
        for route in &state.routes {
            for one in state.causes_in(route) {
                if !told.untold.contains(&one) {
                    told.untold.push(one);
                }
            }
        }
        if let Some(back_at) = state.back_at {
            told.untold.clear();
            if told.told.is_empty() {
                told.untold.push((None, state.untold_before(back_at)));
            } else if told.told_of_return.is_empty() {
                let silent = state.routes.iter().find(|route| !route.has_recoveries);
                told.return_untold = silent.map(|route| Why::NoRecoveries(route.path.clone()));
            }
        }
        told
    }
}

impl NewestSilence {
    /// Why no receiver was notified of a silence that is over.
    fn untold_before(&self, back_at: Timestamp) -> Why {
        if let Some(route) = self.routes.iter().find(|route| route.receivers.is_empty()) {
            return Why::NoReceiver(route.path.clone());
        }
        let ready_at = self.routes.iter().map(|route| route.ready_at).min();
        ready_at.filter(|ready_at| back_at <= *ready_at).map_or(Why::BackBefore, Why::BackInTime)
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
        if route.receivers.is_empty() {
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
            (Some(due), _) if due > route.ready_at + JOINS => Why::GroupInterval(due),
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
        let not_told = |name: &&String| of(name).notified_at.is_none();
        let mut causes: Vec<(Option<String>, Why)> =
            names.iter().filter(not_told).map(|name| (Some(name.clone()), of(name).cause())).collect();
        let others = route.receivers.iter().filter(|name| !names.contains(name)).filter(not_told);
        causes.extend(others.map(|name| {
            let dead = of(name).dead.clone().map(|(at, why)| Why::Dead(at, why));
            (Some(name.clone()), dead.unwrap_or(Why::Added))
        }));
        let had_none = names.is_empty() && self.receivers.values().all(|one| one.dead.is_none());
        match (had_none, route.receivers.is_empty()) {
            (true, true) => vec![(None, Why::NoReceiver(route.path.clone()))],
            (true, false) => vec![(None, Why::HadNoReceiver(route.path.clone()))],
            (false, _) => causes,
        }
    }
}

impl ReceiverState {
    /// Why the receiver has not got a notification that was sealed for it.
    fn cause(&self) -> Why {
        if !self.is_configured {
            return Why::NotConfigured;
        }
        if let Some((at, why)) = self.dead.clone() {
            return Why::Dead(at, why);
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

impl fmt::Display for Told {
    /// Writes one sentence, and a second one for the rest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |told: &[(String, Timestamp)]| {
            let all: Vec<String> = told.iter().map(|(name, at)| format!("{name} at {at}")).collect();
            all.join(", ")
        };
        match self.told.as_slice() {
            [] => {
                let whys = self.untold.iter().map(|(name, why)| match name {
                    Some(name) => format!("{name}: {why}"),
                    None => why.to_string(),
                });
                write!(f, "No receiver was notified: {}.", whys.collect::<Vec<_>>().join("; "))?;
            }
            told => {
                write!(f, "Notified of the silence: {}", listed(told))?;
                for (name, why) in &self.untold {
                    match name {
                        Some(name) => write!(f, "; not {name}: {why}")?,
                        None => write!(f, "; others are not: {why}")?,
                    }
                }
                f.write_str(".")?;
            }
        }
        if !self.told_of_return.is_empty() {
            write!(f, " Notified of the return: {}.", listed(&self.told_of_return))?;
        }
        if let Some(why) = &self.return_untold {
            write!(f, " No receiver was notified of the return: {why}.")?;
        }
        match &self.acknowledged_by {
            Some(author) => write!(f, " Acknowledged by {author}: reminders and escalations stop."),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
