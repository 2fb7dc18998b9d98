//! Promises about instances: their leases, and the time of the fleet.

use std::time::Duration;

use rollcall::alerting;
use rollcall::fleet::lease;
use rollcall::fleet::ownership::owner;
use rollcall::presence::MAX_LEASE;
use rollcall::store::Roster;
use rollcall::store::roster::{KindCount, KindCounts};

use super::ground::Ground;
use super::world::World;

const MINUTE: Duration = Duration::from_secs(60);

impl<G: Ground> World<G> {
    async fn renew(&self, instance: &str, lease: Duration) -> Vec<String> {
        self.engine.renew(instance, lease, None).await.unwrap().instances
    }
}

pub async fn instances_see_one_another_and_share_one_time<G: Ground>(world: World<G>) {
    let (other, _) = world.another().await;
    let first = world.engine.renew("b", MINUTE, None).await.unwrap();
    assert_eq!((first.instances, first.is_new, first.first_end), (vec!["b".to_owned()], true, None));
    let second = other.renew("a", MINUTE, None).await.unwrap();
    assert_eq!((second.instances.clone(), second.is_new), (vec!["a".to_owned(), "b".to_owned()], true));
    assert!(first.now <= second.now, "{} {second:?}", first.now);
    let third = world.engine.renew("b", MINUTE, None).await.unwrap();
    assert_eq!((third.instances, third.is_new), (second.instances, false));
}

pub async fn promise_06_a_lease_that_is_not_renewed_ends<G: Ground>(world: World<G>) {
    world.renew("dead", Duration::from_millis(1)).await;
    let ended = async {
        while world.renew("alive", MINUTE).await != ["alive"] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(MINUTE, ended).await.expect("the lease ends");
    assert!(
        world.engine.renew("dead", MINUTE, None).await.unwrap().is_new,
        "others may have had what it had"
    );
}

/// The lease length and renewal interval of the service: the other instances know of a death after a lease and one
/// more renewal, and by then the deliveries of the dead instance are due again.
pub async fn promise_06_a_dead_instance_and_what_it_held_are_free_within_three_seconds<G: Ground>(
    world: World<G>,
) {
    assert!(lease::LENGTH + Duration::from_millis(500) <= Duration::from_secs(3));
    assert!(lease::LENGTH >= 4 * lease::INTERVAL, "a renewal may fail now and then");
    assert!(alerting::LEASE <= lease::LENGTH);
    // The engine ends a lease by its own clock.
    let before = world.engine.renew("dead", lease::LENGTH, None).await.unwrap().now;
    let there = world.engine.renew("alive", MINUTE, None).await.unwrap();
    assert_eq!(there.first_end, Some(before + lease::LENGTH), "its end unless it is renewed");
    let ended = async {
        loop {
            let seen = world.engine.renew("alive", lease::LENGTH, None).await.unwrap();
            if seen.instances == ["alive"] {
                return seen.now;
            }
            tokio::task::yield_now().await;
        }
    };
    let ended = tokio::time::timeout(MINUTE, ended).await.expect("the lease ends");
    assert!(ended >= before + lease::LENGTH, "and not before its time");
}

/// An operator or a broken clock may write such a lease: no instance asks for such a long one.
pub async fn a_lease_that_ends_in_the_far_future_owns_nothing<G: Ground>(world: World<G>) {
    for far in [MAX_LEASE + MINUTE, Duration::from_secs(100 * 365 * 86_400)] {
        world.renew("ghost", far).await;
        world.renew("a", MAX_LEASE).await;
        let seen = world.renew("b", lease::LENGTH).await;
        assert_eq!(seen, ["a", "b"], "after a lease of {far:?}");
        for name in ["a", "b"] {
            world.engine.resign(name).await.unwrap();
        }
    }
    world.renew("a", lease::LENGTH).await;
    let partitions = world.engine.partitions();
    let there = world.renew("a", lease::LENGTH).await;
    assert!((0..partitions).all(|p| owner(p, &there) == Some("a")), "it sweeps all partitions");
}

pub async fn an_instance_that_resigned_is_gone_at_once<G: Ground>(world: World<G>) {
    world.renew("goes", MINUTE).await;
    world.renew("stays", MINUTE).await;
    world.engine.resign("goes").await.unwrap();
    assert_eq!(world.renew("stays", MINUTE).await, ["stays"]);
    world.engine.resign("goes").await.unwrap();
    assert_eq!(world.renew("goes", MINUTE).await, ["goes", "stays"], "and may come again");
}

pub async fn the_time_of_the_fleet_is_never_before_what_was_heard<G: Ground>(world: World<G>) {
    let clock = world.engine.renew("a", MINUTE, None).await.unwrap().engine_clock;
    let future = clock + 300 * Duration::from_secs(86_400);
    let ahead = world.engine.renew("a", MINUTE, Some(future)).await.unwrap();
    assert!(ahead.now >= future && ahead.engine_clock < future, "{ahead:?}");
    let (other, _) = world.another().await;
    let later = other.renew("b", MINUTE, None).await.unwrap();
    assert!(later.now >= ahead.now, "it never goes back: {later:?}");
    assert_eq!(later.instances, ["a", "b"], "and leases go by it");
}

pub async fn what_an_instance_announces_counts_until_it_is_forgotten<G: Ground>(world: World<G>) {
    let names = ["a", "b", "c"].map(str::to_owned);
    let (other, _) = world.another().await;
    let (here, there): (&dyn Roster, &dyn Roster) = (&*world.engine, &*other);
    here.announce("a", "10.0.0.1:8080").await.unwrap();
    here.announce("b", "10.0.0.2:8080").await.unwrap();
    here.announce("b", "10.0.0.3:8080").await.unwrap();
    let counts = KindCounts::from([("detector".to_owned(), KindCount { units: 7, shortest_ms: None })]);
    there.announce_counts("b", &counts).await.unwrap();
    let [a, b] = ["10.0.0.1:8080", "10.0.0.3:8080"].map(|at| Some(at.to_owned()));
    assert_eq!(there.addresses(&names).await.unwrap(), [a.clone(), b, None]);
    let none = KindCounts::new;
    assert_eq!(here.counts(&names).await.unwrap(), [none(), counts, none()]);
    there.forget_all_but(&names[..1]).await.unwrap();
    assert_eq!(there.addresses(&names).await.unwrap(), [a, None, None]);
    assert_eq!(here.counts(&names).await.unwrap(), [none(), none(), none()]);
}
