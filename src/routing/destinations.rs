//! The receivers and the pace of groups, by their keys.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::id::{receivers_in, route_in};
use super::inhibition::Inhibitors;
use super::mutes::{self, MutedRoutes, Mutes};
use super::{AlertSilences, RouteTimes};
use crate::clock::Timestamp;
use crate::presence::{Kind, OfflineRecord, Pace, is_archived};

/// The receivers of a group, and how fast its notifications follow each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    pub receivers: Vec<String>,
    pub pace: Pace,
    pub again: FollowUps,
}

/// Reminders and escalations of silences that last.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FollowUps {
    /// How often the receivers are reminded; `None`: never.
    pub repeat: Option<Duration>,
    /// In the order of their times.
    pub escalate: Vec<Escalation>,
}

/// Other receivers that are notified of a silence which lasts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Escalation {
    /// How long after the notification.
    pub after: Duration,
    pub receivers: Vec<String>,
}

impl FollowUps {
    /// How long after a notification the first escalation is due; `None`: there is none.
    pub fn first_escalation(&self) -> Option<Duration> {
        self.escalate.iter().map(|step| step.after).min()
    }

    /// The receivers that are notified of a silence of a route with these receivers at once, then those that it is
    /// escalated to, each once.
    pub fn notified<'a>(&'a self, receivers: &'a [String]) -> Vec<&'a String> {
        let mut all: Vec<&String> = Vec::new();
        for name in receivers.iter().chain(self.escalate.iter().flat_map(|step| &step.receivers)) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }

    /// How long after a notification the first reminder or escalation is due.
    pub fn first(&self) -> Option<Duration> {
        self.repeat.into_iter().chain(self.escalate.iter().map(|step| step.after)).min()
    }
}

impl Destination {
    /// A destination without reminders.
    pub fn new(receivers: Vec<String>, pace: Pace) -> Destination {
        Destination { receivers, pace, again: FollowUps::default() }
    }

    pub fn with(self, again: FollowUps) -> Destination {
        Destination { pace: Pace { looks_after: again.first(), ..self.pace }, again, ..self }
    }

    /// The receivers that may be notified again of a silence: its own, then those of the escalations, each once.
    pub fn notified_again(&self) -> Vec<&String> {
        self.again.notified(&self.receivers)
    }
}

/// After how long a silence that an alert silence covers is checked again: the alert silence may be ended before its
/// time.
const LOOKED_AT_AFTER: Duration = Duration::from_secs(10);

/// How much longer an episode of flapping waits than a silence: it begins with a return in another group, and receivers
/// get that return first.
const BEHIND_RETURNS: Duration = Duration::from_secs(1);

/// The destination of every group.
#[derive(Clone, Debug)]
pub struct Destinations {
    /// All receivers that are configured.
    receivers: Vec<String>,
    root: Arc<Destination>,
    blind: Arc<Destination>,
    /// The destination of the mass-offline breaker. Its notifications say what the breaker holds before it holds it,
    /// and why single units follow.
    breaker: Arc<Destination>,
    /// By the ids of the routes.
    routes: Arc<HashMap<String, Arc<Destination>>>,
    mutes: Arc<Mutes>,
    /// The routes that are muted at the moment of [`Destinations::at`].
    muted: MutedRoutes,
    inhibitors: Arc<Inhibitors>,
    silences: Arc<AlertSilences>,
    /// Until when all groups are held.
    hold: Option<Timestamp>,
    /// After how long units of a kind are archived.
    archive: Arc<BTreeMap<Kind, Duration>>,
}

/// The key of the group in which receivers are notified of the mass-offline breaker. It is treated as a group of
/// blindness; no record has such a key.
pub const MASS_OFFLINE: &str = "blind,breaker";

/// The key of the group in which receivers are notified of lost data. It is treated as a group of blindness, too.
pub const DATA_LOST: &str = "blind,lost";

/// Whether the group with this key is one of blindness.
pub fn is_blind(key: &str) -> bool {
    // The label of a unit may have this name; then a `=` follows.
    key == "blind" || key.starts_with("blind,")
}

/// The begin of the labels in the key of a group of flapping units.
pub const FLAPPING: &str = "flapping,";

/// Whether a group is one of flapping units.
pub fn is_flapping(key: &str) -> bool {
    // A label may have this name; then a `=` follows.
    key.split_once('/').map_or(key, |(_, labels)| labels).starts_with(FLAPPING)
}

/// The begin of the labels in the key of a group of unusual silences.
pub const UNUSUAL_GROUP: &str = "unusual,";

/// Whether a group is one of silences: neither of flapping units nor of unusual silences.
pub fn is_of_silences(key: &str) -> bool {
    let labels = key.split_once('/').map_or(key, |(_, labels)| labels);
    !is_flapping(key) && !labels.starts_with(UNUSUAL_GROUP)
}

/// Whether the groups of a route have one unit each, by the key of one of them. Values hold no `=` and no `,`.
fn has_unit(key: &str) -> bool {
    let labels = key.split_once('/').map_or(key, |(_, labels)| labels);
    labels.split(',').any(|label| label.starts_with("unit="))
}

impl Destinations {
    /// One destination for all groups.
    pub fn all(pace: Pace, receivers: &[String]) -> Destinations {
        let receivers = receivers.to_vec();
        let root = Arc::new(Destination::new(receivers.clone(), pace));
        Destinations::of_all(root.clone(), root, HashMap::new()).with_receivers(receivers)
    }

    /// The destinations of the root and of the routes with these ids.
    pub fn new(root: Destination, blind: Vec<String>, routes: HashMap<String, Destination>) -> Destinations {
        let blind = Arc::new(Destination::new(blind, Pace::new(root.pace.wait, root.pace.interval)));
        let routes = routes.into_iter().map(|(id, route)| (id, Arc::new(route))).collect();
        Destinations::of_all(Arc::new(root), blind, routes)
    }

    fn of_all(
        root: Arc<Destination>,
        blind: Arc<Destination>,
        routes: HashMap<String, Arc<Destination>>,
    ) -> Destinations {
        let breaker = Arc::new(Destination::new(blind.receivers.clone(), Pace::AT_ONCE));
        Destinations {
            receivers: Vec::new(),
            root,
            blind,
            breaker,
            routes: Arc::new(routes),
            mutes: Arc::default(),
            muted: MutedRoutes::default(),
            inhibitors: Arc::default(),
            silences: Arc::default(),
            hold: None,
            archive: Arc::default(),
        }
    }

    /// Sets the times of routes, by their ids; the id of the root is empty.
    pub fn with_times(self, times: HashMap<String, RouteTimes>) -> Destinations {
        Destinations { mutes: Arc::new(Mutes::new(times)), ..self }
    }

    /// The destinations at a moment, with the routes that are muted then.
    pub fn at(&self, now: Timestamp) -> Destinations {
        Destinations { muted: self.mutes.at(now), ..self.clone() }
    }

    /// Until when a group is held; it is not sealed before that. `None`: the group is not held. Call it before a
    /// group is sealed, and again when the group is due the next time. Blindness is never held.
    pub fn held_until(&self, key: &str, now: Timestamp) -> Option<Timestamp> {
        if (self.muted.is_empty() && self.hold.is_none()) || is_blind(key) {
            return None;
        }
        let muted = self.muted.get(route_in(key).unwrap_or_default());
        let muted = muted.map(|until| mutes::held_until(*until, now));
        muted.max(self.hold).filter(|until| *until > now)
    }

    /// Holds all groups until then, except groups of blindness.
    pub fn with_hold(self, hold: Option<Timestamp>) -> Destinations {
        Destinations { hold, ..self }
    }

    /// Sets the kinds whose units are archived, and after how long. Receivers are not reminded of archived units.
    pub fn with_archive(self, archive: BTreeMap<Kind, Duration>) -> Destinations {
        Destinations { archive: Arc::new(archive), ..self }
    }

    /// Sets the units whose silence inhibits others at the moment.
    pub fn with_inhibitors(self, inhibitors: Arc<Inhibitors>) -> Destinations {
        Destinations { inhibitors, ..self }
    }

    /// Sets the alert silences of operators. A silence that waits in its group when an alert silence begins is held,
    /// like an inhibited silence.
    pub fn with_silences(self, silences: Arc<AlertSilences>) -> Destinations {
        Destinations { silences, ..self }
    }

    /// Until when an open record is held; it is not sealed before that. `None`: it is not held. A return is never held.
    pub fn silence_held_until(&self, record: &OfflineRecord, now: Timestamp) -> Option<Timestamp> {
        if record.back_at.is_some() {
            return None;
        }
        let inhibited = self.inhibitors.held(record, now).map(|held| held.until);
        let silenced = self.silences.covered_until(record, now).map(|until| until.min(now + LOOKED_AT_AFTER));
        inhibited.max(silenced)
    }

    /// Whether receivers that know of an open record are not notified of it again: it is held, or its unit is archived.
    pub fn is_quiet(&self, record: &OfflineRecord, now: Timestamp) -> bool {
        let archived =
            self.archive.get(&record.kind).is_some_and(|after| is_archived(record.deadline, *after, now));
        archived || self.silence_held_until(record, now).is_some()
    }

    /// Whether any silence may be held; if not, an engine need not read the silences that it seals.
    pub fn may_hold_silences(&self, now: Timestamp) -> bool {
        !self.inhibitors.is_empty() || self.silences.iter().any(|one| one.is_active(now))
    }

    /// Sets all receivers that are configured, whether or not a route names them.
    pub fn with_receivers(self, receivers: Vec<String>) -> Destinations {
        Destinations { receivers, ..self }
    }

    /// All receivers that are configured.
    pub fn receivers(&self) -> &[String] {
        &self.receivers
    }

    /// The receivers of blindness.
    pub fn blind(&self) -> &Destination {
        &self.blind
    }

    /// Receivers of silences that are sealed as they join.
    pub fn without_wait(&self) -> Vec<&String> {
        let all: Vec<&Arc<Destination>> = self.routes.values().chain([&self.root]).collect();
        let at_once = all.iter().filter(|one| one.pace.is_at_once());
        let named: Vec<&String> = at_once.flat_map(|one| &one.receivers).collect();
        self.receivers.iter().filter(|name| named.contains(name)).collect()
    }

    /// The destination of the group with that key.
    pub fn of(&self, key: &str) -> Arc<Destination> {
        let destination = self.of_route(key);
        if !is_flapping(key) {
            return destination;
        }
        let mut destination = Arc::unwrap_or_clone(destination);
        destination.pace.wait += BEHIND_RETURNS;
        // Receivers that are not notified of returns are still notified of the state after an episode.
        destination.pace = destination.pace.with_returns();
        Arc::new(destination)
    }

    fn of_route(&self, key: &str) -> Arc<Destination> {
        let Some(id) = route_in(key) else {
            let destination = match key {
                MASS_OFFLINE => &self.breaker,
                _ if is_blind(key) => &self.blind,
                _ => &self.root,
            };
            return destination.clone();
        };
        if let Some(known) = self.routes.get(id) {
            return known.clone();
        }
        let receivers = receivers_in(id).filter(|name| self.receivers.iter().any(|known| known == name));
        let receivers: Vec<String> = receivers.map(str::to_owned).collect();
        // The route is gone and had no receiver, or no receiver of it is left.
        let is_lost = receivers.is_empty() && receivers_in(id).next().is_some();
        let pace = Pace { is_shared: !has_unit(key), ..self.root.pace };
        if is_lost {
            return Arc::new(Destination { pace, ..(*self.root).clone() });
        }
        if let Some(heir) = self.heir(&receivers) {
            let pace = Pace { is_shared: pace.is_shared, ..heir.pace };
            return Arc::new(Destination { pace, ..(**heir).clone() });
        }
        // The receivers are notified of the returns of silences that they know, and the group escalates nothing.
        Arc::new(Destination::new(receivers, Pace { looks_after: None, ..pace.with_returns() }))
    }

    /// The destination of a route that is gone, whose matchers may have been edited: the destination of the routes with
    /// its receivers, if they all notify alike. `None`: it is not known which of these routes it is now.
    fn heir(&self, receivers: &[String]) -> Option<&Arc<Destination>> {
        let alike = |one: &Destination| (Pace { is_shared: true, ..one.pace }, one.again.clone());
        let mut heirs = self.routes.values().chain([&self.root]).filter(|one| one.receivers == receivers);
        let heir = heirs.next()?;
        heirs.all(|other| alike(other) == alike(heir)).then_some(heir)
    }

    /// Whether a route reminds its receivers, or escalates to others.
    pub fn has_reminders(&self) -> bool {
        self.routes.values().chain([&self.root]).any(|one| one.again != FollowUps::default())
    }

    /// The receivers that are configured and do not belong to a destination. They are notified of the returns of
    /// silences that they were notified of.
    pub fn others<'a>(&'a self, destination: &Destination) -> Vec<&'a String> {
        self.receivers.iter().filter(|name| !destination.receivers.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(receiver: &str, wait: u64, repeat: Option<u64>) -> Destination {
        let pace = Pace::new(Duration::from_secs(wait), Duration::from_secs(300));
        let again = FollowUps { repeat: repeat.map(Duration::from_secs), escalate: Vec::new() };
        Destination::new(vec![receiver.to_owned()], pace).with(again)
    }

    #[test]
    fn a_group_whose_route_is_gone_goes_on_as_with_those_of_its_receivers_if_these_are_alike() {
        let with = |routes: &[(&str, Destination)]| {
            let routes = routes.iter().map(|(id, route)| ((*id).to_owned(), route.clone())).collect();
            let all = ["hook", "mail", "other"].map(str::to_owned).to_vec();
            Destinations::new(destination("other", 7, None), Vec::new(), routes).with_receivers(all)
        };
        let again = |destinations: &Destinations, key: &str| {
            let found = destinations.of(key);
            (
                found.receivers.join(" "),
                found.pace.wait.as_secs(),
                found.again.repeat.map(|after| after.as_secs()),
            )
        };
        let (key, hook) = ("hook.0/kind=a", || destination("hook", 1, Some(60)));
        let alone = with(&[("hook.1", hook()), ("mail.2", destination("mail", 2, None))]);
        assert_eq!(again(&alone, key), ("hook".to_owned(), 1, Some(60)));
        assert!(alone.of(key).pace.is_shared && !alone.of("hook.0/unit=a").pace.is_shared, "its key says it");
        let alike = with(&[("hook.1", hook()), ("hook.2", hook())]);
        assert_eq!(again(&alike, key), ("hook".to_owned(), 1, Some(60)));
        for other in [destination("hook", 1, None), destination("hook", 2, Some(60))] {
            let differing = with(&[("hook.1", hook()), ("hook.2", other)]);
            assert_eq!(again(&differing, key), ("hook".to_owned(), 7, None));
        }
        assert_eq!(again(&alone, "gone.0/kind=a"), ("other".to_owned(), 7, None), "that of the root");
    }
}
