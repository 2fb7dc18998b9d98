use super::*;

/// Seconds after noon.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_732_190_400_000 + 1000 * seconds)
}

/// A route to `hook`, whose silence waits for `group_wait` until 12:00:10.
fn route(stage: GroupStage) -> RouteState {
    RouteState {
        path: "route".to_owned(),
        receivers: vec!["hook".to_owned()],
        escalates: None,
        stage,
        muted_until: None,
        lasts_until: at(-60),
        ready_at: at(10),
        due: Some(at(10)),
        interval_until: None,
        has_recoveries: true,
    }
}

fn sealed(names: &[&str]) -> GroupStage {
    GroupStage::Sealed(names.iter().map(|name| (*name).to_owned()).collect())
}

/// A silence in this stage, at noon.
fn state(stage: GroupStage) -> NewestSilence {
    let hook = ReceiverState { is_configured: true, ..ReceiverState::default() };
    NewestSilence {
        now: at(0),
        attempts_from: at(-86_400),
        holds: SilenceHolds::default(),
        routes: vec![route(stage)],
        receivers: [("hook".to_owned(), hook)].into(),
        acknowledged_by: None,
        back_at: None,
    }
}

fn with(stage: GroupStage, change: impl FnOnce(&mut NewestSilence)) -> String {
    let mut state = state(stage);
    change(&mut state);
    Told::of(&state).said().to_string()
}

fn hook(state: &mut NewestSilence) -> &mut ReceiverState {
    state.receivers.get_mut("hook").unwrap()
}

/// The route is gone.
fn former(state: &mut NewestSilence) -> &mut RouteState {
    state.routes[0].path = FORMER_ROUTE.to_owned();
    &mut state.routes[0]
}

#[test]
fn every_cause_has_its_sentence() {
    use GroupStage::{Outside, Waits};
    let no = |why: &str| format!("No receiver was notified: {why}.");
    let later = |state: &mut NewestSilence| state.now = at(20);
    let cases = [
        (
            with(Waits, |one| one.routes[0].receivers.clear()),
            no("the root route has no receiver; name one in route.receivers and reload"),
        ),
        (
            with(sealed(&[]), |one| one.routes[0].receivers.clear()),
            no("the root route has no receiver; name one in route.receivers and reload"),
        ),
        (
            with(sealed(&[]), |one| {
                one.routes[0].receivers.clear();
                one.routes[0].escalates = Some(Duration::from_secs(1800));
            }),
            no(
                "the root route has no receiver of its own, and escalates a silence 30m after its group was due",
            ),
        ),
        (
            with(Waits, |one| {
                one.routes[0].receivers.clear();
                one.routes[0].escalates = Some(Duration::from_secs(1800));
            }),
            no("its group waits until 2024-11-21T12:00:10.000Z (group_wait)"),
        ),
        (
            with(sealed(&[]), |_| {}),
            no(
                "the root route had no receiver when the silence was due to be notified; the next silence is notified",
            ),
        ),
        (with(Waits, |_| {}), no("its group waits until 2024-11-21T12:00:10.000Z (group_wait)")),
        (
            with(Outside, |one| one.routes[0].due = None),
            no("its group waits until 2024-11-21T12:00:10.000Z (group_wait)"),
        ),
        (
            // The silence joined a second after it was detected.
            with(Waits, |one| one.routes[0].due = Some(at(11))),
            no("its group waits until 2024-11-21T12:00:11.000Z (group_wait)"),
        ),
        (
            with(Waits, |one| {
                (one.routes[0].due, one.routes[0].interval_until) = (Some(at(300)), Some(at(300)));
            }),
            no("its group was notified before and waits until 2024-11-21T12:05:00.000Z (group_interval)"),
        ),
        (
            // Its group was never notified, or its interval is over before.
            with(Waits, |one| one.routes[0].due = Some(at(300))),
            no("its group is due at 2024-11-21T12:05:00.000Z"),
        ),
        (
            with(Waits, |one| {
                (one.routes[0].due, one.routes[0].interval_until) = (Some(at(300)), Some(at(299)));
            }),
            no("its group is due at 2024-11-21T12:05:00.000Z"),
        ),
        (
            with(Waits, |one| one.routes[0].lasts_until = at(600)),
            no("the silence must last until 2024-11-21T12:10:00.000Z (for)"),
        ),
        (
            with(Waits, |one| one.routes[0].muted_until = Some(at(3600))),
            no("the root route is muted until 2024-11-21T13:00:00.000Z"),
        ),
        (
            with(Waits, |one| one.holds.inhibited = Some((vec!["gateway/g".to_owned()], at(60)))),
            no("it is inhibited by gateway/g, at least until 2024-11-21T12:01:00.000Z"),
        ),
        (
            with(Outside, |one| one.holds.silenced = Some(("id".to_owned(), "ana".to_owned(), at(60)))),
            no("silence id of ana covers it until 2024-11-21T12:01:00.000Z"),
        ),
        (
            with(Waits, |one| one.holds.breaker_until = Some(at(600))),
            no(
                "the mass-offline breaker holds notifications until 2024-11-21T12:10:00.000Z at the latest; see rollcall breaker show",
            ),
        ),
        (
            with(Outside, |one| one.holds.is_flapping = true),
            no("the unit flaps: receivers are notified of the flapping alone"),
        ),
        (
            with(Outside, |one| {
                later(one);
                one.routes[0].due = None;
            }),
            no("it has not joined its group yet"),
        ),
        (with(Waits, later), no("its group is due, and its notification is made now")),
        (with(sealed(&["hook"]), |_| {}), no("hook: the notification is on its way")),
        (
            with(sealed(&["hook"]), |one| hook(one).is_configured = false),
            no("hook: the receiver is not configured any more"),
        ),
        (
            with(sealed(&["hook"]), |one| hook(one).failing = Some((at(-90), "answered 500".to_owned()))),
            no("hook: the receiver has taken nothing since 2024-11-21T11:58:30.000Z (answered 500)"),
        ),
        (
            with(sealed(&["hook"]), |one| {
                hook(one).given_up = Some(Why::Dead(at(-9), "the receiver is disabled: 410".to_owned()))
            }),
            no(
                "hook: the notification became a dead letter at 2024-11-21T11:59:51.000Z (the receiver is disabled: 410)",
            ),
        ),
        (
            // Whatever the receiver does since.
            with(sealed(&["hook"]), |one| {
                hook(one).failing = Some((at(-90), "answered 500".to_owned()));
                hook(one).given_up = Some(Why::GivenUp);
            }),
            no("hook: the notification was given up, and its dead letter is removed"),
        ),
        (
            with(sealed(&["hook"]), |one| (hook(one).is_limited, hook(one).has_waiting) = (true, true)),
            no("hook: its rate limit is reached, and a digest follows"),
        ),
        (
            with(Outside, |one| one.back_at = Some(at(5))),
            no("the unit was back before the end of the wait (group_wait, for) at 2024-11-21T12:00:10.000Z"),
        ),
        (
            with(Outside, |one| one.back_at = Some(at(15))),
            no("the unit was back before a receiver was notified"),
        ),
        (
            with(Outside, |one| {
                (one.back_at, one.attempts_from) = (Some(at(15)), at(11));
            }),
            "Which receivers were notified: that is on record no longer (records.keep_deliveries)."
                .to_owned(),
        ),
        (
            with(Outside, |one| {
                one.back_at = Some(at(15));
                hook(one).given_up = Some(Why::Dead(at(12), "answered 401".to_owned()));
            }),
            no("hook: the notification became a dead letter at 2024-11-21T12:00:12.000Z (answered 401)"),
        ),
        (
            with(Outside, |one| {
                one.back_at = Some(at(5));
                one.holds.is_flapping = true;
            }),
            no("the unit flaps: receivers are notified of the flapping alone"),
        ),
        (
            with(Waits, |one| former(one).receivers.clear()),
            no("its former route has no receiver; the next silence takes another route"),
        ),
        (
            with(Waits, |one| former(one).muted_until = Some(at(3600))),
            no("its former route is muted until 2024-11-21T13:00:00.000Z"),
        ),
        (
            with(sealed(&[]), |one| {
                former(one);
            }),
            no(
                "its former route had no receiver when the silence was due to be notified; the next silence is notified",
            ),
        ),
        (
            with(Outside, |one| {
                one.back_at = Some(at(15));
                one.routes[0].receivers.clear();
            }),
            no("the root route has no receiver; name one in route.receivers and reload"),
        ),
    ];
    for (number, (sentence, expected)) in cases.into_iter().enumerate() {
        assert_eq!(sentence, expected, "case {number}");
    }
    let none = [
        (Why::Paused(Some(at(60))), "the unit is paused until 2024-11-21T12:01:00.000Z"),
        (Why::Sleeps(at(60)), "the unit announced a silence until 2024-11-21T12:01:00.000Z"),
        (
            Why::Unheard(Some(at(-5))),
            "its kind is blind: Rollcall has no proof that it hears the kind since 2024-11-21T11:59:55.000Z, and marks no unit of it offline",
        ),
        (Why::NotOffline, "the unit is not offline and was not before"),
    ];
    for (why, expected) in none {
        assert_eq!(Told::none(why).said().to_string(), no(expected));
    }
}

#[test]
fn it_says_which_receivers_were_notified_and_which_were_not() {
    let told = |change: &dyn Fn(&mut NewestSilence)| {
        with(sealed(&["hook", "mail"]), |one| {
            hook(one).notified = Some(FirstNotice::At(at(-5)));
            one.receivers
                .insert("mail".to_owned(), ReceiverState { is_configured: true, ..ReceiverState::default() });
            one.routes[0].receivers.push("mail".to_owned());
            change(one);
        })
    };
    let hook_was = "Notified of the silence: hook at 2024-11-21T11:59:55.000Z";
    assert_eq!(told(&|_| {}), format!("{hook_was}; not mail: the notification is on its way."));
    let both = told(&|one| one.receivers.get_mut("mail").unwrap().notified = Some(FirstNotice::At(at(-4))));
    assert_eq!(both, format!("{hook_was}, mail at 2024-11-21T11:59:56.000Z."));
    let added = told(&|one| one.routes[0].stage = sealed(&["hook"]));
    assert_eq!(
        added,
        format!("{hook_was}; not mail: the receiver came to the route after the notification was sealed.")
    );
    let of_former = told(&|one| {
        former(one).stage = sealed(&["hook"]);
    });
    assert_eq!(of_former, format!("{hook_was}."), "mail did not come to it");
    let taken = told(&|one| {
        one.routes[0].stage = sealed(&["hook"]);
        one.routes[0].receivers.truncate(1);
        one.acknowledged_by = Some("ana".to_owned());
    });
    assert_eq!(taken, format!("{hook_was}. Acknowledged by ana: reminders and escalations stop."));
    let over = told(&|one| {
        one.back_at = Some(at(0));
        one.acknowledged_by = Some("ana".to_owned());
    });
    assert_eq!(over, format!("{hook_was}. It was acknowledged by ana."), "nothing stops any more");
    let forgotten = told(&|one| {
        one.routes[0].stage = sealed(&["hook"]);
        one.routes[0].receivers.truncate(1);
        hook(one).notified = Some(FirstNotice::Before(at(-5)));
    });
    assert_eq!(forgotten, "Notified of the silence: hook before 2024-11-21T11:59:55.000Z.");
    let none_on_record = told(&|one| {
        one.routes[0].stage = sealed(&["hook"]);
        one.routes[0].receivers.truncate(1);
        hook(one).notified = Some(FirstNotice::Forgotten);
    });
    assert_eq!(none_on_record, "Notified of the silence: hook (when is on record no longer).");
    let dead = told(&|one| {
        one.back_at = Some(at(0));
        one.receivers.get_mut("mail").unwrap().given_up = Some(Why::Dead(at(-1), "answered 550".to_owned()));
    });
    let died =
        "; not mail: the notification became a dead letter at 2024-11-21T11:59:59.000Z (answered 550).";
    assert_eq!(dead, format!("{hook_was}{died}"));
    let no_return = told(&|one| {
        one.back_at = Some(at(0));
        one.routes[0].has_recoveries = false;
    });
    assert_eq!(
        no_return,
        format!(
            "{hook_was}. No receiver was notified of the return: the root route notifies of no return (recoveries = false)."
        )
    );
    let back = told(&|one| {
        one.back_at = Some(at(0));
        hook(one).notified_of_return = Some(FirstNotice::At(at(1)));
    });
    assert_eq!(back, format!("{hook_was}. Notified of the return: hook at 2024-11-21T12:00:01.000Z."));
}
