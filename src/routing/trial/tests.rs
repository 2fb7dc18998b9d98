use std::time::Duration;

use super::*;
use crate::presence::{Cause, Closing, Interval, Kind, Ledger, Pace, Recoveries, Unit};
use crate::routing::{
    AlertSilence, InhibitRule, Minutes, Route, RouteTimes, SilenceId, TimeInterval, parse_label_matchers,
    parse_matchers, zone,
};

const SECOND: Duration = Duration::from_secs(1);

/// The first second of a day.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_784_678_400_000 + seconds * 1000)
}

fn in_seconds(at: Timestamp) -> i64 {
    (at.as_millis() - 1_784_678_400_000) / 1000
}

fn kind() -> Kind {
    "gate".parse().unwrap()
}

fn range() -> Interval {
    Interval { from: at(0), to: at(86_400) }
}

/// A past of gates with the label `site`: each was detected at one moment, a second after its deadline and 101 after it
/// was last seen, and was back at another.
fn past(silences: &[(&str, &str, i64, Option<i64>)]) -> PastFleet {
    let mut past = PastFleet::empty(kind(), range());
    for (name, site, detected, back) in silences {
        let unit: Unit = name.parse().unwrap();
        let labels = [("site".to_owned(), (*site).to_owned())].into();
        past.units.push(PastUnit { unit, labels, known_since: None, pauses: Vec::new() });
        past.silences.push(PastSilence {
            unit: past.units.len() as u32 - 1,
            cause: Cause::Silence,
            last_seen: at(detected - 101),
            deadline: at(detected - 1),
            detected_at: at(*detected),
            closed: back.map(|back| (at(back), Closing::Return)),
        });
    }
    past
}

/// The configuration of a trial.
struct Setting {
    route: Route,
    inhibition: Inhibition,
    breaker: Option<MassOfflineRule>,
}

impl Setting {
    /// One receiver, a wait of 10 s and an interval of 300 s.
    fn grouped_by(group_by: &str) -> Setting {
        let pace = Pace::new(10 * SECOND, 300 * SECOND);
        let (receivers, group_by) = (vec!["mail".to_owned()], vec![group_by.to_owned()]);
        let route = Route { receivers, group_by, pace, ..Route::default() };
        Setting { route, inhibition: Inhibition::default(), breaker: None }
    }

    fn with<T>(&self, allowed: i64, asked: impl FnOnce(TrialRules<'_>) -> T) -> T {
        let (routes, receivers) = (Routes::new(self.route.clone()), self.route.named_receivers());
        asked(TrialRules {
            policy: Policy { timeout: SECOND * allowed as u32, grace: Duration::ZERO },
            settle: Duration::ZERO,
            routes: &routes,
            receivers: &receivers,
            inhibition: &self.inhibition,
            breaker: self.breaker,
            has_flapping: false,
            has_rate_limits: true,
        })
    }

    /// When receivers are notified of which silences and returns.
    fn told(&self, past: &PastFleet) -> Vec<(i64, Vec<u32>, Vec<u32>)> {
        let silences: Vec<_> = past.silences.iter().copied().map(Some).collect();
        let outcome = self.with(100, |rules| rules.outcome(past, &silences, &|| false)).unwrap();
        outcome.messages.into_iter().map(|one| (in_seconds(one.at), one.silences, one.returns)).collect()
    }
}

#[test]
fn a_policy_records_a_silence_at_its_own_deadline_or_not_at_all() {
    let blind = Ledger::new([Interval { from: at(1010), to: at(1040) }]);
    let pause = Interval { from: at(1020), to: at(1220) };
    let setting = Setting::grouped_by("kind");
    // Last seen at 1000, recorded at 1100.
    for (name, allowed, is_blind, is_paused, back, expected) in [
        ("the policy of then", 100, false, false, Some(1500), Some((1100, 1101))),
        ("later", 300, false, false, Some(1500), Some((1300, 1301))),
        ("sooner", 50, false, false, Some(1500), Some((1050, 1051))),
        ("back before", 600, false, false, Some(1500), None),
        ("back at the deadline", 500, false, false, Some(1500), None),
        ("it lasts", 600, false, false, None, Some((1600, 1601))),
        ("its deadline is to come", 200_000, false, false, None, None),
        ("blind time is no silence", 300, true, false, Some(1500), Some((1330, 1331))),
        ("nor is a pause", 200, false, true, Some(1500), Some((1400, 1401))),
    ] {
        let mut past = past(&[("gate:a", "north", 1101, back)]);
        past.ledger = if is_blind { blind.clone() } else { Ledger::default() };
        past.units[0].pauses = if is_paused { vec![pause] } else { Vec::new() };
        setting.with(allowed, |rules| {
            let tried = rules.tried(&past, &past.silences[0]);
            let times = tried.map(|one| (in_seconds(one.deadline), in_seconds(one.detected_at)));
            assert_eq!(times, expected, "{name}");
            let is_that_of_then = allowed == 100 && !is_blind && !is_paused;
            assert_eq!(rules.has_decided(&past, &past.silences[0]), is_that_of_then, "{name}");
        });
    }
    let mut announced = past(&[("gate:a", "north", 1101, None), ("pump:a", "north", 1101, None)]);
    announced.silences[0].cause = Cause::LastWill;
    setting.with(100, |rules| {
        assert!(announced.silences.iter().all(|one| !rules.has_decided(&announced, one)), "another decided");
    });
}

#[test]
fn messages_follow_the_waits_and_the_intervals_of_groups_and_returns_are_told() {
    let (each, group) = (Setting::grouped_by("unit"), Setting::grouped_by("kind"));
    let lasting = past(&[("gate:a", "north", 100, None), ("gate:b", "north", 101, None)]);
    assert_eq!(each.told(&lasting), [(110, vec![0], vec![]), (111, vec![1], vec![])]);
    assert_eq!(group.told(&lasting), [(111, vec![0, 1], vec![])], "it gathers for a second");
    // Back within the wait: no receiver is notified.
    let short = past(&[("gate:a", "north", 100, Some(109)), ("gate:b", "north", 101, Some(500))]);
    assert_eq!(each.told(&short), [(111, vec![1], vec![]), (510, vec![], vec![1])]);
    let silent = Setting {
        route: Route { pace: Pace { recoveries: Recoveries::None, ..each.route.pace }, ..each.route.clone() },
        ..Setting::grouped_by("unit")
    };
    assert_eq!(silent.told(&short), [(111, vec![1], vec![])]);
    // A group waits between its messages; a unit that is back meanwhile is left out.
    let later = past(&[
        ("gate:a", "north", 100, None),
        ("gate:b", "north", 200, Some(300)),
        ("gate:c", "north", 210, None),
    ]);
    assert_eq!(group.told(&later), [(110, vec![0], vec![]), (410, vec![2], vec![])]);
    // No receiver, no message.
    let none =
        Setting { route: Route { receivers: vec![], ..group.route.clone() }, ..Setting::grouped_by("kind") };
    assert_eq!(none.told(&later), []);
}

#[test]
fn a_muted_route_is_told_when_the_mute_is_over_of_what_lasts() {
    let night = TimeInterval {
        name: "night".to_owned(),
        times: vec![Minutes { from: 0, to: 60 }],
        weekdays: vec![],
        days_of_month: vec![],
        months: vec![],
        years: vec![],
        zone: zone("UTC").unwrap(),
    };
    let mut setting = Setting::grouped_by("kind");
    setting.route.times = RouteTimes { mute: vec![std::sync::Arc::new(night)], active: vec![] };
    let past = past(&[("gate:a", "north", 100, Some(3000)), ("gate:b", "north", 200, Some(4000))]);
    assert_eq!(setting.told(&past), [(3600, vec![1], vec![]), (4010, vec![], vec![1])]);
}

#[test]
fn an_alert_silence_holds_what_it_covers_until_its_end() {
    let covering = |from: i64, until: i64| AlertSilence {
        id: SilenceId::of_random(from as u128),
        matchers: parse_label_matchers("site=\"north\"").unwrap(),
        starts_at: at(from),
        ends_at: at(until),
        updated_at: at(from),
        author: String::new(),
        comment: String::new(),
    };
    let mut past = past(&[
        ("gate:a", "north", 100, None),
        ("gate:b", "south", 100, None),
        ("gate:c", "north", 100, Some(900)),
    ]);
    let setting = Setting::grouped_by("unit");
    past.alert_silences = vec![covering(50, 1000)].into();
    // Receivers are not notified of a unit that is back at that time.
    assert_eq!(setting.told(&past), [(110, vec![1], vec![]), (1010, vec![0], vec![])]);
    // An alert silence that begins while they wait holds them, too, and a later one takes over.
    past.alert_silences = vec![covering(105, 300), covering(290, 500)].into();
    assert_eq!(
        setting.told(&past),
        [(110, vec![1], vec![]), (500, vec![0], vec![]), (500, vec![2], vec![]), (910, vec![], vec![2])]
    );
}

#[test]
fn an_offline_source_holds_its_targets() {
    let inhibition = Inhibition {
        rules: [InhibitRule {
            source: parse_matchers("kind=gateway").unwrap(),
            target: parse_matchers("kind=gate").unwrap(),
            equal: vec!["site".to_owned()],
        }]
        .into(),
        longest: 100 * SECOND,
    };
    let setting = Setting { inhibition, ..Setting::grouped_by("unit") };
    let past = past(&[
        ("gateway:g", "north", 100, Some(5000)),
        ("gate:a", "north", 105, Some(4000)),
        ("gate:b", "north", 108, None),
        ("gate:c", "south", 108, Some(4000)),
    ]);
    let told = setting.told(&past);
    let of = |place: u32| told.iter().find(|one| one.1.contains(&place)).map(|one| one.0);
    assert_eq!((of(0), of(1), of(3)), (Some(110), None, Some(118)));
    // Its source was back at 5000, and it gets its allowed silence again.
    assert_eq!(of(2), Some(5100));
    assert!(!told.iter().any(|one| one.2.contains(&1)), "a silence that was not told of has no return");
}

#[test]
fn a_tripped_breaker_holds_all_groups_until_most_units_are_back_or_an_operator_releases_it() {
    let breaker = MassOfflineRule { share: 0.5, min_units: 4, window: 60 * SECOND, max_hold: 3600 * SECOND };
    let setting = Setting { breaker: Some(breaker), ..Setting::grouped_by("unit") };
    let names: Vec<String> = (0..20).map(|n| format!("gate:{n}")).collect();
    let mut silences: Vec<(&str, &str, i64, Option<i64>)> =
        names.iter().map(|name| (&**name, "north", 100, Some(2005))).collect();
    (silences[0].3, silences[1].3) = (Some(9000), Some(9000));
    let mut past = past(&silences);
    past.sizes = FleetSizes::new((0..30).map(|_| (at(-86_400), None)));
    // Two of twenty are not back at 2005: receivers are notified at the next check of their groups.
    assert_eq!(
        setting.told(&past),
        [(2010, vec![0], vec![]), (2010, vec![1], vec![]), (9010, vec![], vec![0]), (9010, vec![], vec![1])]
    );
    past.releases = vec![at(500)];
    let told = setting.told(&past);
    assert_eq!((told.len(), told[0].0, told[19].0), (40, 500, 500), "{told:?}");
    past.releases.clear();
    // Most units of a larger fleet are heard, and a fleet with fewer than `min_units` units trips no breaker.
    past.sizes = FleetSizes::new((0..100).map(|_| (at(-86_400), None)));
    assert_eq!(setting.told(&past)[0].0, 110);
    let small = Setting {
        breaker: Some(MassOfflineRule { min_units: 31, ..breaker }),
        ..Setting::grouped_by("unit")
    };
    past.sizes = FleetSizes::new((0..30).map(|_| (at(-86_400), None)));
    assert_eq!(small.told(&past)[0].0, 110);
    // New units do not count, either.
    past.units.iter_mut().for_each(|unit| unit.known_since = Some(at(90)));
    assert_eq!(setting.told(&past)[0].0, 110);
}

#[test]
fn a_longer_timeout_spares_messages_and_the_largest_differences_come_first() {
    // Back before 200 s; back later; still offline; with a timeout of its own; and of another kind.
    let mut past = past(&[
        ("gate:a", "north", 1101, Some(1150)),
        ("gate:b", "north", 1101, Some(5000)),
        ("gate:c", "south", 1101, None),
        ("gate:d", "north", 1101, Some(1150)),
        ("pump:a", "north", 1101, Some(1150)),
    ]);
    past.silences[3].last_seen = at(1050);
    past.sent = [("mail".to_owned(), 7)].into();
    past.gaps = vec!["records may be missing".to_owned()];
    let mut setting = Setting::grouped_by("unit");
    setting.route.pace.recoveries = Recoveries::None;
    let tried = |was: i64, would: i64, stop: bool| {
        setting.with(was, |was| {
            setting.with(would, |would| PolicyTrial::of(&past, &was, &would, Some("site"), &|| stop))
        })
    };
    let trial = tried(100, 200, false).unwrap();
    let counts = |side: &TrialSide| {
        (side.counts.silences, side.counts.units, side.counts.told, side.counts.messages["mail"])
    };
    assert_eq!((counts(&trial.was), counts(&trial.would)), ((4, 4, 4, 4), (3, 3, 3, 3)));
    assert_eq!(trial.groups, [("north".to_owned(), [3, 2]), ("south".to_owned(), [1, 1])].into());
    let shown: Vec<(&str, f64, bool)> = trial
        .differences
        .iter()
        .map(|one| (one.unit.as_str(), one.seconds, one.would_be_told_at.is_some()))
        .collect();
    assert_eq!(shown, [("gate/b", 100.0, true), ("gate/c", 100.0, true), ("gate/a", 39.0, false)]);
    assert_eq!(trial.notes.len(), 3, "{:?}", trial.notes);
    assert!(trial.notes[0].contains("not on record: 1 silences that another timeout may have decided"));
    assert_eq!(
        (&*trial.notes[1], &*trial.notes[2]),
        ("not tried: rate limits of receivers", "records may be missing")
    );
    assert_eq!(trial, tried(100, 200, false).unwrap(), "the same question has the same answer");
    let sooner = tried(100, 50, false).unwrap();
    assert_eq!((sooner.would.counts.silences, sooner.differences[0].seconds), (4, 50.0));
    assert!(sooner.notes[0].starts_with("silences of 50s to 1m 40s are not on record"));
    let rows = trial.rows();
    assert_eq!(rows[1], ["silences recorded", "4", "3"].map(str::to_owned));
    assert_eq!(rows[5], ["messages that mail took", "7", ""].map(str::to_owned));
}

/// The timeout was 100 s, and is 1000 s from the second 20000 on; 2000 s are tried.
#[test]
fn a_silence_is_tried_by_the_policy_of_its_time_and_counted_apart_where_that_is_not_on_record() {
    let policy = |allowed: i64| Policy { timeout: SECOND * allowed as u32, grace: Duration::ZERO };
    let on_record = |since: i64, allowed: i64| PastPolicy { since: at(since), policy: policy(allowed) };
    let both = vec![on_record(0, 100), on_record(20_000, 1000)];
    let late = vec![on_record(20_000, 1000)];
    // Detected 101 s after it was last seen, or with `allowed` a second after that; `None`: it is left as it was.
    for (name, policies, detected, allowed, back, expected) in [
        ("a short silence of the old timeout", &both, 10_000, 100, 10_500, Some(false)),
        ("a long one", &both, 10_000, 100, 13_000, Some(true)),
        ("a silence of the new timeout", &both, 30_000, 1000, 30_500, Some(false)),
        ("detected just before the change was noted", &both, 19_990, 1000, 20_500, Some(false)),
        ("the old timeout, before the change", &both, 20_050, 100, 20_500, Some(false)),
        ("a timeout of its own, as long as the old one", &both, 30_000, 100, 30_500, None),
        ("a timeout of its own", &both, 30_000, 50, 30_500, None),
        ("the first timeout on record holds before it, too", &late, 10_000, 1000, 10_500, Some(false)),
        ("a time of which no timeout is on record", &late, 10_000, 100, 10_500, None),
    ] {
        let mut past = past(&[("gate:a", "north", detected, Some(back))]);
        past.silences[0].last_seen = at(detected - 1 - allowed);
        past.policies = policies.clone();
        let setting = Setting::grouped_by("unit");
        let trial = setting.with(1000, |was| {
            assert_eq!(was.has_decided(&past, &past.silences[0]), expected.is_some(), "{name}");
            setting.with(2000, |would| PolicyTrial::of(&past, &was, &would, None, &|| false))
        });
        let trial = trial.unwrap();
        let is_recorded = expected.unwrap_or(true);
        assert_eq!(trial.would.counts.silences, usize::from(is_recorded), "{name}: {:?}", trial.notes);
        let is_unknown = trial.notes.iter().any(|note| note.contains("on record from"));
        assert_eq!(is_unknown, expected.is_none() && policies.len() == 1, "{name}: {:?}", trial.notes);
        let from = format!("from {} 16m 40s + 0s", at(20_000));
        let then = if policies.len() == 2 { format!("1m 40s + 0s, {from}") } else { from };
        assert_eq!(trial.rows()[0], ["timeout + grace", &*then, "33m 20s + 0s"].map(str::to_owned), "{name}");
    }
}

/// The timeout was 100 s, and is 1000 s from the second 20000 on. A unit was last seen at 19850: its record was opened at
/// 19951, and closed at 20000; another one was opened at 20851, or none.
#[test]
fn a_silence_whose_record_was_closed_by_a_longer_timeout_is_one_silence_and_has_no_end_then() {
    let policy = |allowed: i64| Policy { timeout: SECOND * allowed as u32, grace: Duration::ZERO };
    let on_record = |since: i64, allowed: i64| PastPolicy { since: at(since), policy: policy(allowed) };
    let setting = Setting::grouped_by("unit");
    for (name, why, then, tried, expected, back) in [
        ("it went on", Closing::Policy, Some(Some(22_000)), 500, 1, Some(22_000)),
        ("shorter than the tried timeout", Closing::Policy, Some(Some(22_000)), 3000, 0, Some(22_000)),
        ("it lasts", Closing::Policy, Some(None), 3000, 1, None),
        ("no second record, and it was told of sooner", Closing::Policy, None, 50, 1, None),
        ("no second record, so it was over before 20850", Closing::Policy, None, 1000, 0, None),
        ("it may have been over before 20350", Closing::Policy, None, 500, 1, None),
        ("the kind was removed", Closing::KindRemoved, None, 50, 1, None),
        ("the kind was removed before", Closing::KindRemoved, None, 500, 0, None),
        ("the kind came back", Closing::KindRemoved, Some(Some(22_000)), 500, 1, Some(22_000)),
    ] {
        let mut past = past(&[("gate:a", "north", 19_951, Some(20_000))]);
        past.silences[0].closed = Some((at(20_000), why));
        past.policies = vec![on_record(0, 100), on_record(20_000, 1000)];
        if let Some(back) = then {
            let closed = back.map(|back| (at(back), Closing::Return));
            let (deadline, detected_at) = (at(20_850), at(20_851));
            past.silences.push(PastSilence { deadline, detected_at, closed, ..past.silences[0] });
        }
        let trial = setting.with(1000, |was| {
            setting.with(tried, |would| PolicyTrial::of(&past, &was, &would, None, &|| false).unwrap())
        });
        let counts = (trial.was.counts.silences, trial.would.counts.silences);
        assert_eq!(counts, (past.silences.len(), expected), "{name}: {:?}", trial.notes);
        let [difference] = &trial.differences[..] else { panic!("{name}: {:?}", trial.differences) };
        assert_eq!(difference.told_at, Some(at(19_961)), "{name}");
        assert_eq!(difference.back_at, back.map(at), "{name}");
        let is_unknown = trial.notes.iter().any(|note| note.starts_with("1 records were closed by a longer"));
        assert_eq!(is_unknown, then.is_none(), "{name}: {:?}", trial.notes);
        assert_eq!(trial.was.timeout_seconds, None, "{name}: there were two timeouts");
    }
}

#[test]
fn a_silence_that_was_detected_after_the_range_is_tried_and_one_that_is_not_detected_yet_is_said() {
    let setting = Setting::grouped_by("unit");
    let mut past = past(&[("gate:a", "north", 86_441, None)]);
    let tried = |past: &PastFleet| {
        setting.with(100, |was| {
            setting.with(50, |would| PolicyTrial::of(past, &was, &would, None, &|| false).unwrap())
        })
    };
    for (written, is_said) in [(86_400, true), (86_449, true), (86_450, false)] {
        past.written = at(written);
        let trial = tried(&past);
        assert_eq!((trial.was.counts.silences, trial.would.counts.silences), (0, 1));
        assert_eq!(trial.was.timeout_seconds, Some(100.0), "that of now");
        let note = format!("silences that began after {} are not on record yet", at(written - 100));
        assert_eq!(trial.notes.iter().any(|one| one.starts_with(&note)), is_said, "{:?}", trial.notes);
    }
}

#[test]
fn what_is_not_tried_is_said_only_where_it_is_configured() {
    let (past, setting) = (past(&[]), Setting::grouped_by("unit"));
    let notes = |has_rate_limits: bool| {
        let rules = |rules: TrialRules<'_>| {
            let rules = TrialRules { has_rate_limits, ..rules };
            PolicyTrial::of(&past, &rules, &rules, None, &|| false).unwrap().notes
        };
        setting.with(100, rules)
    };
    assert_eq!(notes(true), ["not tried: rate limits of receivers"]);
    assert_eq!(notes(false), [""; 0]);
}

#[test]
fn a_trial_is_given_up_when_its_caller_says_so() {
    let names: Vec<String> = (0..5000).map(|n| format!("gate:{n}")).collect();
    let silences: Vec<(&str, &str, i64, Option<i64>)> =
        names.iter().map(|name| (&**name, "north", 1101, Some(2000))).collect();
    let past = past(&silences);
    let setting = Setting::grouped_by("unit");
    let tried =
        |stop: bool| setting.with(100, |was| PolicyTrial::of(&past, &was, &was, None, &|| stop).is_some());
    assert_eq!((tried(false), tried(true)), (true, false));
}
