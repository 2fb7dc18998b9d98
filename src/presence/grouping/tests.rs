use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

const PACE: Pace = Pace::new(Duration::from_secs(10), Duration::from_secs(100));
const SHARED: Pace = Pace { is_shared: true, ..PACE };

fn joins(form: MemberTransition, pace: Pace, now: Timestamp) -> JoiningTransition {
    let since = pace.waits_since(form, now - Duration::from_secs(5), now);
    JoiningTransition { form, since, is_last: false, held_until: None, deadline: None }
}

#[test]
fn a_member_goes_from_one_stage_to_the_next_and_nothing_else_changes_it() {
    use Stage::{IsBack, Notified, Over, Waits};
    // The stage, and the next one after offline, online, removed, blind.
    let cases: [(Option<Stage>, [Option<Stage>; 4]); 5] = [
        (None, [Some(Waits), Some(Over), Some(Over), Some(Waits)]),
        (Some(Waits), [None, Some(Over), Some(Over), None]),
        (Some(Notified), [None, Some(IsBack), Some(Over), None]),
        (Some(IsBack), [None; 4]),
        (Some(Over), [None; 4]),
    ];
    for (stage, next) in cases {
        let forms = [
            MemberTransition::Offline,
            MemberTransition::Online,
            MemberTransition::Removed,
            MemberTransition::Blind,
        ];
        assert_eq!(forms.map(|form| Stage::next(stage, form)), next, "{stage:?}");
    }
    let notified = |stage: Stage| [stage.once_notified(false), stage.once_notified(true)];
    assert_eq!([notified(Waits), notified(IsBack)], [[Notified, Over], [Over, Over]]);
    assert!(is_detected_again(Over, at(1), at(2)) && !is_detected_again(Over, at(2), at(2)));
    assert!(!is_detected_again(Notified, at(1), at(2)));
}

#[test]
fn a_group_is_due_after_its_wait_and_an_interval_after_it_was_sealed() {
    let now = at(1000);
    // Sealed, due, the transition that joins, when the group is due then.
    let cases = [
        (PACE, None, None, MemberTransition::Offline, 1010),
        (Pace::AT_ONCE, None, None, MemberTransition::Offline, 1000),
        (Pace::AT_ONCE, Some(1000), None, MemberTransition::Offline, 1000),
        (PACE, Some(950), None, MemberTransition::Offline, 1050),
        (PACE, Some(900), None, MemberTransition::Offline, 1010),
        (PACE, Some(2000), None, MemberTransition::Offline, 1010), // in the future
        (PACE, Some(950), None, MemberTransition::Blind, 1000),
        (PACE, Some(950), None, MemberTransition::Online, 1050),
        (PACE, None, Some(1005), MemberTransition::Offline, 1005),
        (PACE, None, Some(1900), MemberTransition::Offline, 1010), // the others wait for longer
        (Pace::AT_ONCE, None, Some(900), MemberTransition::Blind, 900), // others wait
        (SHARED, None, None, MemberTransition::Offline, 1010),
        (Pace { wait: Duration::ZERO, ..SHARED }, None, None, MemberTransition::Offline, 1001),
        (Pace { wait: Duration::ZERO, ..SHARED }, None, None, MemberTransition::Online, 1001),
        (Pace { lasts: Duration::from_secs(30), ..PACE }, None, None, MemberTransition::Offline, 1025),
    ];
    for (pace, sealed, due, form, expected) in cases {
        let times = GroupTimes { sealed: sealed.map(at), due: due.map(at) };
        let case = format!("{times:?} {form:?}");
        let joining = joins(form, pace, now);
        assert_eq!(times.due_with(joining, pace, now), at(expected), "{case}");
    }
}

#[test]
fn a_group_that_is_held_is_not_due_before() {
    let now = at(1000);
    for (pace, form) in [(Pace::AT_ONCE, MemberTransition::Offline), (PACE, MemberTransition::Online)] {
        let joining = JoiningTransition { held_until: Some(at(1060)), ..joins(form, pace, now) };
        assert_eq!(GroupTimes::default().due_with(joining, pace, now), at(1060));
        let ended = JoiningTransition { held_until: Some(at(999)), ..joining };
        assert!(GroupTimes::default().due_with(ended, pace, now) < at(1060));
    }
}

#[test]
fn a_return_after_which_no_silence_lasts_waits_for_no_interval() {
    let now = at(1000);
    let times = GroupTimes { sealed: Some(at(950)), due: Some(at(1050)) };
    let returns =
        |pace: Pace, is_last| JoiningTransition { is_last, ..joins(MemberTransition::Online, pace, now) };
    assert_eq!(times.due_with(returns(SHARED, false), SHARED, now), at(1050));
    assert_eq!(times.due_with(returns(SHARED, true), SHARED, now), at(1010));
    let slow = Pace { recoveries: Recoveries::After(Duration::from_secs(30)), ..SHARED };
    assert_eq!(times.due_with(returns(slow, true), slow, now), at(1030));
    // The group is sealed early: only final members are ready, and silences that waited when it was sealed last, or a
    // second later.
    let early = GroupTimes { due: Some(at(1010)), ..times };
    let ready = early.ready_since(SHARED, at(1010));
    assert_eq!(ready, ReadySince { silence: at(951), other: at(1000) });
    assert_eq!(early.sealed_now(SHARED, at(1010)), at(950), "the interval goes on");
    let left = Left { first: Some(at(960)), newest: Some(at(1005)), ..Left::default() };
    assert_eq!(early.due_after(left, Sealed::Some, SHARED, at(1010)), Some(at(1050)));
    assert_eq!(early.due_after(left, Sealed::Most, SHARED, at(1010)), Some(at(1010)));
}

#[test]
fn silences_within_a_second_are_notified_together() {
    let at = Timestamp::from_millis;
    let none = GroupTimes::default();
    // The wait, the first, now, until when silences are gathered.
    let cases = [
        (0, 5000, 5000, Some(6000)),
        (0, 5000, 6000, None),
        (400, 5000, 5300, None),
        (400, 5000, 6000, Some(6000)),
        (400, 5000, 6400, None),
        (9000, 5000, 14_000, Some(6000)),
        (9000, 5000, 15_000, None),
    ];
    for (wait, first, now, expected) in cases {
        let pace = Pace { wait: Duration::from_millis(wait), ..SHARED };
        let until = none.gathers_until(at(first), pace, at(now));
        assert_eq!(until, expected.map(at), "{wait} {now}");
        assert_eq!(none.gathers_until(at(first), Pace { is_shared: false, ..pace }, at(now)), None);
    }
    let pace = Pace { wait: Duration::from_millis(400), ..SHARED };
    let gathered = |newest: Option<i64>, now| none.gathered_at(at(6000), newest.map(at), pace, at(now));
    assert_eq!(gathered(None, 5500), Some(at(6000)));
    assert_eq!(gathered(None, 6000), None);
    assert_eq!(gathered(Some(5800), 6000), Some(at(6200)));
}

#[test]
fn a_pace_says_which_returns_are_notified_and_when() {
    let now = at(1000);
    assert_eq!(PACE.waits_since(MemberTransition::Offline, at(900), now), now);
    assert_eq!(PACE.waits_since(MemberTransition::Online, at(900), now), at(990));
    let slow = Pace { recoveries: Recoveries::After(Duration::from_secs(60)), ..PACE };
    assert_eq!(slow.waits_since(MemberTransition::Online, at(900), now), at(1050));
    assert_eq!(slow.waits_since(MemberTransition::Blind, at(900), now), at(990));
    assert_eq!((slow.returns_wait(), PACE.returns_wait()), (Some(Duration::from_secs(60)), None));
    let never = Pace { recoveries: Recoveries::None, ..PACE };
    let forms = [
        MemberTransition::Offline,
        MemberTransition::Online,
        MemberTransition::Removed,
        MemberTransition::Blind,
    ];
    assert_eq!(
        forms.map(|form| never.form(form)),
        [
            MemberTransition::Offline,
            MemberTransition::Removed,
            MemberTransition::Removed,
            MemberTransition::Blind
        ]
    );
    assert_eq!(forms.map(|form| slow.form(form)), forms);
    let lasts = Pace { lasts: Duration::from_secs(1800), ..PACE };
    assert_eq!(
        lasts.waits_since(MemberTransition::Offline, at(900), now),
        at(2690),
        "it is ready 30 minutes after its deadline"
    );
    assert_eq!(
        lasts.waits_since(MemberTransition::Offline, at(0), at(5000)),
        at(5000),
        "found late, it waits anyway"
    );
}

#[test]
fn members_whose_wait_is_not_over_follow_once_and_do_not_move_the_interval() {
    let now = at(1000);
    // Sealed, due, when the first and the newest that wait joined, whether some were sealed; the next due, and
    // the start of the interval.
    let cases = [
        (None, 1000, (995, 998), Sealed::Some, 1008, 1000),
        (None, 1000, (995, 998), Sealed::None, 1005, 1000),
        (Some(990), 1000, (995, 998), Sealed::Some, 1090, 990),
        (Some(890), 1000, (995, 998), Sealed::Some, 1008, 1000),
        (None, 1000, (980, 998), Sealed::Most, 1000, 1000), // more than one notification holds
    ];
    for (sealed, due, (first, newest), has_sealed, next, interval_from) in cases {
        let times = GroupTimes { sealed: sealed.map(at), due: Some(at(due)) };
        let left = Left { first: Some(at(first)), newest: Some(at(newest)), ..Left::default() };
        let case = format!("{times:?} {left:?}");
        assert_eq!(times.due_after(left, has_sealed, PACE, now), Some(at(next)), "{case}");
        assert_eq!(times.sealed_now(PACE, now), at(interval_from), "{case}");
    }
    // Returns that wait for longer are part of the next notification, or have a notification of their own.
    let times = GroupTimes { sealed: Some(at(900)), due: Some(at(1000)) };
    let left = Left { first_final: Some(at(1020)), ..Left::default() };
    assert_eq!(times.due_after(left, Sealed::Some, PACE, now), Some(at(1100)));
    assert_eq!(times.due_after(Left { is_last: true, ..left }, Sealed::Some, PACE, now), Some(at(1030)));
    assert_eq!(times.due_after(Left::default(), Sealed::None, PACE, now), None);
}

#[test]
fn a_silence_that_joins_while_its_group_is_sealed_follows_at_once() {
    let at = Timestamp::from_millis;
    let pace = Pace { wait: Duration::ZERO, ..SHARED };
    let silence = |since| WaitingMember { since: at(since), is_silence: true, is_blind: false };
    // It is sealed as of 6000; the second and the third joined just then, and the last one after the gathering.
    let waiting = [5000, 6020, 6040, 7001].map(silence);
    let first = GroupTimes { sealed: None, due: Some(at(6000)) };
    assert_eq!(first.ready(waiting.iter().copied(), false, pace, at(6000)), Ok(vec![0]));
    let left = |from: usize, now| {
        Left::of(waiting[from..].iter().map(|one| (true, one.since)), false, pace, at(now))
    };
    let due = first.due_after(left(1, 6000), Sealed::Some, pace, at(6000));
    assert_eq!(due, Some(at(6040)));
    let then = GroupTimes { sealed: Some(at(6000)), due };
    assert_eq!(then.ready(waiting[1..].iter().copied(), false, pace, at(6040)), Ok(vec![0, 1]));
    let due = then.due_after(left(3, 6040), Sealed::Some, pace, at(6040));
    assert_eq!(due, Some(at(106_000)), "the last one waits for the interval");
    // A group of one unit gathers nothing.
    let alone = Pace { is_shared: false, ..pace };
    assert_eq!(then.ready(waiting[1..].iter().copied(), false, alone, at(6040)), Ok(vec![]));
}
