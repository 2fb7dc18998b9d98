//! The receivers and the pace of groups, by their keys.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::id::{has_same_matchers, receivers_in, route_in};
use super::inhibition::Inhibitors;
use super::mutes::{self, MutedRoutes, Mutes};
use super::tree::{MatchedRoute, NamedRoute};
use super::{AlertSilences, FollowUps, RouteTimes, Routes};
use crate::clock::Timestamp;
use crate::presence::{Kind, OfflineRecord, Pace, is_archived};

/// The receivers of a group, and how fast its notifications follow each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    pub receivers: Vec<String>,
    pub pace: Pace,
    pub again: FollowUps,
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
    /// `None`: there is only the root.
    tree: Option<Arc<Routes>>,
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
            tree: None,
            mutes: Arc::default(),
            muted: MutedRoutes::default(),
            inhibitors: Arc::default(),
            silences: Arc::default(),
            hold: None,
            archive: Arc::default(),
        }
    }

    /// Sets the routes that silences take now.
    pub fn with_tree(self, tree: Routes) -> Destinations {
        Destinations { tree: Some(Arc::new(tree)), ..self }
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
        let muted = self.muted_until(&self.routes_now(key)).map(|until| mutes::held_until(until, now));
        muted.max(self.hold).filter(|until| *until > now)
    }

    /// Until when a waiting silence is not notified because its route is muted. If the route of its group is gone, the
    /// routes that the silence takes now count: of these, the ones with the receivers of the former route, if any.
    /// Call it for [`Destinations::at`].
    pub fn mute_of(&self, key: &str, record: &OfflineRecord) -> Option<Timestamp> {
        if self.muted.is_empty() {
            return None;
        }
        let now = self.routes_now(key);
        if !now.is_empty() {
            return self.muted_until(&now);
        }
        let taken = self.tree.as_deref().map(|tree| tree.of(record)).unwrap_or_default();
        let former = || receivers_in(route_in(key).unwrap_or_default());
        let is_alike = |one: &&MatchedRoute<'_>| former().eq(one.route.receivers.iter().map(String::as_str));
        let alike: Vec<&str> = taken.iter().filter(is_alike).map(|one| one.id).collect();
        if !alike.is_empty() {
            return self.muted_until(&alike);
        }
        self.muted_until(&taken.iter().map(|one| one.id).collect::<Vec<_>>())
    }

    /// Until when all these routes are muted; `None`: one of them is not.
    fn muted_until(&self, routes: &[&str]) -> Option<Timestamp> {
        routes.iter().map(|id| self.muted.get(*id).copied()).min().flatten()
    }

    /// The routes of now that the route of a group is: the route with its id or, if its receivers were changed, those
    /// with its matchers. Empty: it is gone, or its matchers or those of a route above it were changed.
    fn routes_now(&self, key: &str) -> Vec<&str> {
        let Some(id) = route_in(key) else { return vec![""] };
        if let Some((id, _)) = self.routes.get_key_value(id) {
            return vec![id];
        }
        // A route with none of its receivers stood beside it, and has groups of its own.
        let receivers = self.configured(id);
        let is_edited = |(other, one): &(&String, &Arc<Destination>)| {
            let shares = receivers.is_empty() || one.receivers.iter().any(|name| receivers.contains(name));
            has_same_matchers(other, id) && shares
        };
        self.routes.iter().filter(is_edited).map(|(id, _)| id.as_str()).collect()
    }

    /// The receivers in the id of a route that are configured.
    fn configured(&self, id: &str) -> Vec<String> {
        let is_configured = |name: &&str| self.receivers.iter().any(|known| known == name);
        receivers_in(id).filter(is_configured).map(str::to_owned).collect()
    }

    /// Whether the group with this key is one of this route, by its id.
    pub fn is_group_of(&self, key: &str, route: &str) -> bool {
        self.routes_now(key).contains(&route)
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

    /// Until when a silence that waits in the group with this key is held: see [`Destinations::silence_held_until`] and
    /// [`Destinations::mute_of`].
    pub fn member_held_until(&self, key: &str, record: &OfflineRecord, now: Timestamp) -> Option<Timestamp> {
        let muted = self.mute_of(key, record).filter(|_| record.back_at.is_none());
        self.silence_held_until(record, now).max(muted.map(|until| mutes::held_until(until, now)))
    }

    /// Whether receivers that know of an open record by the group with this key are not notified of it again: it is held,
    /// or its unit is archived.
    pub fn is_quiet(&self, key: &str, record: &OfflineRecord, now: Timestamp) -> bool {
        let archived =
            self.archive.get(&record.kind).is_some_and(|after| is_archived(record.deadline, *after, now));
        archived || self.member_held_until(key, record, now).is_some()
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
        let is_shared = !has_unit(key);
        let of_key = |one: &Destination| Destination { pace: Pace { is_shared, ..one.pace }, ..one.clone() };
        let receivers = self.configured(id);
        let edited = self.routes_now(key);
        let edited = edited.iter().filter_map(|id| self.routes.get(*id));
        if let Some(heir) = agreed(edited).or_else(|| agreed(self.alike(id, &receivers))) {
            return Arc::new(of_key(heir));
        }
        // The route is gone, and no receiver of it is left.
        if receivers.is_empty() && self.alike(id, &receivers).next().is_none() {
            return Arc::new(of_key(&self.root));
        }
        // The receivers are notified of the returns of silences that they know, and the group escalates nothing.
        let pace = Pace { is_shared, looks_after: None, ..self.root.pace };
        Arc::new(Destination::new(receivers, pace.with_returns()))
    }

    /// The routes with the receivers of a route that is gone, whose matchers may have been edited. None if it had
    /// receivers, and none of them is configured any more.
    fn alike<'a>(&'a self, id: &str, receivers: &'a [String]) -> impl Iterator<Item = &'a Arc<Destination>> {
        let is_lost = receivers.is_empty() && receivers_in(id).next().is_some();
        let all = self.routes.values().chain([&self.root]);
        all.filter(move |one| !is_lost && one.receivers == receivers)
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

impl Routes {
    /// The destinations of all groups, where these receivers are configured.
    pub fn destinations(&self, receivers: Vec<String>) -> Destinations {
        let mut routes = HashMap::new();
        self.root.destinations(&mut routes);
        let root = routes.remove("").unwrap_or_else(|| self.root.destination());
        let blind = if root.receivers.is_empty() { receivers.clone() } else { root.receivers.clone() };
        let is_named = |name: &String| {
            root.receivers.contains(name) || routes.values().any(|route| route.receivers.contains(name))
        };
        let blind = blind.into_iter().filter(is_named).collect();
        let mut times = HashMap::new();
        self.root.times(&mut times);
        let destinations = Destinations::new(root, blind, routes).with_receivers(receivers).with_times(times);
        destinations.with_tree(self.clone())
    }
}

impl NamedRoute {
    fn destination(&self) -> Destination {
        let pace = Pace { is_shared: self.route.is_shared(), ..self.route.pace };
        Destination::new(self.route.receivers.clone(), pace).with(self.route.again.clone())
    }

    fn times(&self, all: &mut HashMap<String, RouteTimes>) {
        if !self.route.times.is_empty() {
            all.insert(self.id.clone(), self.route.times.clone());
        }
        self.below.iter().for_each(|child| child.times(all));
    }

    fn destinations(&self, all: &mut HashMap<String, Destination>) {
        all.insert(self.id.clone(), self.destination());
        self.below.iter().for_each(|child| child.destinations(all));
    }
}

/// The first of these destinations, if all notify alike. `None`: it is not known which of their routes it is now.
fn agreed<'a>(mut all: impl Iterator<Item = &'a Arc<Destination>>) -> Option<&'a Arc<Destination>> {
    let what =
        |one: &Destination| (one.receivers.clone(), Pace { is_shared: true, ..one.pace }, one.again.clone());
    let first = all.next()?;
    all.all(|other| what(other) == what(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{Route, TimeInterval, parse_matchers, zone};

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

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    fn record(unit: &str) -> OfflineRecord {
        let at = Timestamp::from_millis(1_784_678_400_000);
        OfflineRecord::open(unit.parse().unwrap(), at, at, at)
    }

    /// The root notifies `root`; below it are routes with these matchers and receivers. The routes marked are muted.
    fn tree(above: &str, routes: &[(&str, &[&str], bool)]) -> Routes {
        let always = TimeInterval {
            name: "always".to_owned(),
            times: vec![],
            weekdays: vec![],
            days_of_month: vec![],
            months: vec![],
            years: vec![],
            zone: zone("UTC").unwrap(),
        };
        let mute = RouteTimes { mute: vec![Arc::new(always)], active: vec![] };
        let route = |(matchers, receivers, is_muted): &(&str, &[&str], bool)| Route {
            matchers: parse_matchers(matchers).unwrap(),
            receivers: names(receivers),
            continues: true,
            times: if *is_muted { mute.clone() } else { RouteTimes::default() },
            ..Route::default()
        };
        let above = Route {
            matchers: parse_matchers(above).unwrap(),
            routes: routes.iter().map(route).collect(),
            ..Route::default()
        };
        Routes::new(Route { receivers: names(&["root"]), routes: vec![above], ..Route::default() })
    }

    /// The key of a group of the first of these routes.
    fn key_of(routes: &Routes, record: &OfflineRecord) -> String {
        format!("{}/unit=c", routes.of(record)[0].id)
    }

    #[test]
    fn a_silence_of_a_muted_route_is_held_as_long_as_the_route_that_it_takes_now_is_muted() {
        let (c, now) = (record("camera:c"), Timestamp::from_millis(1_784_678_400_000));
        let (above, own, desk) = ("kind=camera", "unit=c", &["desk"][..]);
        let key = key_of(&tree(above, &[(own, desk, true)]), &c);
        let beside = ("unit=~\"c|d\"", desk, false);
        type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a [&'a str], bool)], bool);
        let cases: [Case<'_>; 11] = [
            ("nothing changed", above, &[(own, desk, true)], true),
            ("its matchers were", above, &[("unit=~\"c|z\"", desk, true)], true),
            ("those of a route above it were", "kind=~\"camera|x\"", &[(own, desk, true)], true),
            ("a receiver was added", above, &[(own, &["desk", "new"], true)], true),
            ("its receiver was replaced", above, &[(own, &["new"], true)], true),
            ("both were", above, &[("unit=~\"c|z\"", &["new"], true)], true),
            (
                "a route beside it that takes it, too, is not",
                above,
                &[("unit=~\"c|z\"", desk, true), beside],
                false,
            ),
            (
                "a route with other receivers is not",
                above,
                &[("unit=~c", desk, true), (own, &["new"], false)],
                true,
            ),
            ("the mute is over", above, &[(own, desk, false)], false),
            ("its matchers were, and the mute is over", above, &[("unit=~\"c|z\"", desk, false)], false),
            ("another route takes it now", above, &[("unit=z", desk, true), beside], false),
        ];
        for (what, above, routes, is_held) in cases {
            let to = tree(above, routes).destinations(names(&["root", "desk", "new"])).at(now);
            let held = to.held_until(&key, now).max(to.member_held_until(&key, &c, now));
            assert_eq!(held.is_some(), is_held, "{what}");
            let back = OfflineRecord { back_at: Some(now), ..c.clone() };
            assert_eq!(to.member_held_until(&key, &back, now).filter(|_| !is_held), None, "{what}");
        }
    }

    #[test]
    fn a_group_goes_on_with_the_receivers_of_its_route_of_now() {
        let c = record("camera:c");
        let (above, own) = ("kind=camera", "unit=c");
        type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a [&'a str], bool)], &'a [&'a str]);
        let cases: [Case<'_>; 11] = [
            (&["desk"], &[(own, &["desk", "new"], false)], &["desk", "new"]),
            (&["desk", "gone"], &[(own, &["desk", "new"], false)], &["desk", "new"]),
            // It was a route beside this one, or its receiver was replaced: the silence is not notified twice.
            (&["desk"], &[(own, &["new"], false)], &["desk"]),
            (&["desk"], &[(own, &["new"], false), (own, &["desk", "boss"], false)], &["desk", "boss"]),
            // Its receiver was renamed.
            (&["gone"], &[(own, &["new"], false)], &["new"]),
            (&["gone"], &[("unit=~c", &["new"], false)], &["root"]),
            (&["gone"], &[("unit=~c", &[], false)], &["root"]),
            // A route without receivers.
            (&[], &[(own, &["new"], false)], &["new"]),
            (&[], &[("unit=~c", &[], false)], &[]),
            (&[], &[("unit=~c", &["new"], false)], &["root"]),
            (&[], &[], &["root"]),
        ];
        for (before, routes, after) in cases {
            let key = key_of(&tree(above, &[(own, before, false)]), &c);
            // The route above has receivers, or it would be one without.
            let mut root = tree(above, routes).tree();
            root.routes[0].receivers = names(&["above"]);
            let to = Routes::new(root).destinations(names(&["root", "above", "desk", "new", "boss"]));
            assert_eq!(to.of(&key).receivers, after, "{before:?} {routes:?}");
        }
    }
}
