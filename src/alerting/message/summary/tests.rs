use super::*;
use crate::alerting::message::{MessageConfig, pages, test_delivery};
use crate::clock::Timestamp;
use crate::presence::{FirstUnit, Incident};
use crate::store::GroupContext;

const NOW: Timestamp = Timestamp::from_millis(1_795_360_461_978);

fn open(unit: &str, site: &str) -> OfflineRecord {
    let unit = format!("det:{unit}").parse().unwrap();
    let labels = [("site".to_owned(), site.to_owned())].into();
    OfflineRecord { labels, ..OfflineRecord::open(unit, NOW, NOW, NOW) }
}

fn closed(unit: &str, site: &str, why: Closing) -> OfflineRecord {
    OfflineRecord { back_at: Some(NOW), closed_by: Some(why), ..open(unit, site) }
}

fn all(count: usize, one: impl Fn(&str) -> OfflineRecord) -> Vec<OfflineRecord> {
    (0..count).map(|at| one(&format!("u{at}"))).collect()
}

/// 1 040 of 1 200 units at alpha; over with the end of its silences.
fn incident(offline: u64, still_offline: u64, is_over: bool) -> Incident {
    let first = FirstUnit { kind: "det".to_owned(), unit: "u0".to_owned() };
    let (label, value) = ("site".to_owned(), "alpha".to_owned());
    let since = NOW - std::time::Duration::from_secs(10);
    let until = is_over.then_some(NOW);
    let (units, notified_from, acknowledged_at) = (1200, None, None);
    Incident {
        label,
        value,
        offline,
        units,
        since,
        first,
        still_offline,
        until,
        notified_from,
        acknowledged_at,
    }
}

fn message(offline: Vec<OfflineRecord>, online: Vec<OfflineRecord>, situation: GroupContext) -> Delivery {
    Delivery { offline, online, situation, ..test_delivery("hook", NOW) }
}

fn with(lasting: Option<u64>, incident: Option<Incident>) -> GroupContext {
    GroupContext { lasting, incident, ..GroupContext::default() }
}

#[test]
fn a_title_says_what_is_not_over() {
    let alpha = |count| all(count, |unit| open(unit, "alpha"));
    let back = |count, site: &str| all(count, |unit| closed(unit, site, Closing::Return));
    let ended = |why| vec![closed("u1", "beta", why)];
    let both = |one: Vec<_>, other: Vec<_>| [one, other].concat();
    let over = |offline, still| Some(incident(offline, still, true));
    let cases = [
        (vec![], back(1998, "beta"), with(Some(0), None), "BACK: 1 998 dets"),
        (alpha(1998), back(1, "beta"), with(None, None), "OFFLINE 1 998, BACK 1: det"),
        // An incident that begins, and units that are offline beside it.
        (
            alpha(1040),
            back(2, "beta"),
            with(Some(1040), Some(incident(1040, 1040, false))),
            "OFFLINE: 1 040 of 1 200 units at site alpha, BACK 2",
        ),
        (
            both(alpha(1040), all(3, |unit| open(unit, "beta"))),
            ended(Closing::KindRemoved),
            with(Some(2043), Some(incident(1040, 1040, false))),
            "OFFLINE: 1 040 of 1 200 units at site alpha, 3 others, NO LONGER WATCHED 1, 2 043 still offline",
        ),
        // An incident that is over.
        (
            vec![],
            back(40, "alpha"),
            with(Some(0), over(40, 0)),
            "BACK: site alpha, 40 units, offline for 10s",
        ),
        (
            vec![],
            both(back(40, "alpha"), back(10, "beta")),
            with(Some(20), over(40, 0)),
            "BACK: site alpha, 40 units, 10 others, offline for 10s, 20 still offline",
        ),
        (
            vec![],
            both(back(1, "alpha"), ended(Closing::Removed)),
            with(Some(2), over(1, 0)),
            "BACK: site alpha, 1 unit, offline for 10s, REMOVED 1, 2 still offline",
        ),
        // A digest does not know how many units of other groups are offline.
        (
            vec![],
            back(1, "alpha"),
            with(None, over(1040, 2)),
            "BACK: site alpha, 1 040 units, offline for 10s, 2 still offline",
        ),
        (vec![], ended(Closing::Removed), with(Some(3), None), "REMOVED: det u1, 3 still offline"),
        (vec![], both(ended(Closing::Removed), back(2, "beta")), with(None, None), "BACK 2, REMOVED 1: det"),
    ];
    let zone = Zone::default();
    for (offline, online, situation, expected) in cases {
        let mut delivery = message(offline, online, situation);
        assert_eq!(title(&delivery, &zone), expected);
        delivery.meant_for = Some(MeantFor { receiver: "chat".to_owned(), since: NOW });
        let meant = format!("{expected} (meant for chat, down since {NOW})");
        assert_eq!(title(&delivery, &zone), meant, "a fallback is told for which receiver it is");
    }
}

#[test]
fn a_title_that_is_too_long_keeps_its_end() {
    let mut delivery = message(vec![], vec![closed("u1", "beta", Closing::Return)], with(Some(9997), None));
    delivery.group.labels = [("site".to_owned(), "x".repeat(300))].into();
    let title = title(&delivery, &Zone::default());
    assert_eq!(title.chars().count(), MAX_TITLE, "{title}");
    assert!(
        title.starts_with("BACK: det u1 (site=xx") && title.ends_with("x…, 9 997 still offline"),
        "{title}"
    );
}

#[test]
fn a_unit_that_is_removed_is_not_said_to_be_back() {
    let (zone, config) = (Zone::default(), MessageConfig::default());
    let cases = [
        (Closing::Return, Cause::Silence, "BACK: det u1 (site=beta)", "back "),
        (Closing::Policy, Cause::Silence, "BACK: det u1 (site=beta)", "allowed a longer silence "),
        (Closing::Removed, Cause::Silence, "REMOVED: det u1 (site=beta)", "removed "),
        (Closing::Removed, Cause::Flapping, "REMOVED: det u1 (site=beta)", "removed "),
        (Closing::KindRemoved, Cause::Silence, "NO LONGER WATCHED: det u1 (site=beta)", "its kind "),
        (Closing::Stable, Cause::Flapping, "STABLE: det u1 (site=beta)", "stable, online "),
        (Closing::StableOffline, Cause::Flapping, "STABLE, OFFLINE: det u1 (site=beta)", "stable, offline "),
    ];
    for (why, cause, expected, text) in cases {
        let record = OfflineRecord { cause, ..closed("u1", "beta", why) };
        assert_eq!(title_of(&record), expected);
        assert!(text_of(&record, &zone).starts_with(text), "{}", text_of(&record, &zone));
        let was = if record.is_flapping() { "was flapping since" } else { "was offline since" };
        assert!(text_of(&record, &zone).contains(was), "{}", text_of(&record, &zone));
    }
    let removed = message(vec![], vec![closed("u1", "alpha", Closing::Removed); 2], with(Some(0), None));
    let lines = [lead(&removed, &zone).join("\n"), text(&sections(&removed, &zone, &config.links))];
    assert_eq!(lines[0], "2 removed; no unit is offline");
    let over = with(Some(0), Some(incident(0, 0, true)));
    let page = &pages(&Delivery { situation: over, ..removed }, &zone, &config.links)[0];
    assert_eq!(page.title, "REMOVED: every offline unit at site alpha");
    assert!(page.text.starts_with("site alpha: every unit that was offline is removed\n"), "{}", page.text);
}
