//! Members of a shared subscription: together they hear everything, and a message that one of them loses
//! makes the time blind for all.
//!
//! Two canaries may be an hour apart here before that alone makes an interval. So every blind
//! interval has another cause, however short it is.

use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::store::{HearingStore, ShareMember};
use rumqttc::{AckMode, AsyncClient, Event, LastWill, MqttOptions, Packet, QoS};
use tokio::task::JoinHandle;

use super::relay::Relay;
use super::world::{Running, World, eventually};

const NO_GAP: Duration = Duration::from_secs(3600);

async fn world() -> World {
    let mut world = World::new("").await;
    world.config.share = "all".to_owned();
    world.gap = NO_GAP;
    world
}

impl World {
    /// Checks that hearing continues: a message that is sent now is heard, too.
    async fn hears_on(&self) {
        let now = Clock::system().now();
        eventually("it hears on", async || self.heard().await >= Some(now)).await;
    }

    /// The client ids of the members.
    fn members(&self) -> Vec<String> {
        let key = "rollcall:{hearing}:members";
        let names: Vec<String> = redis::cmd("HKEYS").arg(key).query(&mut self.redis.client()).unwrap();
        names.into_iter().map(|name| name.strip_prefix("all/").unwrap().to_owned()).collect()
    }

    /// The members, with the numbers of their connections, which only the engine knows.
    fn connections_of_members(&self) -> Vec<(String, u64)> {
        let key = "rollcall:{hearing}:members";
        let all: Vec<(String, String)> =
            redis::cmd("HGETALL").arg(key).query(&mut self.redis.client()).unwrap();
        let number = |text: String| text.rsplit(' ').next().unwrap().parse().unwrap();
        all.into_iter()
            .map(|(name, text)| (name.strip_prefix("all/").unwrap().to_owned(), number(text)))
            .collect()
    }

    async fn start_several(&self, count: usize) -> Vec<Running> {
        let mut running = Vec::new();
        for _ in 0..count {
            running.push(self.start().await);
        }
        running
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_share_the_fleet_and_one_that_leaves_in_order_makes_nothing_blind() {
    let world = world().await;
    let mut running = world.start_several(3).await;
    let device = world.device();
    device.heartbeats("u", 60).await;
    eventually("all were recorded", async || world.units().await == 60).await;
    let shares = running.iter().map(|one| one.heartbeats("new"));
    assert_eq!(shares.clone().sum::<f64>(), 60.0, "each by one of them");
    assert!(shares.clone().all(|share| share > 0.0), "{:?}", shares.collect::<Vec<_>>());
    world.hears_on().await;
    // Devices send heartbeats while one member leaves and another joins; nothing is lost and nothing is blind.
    let (last, _) = tokio::join!(
        async {
            running.remove(0).stop().await;
            world.start().await
        },
        device.heartbeats("v", 200),
    );
    eventually("all were recorded", async || world.units().await == 260).await;
    world.hears_on().await;
    assert_eq!(world.members().len(), 3);
    running.push(last);
    for one in running {
        one.stop().await;
    }
    assert_eq!(world.members(), [""; 0]);
    assert_eq!(world.blind().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_connection_is_cut_makes_that_time_blind_and_joins_again() {
    let mut world = world().await;
    let one = world.start().await;
    let relay = Relay::start(world.broker.port()).await;
    world.config.url = relay.url();
    let two = world.start().await;
    world.hears_on().await;
    assert_eq!(world.blind().await, []);
    let cut = Clock::system().now();
    relay.cut();
    eventually("the broker said so", async || one.asked("depart") >= 1.0).await;
    eventually("it is back", async || world.connections("test-main") == 3 && two.is_connected()).await;
    world.hears_on().await;
    let blind = world.blind().await;
    assert!(blind.iter().any(|interval| interval.from <= cut && cut <= interval.to), "{cut} {blind:?}");
    assert_eq!(world.members().len(), 2);
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_member_is_replaced_at_once_after_a_crash() {
    let world = world().await;
    let one = world.start().await;
    world.hears_on().await;
    let crashed = Clock::system().now();
    one.crash().await;
    // No member was connected when the broker reported the end, and yet the next member does not wait for the release.
    let two = world.start().await;
    eventually("the broker has kept its word", async || two.asked("depart") >= 1.0).await;
    world.hears_on().await;
    let blind = world.blind().await;
    assert!(blind.iter().any(|interval| interval.contains(crashed)), "{crashed} {blind:?}");
    eventually("only one attends", async || world.members().len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_lose_their_broker_go_on_with_the_next() {
    let mut world = world().await;
    let running = world.start_several(2).await;
    world.hears_on().await;
    world.restart_broker("");
    for one in &running {
        eventually("it is back", async || one.is_connected()).await;
    }
    // No broker reported an end: each member reports its own.
    eventually("all are back", async || world.connections("test-main") == 4).await;
    world.hears_on().await;
    assert_eq!(world.members().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_proved_while_one_member_swallows_its_share() {
    let world = world().await;
    let running = world.start().await;
    world.hears_on().await;
    // A member that gets its share, and neither acknowledges nor records anything.
    let ghost = ShareMember { share: "all".to_owned(), client_id: "ghost".to_owned(), connection: 1 };
    let attends = Clock::system().now();
    world.engine.attend(&ghost, attends, Duration::from_secs(3600)).await.unwrap();
    let haunting = haunt(&world, &ghost).await;
    world.device().heartbeats("u", 40).await;
    eventually("its own were recorded", async || running.heartbeats("new") == 20.0).await;
    let canaries = running.metric("canary_round_trip_seconds", "");
    let came = || running.metric("canary_round_trip_seconds", "");
    eventually("canaries come all the way", async || came() > canaries + 5.0).await;
    assert!(world.heard().await.unwrap() <= attends, "canaries of one prove nothing about the other");
    // The broker drops the ghost, and publishes its last will.
    let dropped = Clock::system().now();
    haunting.abort();
    world.hears_on().await;
    let blind = world.blind().await;
    assert_eq!(blind.len(), 1, "{blind:?}");
    assert!(blind[0].from <= attends && blind[0].to > dropped, "{attends} {dropped} {blind:?}");
    running.stop().await;
}

/// A client that stands in for a member, with its last will, and does nothing.
async fn haunt(world: &World, ghost: &ShareMember) -> JoinHandle<()> {
    let mut options = MqttOptions::new(&ghost.client_id, ("127.0.0.1", world.broker.port()));
    let word = format!("{{\"share\":\"{}\",\"connection\":{}}}", ghost.share, ghost.connection);
    let topic = format!("rollcall/canary/{}/gone", ghost.client_id);
    options.set_last_will(LastWill::new(topic, word, QoS::AtLeastOnce, true, None));
    options.set_ack_mode(AckMode::Manual).set_clean_start(true);
    let (client, mut events) = AsyncClient::builder(options).capacity(10).build();
    client.subscribe("$share/all/units/+/heartbeat", QoS::AtLeastOnce).await.unwrap();
    loop {
        if matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {
            break;
        }
    }
    tokio::spawn(async move {
        let _client = client;
        while events.poll().await.is_ok() {}
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_falsely_reported_gone_joins_again_and_misses_nothing() {
    let world = world().await;
    let running = world.start_several(2).await;
    world.hears_on().await;
    let device = world.device();
    device.publishes("rollcall/canary/unknown/gone", "{\"share\":\"all\",\"connection\":1}").await;
    for name in world.members() {
        device
            .publishes(&format!("rollcall/canary/{name}/gone"), "{\"share\":\"all\",\"connection\":9}")
            .await;
    }
    world.hears_on().await;
    assert_eq!(world.blind().await, [], "no member of that name, and no such connection");
    let (name, connection) = world.connections_of_members().remove(0);
    let before = running[0].asked("attend") + running[1].asked("attend");
    device
        .retains(
            &format!("rollcall/canary/{name}/gone"),
            &format!("{{\"share\":\"all\",\"connection\":{connection}}}"),
        )
        .await;
    let attended = || running[0].asked("attend") + running[1].asked("attend");
    eventually("it attends again", async || attended() > before).await;
    world.hears_on().await;
    device.heartbeats("u", 40).await;
    eventually("all were recorded", async || world.units().await == 40).await;
    assert_eq!(world.members().len(), 2);
    assert_eq!(world.connections("test-main"), 2, "no member was released");
    // A retained message does not come again with every new member.
    let blind = world.blind().await;
    let _third = world.start().await;
    world.hears_on().await;
    assert_eq!(world.blind().await, blind);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_refused_does_not_join() {
    let mut world = world().await;
    world.guard_broker(false);
    let running = world.launch().await;
    eventually("it asked twice", async || world.connections("test-main") >= 2).await;
    assert_eq!(world.members(), [""; 0]);
    world.guard_broker(true);
    eventually("it was granted", async || running.is_connected()).await;
    assert_eq!(world.members().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_cut_off_from_the_engine_gives_its_share_to_others() {
    let world = world().await;
    let running = world.start().await;
    world.hears_on().await;
    world.redis.signal("-STOP");
    eventually("it closes its connection", async || !running.is_connected()).await;
    // The member waits without a share, as often as needed.
    eventually("it is there again", async || world.connections("test-main") == 2).await;
    assert!(!running.is_connected());
    world.redis.signal("-CONT");
    eventually("it attends again", async || running.is_connected()).await;
    world.hears_on().await;
    assert_eq!(world.members().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_connections_of_one_process_are_members_of_their_own() {
    let mut world = world().await;
    world.config.connections = 3;
    let running = world.start().await;
    eventually("all stand", async || running.metric("mqtt_connected", "main") == 3.0).await;
    assert_eq!(world.members().len(), 3);
    for n in ["test-main-", "test-2-", "test-3-"] {
        assert_eq!(world.connections(n), 1, "{n}");
    }
    world.device().heartbeats("u", 60).await;
    eventually("all were recorded", async || world.units().await == 60).await;
    world.hears_on().await;
    running.stop().await;
    assert_eq!((world.members().len(), world.blind().await), (0, Vec::new()));
}
