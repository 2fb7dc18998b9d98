//! The tree of routes.

use std::collections::HashMap;

use super::matcher::UNUSUAL;
use super::{FollowUps, Matcher, RouteTimes, id};
use crate::clock::Timestamp;
use crate::presence::{Kind, Labels, OfflineRecord, Pace};

/// In `group_by`: every label, `kind` and `unit`.
pub const EVERY_LABEL: &str = "...";

/// A route, with everything that it inherits.
#[derive(Clone, Debug)]
pub struct Route {
    /// A silence that all matchers match takes the route; without matchers every silence does.
    pub matchers: Vec<Matcher>,
    /// Whether the next route is tried after this one has matched.
    pub continues: bool,
    /// Names of receivers.
    pub receivers: Vec<String>,
    /// `kind`, `unit` and label names, or [`EVERY_LABEL`]; transitions that share their values share notifications.
    pub group_by: Vec<String>,
    /// How fast its groups are notified; whether units share them follows from `group_by`.
    pub pace: Pace,
    /// Reminders and escalations.
    pub again: FollowUps,
    /// When it notifies. Not inherited.
    pub times: RouteTimes,
    /// The first of these routes that matches takes the silence from this route.
    pub routes: Vec<Route>,
}

impl Default for Route {
    fn default() -> Route {
        Route {
            matchers: Vec::new(),
            continues: false,
            receivers: Vec::new(),
            group_by: Vec::new(),
            pace: Pace::AT_ONCE,
            again: FollowUps::default(),
            times: RouteTimes::default(),
            routes: Vec::new(),
        }
    }
}

impl Route {
    /// This route and the routes below it, each before the routes below it.
    pub fn all(&self) -> Vec<&Route> {
        let below = self.routes.iter().flat_map(Route::all);
        [self].into_iter().chain(below).collect()
    }

    /// The receivers that are notified of its silences: at once, or when a silence is escalated to them.
    pub fn notified(&self) -> Vec<&String> {
        self.again.notified(&self.receivers)
    }

    /// The receivers of this route and of the routes below it, each once.
    pub fn named_receivers(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for name in self.all().into_iter().flat_map(Route::notified) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// The first moment at which receivers may be notified of a silence: it has waited, and has lasted as long as it
    /// must.
    pub fn ready_at(&self, record: &OfflineRecord) -> Timestamp {
        Pace { is_shared: self.is_shared(), ..self.pace }.ready_at(record)
    }

    /// Whether units share its groups. A group of one unit need not gather others.
    pub(super) fn is_shared(&self) -> bool {
        !self.group_by.iter().any(|name| name == "unit" || name == EVERY_LABEL)
    }

    /// Whether a matcher asks for unusual silences.
    fn has_unusual(&self) -> bool {
        self.matchers.iter().any(|matcher| matcher.name() == UNUSUAL)
    }

    /// The first matcher that does not match.
    fn refused_by(&self, record: &OfflineRecord) -> Option<&Matcher> {
        self.matchers.iter().find(|matcher| !matcher.takes(record))
    }

    /// The values that the members of the record's group share. A label that the unit lacks is left out: units
    /// without it are together.
    pub fn shared(&self, record: &OfflineRecord) -> Labels {
        let (kind, unit) = (|| record.kind.as_str().to_owned(), || record.unit.as_str().to_owned());
        if self.group_by.iter().any(|name| name == EVERY_LABEL) {
            let own = [("kind".to_owned(), kind()), ("unit".to_owned(), unit())];
            return record.labels.clone().into_iter().chain(own).collect();
        }
        let value = |name: &String| match name.as_str() {
            "kind" => Some(kind()),
            "unit" => Some(unit()),
            label => record.labels.get(label).cloned(),
        };
        self.group_by.iter().filter_map(|name| Some((name.clone(), value(name)?))).collect()
    }
}

/// The tree of routes with their ids.
#[derive(Clone, Debug)]
pub struct Routes {
    pub(super) root: NamedRoute,
}

/// A route that a silence takes.
#[derive(Clone, Copy, Debug)]
pub struct MatchedRoute<'a> {
    /// Empty for the root.
    pub id: &'a str,
    /// Its place in the configuration: `route.routes[0]`.
    pub path: &'a str,
    pub route: &'a Route,
}

/// A route that was tried.
#[derive(Clone, Copy, Debug)]
pub struct TriedRoute<'a> {
    pub path: &'a str,
    pub route: &'a Route,
    /// The first matcher that does not match; `None`: all match.
    pub refused_by: Option<&'a Matcher>,
}

/// A route of the tree; `route.routes` is empty.
#[derive(Clone, Debug)]
pub(super) struct NamedRoute {
    /// Empty for the root.
    pub id: String,
    /// Its place in the configuration: `route.routes[0]`.
    path: String,
    pub route: Route,
    pub below: Vec<NamedRoute>,
}

impl Routes {
    pub fn new(root: Route) -> Routes {
        let mut root = NamedRoute::new(root, "", "route".to_owned(), &mut HashMap::new());
        root.id = String::new();
        Routes { root }
    }

    /// The tree, as it was given.
    pub fn tree(&self) -> Route {
        self.root.tree()
    }

    /// The routes that a silence takes; at least one. The notice of an unusual silence takes only routes that ask for
    /// it, by a matcher on `unusual` of their own or of a route above them, and perhaps none.
    pub fn of(&self, record: &OfflineRecord) -> Vec<MatchedRoute<'_>> {
        let mut taken = Vec::new();
        self.root.find(record, !record.is_unusual(), &mut taken, &mut |_| {});
        taken
    }

    /// Whether a route may take unusual silences of a kind.
    pub fn ask_for_unusual_of(&self, kind: &Kind) -> bool {
        self.root.asks_for_unusual_of(kind, false)
    }

    /// The routes that a silence takes, and every route that was tried, in order.
    pub fn explain(&self, record: &OfflineRecord) -> (Vec<MatchedRoute<'_>>, Vec<TriedRoute<'_>>) {
        let (mut taken, mut steps) = (Vec::new(), Vec::new());
        self.root.find(record, !record.is_unusual(), &mut taken, &mut |step| steps.push(step));
        (taken, steps)
    }
}

impl NamedRoute {
    /// `above`: the matchers of the routes above it; `known`: how many routes have that id already. Routes with the
    /// same receivers and matchers, also above, are told apart by their order.
    fn new(mut route: Route, above: &str, path: String, known: &mut HashMap<String, usize>) -> NamedRoute {
        let matchers = route.matchers.iter().map(Matcher::to_string).collect::<Vec<_>>().join(",");
        let conditions = format!("{above}{{{matchers}}}");
        let id = id::id(&route.receivers, &conditions);
        let same = known.entry(id.clone()).or_default();
        *same += 1;
        let id = if *same == 1 { id } else { id::id(&route.receivers, &format!("{conditions}{same}")) };
        let above = format!("{conditions}/");
        let below = std::mem::take(&mut route.routes).into_iter().enumerate();
        let below =
            below.map(|(at, child)| NamedRoute::new(child, &above, format!("{path}.routes[{at}]"), known));
        let below = below.collect();
        NamedRoute { id, path, route, below }
    }

    fn tree(&self) -> Route {
        Route { routes: self.below.iter().map(NamedRoute::tree).collect(), ..self.route.clone() }
    }

    /// See [`Routes::ask_for_unusual_of`]. Matchers of other labels than `kind` may match one of its units.
    fn asks_for_unusual_of(&self, kind: &Kind, is_asked: bool) -> bool {
        let is_asked = is_asked || self.route.has_unusual();
        let may_match = |matcher: &Matcher| match matcher.name() {
            "kind" => matcher.is_match(kind.as_str()),
            UNUSUAL => matcher.is_match("true"),
            _ => true,
        };
        self.route.matchers.iter().all(may_match)
            && (is_asked || self.below.iter().any(|child| child.asks_for_unusual_of(kind, is_asked)))
    }

    /// `is_asked`: whether the routes above ask for such a record.
    fn find<'a>(
        &'a self,
        record: &OfflineRecord,
        is_asked: bool,
        taken: &mut Vec<MatchedRoute<'a>>,
        tried: &mut impl FnMut(TriedRoute<'a>),
    ) {
        let before = taken.len();
        let is_asked = is_asked || self.route.has_unusual();
        for child in &self.below {
            let refused_by = child.route.refused_by(record);
            tried(TriedRoute { path: &child.path, route: &child.route, refused_by });
            if refused_by.is_some() {
                continue;
            }
            let known = taken.len();
            child.find(record, is_asked, taken, tried);
            // If a route takes no unusual silence, the routes after it are tried.
            if !child.route.continues && taken.len() > known {
                break;
            }
        }
        if taken.len() == before && is_asked {
            taken.push(MatchedRoute { id: &self.id, path: &self.path, route: &self.route });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::presence::{Cause, Unit};
    use crate::routing::parse_matchers;

    fn record(unit: &str, labels: &[(&str, &str)]) -> OfflineRecord {
        let unit: Unit = unit.parse().unwrap();
        let at = Timestamp::from_millis(1_732_147_200_000);
        let labels = labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        OfflineRecord { labels, ..OfflineRecord::open(unit, at, at, at) }
    }

    fn route(matchers: &str, receiver: &str, continues: bool, routes: Vec<Route>) -> Route {
        let matchers = if matchers.is_empty() { Vec::new() } else { parse_matchers(matchers).unwrap() };
        Route { matchers, continues, receivers: vec![receiver.to_owned()], routes, ..Route::default() }
    }

    fn taken(routes: &Routes, record: &OfflineRecord) -> Vec<String> {
        routes.of(record).iter().map(|taken| taken.route.receivers.join(" ")).collect()
    }

    #[test]
    fn the_first_route_that_matches_takes_a_silence_unless_it_continues() {
        let of_north = vec![
            route("kind=gate", "gates", false, vec![]),
            route("kind=~\"pump|valve\"", "pumps", true, vec![]),
            route("kind=pump", "pump", false, vec![]),
        ];
        let of_root = vec![
            route("site=north", "north", false, of_north),
            route("site=~.+", "audit", true, vec![]),
            route("site=south, cause=silence", "south", false, vec![]),
            route("unit!~\"a.*\"", "rest", false, vec![]),
        ];
        let routes = Routes::new(route("", "root", false, of_root));
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);
        let cases: [Case<'_>; 8] = [
            ("detector:a", &[("site", "north")], &["north"]),
            ("gate:a", &[("site", "north")], &["gates"]),
            ("pump:a", &[("site", "north")], &["pumps", "pump"]),
            ("valve:a", &[("site", "north")], &["pumps"]),
            ("detector:a", &[("site", "south")], &["audit", "south"]),
            ("detector:a", &[("site", "west")], &["audit"]),
            ("detector:b", &[("site", "west")], &["audit", "rest"]),
            ("detector:a", &[], &["root"]),
        ];
        for (unit, labels, expected) in cases {
            assert_eq!(taken(&routes, &record(unit, labels)), expected, "{unit} {labels:?}");
        }
    }

    #[test]
    fn an_unusual_silence_takes_only_routes_that_ask_for_it() {
        let below = vec![route("site=north", "north", false, vec![])];
        let of_root = vec![
            route("kind=gate", "gates", false, vec![]),
            route("unusual=\"false\"", "never", false, vec![]),
            route("unusual=\"true\", kind=~\"gate|pump\"", "early", false, below),
            route("", "rest", false, vec![]),
        ];
        let routes = Routes::new(route("", "root", false, of_root));
        for (kind, is_asked) in [("gate", true), ("pump", true), ("valve", false)] {
            assert_eq!(routes.ask_for_unusual_of(&kind.parse().unwrap()), is_asked, "{kind}");
        }
        let unusual = |unit: &str, labels: &[(&str, &str)]| {
            taken(&routes, &OfflineRecord { cause: Cause::Unusual, ..record(unit, labels) })
        };
        // The route of gates takes none, and the route after it is tried.
        assert_eq!(unusual("gate:a", &[]), ["early"]);
        assert_eq!(unusual("pump:a", &[("site", "north")]), ["north"]);
        assert_eq!(unusual("valve:a", &[]), [""; 0]);
        assert_eq!(taken(&routes, &record("gate:a", &[])), ["gates"]);
        assert_eq!(taken(&routes, &record("pump:a", &[])), ["never"], "it is false for every silence");
        let without = Routes::new(route("", "root", false, vec![route("kind=gate", "gates", false, vec![])]));
        let notice = OfflineRecord { cause: Cause::Unusual, ..record("gate:a", &[]) };
        assert!(!without.ask_for_unusual_of(&notice.kind) && taken(&without, &notice).is_empty());
    }

    #[test]
    fn a_route_keeps_its_id_as_long_as_its_matchers_and_receivers_stay() {
        let two = |first: Route, second: Route| Routes::new(route("", "root", false, vec![first, second]));
        let id = |routes: &Routes, unit: &str| routes.of(&record(unit, &[])).last().unwrap().id.to_owned();
        let (a, b) = (|| route("kind=a", "hook", false, vec![]), || route("kind=b", "hook", false, vec![]));
        let routes = two(a(), b());
        let (of_a, of_b) = (id(&routes, "a:1"), id(&routes, "b:1"));
        assert_ne!(of_a, of_b);
        assert_eq!(id(&routes, "c:1"), "", "the root has none");
        // Neither the order, nor the pace, nor another spelling matters.
        let pace = Pace::new(Duration::MAX, Duration::ZERO);
        let spelled = Route { pace, ..route("{ \"kind\" = \"a\" }", "hook", false, vec![]) };
        let routes = two(b(), spelled);
        assert_eq!((id(&routes, "a:1"), id(&routes, "b:1")), (of_a.clone(), of_b));
        assert_ne!(id(&two(route("kind=a", "mail", false, vec![]), b()), "a:1"), of_a);
        // Nor does another route with the same matchers, also with a route of the same kind below it.
        let beside = route("kind=a", "new", true, vec![a()]);
        assert_eq!(id(&two(beside.clone(), a()), "a:1"), of_a);
        let hook_below =
            |receiver| route("kind=a", receiver, true, vec![route("unit=~\"1|2\"", "hook", false, vec![])]);
        let twice = two(hook_below("new"), hook_below("mail"));
        let ids: Vec<&str> = twice.of(&record("a:1", &[])).iter().map(|taken| taken.id).collect();
        assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:?}");
        // Routes with the same matchers and receivers are two, and a route below another is not the one beside it.
        let same = two(route("kind=a", "hook", true, vec![]), a());
        let ids: Vec<&str> = same.root.below.iter().map(|below| below.id.as_str()).collect();
        assert!(ids[0] == of_a && ids[1] != of_a, "{ids:?}");
        let below = two(route("kind=~.*", "root", false, vec![a()]), b());
        assert_ne!(id(&below, "a:1"), of_a);
        // Stored groups have these ids.
        assert_eq!(of_a, "hook.4879553eb1ac");
    }

    #[test]
    fn a_group_shares_the_labels_of_its_route() {
        let record = record("pump:7", &[("site", "north"), ("room", "1")]);
        let shared = |group_by: &[&str]| {
            let group_by = group_by.iter().map(|name| (*name).to_owned()).collect();
            let labels = Route { group_by, ..Route::default() }.shared(&record);
            labels.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shared(&["site", "floor", "kind"]), "kind=pump site=north");
        assert_eq!(shared(&[]), "");
        assert_eq!(shared(&[EVERY_LABEL]), "kind=pump room=1 site=north unit=7");
    }

    #[test]
    fn units_share_groups_unless_they_are_grouped_by_unit() {
        let hook = || vec!["hook".to_owned()];
        for (group_by, is_shared) in
            [(&[][..], true), (&["kind", "site"], true), (&["kind", "unit"], false), (&["..."], false)]
        {
            let group_by: Vec<String> = group_by.iter().map(|name| (*name).to_owned()).collect();
            let root = Route { receivers: hook(), group_by, ..Route::default() };
            let destinations = Routes::new(root).destinations(hook());
            assert_eq!(destinations.of("all").pace.is_shared, is_shared);
            assert!(!destinations.of("blind").pace.is_shared, "no unit is in it");
            // The route is gone: its key says it.
            for (key, is_shared) in
                [("hook.0/kind=a", true), ("hook.0/kind=a,unit=1", false), ("hook.0/unit=1", false)]
            {
                assert_eq!(destinations.of(key).pace.is_shared, is_shared, "{key}");
            }
        }
    }

    #[test]
    fn blindness_goes_to_the_root_or_else_to_every_route() {
        let of = |receivers: &[&str]| {
            let receivers = receivers.iter().map(|name| (*name).to_owned()).collect();
            let routes = vec![route("kind=a", "hook", false, vec![])];
            let all = ["hook", "mail", "unused"].map(str::to_owned).to_vec();
            Routes::new(Route { receivers, routes, ..Route::default() }).destinations(all)
        };
        assert_eq!(of(&["mail"]).blind().receivers, ["mail"]);
        assert_eq!(of(&[]).blind().receivers, ["hook"]);
        for key in ["blind", "blind,kind=a"] {
            assert_eq!(of(&[]).of(key).receivers, ["hook"], "{key}");
        }
        assert_eq!(of(&[]).of("kind=a").receivers, [""; 0]);
    }
}
