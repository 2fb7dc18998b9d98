//! What a rhythm learns, and what must not spoil it.

use proptest::prelude::*;

use super::*;
use crate::presence::DEFAULT_SETTLE;

const MINUTE: u64 = 60_000;

/// 2026-11-29.
const BEGIN: i64 = 1_795_910_400_000;

/// The rhythm after these intervals (ms), and the moment of the last heartbeat.
fn after(rhythm: Rhythm, begin: Timestamp, intervals: impl IntoIterator<Item = u64>) -> (Rhythm, Timestamp) {
    intervals.into_iter().fold((rhythm, begin), |(rhythm, at), ms| {
        let next = at + Duration::from_millis(ms);
        (rhythm.learn(at, next), next)
    })
}

fn learned(intervals: impl IntoIterator<Item = u64>) -> Rhythm {
    after(Rhythm::default(), Timestamp::from_millis(BEGIN), intervals).0
}

fn ms(span: Duration) -> u64 {
    span.as_millis() as u64
}

/// Intervals around `usual`, each off by up to a share of it in turn.
fn jittering(usual: u64, share: f64, count: usize) -> impl Iterator<Item = u64> {
    (0..count).map(move |at| {
        let off = [0.3, -0.9, 0.6, -0.2, 1.0, -0.6, 0.1, -0.3][at % 8];
        (usual as f64 * (1.0 + share * off)) as u64
    })
}

#[track_caller]
fn assert_near(found: u64, expected: u64, share: f64) {
    let off = (found as f64 - expected as f64).abs() / expected as f64;
    assert!(off <= share, "{found} is not within {share} of {expected}");
}

#[test]
fn a_unit_that_is_heard_every_five_minutes_has_that_rhythm_and_its_spread() {
    let rhythm = learned(jittering(5 * MINUTE, 0.13, 200));
    assert_near(ms(rhythm.usual()), 5 * MINUTE, 0.03);
    // The mean distance of these intervals is half of 13 % of five minutes.
    assert_near(ms(rhythm.spread()), 20_000, 0.25);
    assert_near(ms(rhythm.longest()), 339_000, 0.01);
    let allowed = ms(rhythm.allows().unwrap());
    assert!((10 * MINUTE..15 * MINUTE).contains(&allowed), "{allowed}");
}

#[test]
fn the_first_intervals_teach_and_judge_nothing() {
    let seven = learned([5 * MINUTE; 7]);
    assert_eq!((seven.allows(), seven.progress()), (None, (7, 8)));
    assert!(!seven.may_be_unusual(Duration::from_secs(86_400)));
    assert!(learned([5 * MINUTE; 8]).allows().is_some());
}

#[test]
fn the_messages_of_a_start_do_not_count_as_a_rhythm() {
    let started = learned([3, 12, 40, 700].into_iter().chain([5 * MINUTE; 8]));
    assert_near(ms(started.usual()), 5 * MINUTE, 0.01);
    // A unit that sends three messages at once every five minutes waits for five minutes.
    let three = learned((0..60).map(|at| if at % 3 == 2 { 5 * MINUTE } else { 15 }));
    assert_near(ms(three.usual()), 5 * MINUTE, 0.02);
    assert!(three.is_known() && ms(three.spread()) < 10_000);
}

#[test]
fn a_burst_of_queued_messages_does_not_pull_the_usual_interval_down() {
    let before = learned(jittering(5 * MINUTE, 0.1, 100));
    let burst = after(before, Timestamp::from_millis(BEGIN), [2; 500]).0;
    assert_near(ms(burst.usual()), ms(before.usual()), 0.01);
    assert_near(ms(burst.allows().unwrap()), ms(before.allows().unwrap()), 0.02);
}

#[test]
fn a_lost_message_is_not_unusual_and_pulls_only_a_little() {
    let before = learned([5 * MINUTE; 100]);
    assert!(before.allows().unwrap() > Duration::from_millis(10 * MINUTE));
    let lost = after(before, Timestamp::from_millis(BEGIN), [10 * MINUTE]).0;
    assert_near(ms(lost.usual()), 5 * MINUTE, 0.03);
    let hours = after(before, Timestamp::from_millis(BEGIN), [20 * 60 * MINUTE]).0;
    assert_near(ms(hours.usual()), ms(lost.usual()), 0.01);
}

#[test]
fn a_unit_that_changes_its_rhythm_is_learned_again() {
    let day = 1440 * MINUTE;
    for (old, new) in [(5 * MINUTE, 10_000), (10_000, 5 * MINUTE), (60 * MINUTE, 50 * MINUTE), (day, 10_000)]
    {
        let before = learned([old; 100]);
        // Within a hundred of the longer intervals.
        let intervals = 100 * (old.max(new) / new) as usize;
        let changed = after(before, Timestamp::from_millis(BEGIN), std::iter::repeat_n(new, intervals)).0;
        assert_near(ms(changed.usual()), new, 0.05);
    }
}

#[test]
fn a_unit_that_pauses_every_night_is_not_unusual_at_night_and_the_longest_night_is_forgotten() {
    let day = || std::iter::repeat_n(5 * MINUTE, 190).chain([8 * 60 * MINUTE]);
    let (nights, at) = after(Rhythm::default(), Timestamp::from_millis(BEGIN), (0..14).flat_map(|_| day()));
    assert_near(ms(nights.usual()), 5 * MINUTE, 0.1);
    let allowed = ms(nights.allows().unwrap());
    assert!((9 * 60 * MINUTE..11 * 60 * MINUTE).contains(&allowed), "{allowed}");
    // Half is forgotten in ninety days, and so on.
    let (later, _) = after(nights, at, std::iter::repeat_n(5 * MINUTE, 90 * 288));
    assert_near(ms(later.longest()), 4 * 60 * MINUTE, 0.02);
    let (much_later, _) = after(nights, at, std::iter::repeat_n(5 * MINUTE, 700 * 288));
    assert!(much_later.allows().unwrap() < Duration::from_millis(12 * MINUTE));
}

#[test]
fn blind_time_and_absences_are_no_silence() {
    let rhythm = learned([5 * MINUTE; 20]);
    let (allowed, since) = (rhythm.allows().unwrap(), Timestamp::from_millis(BEGIN));
    let hour = |from: u64| Interval {
        from: since + Duration::from_millis(from * MINUTE),
        to: since + Duration::from_millis((from + 60) * MINUTE),
    };
    let plain = Hearing { settle: DEFAULT_SETTLE, ..Hearing::default() };
    let blind = Hearing { ledger: Ledger::new([hour(2)]), ..plain.clone() };
    let hour_more = since + allowed + Duration::from_secs(3600);
    assert_eq!(rhythm.unusual_from(since, [None, None], &plain), Some(since + allowed));
    assert_eq!(rhythm.unusual_from(since, [None, None], &blind), Some(hour_more));
    assert_eq!(rhythm.unusual_from(since, [Some(hour(1)), None], &plain), Some(hour_more));
    assert_eq!(rhythm.unusual_from(since, [None, Some(hour(1))], &plain), Some(hour_more));
    assert_eq!(learned([MINUTE; 3]).unusual_from(since, [None, None], &plain), None);
}

#[test]
fn only_time_that_is_proved_to_be_heard_teaches() {
    let (kind, at): (Kind, _) = ("gate".parse().unwrap(), Timestamp::from_millis);
    let gap = Duration::from_secs(3);
    let blind = Interval { from: at(BEGIN + 10_000), to: at(BEGIN + 20_000) };
    let hearing = |heard: Option<i64>, blind: &[Interval]| Hearing {
        heard: heard.map(|heard| at(BEGIN + heard)),
        ledger: Ledger::new(blind.iter().copied()),
        ..Hearing::default()
    };
    // The hearing, now, since when the kind is heard without a break.
    let cases = [
        (hearing(None, &[]), 60_000, None),
        (hearing(Some(59_000), &[]), 60_000, Some(0)),
        // The link is cut: messages that wait at the broker come before the proof, and before the blind time is known.
        (hearing(Some(50_000), &[]), 60_000, None),
        (hearing(Some(59_000), &[blind]), 60_000, Some(BEGIN + 20_000)),
        (hearing(Some(59_000), &[Interval { to: Timestamp::NEVER, ..blind }]), 60_000, None),
    ];
    for (hearing, now, since) in cases {
        assert_eq!(hearing.unbroken_since(&kind, gap, at(BEGIN + now)), since.map(at), "{hearing:?}");
    }
}

proptest! {
    #[test]
    fn what_may_be_unusual_includes_all_that_is(
        intervals in prop::collection::vec(1u64..1_000_000_000, 8..60), silence in 0u64..100_000_000_000,
    ) {
        let (rhythm, silence) = (learned(intervals), Duration::from_millis(silence));
        if rhythm.allows().is_some_and(|allowed| silence > allowed) {
            prop_assert!(rhythm.may_be_unusual(silence));
        }
    }

    #[test]
    fn a_known_rhythm_lies_between_its_shortest_and_longest_interval_and_survives_storage(
        intervals in prop::collection::vec(1u64..20_000_000_000, 8..100),
    ) {
        let (least, most) = (*intervals.iter().min().unwrap(), *intervals.iter().max().unwrap());
        let rhythm = learned(intervals);
        let usual = ms(rhythm.usual());
        prop_assert!(usual as f64 >= least as f64 * 0.99 && usual as f64 <= most as f64 * 1.01, "{usual}");
        prop_assert!(rhythm.allows().is_none_or(|allowed| allowed > rhythm.longest()));
        prop_assert_eq!(Rhythm::from_bytes(rhythm.to_bytes()), rhythm);
    }

    #[test]
    fn any_bytes_are_a_rhythm(bytes in any::<[u8; 7]>(), from in 0i64..1 << 50, length in 0u64..1 << 50) {
        let rhythm = Rhythm::from_bytes(bytes);
        let (next, _) = after(rhythm, Timestamp::from_millis(from), [length]);
        let _ = (next.allows(), next.usual(), next.spread(), next.may_be_unusual(Duration::MAX));
    }
}
