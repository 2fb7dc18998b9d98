//! Claims about two instances that deliver for one fleet while partitions move between them.

use std::collections::BTreeSet;
use std::sync::Arc;

use rollcall::alerting;
use rollcall::fleet::ownership::View;
use rollcall::fleet::{Ownership, RemovedKinds, Silences};
use rollcall::simulate::webhook_sink::Answer;
use rollcall::store::{StoredDeliveries, partition_of, partition_of_group};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::silences::silence;
use super::world::{WAIT, World, hook, listed, unit, until};
use super::*;

/// The loops of one instance, whose view is changed by the test.
pub struct Instance {
    name: &'static str,
    silences: Arc<Silences>,
    view: watch::Sender<Arc<View>>,
    run: JoinHandle<anyhow::Result<()>>,
    _stop: DropGuard,
}

impl Instance {
    pub fn start(world: &World, name: &'static str, instances: &[&str]) -> Instance {
        let view = watch::Sender::new(view(world, name, instances));
        let stop = CancellationToken::new();
        let (config, own) = (world.config.clone(), Ownership::follow(view.subscribe()));
        let (clock, telemetry, outbox_grew) =
            (world.clock.clone(), world.telemetry.clone(), world.outbox_grew.clone());
        let silences = Arc::new(Silences::new(world.engine.clone()));
        let stores = alerting::Stores {
            outbox: world.engine.clone(),
            groups: world.groups(),
            hearing: world.engine.clone(),
            queries: world.engine.clone(),
            cells: world.engine.clone(),
            units: world.engine.clone(),
            deliveries: StoredDeliveries::new(world.engine.clone()),
            timers: world.timers.clone(),
            history: None,
            silences: silences.clone(),
            roll: world.roll.clone(),
            roster: world.engine.clone(),
            removed_kinds: Arc::new(RemovedKinds::new(HOUR)),
        };
        let run = alerting::run(config, stores, own, clock, telemetry, outbox_grew, stop.clone());
        Instance { name, silences, view, run: tokio::spawn(run), _stop: stop.drop_guard() }
    }

    /// Ends the instance like a power cut.
    pub async fn kill(self) {
        self.run.abort();
        assert!(self.run.await.unwrap_err().is_cancelled());
    }

    pub fn sees(&self, world: &World, instances: &[&str]) {
        self.view.send_replace(view(world, self.name, instances));
    }
}

fn view(world: &World, name: &str, instances: &[&str]) -> Arc<View> {
    let instances = instances.iter().map(|&instance| instance.to_owned()).collect();
    Arc::new(View::new(name, instances, world.engine.partitions()))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_deliver_each_notification_once_while_partitions_move() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    let both = ["a", "b"];
    let (a, b) = (Instance::start(&world, "a", &both), Instance::start(&world, "b", &both));
    let names: Vec<String> = (0..60).map(|number| format!("unit-{number}")).collect();
    for (turn, names) in names.chunks(20).enumerate() {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        world.notify_loss(&names).await;
        // The views disagree while the first are delivered: partitions are owned by neither, by both, then by one
        // again.
        a.sees(&world, &["b"]);
        b.sees(&world, &["a"]);
        a.sees(&world, &["a"]);
        b.sees(&world, &["b"]);
        sink.wait_for(20 * (turn + 1), MAX_WAIT).await.unwrap();
        a.sees(&world, &both);
        b.sees(&world, &both);
    }
    world.delivered("hook").await;
    let received = sink.received();
    let ids: BTreeSet<&str> = received.iter().map(|one| one.header("webhook-id")).collect();
    let notified: BTreeSet<String> = received.iter().flat_map(|one| listed(one, "offline")).collect();
    assert_eq!((received.len(), ids.len()), (60, 60));
    assert_eq!(notified, names.into_iter().collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_silence_holds_for_all_instances_and_its_end_is_notified_once_while_partitions_move() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    let both = ["a", "b"];
    let (a, b) = (Instance::start(&world, "a", &both), Instance::start(&world, "b", &both));
    // Another process makes the silence and ends it.
    let id = silence(&world, "kind=detector", 1000 * HOUR).await;
    for instance in [&a, &b] {
        until("it is known", async || instance.silences.cached().await.unwrap().len() == 1).await;
    }
    let names: Vec<String> = (0..40).map(|number| format!("unit-{number}")).collect();
    world.lose(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    world.joined().await;
    world.advance(5 * WAIT);
    // The views disagree while the silence ends: partitions are owned by no instance, by both, then by one again.
    a.sees(&world, &["b"]);
    b.sees(&world, &["a"]);
    assert_eq!(world.groups().first_seal(&world.partitions()).await.unwrap(), None);
    assert!(world.silences.expire(id, "ana", world.clock.now()).await.unwrap());
    a.sees(&world, &["a"]);
    b.sees(&world, &["b"]);
    until("all are notified", async || {
        a.sees(&world, &both);
        b.sees(&world, &both);
        let next = world.groups().first_seal(&world.partitions()).await.unwrap();
        if next.is_some_and(|next| next > world.clock.now()) {
            world.advance(WAIT);
        }
        let received = sink.received();
        received.iter().flat_map(|one| listed(one, "offline")).collect::<BTreeSet<_>>().len() == 40
    })
    .await;
    let received = sink.received();
    let ids: BTreeSet<&str> = received.iter().map(|one| one.header("webhook-id")).collect();
    let notified: BTreeSet<String> = received.iter().flat_map(|one| listed(one, "offline")).collect();
    assert_eq!((ids.len(), notified), (40, names.into_iter().collect()));
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_of_one_group_arrive_in_order_while_its_partition_moves() {
    let sink = hook().await;
    sink.answer_with([Answer::RetryAfter(429, "7200".to_owned())]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    let (a, b) = (Instance::start(&world, "a", &["a"]), Instance::start(&world, "b", &["a"]));
    world.notify_loss(&["x"]).await;
    let retried = async || world.metric("rollcall_notifications_total", &["hook", "retry"]) == 1.0;
    until("the attempt is over", retried).await;
    a.sees(&world, &["b"]);
    b.sees(&world, &["b"]);
    world.lose(&["y"]).await;
    world.joined().await;
    world.advance(5 * WAIT);
    let sealed =
        async || world.groups().first_seal(&world.partitions()).await.is_ok_and(|next| next.is_none());
    until("both wait for their delivery", sealed).await;
    world.advance(2 * HOUR);
    let received = sink.wait_for(3, MAX_WAIT).await.unwrap();
    assert_eq!(received[0].header("webhook-id"), received[1].header("webhook-id"));
    assert_eq!(
        (listed(&received[1], "offline"), listed(&received[2], "offline")),
        (vec!["x".into()], vec!["y".into()])
    );
}

/// The clock stands still from the moment at which the death is known: no step waits for a timer.
#[tokio::test(flavor = "multi_thread")]
async fn deliveries_of_a_dead_instance_go_on_as_soon_as_its_death_is_known() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    let both = ["dies", "lives"];
    let own = view(&world, "dies", &both);
    let partitions = world.engine.partitions();
    let is_its_own = |name: &String| {
        let of_group = partition_of_group(&format!("unit={name}"), partitions);
        [partition_of(&unit(name), partitions), of_group].iter().all(|one| own.partitions.contains(one))
    };
    let names: Vec<String> =
        (0..).map(|number| format!("unit-{number}")).filter(is_its_own).take(300).collect();
    let (notified, unsealed) = names.split_at(250);
    let lives = Instance::start(&world, "lives", &both);
    let dies = Instance::start(&world, "dies", &both);
    // As many deliveries as allowed never end; the instance leases as many more as it may.
    sink.answer_with(vec![Answer::Hang; 4]);
    world.notify_loss(&notified.iter().map(String::as_str).collect::<Vec<_>>()).await;
    sink.wait_for(4, MAX_WAIT).await.unwrap();
    let leased = async || {
        let waiting =
            StoredDeliveries::new(world.engine.clone()).waiting("hook", None).await.unwrap().waiting;
        waiting.iter().filter(|one| one.delivery.attempt == 1).count()
    };
    until("it holds some beside them", async || leased().await > 4).await;
    dies.kill().await;
    // More entries of its partitions are in the outbox.
    world.lose(&unsealed.iter().map(String::as_str).collect::<Vec<_>>()).await;
    world.clock.advance(alerting::LEASE.max(WAIT));
    let before = sink.received().len();
    assert_eq!(before, 4);
    lives.sees(&world, &["lives"]);
    sink.wait_for(before + notified.len(), MAX_WAIT).await.unwrap();
    world.joined().await;
    world.advance(WAIT);
    let received = sink.wait_for(before + names.len(), MAX_WAIT).await.unwrap();
    let notified: BTreeSet<String> = received.iter().flat_map(|one| listed(one, "offline")).collect();
    assert_eq!(notified, names.into_iter().collect());
    assert_eq!(received.len(), before + 300, "only deliveries under way are repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_instance_delivers_notifications_of_another() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    let both = ["idle", "busy"];
    let own = view(&world, "idle", &both);
    let of_busy = |name: &String| {
        let unit = format!("detector:{name}").parse().unwrap();
        !own.partitions.contains(&partition_of(&unit, world.engine.partitions()))
    };
    let name = (0..).map(|number| format!("unit-{number}")).find(of_busy).unwrap();
    let idle = Instance::start(&world, "idle", &both);
    world.lose(&[&name]).await;
    let before = world.commands("outbox");
    let asked = async || {
        world.outbox_grew.notify_one();
        world.commands("outbox") > before + 2
    };
    until("it has asked again and again", asked).await;
    assert_eq!(world.engine.outbox(&world.outboxes(), 10).await.unwrap().len(), 1);
    // The instance waits until it learns that it is the only one.
    idle.sees(&world, &["idle"]);
    world.joined().await;
    world.advance(WAIT);
    sink.wait_for(1, MAX_WAIT).await.unwrap();
}

/// The death of an instance is known when its lease ends. Until then its outboxes have the returns of its units.
#[tokio::test(flavor = "multi_thread")]
async fn a_return_in_the_outbox_of_a_dead_instance_is_known_before_its_silence_is_sealed() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    let both = ["dies", "lives"];
    let own = view(&world, "dies", &both);
    let partitions = world.engine.partitions();
    let is_watched_by_one_and_notified_by_the_other = |name: &String| {
        let of_group = partition_of_group(&format!("unit={name}"), partitions);
        own.partitions.contains(&partition_of(&unit(name), partitions)) && !own.partitions.contains(&of_group)
    };
    let names = (0..).map(|number| format!("unit-{number}"));
    let names: Vec<String> = names.filter(is_watched_by_one_and_notified_by_the_other).take(20).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let _lives = Instance::start(&world, "lives", &both);
    let dies = Instance::start(&world, "dies", &both);
    world.lose(&names).await;
    world.joined().await;
    dies.kill().await;
    world.hear(&names[1..]).await;
    world.advance(WAIT);
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
    assert_eq!(listed(&received[0], "offline"), names[..1]);
    world.joined().await;
    world.advance(5 * WAIT);
    world.delivered("hook").await;
    assert_eq!(sink.received().len(), 1, "the others were back before they were due");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_instance_does_not_deliver_what_another_took_over() {
    let sink = hook().await;
    sink.answer_with(vec![Answer::Hang; 4]);
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    let names: Vec<String> = (0..20).map(|number| format!("unit-{number}")).collect();
    world.notify_loss(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    sink.wait_for(4, MAX_WAIT).await.unwrap();
    let later = async || {
        StoredDeliveries::new(world.engine.clone()).first_lease(&world.partitions(), "hook").await.unwrap()
            > Some(world.clock.now())
    };
    until("it holds all of them", later).await;
    // The leases of the instance end, and another instance takes everything over before it can extend them.
    let mut taken = Vec::new();
    while taken.len() < names.len() {
        world.clock.advance(alerting::LEASE);
        let now = world.clock.now();
        let more = StoredDeliveries::new(world.engine.clone())
            .lease(&world.partitions(), "hook", now, now + HOUR, 500)
            .await
            .unwrap();
        taken.extend(more.into_iter().map(|delivery| (delivery.id.clone(), delivery)));
        taken.sort_by(|a, b| (&a.0, a.1.attempt).cmp(&(&b.0, b.1.attempt)));
        taken.dedup_by(|a, b| a.0 == b.0);
    }
    let notified: Vec<_> = taken.into_iter().map(|(_, delivery)| delivery).collect();
    StoredDeliveries::new(world.engine.clone()).delivered(&notified, world.clock.now()).await.unwrap();
    sink.release();
    let ended = async || world.metric("rollcall_notifications_total", &["hook", "delivered"]) >= 4.0;
    until("its own attempts are over", ended).await;
    // The instance delivers new notifications, and none that it held before.
    world.notify_loss(&["new"]).await;
    sink.wait_for(5, MAX_WAIT).await.unwrap();
    world.stop().await;
    let received = sink.received();
    assert_eq!(received.len(), 5, "those that were under way, and the new one");
    assert_eq!(listed(&received[4], "offline"), ["new"]);
}
