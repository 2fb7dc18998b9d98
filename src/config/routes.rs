//! Checks the routes, and adds the options that each inherits.

use std::time::Duration;

use super::Span;
use super::file::{Escalation, File, NestedRoute};
use super::problem::{Problems, suggest};
use super::recoveries::RecoveriesOption;
use super::times::TimeIntervals;
use crate::presence::{self, Pace, is_label_name};
use crate::routing::{self, EVERY_LABEL, FollowUps, Matcher, Route, parse_matchers};

/// The deepest nesting of routes: every route above costs a comparison, and no organisation is as deep.
const DEEPEST: usize = 16;

/// The root of the routes, with those below it.
pub(super) fn root(file: &File, problems: &mut Problems) -> Route {
    let root = &file.route;
    let names: Vec<&str> = file.receiver.iter().map(|one| one.name.as_str()).collect();
    let times = TimeIntervals::new(file, problems);
    receivers("route", &root.receivers, &names, problems);
    group_by("route", &root.group_by, problems);
    let wait = wait("route", root.group_wait, problems);
    let pace = Pace {
        lasts: lasts("route", root.lasts, problems),
        recoveries: recoveries("route", root.recoveries, problems),
        ..Pace::new(wait, interval("route", root.group_interval, problems))
    };
    let mut route = Route {
        receivers: root.receivers.clone(),
        group_by: root.group_by.clone(),
        pace,
        again: FollowUps {
            repeat: repeat("route", root.repeat_interval, problems),
            escalate: escalate("route", &root.escalate, &names, problems),
        },
        times: times.of_route("route", &root.mute_times, &root.active_times, problems),
        ..Route::default()
    };
    let known = RouteNames { receivers: &names, times: &times };
    route.routes = below("route", &root.routes, &route, &known, 1, problems);
    route
}

/// Names that routes may name.
struct RouteNames<'a> {
    receivers: &'a [&'a str],
    times: &'a TimeIntervals,
}

/// Checks the routes below a route; each inherits from `above`.
fn below(
    path: &str,
    routes: &[NestedRoute],
    above: &Route,
    known: &RouteNames<'_>,
    depth: usize,
    problems: &mut Problems,
) -> Vec<Route> {
    if depth > DEEPEST && !routes.is_empty() {
        problems.error(format!("{path}.routes"), format!("routes are nested deeper than {DEEPEST}"));
        return Vec::new();
    }
    let mut all: Vec<Route> = Vec::new();
    for (at, one) in routes.iter().enumerate() {
        let path = format!("{path}.routes[{at}]");
        let takes_all = |route: &Route| route.matchers.is_empty() && !route.continues;
        if let Some(before) = all.iter().position(takes_all) {
            let text = format!(
                "is never reached, because routes[{before}] before it matches everything; move this route up"
            );
            problems.warn(&path, text);
        }
        all.push(nested(&path, one, above, known, depth, problems));
    }
    all
}

fn nested(
    path: &str,
    one: &NestedRoute,
    above: &Route,
    known: &RouteNames<'_>,
    depth: usize,
    problems: &mut Problems,
) -> Route {
    let mut route = Route { routes: Vec::new(), continues: one.continues, ..above.clone() };
    route.matchers = matchers(&format!("{path}.matchers"), &one.matchers, problems);
    if let Some(given) = &one.receivers {
        receivers(path, given, known.receivers, problems);
        route.receivers = given.clone();
    }
    if let Some(given) = &one.group_by {
        group_by(path, given, problems);
        route.group_by = given.clone();
    }
    if let Some(given) = one.group_wait {
        route.pace.wait = wait(path, given, problems);
    }
    if let Some(given) = one.group_interval {
        route.pace.interval = interval(path, given, problems);
    }
    if let Some(given) = one.lasts {
        route.pace.lasts = lasts(path, given, problems);
    }
    if let Some(given) = one.recoveries {
        route.pace.recoveries = recoveries(path, given, problems);
    }
    if let Some(given) = one.repeat_interval {
        route.again.repeat = repeat(path, given, problems);
    }
    if let Some(given) = &one.escalate {
        route.again.escalate = escalate(path, given, known.receivers, problems);
    }
    route.times = known.times.of_route(path, &one.mute_times, &one.active_times, problems);
    route.routes = below(path, &one.routes, &route, known, depth + 1, problems);
    route
}

/// The matchers in `texts`. `path`: the path of the list.
pub(super) fn matchers(path: &str, texts: &[String], problems: &mut Problems) -> Vec<Matcher> {
    let mut all = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        match parse_matchers(text) {
            Ok(matchers) => {
                for (matcher, values) in
                    matchers.iter().filter_map(|one| Some((one, one.names_no_value_of()?)))
                {
                    let (name, values) = (matcher.name(), values.join(", "));
                    let text =
                        format!("{text:?}, {name} is never {:?}; it is one of {values}", matcher.value());
                    problems.error(format!("{path}[{at}]"), text);
                }
                all.extend(matchers);
            }
            Err(error) => problems.error(format!("{path}[{at}]"), format!("{text:?}, {error}")),
        }
    }
    all
}

fn receivers(path: &str, given: &[String], names: &[&str], problems: &mut Problems) {
    for (at, name) in given.iter().enumerate() {
        let path = format!("{path}.receivers[{at}]");
        if given[..at].contains(name) {
            problems.error(path, format!("{name:?} is there twice; remove one"));
        } else if !names.contains(&name.as_str()) {
            let meant = suggest(name, names.iter().copied());
            let hint =
                meant.map_or("add a [[receiver]]".to_owned(), |meant| format!("did you mean {meant:?}?"));
            problems.error(path, format!("there is no receiver {name:?}; {hint}"));
        }
    }
}

fn group_by(path: &str, given: &[String], problems: &mut Problems) {
    for (at, name) in given.iter().enumerate() {
        let path = format!("{path}.group_by[{at}]");
        if name == EVERY_LABEL && given.len() > 1 {
            problems.error(path, "\"...\" is every label; write no other beside it");
        } else if !matches!(name.as_str(), "kind" | "unit" | EVERY_LABEL) && !is_label_name(name) {
            problems.error(path, format!("{name:?} is neither kind, unit nor the name of a label"));
        }
    }
}

fn wait(path: &str, given: Span, problems: &mut Problems) -> Duration {
    problems.span(&format!("{path}.group_wait"), given, Span::from_secs(0), Span::from_hours(24))
}

fn interval(path: &str, given: Span, problems: &mut Problems) -> Duration {
    problems.span(&format!("{path}.group_interval"), given, Span::from_secs(0), Span::from_days(7))
}

fn lasts(path: &str, given: Span, problems: &mut Problems) -> Duration {
    problems.span(&format!("{path}.for"), given, Span::from_secs(0), Span::from_days(90))
}

fn recoveries(path: &str, given: RecoveriesOption, problems: &mut Problems) -> presence::Recoveries {
    let wait = match given {
        RecoveriesOption::None => return presence::Recoveries::None,
        RecoveriesOption::All => Span::from_secs(0),
        RecoveriesOption::For(wait) => wait,
    };
    let path = format!("{path}.recoveries");
    presence::Recoveries::After(problems.span(&path, wait, Span::from_secs(0), Span::from_hours(24)))
}

fn repeat(path: &str, given: Span, problems: &mut Problems) -> Option<Duration> {
    let never = Span::from_secs(0);
    if given == never {
        return None;
    }
    Some(problems.span(&format!("{path}.repeat_interval"), given, Span::from_secs(60), Span::from_days(30)))
}

/// The steps of escalation, by time.
fn escalate(
    path: &str,
    given: &[Escalation],
    names: &[&str],
    problems: &mut Problems,
) -> Vec<routing::Escalation> {
    let mut steps = Vec::new();
    for (at, one) in given.iter().enumerate() {
        let path = format!("{path}.escalate[{at}]");
        receivers(&path, &one.receivers, names, problems);
        if one.receivers.is_empty() {
            problems
                .error(format!("{path}.receivers"), "is empty; name the receivers that are notified, too");
        }
        let Some(after) = one.after else {
            problems.error(
                format!("{path}.after"),
                "is missing; write how long after the notification, such as \"30m\"",
            );
            continue;
        };
        let after = problems.span(&format!("{path}.after"), after, Span::from_secs(1), Span::from_days(30));
        steps.push(routing::Escalation { after, receivers: one.receivers.clone() });
    }
    steps.sort_by_key(|step| step.after);
    steps
}
