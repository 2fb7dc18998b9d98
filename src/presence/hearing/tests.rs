//! Cases of hearing: each begins at 1000, up to which Rollcall has heard, and lists the outcome of every step.

use super::*;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

const GAP: Gap = Gap { blind: Duration::from_secs(3), tell_after: Duration::from_secs(6) };
const RELEASE: Duration = Duration::from_secs(10);

enum Step {
    /// A canary of a plain subscription without a session.
    Plain(i64),
    /// A canary of a session: client id, connection, sent at.
    Kept(&'static str, u64, i64),
    /// A canary of a session that another client repeatedly takes: client id, connection, since when, sent at.
    Taken(&'static str, u64, i64, i64),
    /// A canary of a member: share, client id, connection, sent at.
    Member(&'static str, &'static str, u64, i64),
    Attend(&'static str, &'static str, u64, i64),
    Leave(&'static str, &'static str, u64),
    Gone(&'static str, &'static str, u64, i64),
    /// The stored state of a member becomes unreadable.
    Break(&'static str, &'static str),
    /// The store may have lost the newest messages.
    Lose,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Follows {
    /// Rollcall has heard up to there.
    Heard(i64),
    /// Rollcall has heard up to the end of a time that was blind: from, to, whether heartbeats may have been taken,
    /// whether operators are notified.
    Blind(i64, i64, bool, bool),
    NotAMember,
    /// The connection that ended was not a member.
    NoMember,
}

use Follows::{Blind, Heard};
use Step::{Attend, Break, Gone, Kept, Leave, Lose, Plain, Taken};

fn member(share: &str, client_id: &str, connection: u64) -> ShareMember {
    ShareMember { share: share.to_owned(), client_id: client_id.to_owned(), connection }
}

fn kept(name: &str, connection: u64, taken_since: Option<Timestamp>) -> Subscription {
    let (client_id, was_cut, span) = (name.to_owned(), connection > 1, RELEASE);
    Subscription::Kept { client_id, connection, was_cut, taken_since, span }
}

fn advance(state: &mut HearingState, subscription: Subscription, sent: i64) -> Follows {
    match state.advance(&subscription, at(sent), GAP) {
        Err(NotAMember) => Follows::NotAMember,
        Ok(CanaryEffect { blind: None, .. }) => Heard(state.heard.map_or(0, Timestamp::as_millis)),
        Ok(CanaryEffect { blind: Some(BlindInterval { interval, is_taken, is_notified }), .. }) => {
            assert!(state.heard >= Some(interval.to));
            Blind(interval.from.as_millis(), interval.to.as_millis(), is_taken, is_notified)
        }
    }
}

fn follows(state: &mut HearingState, step: &Step) -> Follows {
    match *step {
        Plain(sent) => return advance(state, Subscription::Plain, sent),
        Kept(name, connection, sent) => return advance(state, kept(name, connection, None), sent),
        Taken(name, connection, since, sent) => {
            return advance(state, kept(name, connection, Some(at(since))), sent);
        }
        Step::Member(share, name, connection, sent) => {
            return advance(state, Subscription::Member(member(share, name, connection)), sent);
        }
        Attend(share, name, connection, now) => {
            state.attend(&member(share, name, connection), at(now), RELEASE);
        }
        Leave(share, name, connection) => {
            if !state.depart(&member(share, name, connection), None) {
                return Follows::NoMember;
            }
        }
        Gone(share, name, connection, until) => {
            if !state.depart(&member(share, name, connection), Some(at(until))) {
                return Follows::NoMember;
            }
        }
        Break(share, name) => {
            state.members.insert((share.to_owned(), name.to_owned()), None);
        }
        Lose => state.is_lost = true,
    }
    Heard(state.heard.map_or(0, Timestamp::as_millis))
}

fn check(name: &str, steps: &[(Step, Follows)]) {
    let mut state = HearingState { heard: Some(at(1000)), ..HearingState::default() };
    for (n, (step, expected)) in steps.iter().enumerate() {
        assert_eq!(follows(&mut state, step), *expected, "{name}: step {n}");
    }
}

#[test]
fn a_plain_subscription_hears_everything_and_a_gap_is_blind() {
    check(
        "plain",
        &[
            (Plain(2000), Heard(2000)),
            (Plain(1500), Heard(2000)),
            (Plain(5000), Heard(5000)),
            (Plain(8001), Blind(5000, 8001, false, false)),
            (Plain(14_002), Blind(8001, 14_002, false, true)),
            (Lose, Heard(14_002)),
            (Plain(14_003), Blind(14_002, 14_003, false, false)),
            (Plain(14_004), Heard(14_004)),
        ],
    );
    let mut new = HearingState::default();
    assert_eq!(follows(&mut new, &Plain(9000)), Heard(9000), "a fleet that begins was never blind");
}

#[test]
fn a_new_connection_of_a_session_proves_nothing_before_its_first_canary() {
    check(
        "one session",
        &[
            (Kept("one", 1, 1100), Blind(1000, 1100, false, false)),
            (Kept("one", 1, 2000), Heard(2000)),
            (Kept("one", 2, 2500), Blind(2000, 2500, true, false)),
            (Kept("one", 2, 2500), Heard(2500)),
            (Kept("one", 2, 3500), Heard(3500)),
        ],
    );
    check(
        "another client takes it again and again",
        &[
            (Kept("one", 1, 1100), Blind(1000, 1100, false, false)),
            (Kept("one", 1, 2000), Heard(2000)),
            (Kept("one", 2, 2500), Blind(2000, 2500, true, false)),
            (Kept("one", 2, 3500), Heard(3500)),
            (Taken("one", 3, 2000, 4500), Blind(2000, 4500, true, false)),
            (Taken("one", 3, 2000, 5500), Heard(5500)),
            // Operators are notified once.
            (Taken("one", 4, 2000, 8500), Blind(2000, 8500, true, true)),
            (Taken("one", 5, 2000, 9000), Blind(2000, 9000, true, false)),
            (Kept("two", 1, 9100), Heard(9000)),
            (Taken("one", 6, 2000, 9500), Blind(2000, 9500, true, false)),
            // Another session hears meanwhile.
            (Kept("two", 1, 9600), Heard(9600)),
            (Taken("one", 7, 2000, 9700), Heard(9600)),
        ],
    );
    check(
        "another session hears meanwhile, or did",
        &[
            (Kept("one", 1, 1100), Blind(1000, 1100, false, false)),
            (Kept("two", 1, 1200), Heard(1100)),
            (Kept("one", 1, 2000), Heard(2000)),
            (Kept("two", 1, 2100), Heard(2100)),
            (Kept("one", 2, 2500), Heard(2100)),
            (Kept("one", 2, 5100), Heard(2100)),
            // The session has ended, so the wait counts as heard.
            (Kept("one", 2, 5101), Blind(2100, 2500, true, false)),
            (Kept("two", 1, 5200), Heard(5101)),
            (Kept("one", 2, 5300), Heard(5300)),
            (Kept("two", 1, 5400), Heard(5400)),
        ],
    );
    let waits = || {
        [
            (Kept("one", 1, 1100), Blind(1000, 1100, false, false)),
            (Kept("two", 1, 1200), Heard(1100)),
            (Kept("one", 1, 2000), Heard(2000)),
            (Kept("two", 1, 2100), Heard(2100)),
            (Kept("one", 2, 2500), Heard(2100)),
        ]
    };
    let missing = [(Kept("one", 2, 5501), Blind(2100, 5501, true, false))];
    check("it waits and misses canaries", &waits().into_iter().chain(missing).collect::<Vec<_>>());
    let lost = [(Lose, Heard(2100)), (Kept("one", 2, 5101), Blind(2100, 5101, true, false))];
    let steps = waits().into_iter().chain([(Kept("one", 2, 4000), Heard(2100))]).chain(lost);
    check("the store loses the newest messages meanwhile", &steps.collect::<Vec<_>>());
}

#[test]
fn a_share_has_heard_as_far_as_the_least_of_its_members() {
    let member = Step::Member;
    check(
        "two members",
        &[
            (Attend("all", "one", 1, 1000), Heard(1000)),
            (Attend("all", "two", 1, 1000), Heard(1000)),
            (member("all", "one", 1, 2000), Heard(1000)),
            (member("all", "two", 1, 1800), Heard(1800)),
            (member("all", "two", 1, 1700), Heard(1800)),
            (member("all", "two", 1, 3000), Heard(2000)),
            (member("all", "two", 2, 4000), Follows::NotAMember),
            (member("all", "three", 1, 4000), Follows::NotAMember),
            (Leave("all", "two", 1), Heard(2000)),
            (Leave("all", "two", 1), Follows::NoMember),
            (member("all", "one", 1, 4000), Heard(4000)),
            (Plain(5000), Heard(5000)),
        ],
    );
    check(
        "a share without members heard nothing",
        &[
            (Attend("all", "one", 1, 1500), Heard(1000)),
            (member("all", "one", 1, 1800), Blind(1000, 1800, false, false)),
            (Attend("all", "one", 1, 2500), Heard(1800)),
            (member("all", "one", 1, 2600), Heard(2600)),
        ],
    );
}

#[test]
fn the_time_in_which_a_member_may_have_lost_messages_is_blind_however_short() {
    let member = Step::Member;
    let begin = || {
        [
            (Attend("all", "one", 1, 1000), Heard(1000)),
            (Attend("all", "two", 1, 1000), Heard(1000)),
            (member("all", "one", 1, 2000), Heard(1000)),
        ]
    };
    let cases: [(&str, Vec<(Step, Follows)>); 4] = [
        (
            "the broker reports that it is gone",
            vec![
                (Gone("all", "two", 1, 2100), Heard(1000)),
                (Gone("all", "two", 1, 2200), Follows::NoMember),
                (member("all", "one", 1, 2050), Heard(1000)),
                (member("all", "one", 1, 2100), Blind(1000, 2100, false, false)),
                (member("all", "one", 1, 3000), Heard(3000)),
            ],
        ),
        (
            "it comes again",
            vec![
                (Attend("all", "two", 2, 2500), Heard(1000)),
                (member("all", "two", 1, 2600), Follows::NotAMember),
                (member("all", "one", 1, 2700), Blind(1000, 2500, false, false)),
                (member("all", "two", 2, 2800), Heard(2700)),
            ],
        ),
        (
            "its release has passed",
            vec![
                (member("all", "one", 1, 11_000), Heard(1000)),
                (member("all", "one", 1, 11_001), Blind(1000, 11_001, false, true)),
                (member("all", "two", 1, 11_002), Follows::NotAMember),
            ],
        ),
        (
            "its stored state cannot be read",
            vec![
                (Break("all", "two"), Heard(1000)),
                (member("all", "one", 1, 2900), Blind(1000, 2900, false, false)),
                (member("all", "two", 1, 3000), Follows::NotAMember),
                (member("all", "one", 1, 3100), Heard(3100)),
            ],
        ),
    ];
    for (name, steps) in cases {
        check(name, &begin().into_iter().chain(steps).collect::<Vec<_>>());
    }
}

#[test]
fn a_share_at_one_of_several_brokers_is_heard_for_itself_and_the_fleet_loses_nothing_with_it() {
    let at_broker = |name: &str| match name {
        "three" => member("us/all", name, 1),
        _ => member("eu/all", name, 1),
    };
    let mut state = HearingState { heard: Some(at(1000)), ..HearingState::default() };
    for name in ["one", "two", "three"] {
        state.attend(&at_broker(name), at(1000), RELEASE);
    }
    // The member, when its canary was sent, how far the fleet has heard then, and how far the share and its floor.
    type Case<'a> = (&'a str, i64, i64, Option<(i64, Option<i64>)>);
    let hears = |cases: &[Case], state: &mut HearingState| {
        for (name, sent, fleet, share) in cases {
            let member = Subscription::MemberAtBroker { member: at_broker(name), proofs: Vec::new() };
            let effect = state.advance(&member, at(*sent), GAP).unwrap();
            let share = share.map(|(heard, floor)| ShareHeard { heard: at(heard), floor: floor.map(at) });
            assert_eq!(
                (effect, state.heard),
                (CanaryEffect { blind: None, share }, Some(at(*fleet))),
                "{name}"
            );
        }
    };
    hears(
        &[
            ("one", 2000, 1000, Some((1000, Some(1000)))),
            ("two", 1900, 1900, Some((1900, None))),
            ("three", 2500, 2500, Some((2500, Some(1000)))),
            ("one", 2400, 2500, Some((1900, None))),
        ],
        &mut state,
    );
    state.depart(&at_broker("two"), Some(at(2600)));
    hears(
        &[
            ("one", 2550, 2500, None),
            ("one", 2700, 2700, Some((2700, Some(2600)))),
            ("three", 3000, 3000, Some((3000, None))),
            ("one", 2800, 3000, Some((2800, None))),
        ],
        &mut state,
    );
}
