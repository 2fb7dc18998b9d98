//! Tables of cases of alert silences.

use super::*;
use crate::presence::Unit;
use crate::routing::{AlertSilences, parse_label_matchers};

const HOUR: Duration = Duration::from_secs(3600);
const NOW: Timestamp = Timestamp::from_millis(1_732_147_200_042);

fn record(unit: &str, labels: &[(&str, &str)]) -> OfflineRecord {
    let unit: Unit = unit.parse().unwrap();
    let labels = labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    OfflineRecord { labels, ..OfflineRecord::open(unit, NOW, NOW, NOW) }
}

fn id(number: u128) -> SilenceId {
    SilenceId::of_random(number)
}

fn wanted(matchers: &str, starts_at: Timestamp, ends_at: Timestamp) -> SilenceRequest {
    let (author, comment) = ("ana".to_owned(), "cable works".to_owned());
    SilenceRequest { matchers: parse_label_matchers(matchers).unwrap(), starts_at, ends_at, author, comment }
}

fn silence(number: u128, matchers: &str, starts_at: Timestamp, ends_at: Timestamp) -> AlertSilence {
    wanted(matchers, starts_at, ends_at).with_id(id(number), starts_at, starts_at)
}

#[test]
fn an_id_is_a_random_uuid_with_one_spelling() {
    let id = SilenceId::of_random(u128::MAX);
    assert_eq!(id.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    assert_eq!(SilenceId::of_random(0).to_string(), "00000000-0000-4000-8000-000000000000");
    assert_eq!("FFFFFFFF-ffff-4fff-bfff-ffffffffffff".parse(), Ok(id));
    for bad in
        ["", "5c9c9b7e", "ffffffffffff4fffbfffffffffffffff", "-fffffff-ffff-4fff-bfff-fffffffffffff", "é"]
    {
        assert_eq!(bad.parse::<SilenceId>(), Err(SilenceIdError), "{bad}");
    }
}

#[test]
fn a_silence_covers_what_all_its_matchers_match_from_its_begin_until_its_end() {
    let (begin, end) = (NOW, NOW + HOUR);
    // Matchers, a unit, its site, whether they match.
    let cases = [
        ("site=north", "pump:1", "north", true),
        ("site=north", "pump:1", "south", false),
        ("site=north,kind=pump", "pump:1", "north", true),
        ("site=north,kind=gate", "pump:1", "north", false),
        ("unit=~\"[0-9]+\"", "pump:1", "north", true),
        ("unit!~\"[0-9]+\"", "pump:1", "north", false),
        ("alertname=UnitOffline", "pump:1", "north", true),
        ("alertname=Other", "pump:1", "north", false),
        ("alertname=UnitOffline,room=\"\"", "pump:1", "north", true),
        ("room=x", "pump:1", "north", false),
        ("state=offline", "pump:1", "north", true),
        ("cause=never_seen", "pump:1", "north", false),
    ];
    for (matchers, unit, site, expected) in cases {
        let (silence, record) = (silence(1, matchers, begin, end), record(unit, &[("site", site)]));
        assert_eq!(silence.covers(&record, NOW), expected, "{matchers} {unit} {site}");
    }
    let (silence, record) = (silence(1, "kind=pump", begin, end), record("pump:1", &[]));
    let ms = Duration::from_millis(1);
    for (at, state) in [
        (begin - ms, SilenceState::Pending),
        (begin, SilenceState::Active),
        (end - ms, SilenceState::Active),
        (end, SilenceState::Expired),
    ] {
        assert_eq!(silence.state(at), state, "{at}");
        assert_eq!(silence.covers(&record, at), state == SilenceState::Active, "{at}");
    }
    assert!(!silence.is_forgotten(end + RETENTION) && silence.is_forgotten(end + RETENTION + ms));
}

#[test]
fn what_several_silences_cover_is_covered_until_the_last_of_those_that_are_active() {
    let all = AlertSilences::from(vec![
        silence(1, "kind=pump", NOW, NOW + HOUR),
        silence(2, "site=north", NOW, NOW + 2 * HOUR),
        silence(3, "kind=pump", NOW + HOUR, NOW + 9 * HOUR),
    ]);
    let north = record("pump:1", &[("site", "north")]);
    assert_eq!(all.covered_until(&north, NOW), Some(NOW + 2 * HOUR));
    assert_eq!(all.covered_until(&record("pump:1", &[]), NOW), Some(NOW + HOUR));
    assert_eq!(all.covered_until(&record("gate:1", &[]), NOW), None);
    assert_eq!(all.covered_until(&north, NOW + HOUR), Some(NOW + 9 * HOUR));
    assert_eq!(all.covered_until(&north, NOW + 9 * HOUR), None);
}

#[test]
fn a_silence_reads_back_from_its_text_whatever_its_matchers_hold() {
    let long = "x".repeat(200);
    for value in ["north", "a\"b\\c,d}", "line\nbreak", "[0-9]+\\d", long.as_str(), " é ", "{}"] {
        for operator in Operator::ALL {
            let Ok(matcher) = Matcher::new("site".to_owned(), operator, value.to_owned()) else { continue };
            let other = Matcher::new("étage".to_owned(), Operator::NotEqual, "x".to_owned()).unwrap();
            let one = AlertSilence { matchers: vec![matcher, other], ..silence(1, "a=b", NOW, NOW + HOUR) };
            let text = serde_json::to_string(&one).unwrap();
            assert_eq!(serde_json::from_str::<AlertSilence>(&text).unwrap(), one, "{text}");
        }
    }
    let text = serde_json::to_string(&silence(1, "a=~b", NOW, NOW)).unwrap();
    for bad in ["{", "\"op\":\"~\"", "\"value\":\"(\"", "\"matchers\":[]"] {
        let (from, to) = match bad.split_once(':') {
            Some(("\"op\"", _)) => ("\"op\":\"=~\"", bad),
            Some(("\"value\"", _)) => ("\"value\":\"b\"", bad),
            Some(_) => ("\"matchers\":[{\"name\":\"a\",\"op\":\"=~\",\"value\":\"b\"}]", bad),
            None => ("}]", bad),
        };
        let broken = text.replacen(from, to, 1);
        assert_ne!(broken, text);
        assert!(serde_json::from_str::<AlertSilence>(&broken).is_err(), "{broken}");
    }
}

#[test]
fn a_silence_that_makes_no_sense_is_refused() {
    let fine = || wanted("site=north", NOW, NOW + HOUR);
    let many = vec![parse_label_matchers("a=b").unwrap().remove(0); MAX_MATCHERS + 1];
    let long = format!("site=\"{}\"", "x".repeat(MAX_MATCHERS_BYTES));
    let cases = [
        (SilenceRequest { matchers: vec![], ..fine() }, SilenceError::NoMatcher),
        (wanted("site=~\".*\",room=\"\"", NOW, NOW + HOUR), SilenceError::MatchesEmpty),
        (SilenceRequest { matchers: many, ..fine() }, SilenceError::LongMatchers),
        (wanted(&long, NOW, NOW + HOUR), SilenceError::LongMatchers),
        (SilenceRequest { author: " ".to_owned(), ..fine() }, SilenceError::BadAuthor),
        (SilenceRequest { author: "a\nb".to_owned(), ..fine() }, SilenceError::BadAuthor),
        (SilenceRequest { comment: "x".repeat(MAX_COMMENT + 1), ..fine() }, SilenceError::BadComment),
        (SilenceRequest { comment: "\u{1b}[2J".to_owned(), ..fine() }, SilenceError::BadComment),
        (wanted("site=north", NOW + HOUR, NOW + HOUR), SilenceError::BadTimes),
        (wanted("site=north", NOW - 2 * HOUR, NOW - HOUR), SilenceError::BadTimes),
        (wanted("site=north", NOW - HOUR, NOW), SilenceError::BadTimes),
    ];
    for (wanted, error) in cases {
        assert_eq!(put(&[], None, wanted.clone(), id(9), NOW), Err(error), "{wanted:?}");
    }
    assert_eq!(put(&[], Some(id(1)), fine(), id(9), NOW), Err(SilenceError::Unknown(id(1))));
    assert!(put(&[], None, wanted("site!=north", NOW, NOW + HOUR), id(9), NOW).is_ok(), "as in Alertmanager");
    let comment = "line\nbreak".to_owned();
    let written = put(&[], None, SilenceRequest { comment, ..fine() }, id(9), NOW).unwrap();
    assert_eq!((written.len(), written[0].id, written[0].updated_at), (1, id(9), NOW));
}

#[test]
fn a_change_keeps_the_silence_or_ends_it_and_makes_another() {
    let active = silence(1, "site=north", NOW - HOUR, NOW + HOUR);
    let pending = silence(2, "site=north", NOW + HOUR, NOW + 2 * HOUR);
    let expired = silence(3, "site=north", NOW - 2 * HOUR, NOW - HOUR);
    let stored = [active.clone(), pending.clone(), expired.clone()];
    let later = NOW + 5 * HOUR;
    let put = |id: SilenceId, wanted| {
        let written = put(&stored, Some(id), wanted, self::id(9), NOW).unwrap();
        written.iter().map(|one| (one.id, one.starts_at, one.ends_at)).collect::<Vec<_>>()
    };
    // An active one keeps its begin to the second; a pending one may begin at any time to come.
    let second = Timestamp::from_millis(active.starts_at.as_millis() / 1000 * 1000);
    assert_eq!(put(id(1), wanted("site=north", second, later)), [(id(1), active.starts_at, later)]);
    let ended = (id(1), active.starts_at, NOW);
    assert_eq!(put(id(1), wanted("site=north", NOW, later)), [ended, (id(9), NOW, later)]);
    assert_eq!(put(id(1), wanted("site=south", second, later)), [ended, (id(9), NOW, later)]);
    assert_eq!(put(id(2), wanted("site=north", NOW + 3 * HOUR, later)), [(id(2), NOW + 3 * HOUR, later)]);
    assert_eq!(put(id(2), wanted("site=south", NOW, later)), [(id(2), NOW, NOW), (id(9), NOW, later)]);
    assert_eq!(put(id(3), wanted("site=north", NOW, later)), [(id(9), NOW, later)]);

    let end_of = |id| expire(&stored, id, NOW).unwrap().map(|one| (one.starts_at, one.ends_at));
    assert_eq!(end_of(id(1)), Some((active.starts_at, NOW)));
    assert_eq!(end_of(id(2)), Some((NOW, NOW)));
    assert_eq!(end_of(id(3)), None);
    assert_eq!(expire(&stored, id(4), NOW), Err(SilenceError::Unknown(id(4))));

    let extended = |ends_at| extend(&stored, id(1), ends_at, NOW).unwrap().map(|silence| silence.ends_at);
    assert_eq!(extended(later), Some(later));
    assert_eq!(extended(NOW + Duration::from_millis(1)), None, "a silence is never shortened");
    assert_eq!(extend(&stored, id(1), NOW, NOW), Err(SilenceError::BadTimes));
    assert_eq!(extend(&stored, id(2), NOW + HOUR, NOW), Err(SilenceError::BadTimes));
    assert_eq!(extend(&stored, id(3), later, NOW), Err(SilenceError::Expired(id(3))));
}
