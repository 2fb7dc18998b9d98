//! The decision about an announcement that a unit is gone: its deadline is earlier from then on, or nothing changes.

use super::{Verdict, as_seen, check_deadline, held_departure, is_absent, next_check, presumed};
use crate::clock::Timestamp;
use crate::presence::{
    Announced, Announcement, AnnouncementResult, BrokerName, Change, Departure, Hearing, IndexChange,
    Interval, KeyChange, KindRules, Lifecycle, Snapshot, TAKEOVER,
};

/// Decides what announcements of one unit change, in their order: each counts for the unit as those before it left it.
pub fn announce_all(
    seen: &Snapshot,
    announcements: &[&Announcement],
    rules: &KindRules,
    fleet: &Hearing,
    now: Timestamp,
) -> (Vec<AnnouncementResult>, Option<Change>) {
    let (mut seen, mut all) = (seen.clone(), None);
    let mut results = Vec::with_capacity(announcements.len());
    for announcement in announcements {
        let (result, change) = announce(&seen, announcement, rules, fleet, now);
        results.push(result);
        if let Some(change) = change {
            seen.alive = seen.alive.filter(|_| change.key != KeyChange::Delete);
            seen.facts.clone_from(&change.facts);
            all = Some(change);
        }
    }
    (results, all)
}

/// Decides what an announcement changes.
///
/// An announcement moves the next check of its unit. If that check opens the record now, its change is the result: a
/// unit is read and written once. An announcement from blind time says nothing: the broker, or the way to it, may
/// have ended then. One over HTTP came through no broker.
pub fn announce(
    seen: &Snapshot,
    announcement: &Announcement,
    rules: &KindRules,
    fleet: &Hearing,
    now: Timestamp,
) -> (AnnouncementResult, Option<Change>) {
    let hearing = fleet.of_unit(seen, rules);
    let Some(facts) = seen.facts.as_ref().filter(|facts| facts.lifecycle == Lifecycle::Present) else {
        return (AnnouncementResult::NotPresent, None);
    };
    let at = announcement.at.min(now);
    let newest = facts.last_seen.max(seen.alive.unwrap_or(Timestamp::ZERO));
    // The newest heartbeat may be the birth of a session that took over the one that ends.
    let may_be_former = announcement.follows_birth || announcement.is_unsure && at <= newest + TAKEOVER;
    if at < newest || may_be_former || fleet.left(seen, rules, announcement.broker.as_ref()) {
        return (AnnouncementResult::Stale, None);
    }
    if is_absent(facts, newest, at, hearing) {
        return (AnnouncementResult::Planned, None);
    }
    let over_http = announcement.broker.as_ref().is_some_and(BrokerName::is_http);
    if !over_http && announcement.says.is_blind(at, &hearing.ledger) {
        return (AnnouncementResult::Blind, None);
    }
    let held = held_departure(facts, newest, newest.max(facts.silent_since()), hearing);
    let presumed = presumed(seen, facts, rules, hearing, now);
    let mut facts = as_seen(seen, facts.clone(), presumed, rules, hearing, now);
    let result = match announcement.says {
        Announced::Gone { cause, settle } => {
            let departure = Departure { at, settle, cause, over_http };
            if held.is_some_and(|held| !departure.replaces(&held)) {
                return (AnnouncementResult::Stale, None);
            }
            facts.departure = Some(departure);
            AnnouncementResult::Taken
        }
        Announced::Away(length) => {
            // The unit was there to say so, whatever was announced before.
            facts.departure = None;
            facts.sleep = Some(Interval { from: at, to: at + length });
            AnnouncementResult::Paused
        }
    };
    let key = if facts.may_be_behind(rules) { KeyChange::Delete } else { KeyChange::Keep };
    facts.checked_at = facts.checked_at.filter(|_| key == KeyChange::Keep);
    let index = IndexChange::CheckAt(next_check(&facts, rules, hearing, now));
    let announced = Snapshot { facts: Some(facts), ..seen.clone() };
    if let Verdict::Offline(change) = check_deadline(&announced, rules, fleet, now) {
        return (result, Some(change));
    }
    (result, Some(Change { key, index, facts: announced.facts, record: None }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::presence::{
        Cause, Closing, Facts, Heartbeat, HeartbeatResult, Ledger, Policy, State, StateSince, TimeSource,
        Verdict, check_deadline, hear, state, state_since,
    };

    const S: Duration = Duration::from_secs(1);
    const HINT: Announced = Announced::Gone { cause: Cause::LastWill, settle: Duration::from_secs(10) };
    const PROOF: Announced = Announced::Gone { cause: Cause::LastWill, settle: Duration::ZERO };
    const AWAY: Announced = Announced::Away(Duration::from_secs(86_400));
    /// When the unit was last heard before the announcement.
    const HEARD: Timestamp = Timestamp::from_millis(1_732_147_200_000);

    fn rules() -> KindRules {
        let rules = KindRules::new("lamp".parse().unwrap());
        KindRules { policy: Policy { timeout: 3600 * S, grace: Duration::ZERO }, ..rules }
    }

    fn present() -> Snapshot {
        let unit = "lamp:1".parse().unwrap();
        let facts = Facts { checked_at: Some(HEARD), ..Facts::new(Lifecycle::Present, HEARD) };
        Snapshot { unit, alive: Some(HEARD), alive_at: None, facts: Some(facts), stored: None }
    }

    /// Heard up to that many seconds, without the blind intervals.
    fn hearing(seconds: u32, blind: &[(u32, u32)]) -> Hearing {
        let interval = |&(from, to): &(u32, u32)| Interval { from: HEARD + from * S, to: HEARD + to * S };
        let ledger = Ledger::new(blind.iter().map(interval));
        Hearing { heard: Some(HEARD + seconds * S), ledger, settle: 300 * S, ..Hearing::default() }
    }

    fn announcement(seconds: u32, says: Announced) -> Announcement {
        Announcement::of(present().unit, HEARD + seconds * S, says)
    }

    fn announced(seen: &Snapshot, says: Announced) -> Snapshot {
        let (result, change) =
            announce(seen, &announcement(5, says), &rules(), &hearing(5, &[]), HEARD + 5 * S);
        assert_eq!(result, AnnouncementResult::Taken);
        after(seen, change.unwrap())
    }

    fn after(seen: &Snapshot, change: Change) -> Snapshot {
        let alive = match change.key {
            KeyChange::Keep => seen.alive,
            KeyChange::Set { last_seen, .. } => Some(last_seen),
            KeyChange::Delete => None,
        };
        Snapshot { alive, alive_at: None, facts: change.facts, ..seen.clone() }
    }

    fn beat(ms: u64) -> Heartbeat {
        let (unit, at) = (present().unit, HEARD + Duration::from_millis(ms));
        Heartbeat::of(unit, at)
    }

    #[test]
    fn an_announcement_that_says_nothing_changes_nothing() {
        let minute = |from: u32| Some(Interval { from: HEARD + from * S, to: HEARD + (from + 60) * S });
        let with = |change: &dyn Fn(&mut Facts)| {
            let mut seen = present();
            change(seen.facts.as_mut().unwrap());
            seen
        };
        let departed = Departure { at: HEARD + S, settle: S, cause: Cause::Disconnected, over_http: false };
        /// The unit, the seconds after its last heartbeat, blind intervals in the same seconds, and the result.
        type Case = (&'static str, Snapshot, u32, &'static [(u32, u32)], AnnouncementResult);
        let cases: Vec<Case> = vec![
            ("fresh", present(), 5, &[], AnnouncementResult::Taken),
            ("with the last heartbeat", present(), 0, &[], AnnouncementResult::Taken),
            ("unknown", Snapshot { facts: None, ..present() }, 5, &[], AnnouncementResult::NotPresent),
            (
                "never seen",
                with(&|f| f.lifecycle = Lifecycle::NeverSeen),
                5,
                &[],
                AnnouncementResult::NotPresent,
            ),
            (
                "removed",
                with(&|f| f.lifecycle = Lifecycle::Retired(HEARD)),
                5,
                &[],
                AnnouncementResult::NotPresent,
            ),
            (
                "older",
                Snapshot { alive: Some(HEARD + 6 * S), ..present() },
                5,
                &[],
                AnnouncementResult::Stale,
            ),
            ("repeated", with(&|f| f.departure = Some(departed)), 5, &[], AnnouncementResult::Stale),
            ("paused", with(&|f| f.pause = minute(1)), 5, &[], AnnouncementResult::Planned),
            ("asleep", with(&|f| f.sleep = minute(0)), 5, &[], AnnouncementResult::Planned),
            ("the broker was down", present(), 5, &[(4, 8)], AnnouncementResult::Blind),
            ("blind before", present(), 5, &[(2, 4)], AnnouncementResult::Taken),
        ];
        for (what, seen, seconds, blind, expected) in cases {
            for says in [HINT, PROOF] {
                let hearing = hearing(20, blind);
                let (result, change) =
                    announce(&seen, &announcement(seconds, says), &rules(), &hearing, HEARD + 20 * S);
                assert_eq!(result, expected, "{what}");
                assert_eq!(change.is_some(), expected == AnnouncementResult::Taken, "{what}");
            }
        }
        let taken_over = Announcement { follows_birth: true, ..announcement(5, PROOF) };
        let (result, _) = announce(&present(), &taken_over, &rules(), &hearing(5, &[]), HEARD + 5 * S);
        assert_eq!(result, AnnouncementResult::Stale);
        // In a share, the birth may have come to another instance.
        for (ms, expected) in [
            (0, AnnouncementResult::Stale),
            (250, AnnouncementResult::Stale),
            (251, AnnouncementResult::Taken),
        ] {
            let at = HEARD + Duration::from_millis(ms);
            let unsure = Announcement { is_unsure: true, at, ..announcement(0, PROOF) };
            let (result, _) = announce(&present(), &unsure, &rules(), &hearing(5, &[]), HEARD + 5 * S);
            assert_eq!(result, expected, "{ms}");
        }
    }

    #[test]
    fn each_announcement_of_a_unit_counts_after_those_before_it() {
        use AnnouncementResult::{Paused, Planned, Stale, Taken};
        // Seconds, what is said, and whether it is of a session that was taken over; the results while Rollcall has not
        // heard so far; and the deadline of the record that follows.
        type Case =
            (&'static str, &'static [(u32, Announced, bool)], &'static [AnnouncementResult], Option<u32>);
        let cases: [Case; 8] = [
            ("a sleep, and its will", &[(5, AWAY, false), (5, PROOF, false)], &[Paused, Planned], None),
            ("a proof twice", &[(5, PROOF, false), (5, PROOF, false)], &[Taken, Stale], Some(5)),
            ("a stale one behind it", &[(5, PROOF, false), (5, PROOF, true)], &[Taken, Stale], Some(5)),
            ("a hint behind it", &[(5, PROOF, false), (5, HINT, false)], &[Taken, Stale], Some(5)),
            ("a stale one before it", &[(5, PROOF, true), (6, PROOF, false)], &[Stale, Taken], Some(6)),
            ("a hint twice", &[(5, HINT, false), (7, HINT, false)], &[Taken, Stale], Some(15)),
            ("a hint before it", &[(5, HINT, false), (7, PROOF, false)], &[Taken, Taken], Some(7)),
            ("a hint before a sleep", &[(5, HINT, false), (7, AWAY, false)], &[Taken, Paused], None),
        ];
        for (what, said, expected, deadline) in cases {
            let one = |&(seconds, says, follows_birth): &(u32, Announced, bool)| Announcement {
                follows_birth,
                ..announcement(seconds, says)
            };
            let announcements: Vec<Announcement> = said.iter().map(one).collect();
            let all: Vec<&Announcement> = announcements.iter().collect();
            for heard in [3, 60] {
                let now = HEARD + 8 * S;
                let (results, change) = announce_all(&present(), &all, &rules(), &hearing(heard, &[]), now);
                if heard == 3 {
                    assert_eq!(results, expected, "{what}");
                }
                let seen = after(&present(), change.unwrap());
                let opened = match &seen.facts.as_ref().unwrap().lifecycle {
                    Lifecycle::Offline(silence) => Some(silence.deadline),
                    _ => match check_deadline(&seen, &rules(), &hearing(60, &[]), HEARD + 60 * S) {
                        Verdict::Offline(change) => change.record.map(|record| record.deadline),
                        _ => None,
                    },
                };
                assert_eq!(opened, deadline.map(|seconds| HEARD + seconds * S), "{what}, heard {heard}");
            }
        }
    }

    #[test]
    fn an_announcement_is_stale_only_beside_one_that_holds_and_says_as_much() {
        use AnnouncementResult::{Paused, Stale, Taken};
        let (broker, http) = (false, true);
        // The former one, of second 5, and the next one, each with its way; blind intervals.
        type Case = ((Announced, bool), &'static [(u32, u32)], (u32, Announced, bool), AnnouncementResult);
        let cases: [Case; 13] = [
            ((HINT, broker), &[], (12, HINT, broker), Stale),
            ((HINT, broker), &[(7, 8)], (12, HINT, broker), Taken),
            ((HINT, broker), &[], (6, PROOF, broker), Taken),
            ((HINT, broker), &[], (6, AWAY, broker), Paused),
            ((HINT, broker), &[], (6, HINT, http), Taken),
            ((HINT, broker), &[(4, 6)], (8, PROOF, http), Taken),
            ((PROOF, broker), &[], (6, PROOF, broker), Stale),
            ((PROOF, broker), &[], (6, HINT, broker), Stale),
            ((PROOF, broker), &[(4, 6)], (8, PROOF, broker), Taken),
            ((PROOF, broker), &[], (6, PROOF, http), Taken),
            ((HINT, http), &[], (6, HINT, broker), Stale),
            ((HINT, http), &[], (6, HINT, http), Stale),
            ((HINT, http), &[(7, 8)], (12, HINT, http), Stale),
        ];
        for ((former, over_http), blind, (seconds, says, is_http), expected) in cases {
            let Announced::Gone { cause, settle } = former else { panic!() };
            let mut seen = present();
            let departure = Departure { at: HEARD + 5 * S, settle, cause, over_http };
            seen.facts.as_mut().unwrap().departure = Some(departure);
            let broker = is_http.then(BrokerName::http);
            let one = Announcement { broker, ..announcement(seconds, says) };
            let (result, _) = announce(&seen, &one, &rules(), &hearing(4, blind), HEARD + 13 * S);
            assert_eq!(result, expected, "{former:?} {over_http} {blind:?} {says:?} {is_http}");
        }
    }

    #[test]
    fn a_heartbeat_after_an_announcement_counts_by_its_arrival_if_the_clock_of_its_device_is_behind() {
        let rules = KindRules { clock: TimeSource::Device, ..rules() };
        let (ms, now) = (Duration::from_millis, HEARD + 8 * S);
        // The moment by the device and the arrival, in milliseconds, and when the unit was last seen after it.
        let cases =
            [(0, 7000, 7000), (4999, 5001, 5001), (6000, 7000, 6000), (1000, 4000, 1000), (1000, 5000, 1000)];
        for says in [HINT, PROOF, AWAY] {
            let says = announcement(5, says);
            let (_, change) = announce(&present(), &says, &rules, &hearing(3, &[]), HEARD + 5 * S);
            let change = change.unwrap();
            assert_eq!(change.key, KeyChange::Delete, "the fast path knows no announcements");
            let announced = after(&present(), change);
            for (at, arrived, expected) in cases {
                let beat = Heartbeat { arrived: HEARD + ms(arrived), ..beat(at) };
                let (_, change) = hear(&announced, &beat, &rules, &hearing(3, &[]), now);
                let change = change.unwrap();
                let is_void = expected > 5000;
                assert_eq!(matches!(change.key, KeyChange::Set { .. }), is_void, "{says:?} {at} {arrived}");
                let seen = after(&announced, change);
                assert_eq!(seen.last_heard(), Some(HEARD + ms(expected)), "{says:?} {at} {arrived}");
                let online = state(&seen, &rules, &hearing(3, &[]), now) == Some(State::Online);
                assert_eq!(online, is_void, "{says:?} {at} {arrived}");
            }
        }
        let (_, change) = announce(&present(), &announcement(5, PROOF), &rules, &hearing(9, &[]), now);
        let offline = after(&present(), change.unwrap());
        for (at, arrived, expected) in cases {
            let beat = Heartbeat { arrived: HEARD + ms(arrived), ..beat(at) };
            let (result, change) = hear(&offline, &beat, &rules, &hearing(9, &[]), now);
            let back = change.and_then(|change| change.record?.back_at);
            let is_back = expected > 5000;
            assert_eq!(back, is_back.then_some(HEARD + ms(expected)), "{at} {arrived}");
            assert_eq!(result == HeartbeatResult::Back, is_back, "{at} {arrived}");
        }
    }

    #[test]
    fn a_hint_makes_a_unit_late_and_offline_if_it_is_not_heard_within_the_time() {
        let seen = announced(&present(), HINT);
        let state =
            |seconds: u32, heard: u32| state(&seen, &rules(), &hearing(heard, &[]), HEARD + seconds * S);
        assert_eq!(
            [4, 6, 15].map(|s| state(s, s)),
            [Some(State::Online), Some(State::Late), Some(State::Late)]
        );
        let check = |seconds: u32, heard: u32| {
            check_deadline(&seen, &rules(), &hearing(heard, &[]), HEARD + seconds * S)
        };
        assert!(matches!(check(15, 15), Verdict::Alive(_)), "a deadline at exactly now has not passed");
        assert!(matches!(check(16, 13), Verdict::Undecided), "it may have been heard since");
        let Verdict::Offline(change) = check(16, 16) else { panic!() };
        let record = change.record.as_ref().unwrap();
        assert_eq!(
            (record.cause, record.deadline, record.last_seen),
            (Cause::LastWill, HEARD + 15 * S, HEARD)
        );
    }

    #[test]
    fn a_hint_whose_wait_was_blind_for_a_moment_says_nothing_and_the_timeout_finds_the_unit() {
        // Blind seconds, and the causes and deadlines of the records that a hint and a proof of second 5 open, as checks
        // after it find them.
        let (will, silence) = (Cause::LastWill, Cause::Silence);
        type Case = (&'static [(u32, u32)], (Cause, u32), (Cause, u32));
        let cases: [Case; 7] = [
            (&[], (will, 15), (will, 5)),
            (&[(2, 4)], (will, 15), (will, 5)),
            (&[(3, 6)], (silence, 3603), (silence, 3603)),
            (&[(7, 8)], (silence, 3601), (will, 5)),
            (&[(6, 7), (14, 19)], (silence, 3606), (will, 5)),
            (&[(14, 300)], (silence, 3886), (will, 5)),
            (&[(16, 20)], (will, 15), (will, 5)),
        ];
        for (blind, of_hint, of_proof) in cases {
            for (says, (cause, deadline)) in [(HINT, of_hint), (PROOF, of_proof)] {
                let (seen, end) = (announced(&present(), says), HEARD + deadline * S);
                let check = |now: Timestamp| check_deadline(&seen, &rules(), &hearing(5000, blind), now);
                assert!(matches!(check(end), Verdict::Alive(_)), "{says:?} {blind:?}");
                let Verdict::Offline(change) = check(end + Duration::from_millis(1)) else {
                    panic!("{blind:?}")
                };
                let record = change.record.unwrap();
                assert_eq!((record.cause, record.deadline), (cause, end), "{says:?} {blind:?}");
                // An announcement that is taken late finds the same.
                let (now, hearing) = (HEARD + 400 * S, hearing(400, blind));
                let (result, _) = announce(&present(), &announcement(5, says), &rules(), &hearing, now);
                let is_blind = result == AnnouncementResult::Blind;
                assert_eq!(is_blind, cause == silence, "{says:?} {blind:?}");
            }
        }
    }

    #[test]
    fn a_proof_opens_the_record_as_soon_as_hearing_reaches_it() {
        let seen = announced(&present(), PROOF);
        let check = |heard| {
            let now = HEARD + Duration::from_millis(5_001);
            check_deadline(&seen, &rules(), &hearing(heard, &[]), now)
        };
        assert_eq!(check(4), Verdict::Undecided);
        let Verdict::Offline(change) = check(5) else { panic!() };
        assert_eq!(change.record.as_ref().unwrap().deadline, HEARD + 5 * S);

        // Probes of the kind are seconds apart: they may lag as far as at any deadline, canaries may not.
        let with_kind = |fleet: u32, kind: u32| {
            let of_kind = [(rules().kind, hearing(kind, &[]))].into();
            Hearing { kinds: std::sync::Arc::new(of_kind), ..hearing(fleet, &[]) }
        };
        let timeout = Policy { timeout: 20 * S, grace: Duration::ZERO };
        let rules = KindRules { policy: timeout, ..rules() };
        for (fleet, kind, is_offline) in [(5, 3, true), (5, 2, false), (4, 5, false)] {
            let now = HEARD + Duration::from_millis(5_001);
            let verdict = check_deadline(&seen, &rules, &with_kind(fleet, kind), now);
            assert_eq!(matches!(verdict, Verdict::Offline(_)), is_offline, "{fleet} {kind}");
        }
    }

    #[test]
    fn an_announcement_over_http_counts_in_blind_time_and_its_proof_needs_no_hearing() {
        // What it says, heard up to, blind seconds, and the deadline and the state in the second of the announcement.
        type Case = (Announced, u32, &'static [(u32, u32)], u32, State);
        let cases: [Case; 6] = [
            (PROOF, 5, &[], 5, State::Offline),
            (PROOF, 0, &[], 5, State::Offline),
            (PROOF, 9, &[(4, 8)], 5, State::Offline),
            (HINT, 5, &[], 15, State::Online),
            (HINT, 0, &[], 15, State::Online),
            (HINT, 9, &[(4, 8)], 18, State::Online),
        ];
        let at = HEARD + 5 * S;
        for (says, heard, blind, deadline, expected) in cases {
            let one = Announcement { broker: Some(BrokerName::http()), ..announcement(5, says) };
            let (result, change) = announce(&present(), &one, &rules(), &hearing(heard, blind), at);
            assert_eq!(result, AnnouncementResult::Taken, "{says:?} {heard} {blind:?}");
            let seen = after(&present(), change.unwrap());
            let known = state(&seen, &rules(), &hearing(heard, blind), at);
            assert_eq!(known, Some(expected), "{says:?} {heard} {blind:?}");
            let record = match check_deadline(&seen, &rules(), &hearing(60, blind), HEARD + 60 * S) {
                Verdict::Offline(change) => change.record.unwrap().deadline,
                _ => super::super::times::deadline(&seen, &rules(), &hearing(60, blind)).unwrap(),
            };
            assert_eq!(record, HEARD + deadline * S, "{says:?} {heard} {blind:?}");
        }
        // A hint still has to hear that nothing came.
        let one = Announcement { broker: Some(BrokerName::http()), ..announcement(5, HINT) };
        let (_, change) = announce(&present(), &one, &rules(), &hearing(5, &[]), at);
        let seen = after(&present(), change.unwrap());
        assert_eq!(check_deadline(&seen, &rules(), &hearing(13, &[]), HEARD + 16 * S), Verdict::Undecided);
    }

    #[test]
    fn a_record_that_opens_with_its_announcement_is_the_one_that_a_check_after_it_opens() {
        let late = Snapshot { alive: None, ..present() };
        for (what, seen, says, seconds, opens) in [
            ("a proof", present(), PROOF, 6, true),
            ("in this millisecond", present(), PROOF, 5, false),
            ("without a key", late.clone(), PROOF, 6, true),
            ("a hint", present(), HINT, 6, false),
            ("a hint that came late", present(), HINT, 16, true),
            ("a hint without a key", late, HINT, 6, false),
        ] {
            let now = HEARD + seconds * S;
            let announce = |heard: u32| {
                let (result, change) =
                    announce(&seen, &announcement(5, says), &rules(), &hearing(heard, &[]), now);
                assert_eq!(result, AnnouncementResult::Taken, "{what}");
                change.unwrap()
            };
            let (later, now_or_later) = (announce(3), announce(60));
            assert_eq!((later.record.is_some(), now_or_later.record.is_some()), (false, opens), "{what}");
            if !opens {
                assert_eq!(now_or_later.index, later.index, "{what}");
                continue;
            }
            let Verdict::Offline(checked) =
                check_deadline(&after(&seen, later), &rules(), &hearing(60, &[]), now)
            else {
                panic!("{what}")
            };
            assert_eq!(now_or_later, checked, "{what}");
        }
    }

    #[test]
    fn a_heartbeat_after_an_announcement_makes_it_void_and_one_before_it_belongs_to_the_silence() {
        for says in [HINT, PROOF] {
            // Recorded on the fast path, which does not touch the facts.
            let refreshed = Snapshot { alive: Some(HEARD + 6 * S), ..announced(&present(), says) };
            let now = HEARD + 60 * S;
            assert_eq!(state(&refreshed, &rules(), &hearing(60, &[]), now), Some(State::Online));
            let Verdict::Alive(change) = check_deadline(&refreshed, &rules(), &hearing(60, &[]), now) else {
                panic!()
            };
            assert_eq!(change.index, IndexChange::CheckAt(HEARD + 3606 * S));

            let seen = announced(&present(), says);
            let Verdict::Offline(change) = check_deadline(&seen, &rules(), &hearing(60, &[]), now) else {
                panic!()
            };
            let offline = after(&seen, change);
            for (ms, expected) in [(4_999, HeartbeatResult::Stale), (5_000, HeartbeatResult::Stale)] {
                let (heard, change) = hear(&offline, &beat(ms), &rules(), &hearing(60, &[]), now);
                assert_eq!((heard, change), (expected, None), "{ms}");
            }
            // The first heartbeat of the next session, right after the will of the former one.
            let (heard, change) = hear(&offline, &beat(5_001), &rules(), &hearing(60, &[]), now);
            let change = change.unwrap();
            assert_eq!((heard, change.facts.as_ref().unwrap().departure), (HeartbeatResult::Back, None));
            assert_eq!(change.record.unwrap().closed_by, Some(Closing::Return));
        }
    }

    #[test]
    fn an_announcement_never_makes_a_deadline_later() {
        let short = KindRules { policy: Policy { timeout: 8 * S, grace: Duration::ZERO }, ..rules() };
        let (_, change) =
            announce(&present(), &announcement(5, HINT), &short, &hearing(5, &[]), HEARD + 5 * S);
        let seen = after(&present(), change.unwrap());
        // It is late at once all the same.
        let late = StateSince {
            state: State::Late,
            since: HEARD + 5 * S,
            last_seen: Some(HEARD),
            cause: Some(Cause::LastWill),
        };
        for seconds in [6, 8] {
            let now = HEARD + seconds * S;
            assert_eq!(
                state_since(&seen, &short, &hearing(seconds, &[]), now, None),
                Some(late),
                "{seconds}"
            );
        }
        let Verdict::Offline(change) = check_deadline(&seen, &short, &hearing(9, &[]), HEARD + 9 * S) else {
            panic!()
        };
        let record = change.record.unwrap();
        assert_eq!((record.cause, record.deadline), (Cause::Silence, HEARD + 8 * S));
    }

    #[test]
    fn a_planned_departure_is_a_pause_until_the_next_heartbeat() {
        let away = Announced::Away(86_400 * S);
        let (result, change) =
            announce(&present(), &announcement(5, away), &rules(), &hearing(5, &[]), HEARD + 5 * S);
        let seen = after(&present(), change.unwrap());
        assert_eq!(result, AnnouncementResult::Paused);
        let later = HEARD + 7200 * S;
        assert_eq!(state(&seen, &rules(), &hearing(7200, &[]), later), Some(State::Paused));
        let back = Snapshot { alive: Some(HEARD + 7100 * S), ..seen };
        assert_eq!(state(&back, &rules(), &hearing(7200, &[]), later), Some(State::Online));
    }
}
