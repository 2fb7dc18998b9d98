//! Promises about hearing: how far each connection has heard, and which time was blind.
//!
//! Every world has heard up to its beginning, by a plain subscription; members attend from then on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::fleet::Roll;
use rollcall::presence::{Filters, Heartbeat, Interval, Probed, Unit, proof_of_share};
use rollcall::store::{Advance, Engine, Gap, ShareMember, Subscription, partition_of};
use rollcall::telemetry::CheckSource;

use super::ground::Ground;
use super::world::{HOUR, World, kept_session};

const GAP: Gap = Gap { blind: Duration::from_secs(3), tell_after: HOUR };
/// Longer than any of these cases takes, unless a case is about it.
const RELEASE: Duration = Duration::from_secs(30);

fn member(share: &str, name: &str) -> ShareMember {
    ShareMember { share: share.to_owned(), client_id: name.to_owned(), connection: 1 }
}

fn one() -> ShareMember {
    member("all", "one")
}

fn two() -> ShareMember {
    member("all", "two")
}

impl<G: Ground> World<G> {
    async fn attend(&self, member: &ShareMember, at: u64) {
        self.engine.attend(member, self.at(at), RELEASE).await.unwrap();
    }

    /// These members attend at 0, and their first canaries were sent at 1000.
    async fn with_members(self, members: &[ShareMember]) -> World<G> {
        for member in members {
            self.attend(member, 0).await;
        }
        for member in members {
            self.hears(member, 1000).await;
        }
        assert_eq!(self.heard().await, 1000);
        self
    }

    async fn advances(&self, member: &ShareMember, at: u64) -> Advance {
        self.engine.advance(&Subscription::Member(member.clone()), self.at(at), GAP).await.unwrap()
    }

    /// The blind interval that was written because of a member's canary.
    async fn hears(&self, member: &ShareMember, at: u64) -> Option<Interval> {
        match self.advances(member, at).await {
            Advance::Heard(blind) => blind,
            Advance::NotAMember => panic!("{member:?} does not attend at {at}"),
        }
    }

    /// Up to how many milliseconds after the beginning the fleet was heard.
    async fn heard(&self) -> u64 {
        let heard = self.engine.hearing().await.unwrap().heard.unwrap();
        heard.since(self.at(0)).as_millis() as u64
    }

    fn blind(&self, from: u64, to: u64) -> Option<Interval> {
        Some(Interval { from: self.at(from), to: self.at(to) })
    }
}

pub async fn a_share_has_heard_as_far_as_the_least_of_its_members<G: Ground>(world: World<G>) {
    let world = world.with_members(&[one(), two(), member("all", "three")]).await;
    for (member, at, heard) in [
        (one(), 2000, 1000),
        (two(), 2500, 1000),
        (member("all", "three"), 2200, 2000),
        (one(), 3000, 2200),
        (member("all", "three"), 2100, 2200), // older than its last canary
        (member("all", "three"), 5000, 2500),
    ] {
        assert_eq!(world.hears(&member, at).await, None, "{member:?} {at}");
        assert_eq!(world.heard().await, heard, "{member:?} {at}");
    }
    // A member lags for longer than a gap: nobody knows which messages it missed.
    world.hears(&one(), 9000).await;
    assert_eq!(world.heard().await, 2500);
    assert_eq!(world.hears(&two(), 9000).await, None, "the third had heard until 5000");
    assert_eq!(world.hears(&member("all", "three"), 9500).await, world.blind(5000, 9000));
}

pub async fn a_session_that_is_kept_is_known_by_how_far_it_has_heard_itself<G: Ground>(world: World<G>) {
    let heard_by = async |name: &str| world.engine.heard_by(name).await.unwrap();
    assert_eq!(heard_by("one").await, None);
    for (name, at, heard) in [("one", 1000, 1000), ("two", 2000, 1000), ("one", 1500, 1500)] {
        world.engine.advance(&kept_session(name, 1), world.at(at), GAP).await.unwrap();
        assert_eq!((heard_by(name).await, world.heard().await), (Some(world.at(at)), heard));
    }
    assert_eq!(heard_by("two").await, Some(world.at(2000)));
}

impl<G: Ground> World<G> {
    /// The blind interval that was written because of a canary of a session.
    async fn keeps(&self, name: &str, connection: u64, at: u64) -> Option<Interval> {
        match self.engine.advance(&kept_session(name, connection), self.at(at), GAP).await.unwrap() {
            Advance::Heard(blind) => blind,
            Advance::NotAMember => panic!("a plain subscription is never unknown"),
        }
    }
}

pub async fn a_new_connection_of_a_session_proves_nothing_before_its_first_canary<G: Ground>(
    world: World<G>,
) {
    assert_eq!(
        world.keeps("one", 1, 100).await,
        world.blind(0, 100),
        "another client may have had it before"
    );
    assert_eq!(world.keeps("one", 1, 1000).await, None);
    // The gap is short, and yet another client may have used the session.
    assert_eq!(world.keeps("one", 2, 1500).await, world.blind(1000, 1500));
    assert_eq!(world.keeps("one", 2, 1500).await, None, "the report is repeated");
    assert_eq!(world.keeps("one", 2, 2500).await, None);
    assert_eq!(world.heard().await, 2500);
    let blind = world.engine.hearing().await.unwrap().ledger;
    assert_eq!(blind.intervals(), [world.blind(0, 100), world.blind(1000, 1500)].map(Option::unwrap));
    assert_eq!(blind.taken(), [world.at(1500)], "what each was given is unknown, too");
}

pub async fn time_that_another_plain_subscription_heard_is_not_blind<G: Ground>(world: World<G>) {
    world.keeps("one", 1, 10).await;
    world.keeps("two", 1, 20).await;
    world.keeps("one", 1, 1000).await;
    world.keeps("two", 1, 1020).await;
    // Subscription one connects again and waits for subscription two, which hears all the time.
    assert_eq!(world.keeps("one", 2, 1500).await, None);
    assert_eq!(world.heard().await, 1020);
    assert_eq!(world.keeps("two", 1, 2020).await, None);
    assert_eq!(world.keeps("one", 2, 2500).await, None);
    assert_eq!(world.heard().await, 2500);
    // Both subscriptions connect again.
    assert_eq!(world.keeps("one", 3, 2800).await, None, "two may have heard it");
    assert_eq!(world.keeps("two", 2, 2900).await, world.blind(2500, 2900));
    // Subscription two is gone permanently: the others wait for it no longer than a gap, which is not blind.
    assert_eq!(world.keeps("one", 4, 3000).await, None);
    assert_eq!(world.keeps("one", 4, 5900).await, None);
    assert_eq!(world.keeps("one", 4, 5901).await, world.blind(2900, 3000));
    assert_eq!(world.heard().await, 5901);
}

pub async fn a_new_member_delays_nothing_before_its_first_canary_but_itself<G: Ground>(world: World<G>) {
    let world = world.with_members(&[one()]).await;
    world.attend(&two(), 1500).await;
    assert_eq!(world.heard().await, 1000, "to attend proves nothing");
    world.hears(&one(), 1200).await;
    assert_eq!(world.heard().await, 1200);
    world.hears(&one(), 2000).await;
    assert_eq!(world.heard().await, 1500);
    // An older canary proves nothing about messages since then.
    world.hears(&two(), 1400).await;
    assert_eq!(world.heard().await, 1500);
    assert_eq!(world.hears(&two(), 2500).await, None);
    assert_eq!(world.heard().await, 2000);
}

pub async fn a_member_that_ends_out_of_order_makes_that_time_blind_however_short<G: Ground>(world: World<G>) {
    let world = world.with_members(&[one(), two()]).await;
    world.hears(&one(), 2000).await;
    // Member two is gone at 2100; its last canary was sent at 1000, and messages since then are lost.
    assert!(world.engine.depart(&two(), Some(world.at(2100))).await.unwrap());
    assert!(
        !world.engine.depart(&two(), Some(world.at(2200))).await.unwrap(),
        "the report is repeated, late"
    );
    assert_eq!(world.hears(&one(), 2050).await, None);
    assert_eq!(world.heard().await, 1000, "it waits until it has heard beyond that");
    assert_eq!(world.hears(&one(), 2100).await, world.blind(1000, 2100));
    assert_eq!(world.hears(&one(), 3000).await, None, "that was all");
    let known = world.engine.hearing().await.unwrap().ledger;
    assert_eq!(known.intervals(), [world.blind(1000, 2100).unwrap()]);
}

pub async fn a_member_that_leaves_in_order_leaves_no_trace<G: Ground>(world: World<G>) {
    let world = world.with_members(&[one(), two()]).await;
    world.hears(&one(), 2000).await;
    world.hears(&two(), 1900).await;
    world.engine.depart(&two(), None).await.unwrap();
    world.engine.depart(&two(), None).await.unwrap();
    assert!(!world.engine.depart(&two(), Some(world.at(2500))).await.unwrap());
    assert_eq!(world.hears(&one(), 2600).await, None);
    assert_eq!(world.heard().await, 2600);
}

pub async fn a_member_that_sends_no_canary_is_released<G: Ground>(world: World<G>) {
    let world = world.with_members(&[one(), two(), member("other", "three")]).await;
    let release = RELEASE.as_millis() as u64;
    world.hears(&two(), 2000).await;
    for at in (2000..=1000 + release).step_by(1000) {
        world.hears(&two(), at).await;
    }
    assert_eq!(world.heard().await, 1000, "until then the broker may still deliver to it");
    assert_eq!(world.hears(&two(), 1001 + release).await, world.blind(1000, 1001 + release));
    assert_eq!(world.advances(&one(), 2000 + release).await, Advance::NotAMember);
    // A member of another share is released, too. A canary of a plain subscription also releases silent members.
    assert_eq!(world.advances(&member("other", "three"), 2000 + release).await, Advance::NotAMember);
    world.canary(world.at(2002 + 2 * release), GAP.blind, GAP.tell_after).await;
    assert_eq!(world.advances(&two(), 2003 + 2 * release).await, Advance::NotAMember);
}

pub async fn a_member_that_comes_again_was_gone<G: Ground>(world: World<G>) {
    let world = world.with_members(&[one(), two()]).await;
    let again = ShareMember { connection: 2, ..two() };
    world.hears(&one(), 2000).await;
    world.attend(&again, 2500).await;
    world.attend(&again, 2600).await;
    assert_eq!(world.advances(&two(), 2700).await, Advance::NotAMember);
    assert!(!world.engine.depart(&two(), Some(world.at(9000))).await.unwrap(), "that is known already");
    world.hears(&one(), 2400).await;
    world.hears(&again, 2900).await;
    assert_eq!(world.heard().await, 1000);
    assert_eq!(world.hears(&one(), 2800).await, world.blind(1000, 2800));
    assert_eq!(world.hears(&one(), 3000).await, None);
}

pub async fn time_without_a_member_is_not_heard<G: Ground>(world: World<G>) {
    let world = world.with_members(&[one()]).await;
    world.engine.depart(&one(), None).await.unwrap();
    world.attend(&two(), 1500).await;
    assert_eq!(world.heard().await, 1000);
    assert_eq!(world.hears(&two(), 1800).await, world.blind(1000, 1800));
}

pub async fn plain_subscriptions_take_the_furthest<G: Ground>(world: World<G>) {
    // Plain subscriptions without a session have no names: any of them counts.
    for (at, heard) in [(1000, 1000), (3000, 3000), (2000, 3000), (3500, 3500)] {
        assert_eq!(world.canary(world.at(at), GAP.blind, GAP.tell_after).await, None);
        assert_eq!(world.heard().await, heard);
    }
}

pub async fn a_plain_subscription_and_a_share_take_the_furthest<G: Ground>(world: World<G>) {
    world.attend(&one(), 0).await;
    world.attend(&two(), 0).await;
    world.canary(world.at(1000), GAP.blind, GAP.tell_after).await;
    world.hears(&one(), 900).await;
    world.hears(&two(), 800).await;
    assert_eq!(world.heard().await, 1000);
    // The share has heard further, as far as its slowest member.
    world.hears(&one(), 2000).await;
    assert_eq!(world.hears(&two(), 1900).await, None, "a plain subscription heard while there was no member");
    assert_eq!(world.heard().await, 1900);
    // A member ends, and the plain subscription has heard that time.
    world.engine.depart(&two(), Some(world.at(2500))).await.unwrap();
    world.canary(world.at(3000), GAP.blind, GAP.tell_after).await;
    assert_eq!(world.hears(&one(), 3500).await, None);
    assert_eq!(world.heard().await, 3500);
    // The share falls silent, and the plain subscription goes on.
    assert_eq!(world.canary(world.at(4000), GAP.blind, GAP.tell_after).await, None);
    assert_eq!(world.heard().await, 4000);
}

pub async fn each_share_is_for_itself<G: Ground>(world: World<G>) {
    // The name of one share is a prefix of the other's.
    let other = member("all.", "one");
    let world = world.with_members(&[one(), other.clone()]).await;
    world.hears(&one(), 3000).await;
    assert_eq!(world.heard().await, 3000);
    world.hears(&other, 2000).await;
    world.engine.depart(&other, Some(world.at(9000))).await.unwrap();
    assert_eq!(world.hears(&one(), 4000).await, None);
    assert_eq!(world.heard().await, 4000);
}

pub async fn what_a_share_loses_at_one_of_several_brokers_is_blind_for_its_kinds_alone<G: Ground>(
    world: World<G>,
) {
    let (one, two) = (member("eu/all", "one"), member("eu/all", "two"));
    let three = member("us/all", "three");
    let proofs = ["eu", "us"].map(|broker| proof_of_share(broker, "all"));
    let [at_eu, at_us] = proofs.each_ref().map(|proof| [proof.as_str()]);
    let advance = async |member: &ShareMember, at: u64| {
        let proof = if *member == three { &at_us } else { &at_eu };
        let proofs = Probed::all(&filters(proof), world.at(at), GAP.blind);
        let subscription = Subscription::MemberAtBroker { member: member.clone(), proofs };
        world.engine.advance(&subscription, world.at(at), GAP).await.unwrap()
    };
    for member in [&one, &two, &three] {
        world.attend(member, 0).await;
    }
    for member in [&one, &two, &three] {
        assert_eq!(advance(member, 1000).await, Advance::Heard(None));
    }
    assert_eq!(advance(&two, 1500).await, Advance::Heard(None));
    assert_eq!(world.detectors(&at_eu).await, (Some(1000), vec![]), "the least of its members");
    assert!(world.engine.depart(&two, Some(world.at(2100))).await.unwrap());
    assert_eq!(advance(&three, 3000).await, Advance::Heard(None));
    assert_eq!(advance(&one, 2050).await, Advance::Heard(None));
    assert_eq!(
        world.detectors(&at_eu).await,
        (Some(1000), vec![]),
        "it waits until it has heard beyond that"
    );
    assert_eq!(advance(&one, 2200).await, Advance::Heard(None), "the fleet was heard at the other broker");
    let lost = world.blind(1000, 2200).unwrap();
    assert_eq!(world.detectors(&at_eu).await, (Some(2200), vec![lost]));
    assert_eq!(world.detectors(&at_us).await.0, Some(3000));
    let ledger = world.engine.hearing().await.unwrap().ledger;
    assert_eq!(ledger.intervals(), [], "the fleet lost nothing");
    assert_eq!(advance(&one, 2300).await, Advance::Heard(None));
    assert_eq!(world.detectors(&at_eu).await, (Some(2300), vec![lost]), "that was all");
    assert_eq!(advance(&two, 2400).await, Advance::NotAMember);
}

pub async fn an_unknown_member_is_refused_and_changes_nothing<G: Ground>(world: World<G>) {
    let world = world.with_members(&[one()]).await;
    let disguised = ShareMember { connection: 7, ..one() };
    for unknown in [two(), member("other", "one"), disguised] {
        assert_eq!(world.advances(&unknown, 2000).await, Advance::NotAMember, "{unknown:?}");
    }
    assert_eq!(world.heard().await, 1000);
    assert_eq!(world.hears(&one(), 2000).await, None);
}

pub async fn a_report_that_an_unknown_member_is_gone_changes_nothing<G: Ground>(world: World<G>) {
    let world = world.with_members(&[one()]).await;
    let disguised = ShareMember { connection: 7, ..one() };
    for unknown in [two(), member("other", "one"), disguised] {
        assert!(!world.engine.depart(&unknown, Some(world.at(9000))).await.unwrap(), "{unknown:?}");
    }
    assert_eq!(world.hears(&one(), 2000).await, None);
    assert_eq!(world.heard().await, 2000);
}

/// The filters of detectors.
fn filters(names: &[&str]) -> Filters {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Filters::from([("detector".parse().unwrap(), names)])
}

impl<G: Ground> World<G> {
    /// Hearing of detectors by these filters: up to how many milliseconds after the beginning,
    /// and its blind intervals.
    async fn detectors(&self, names: &[&str]) -> (Option<u64>, Vec<Interval>) {
        let hearing = self.engine.hearing().await.unwrap().by_filters(&filters(names));
        let hearing = hearing.of(&"detector".parse().unwrap());
        let heard = hearing.heard.map(|heard| heard.since(self.at(0)).as_millis() as u64);
        (heard, hearing.ledger.intervals().to_vec())
    }

    /// Records a canary that proves these filters, too.
    async fn proves(&self, names: &[&str], at: u64) {
        self.canary(self.at(at), GAP.blind, GAP.tell_after).await;
        self.engine.prove(&Probed::all(&filters(names), self.at(at), GAP.blind)).await.unwrap();
    }
}

pub async fn a_kind_that_was_not_subscribed_was_not_heard<G: Ground>(world: World<G>) {
    assert_eq!(world.detectors(&["a"]).await, (None, vec![]), "it was never heard");
    world.proves(&["a"], 2000).await;
    assert_eq!(world.detectors(&["a"]).await, (Some(2000), vec![]), "a kind begins without blind time");
    world.proves(&["a"], 4000).await;
    // The kind is not configured for a while, and others are heard all the time.
    for at in (5000..16_000).step_by(1000) {
        world.canary(world.at(at), GAP.blind, GAP.tell_after).await;
    }
    assert_eq!(world.heard().await, 15_000);
    assert_eq!(world.detectors(&["a"]).await, (Some(4000), vec![]));
    world.proves(&["a"], 16_000).await;
    let blind = world.blind(4000, 16_000).unwrap();
    assert_eq!(world.detectors(&["a"]).await, (Some(16_000), vec![blind]));
    world.proves(&["a"], 16_000).await;
    assert_eq!(world.detectors(&["a"]).await, (Some(16_000), vec![blind]), "the report is repeated");
    let hearing = world.engine.hearing().await.unwrap().by_filters(&filters(&["a"]));
    assert_eq!(
        (hearing.ledger.intervals(), hearing.of(&"other".parse().unwrap()).heard),
        (&[][..], hearing.heard)
    );
}

pub async fn a_filter_that_is_added_removed_or_changed_is_blind_while_it_was_not_subscribed<G: Ground>(
    mut world: World<G>,
) {
    world.proves(&["a", "b"], 1000).await;
    for at in (2000..=6000).step_by(1000) {
        world.proves(&["a"], at).await;
    }
    assert_eq!(world.detectors(&["a"]).await, (Some(6000), vec![]));
    // The other filter is back, and has heard nothing since.
    assert_eq!(world.detectors(&["a", "b"]).await, (Some(1000), vec![]));
    world.proves(&["a", "b"], 7000).await;
    let removed = world.blind(1000, 7000).unwrap();
    assert_eq!(world.detectors(&["a", "b"]).await, (Some(7000), vec![removed]));
    // Another filter replaces them after a while, and keeps their blind intervals.
    world.ground.settle().await;
    world.crash().await;
    for at in (8000..=11_000).step_by(1000) {
        world.canary(world.at(at), GAP.blind, GAP.tell_after).await;
    }
    assert_eq!(world.detectors(&["new"]).await.0, None);
    world.proves(&["new"], 12_000).await;
    let (heard, blind) = world.detectors(&["new"]).await;
    assert_eq!(
        (heard, blind[0].from, blind.last().unwrap().to),
        (Some(12_000), world.at(1000), world.at(12_000))
    );
}

pub async fn a_living_unit_of_a_kind_that_was_not_subscribed_is_not_offline<G: Ground>(world: World<G>) {
    let (unit, engine) = (world.unit("1"), world.engine.clone());
    let roll = super::world::roll(engine).with_filters(filters(&["a"]));
    roll.canary_returned(world.at(1)).await.unwrap();
    world.hear(&unit, world.at(1)).await;
    // The kind is not heard for longer than its timeout, while others are heard.
    world.heard_until(world.hours(60)).await;
    roll.check_deadlines(std::slice::from_ref(&unit), world.hours(60)).await.unwrap();
    assert!(world.open_records().await.is_empty(), "it was not heard so far");
    roll.canary_returned(world.hours(61)).await.unwrap();
    roll.check_deadlines(std::slice::from_ref(&unit), world.hours(61)).await.unwrap();
    assert!(world.open_records().await.is_empty(), "that time was blind");
    for hour in 62..=112 {
        world.heard_until(world.hours(hour)).await;
    }
    engine_proves(&world, 112).await;
    roll.refresh_hearing().await.unwrap();
    roll.check_deadlines(std::slice::from_ref(&unit), world.hours(112)).await.unwrap();
    assert_eq!(world.open_records().await.len(), 1, "it was silent for long enough since");
}

/// Proves that the filter was heard all the time up to this hour.
async fn engine_proves<G: Ground>(world: &World<G>, hour: u32) {
    world.engine.prove(&Probed::all(&filters(&["a"]), world.hours(hour), 1000 * HOUR)).await.unwrap();
}

pub async fn each_filter_is_heard_to_its_own_moment_by_a_gap_of_its_own<G: Ground>(mut world: World<G>) {
    let proof = |filter: &str, at: u64, gap: u64| Probed {
        kind: "detector".parse().unwrap(),
        filter: filter.to_owned(),
        sent_at: world.at(at),
        gap: Duration::from_millis(gap),
    };
    let of_both = [proof("a", 1000, 0), proof("b", 2000, 0)];
    let of_one = [proof("a", 2000, 1000), proof("a", 4500, 1000), proof("a", 5000, 1000)];
    let long = [proof("b", 9000, 7000), proof("a", 9000, 3999)];
    let other = [Probed { kind: "other".parse().unwrap(), ..proof("a", 1, 0) }, proof("a", 1500, 0)];
    world.canary(world.at(9000), HOUR, GAP.tell_after).await;
    world.engine.prove(&of_both).await.unwrap();
    assert_eq!(world.detectors(&["a", "b"]).await, (Some(1000), vec![]));
    // Several moments of one filter, with a hole that is longer than its gap.
    world.engine.prove(&of_one).await.unwrap();
    let hole = world.blind(2000, 4500).unwrap();
    assert_eq!(world.detectors(&["a"]).await, (Some(5000), vec![hole]));
    // An older moment changes nothing, nor does another kind with the same filter.
    world.engine.prove(&other).await.unwrap();
    assert_eq!(world.detectors(&["a"]).await, (Some(5000), vec![hole]));
    world.engine.prove(&long).await.unwrap();
    let last = world.blind(5000, 9000).unwrap();
    assert_eq!(world.detectors(&["a", "b"]).await, (Some(9000), vec![hole, last]));
    world.ground.settle().await;
    world.crash().await;
    assert_eq!(world.detectors(&["a", "b"]).await.1, [hole, last], "it stands");
}

pub async fn a_unit_of_a_kind_that_is_not_heard_is_checked_seldom_and_reported_in_time<G: Ground>(
    world: World<G>,
) {
    let (unit, engine) = (world.unit("1"), world.engine.clone());
    let partition = partition_of(&unit, engine.partitions());
    let roll = super::world::roll(engine.clone()).with_filters(filters(&["a"]));
    roll.canary_returned(world.at(1)).await.unwrap();
    world.hear(&unit, world.at(1)).await;
    let due = async |hours: u32| engine.due(partition, None, world.hours(hours), 0, 10).await.unwrap();
    // The fleet is heard all the time, the kind is not.
    let mut checks = 0;
    for minute in (60 * 48 + 1)..(60 * 50) {
        let now = world.at(1) + minute * HOUR / 60;
        world.heard_until(now).await;
        let due = engine.due(partition, None, now, 0, 10).await.unwrap();
        checks += due.len();
        assert_eq!(roll.check_suspects(&due, CheckSource::Sweep, || now).await.unwrap(), []);
    }
    assert!(
        (1..=30).contains(&checks),
        "{checks} checks, with a settle of five minutes at the least between"
    );
    assert!(world.open_records().await.is_empty());
    roll.canary_returned(world.hours(50)).await.unwrap();
    for hour in 51..=100 {
        world.heard_until(world.hours(hour)).await;
    }
    engine_proves(&world, 100).await;
    roll.refresh_hearing().await.unwrap();
    let now = world.hours(100);
    let found = roll.check_suspects(&due(100).await, CheckSource::Sweep, || now).await.unwrap();
    assert_eq!((found, world.open_records().await.len()), (vec![], 1));
}

/// A roll of a fleet at two brokers. Detectors are heard at both.
fn at_two_brokers(engine: Arc<dyn Engine>) -> Roll {
    let brokers = ["eu", "us"].map(|name| name.parse().unwrap());
    super::world::roll(engine).with_filters(filters(&["eu/a", "us/a"])).with_brokers(brokers.into())
}

pub async fn a_unit_is_held_only_by_the_broker_that_heard_it_last<G: Ground>(mut world: World<G>) {
    let roll = at_two_brokers(world.engine.clone());
    roll.canary_returned(world.at(1)).await.unwrap();
    // The brokers that heard each unit, with the minute of each heartbeat, in the order in which they are recorded.
    let heard: [(&str, &[(&str, u32)]); 6] = [
        ("eu", &[("eu", 1), ("eu", 2)]),
        ("us", &[("us", 1), ("us", 2)]),
        ("to-eu", &[("eu", 1), ("us", 2), ("eu", 3)]),
        ("to-us", &[("us", 1), ("eu", 2), ("us", 3)]),
        ("late-from-us", &[("eu", 1), ("eu", 3), ("us", 2)]),
        ("late-from-eu", &[("us", 1), ("us", 3), ("eu", 2)]),
    ];
    for step in 0..3 {
        let of_step = heard.iter().filter_map(|(id, all)| Some((id, all.get(step)?)));
        let beats: Vec<Heartbeat> = of_step
            .map(|(id, (broker, minute))| {
                let beat = world.beat(&world.unit(id), world.at(0) + *minute * HOUR / 60);
                Heartbeat { broker: Some(broker.parse().unwrap()), ..beat }
            })
            .collect();
        roll.hear(&beats, world.hours(1)).await.unwrap();
    }
    // The broker us is down from the first hour on.
    world.heard_until(world.hours(60)).await;
    let (first, last) = (world.hours(1), world.hours(60));
    let proof = |filter: &str, sent_at: Timestamp| Probed {
        kind: "detector".parse().unwrap(),
        filter: filter.to_owned(),
        sent_at,
        gap: 1000 * HOUR,
    };
    world.engine.prove(&[proof("eu/a", last), proof("us/a", first)]).await.unwrap();
    let units: Vec<Unit> = heard.iter().map(|(id, _)| world.unit(id)).collect();
    let offline = async |world: &World<G>| {
        let open = world.open_records().await;
        open.iter().map(|record| record.id.unit.to_string()).collect::<BTreeSet<String>>()
    };
    let of_us = ["us", "to-us", "late-from-eu"].map(|id| world.unit(id));
    // An instance that starts while us is down knows no less, or waits.
    world.ground.settle().await;
    world.crash().await;
    let roll = at_two_brokers(world.engine.clone());
    world.heard_until(world.hours(60)).await;
    roll.refresh_hearing().await.unwrap();
    roll.check_deadlines(&of_us, world.hours(60)).await.unwrap();
    assert_eq!(offline(&world).await, BTreeSet::new());
    // Each is heard once more at the same broker.
    let newest = |(id, all): &(&str, &[(&str, u32)])| {
        let (broker, minute) = all.iter().max_by_key(|(_, minute)| *minute).unwrap();
        let beat = world.beat(&world.unit(id), world.at(1) + *minute * HOUR / 60);
        Heartbeat { broker: Some(broker.parse().unwrap()), ..beat }
    };
    let again: Vec<Heartbeat> = heard.iter().map(newest).collect();
    roll.hear(&again, world.hours(1)).await.unwrap();
    roll.check_deadlines(&units, world.hours(60)).await.unwrap();
    let of_eu = ["eu", "to-eu", "late-from-us"].map(|id| world.unit(id).to_string());
    assert_eq!(offline(&world).await, BTreeSet::from(of_eu));
    // It is back, and the time was not blind.
    world.engine.prove(&[proof("us/a", last)]).await.unwrap();
    roll.refresh_hearing().await.unwrap();
    roll.check_deadlines(&of_us, world.hours(60)).await.unwrap();
    assert_eq!(offline(&world).await.len(), units.len());
}
