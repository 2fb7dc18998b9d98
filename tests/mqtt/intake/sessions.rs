//! A session that another client used, and a forged canary, prove nothing.

use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::store::HearingStore;
use rumqttc::{Event, Packet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::world::{World, eventually, kind};

/// Longer than any of these cases takes, so that no blind interval comes from a gap.
const LONG: Duration = Duration::from_secs(60);

/// A client that connects with the id of another client, and takes the messages of its session.
struct Thief(TcpStream);

impl Thief {
    async fn comes(world: &World, client_id: &str) -> Thief {
        let mut stream = TcpStream::connect(("127.0.0.1", world.broker.port())).await.unwrap();
        // CONNECT of MQTT 5 for the existing session, to be kept for an hour.
        let mut packet = vec![0x10, 18 + client_id.len() as u8, 0, 4, b'M', b'Q', b'T', b'T', 5, 0, 0, 0];
        packet.extend([5, 0x11, 0, 0, 0x0e, 0x10]);
        packet.extend((client_id.len() as u16).to_be_bytes());
        packet.extend(client_id.bytes());
        stream.write_all(&packet).await.unwrap();
        let mut thief = Thief(stream);
        assert_eq!(thief.packet().await.0, 0x20, "it is welcome");
        thief
    }

    /// The first byte of the next packet, and its body after the length.
    async fn packet(&mut self) -> (u8, Vec<u8>) {
        let first = self.0.read_u8().await.unwrap();
        let (mut length, mut shift) = (0, 0);
        loop {
            let byte = self.0.read_u8().await.unwrap();
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        let mut rest = vec![0; length];
        self.0.read_exact(&mut rest).await.unwrap();
        (first, rest)
    }

    /// Acknowledges messages until a message of this topic has come.
    async fn takes(&mut self, topic: &str) {
        loop {
            let (first, rest) = self.packet().await;
            if first & 0xf0 != 0x30 {
                continue;
            }
            let (length, rest) = rest.split_at(2);
            let (name, rest) = rest.split_at(usize::from(u16::from_be_bytes([length[0], length[1]])));
            self.0.write_all(&[0x40, 2, rest[0], rest[1]]).await.unwrap();
            if name == topic.as_bytes() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_another_client_took_from_the_session_are_blind_time_however_short() {
    let mut world = World::new("").await;
    world.gap = LONG;
    let running = world.start().await;
    let device = world.device();
    for theft in 1..=2 {
        let before = world.heard().await;
        eventually("it hears", async || world.has_heard_more_than(before).await).await;
        let mut thief = Thief::comes(&world, "test-main").await;
        let unit = format!("units/stolen{theft}/heartbeat");
        device.publishes(&unit, "").await;
        let said = Clock::system().now();
        thief.takes(&unit).await;
        drop(thief);
        eventually("it hears on", async || world.heard().await > Some(said)).await;
        assert!(!world.is_known(&format!("detector:stolen{theft}")).await, "the thief took it");
        let covers = |blind: &rollcall::presence::Interval| blind.contains(said);
        assert!(world.blind().await.iter().any(covers), "said at {said}, blind: {:?}", world.blind().await);
    }
    // Mosquitto 2.0.11 closes the connection without saying why.
    assert_eq!(running.metric("mqtt_connections_lost_total", ""), 2.0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn canaries_that_a_process_left_in_its_session_prove_nothing() {
    let mut world = World::new("").await;
    world.gap = LONG;
    let running = world.start().await;
    eventually("it hears", async || world.heard().await.is_some()).await;
    running.stop().await;
    let heard = world.heard().await.unwrap();
    let running = world.start().await;
    eventually("it hears on", async || world.has_heard_more_than(Some(heard)).await).await;
    let blind = world.blind().await;
    assert_eq!(
        blind.iter().map(|one| one.from).collect::<Vec<Timestamp>>(),
        [heard],
        "another client may have been connected"
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_canary_is_refused_and_counted_and_hides_no_loss() {
    let world = World::new("").await;
    let running = world.start().await;
    eventually("it hears", async || world.heard().await.is_some()).await;
    let device = world.device();
    let ahead = Clock::system().now() + LONG;
    for (seq, sent_at) in [(u64::MAX, ahead), (1_000_000, Clock::system().now()), (0, Timestamp::ZERO)] {
        let forged =
            format!("{{\"instance\":\"x\",\"seq\":{seq},\"sent_at\":{},\"mac\":\"\"}}", sent_at.as_millis());
        device.publishes("rollcall/canary/test-main", forged).await;
    }
    device.publishes("rollcall/canary/test-main", "{}").await;
    eventually("they were counted", async || running.heartbeats("forged_canary") == 4.0).await;
    assert!(world.heard().await < Some(ahead));
    let before = world.heard().await;
    eventually("it hears on", async || world.has_heard_more_than(before).await).await;
    assert_eq!(running.heartbeats("forged_canary"), 4.0, "its own are its own");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_or_repeated_probe_proves_nothing_and_what_is_forged_is_counted() {
    let world = World::new("").await;
    let running = world.start().await;
    let topic = "units/rollcall-probe/heartbeat";
    let proved = async || {
        let filters = world.engine.hearing().await.unwrap().filters;
        filters.proved.get(&(kind("detector"), "units/+/heartbeat".to_owned())).copied()
    };
    // A device that may read topics of others repeats a message.
    let (client, mut events) = world.reader(topic).await;
    let probe = loop {
        if let Event::Incoming(Packet::Publish(publish)) = events.poll().await.unwrap() {
            break publish.payload;
        }
    };
    drop((client, events));
    eventually("it is heard", async || proved().await.is_some()).await;
    running.stop().await;
    let running = world.start().await;
    let device = world.device();
    let ahead = Clock::system().now() + LONG;
    let text = String::from_utf8(probe.to_vec()).unwrap();
    let sent = text.split("\"sent_at\":").nth(1).unwrap().split([',', '}']).next().unwrap();
    let changed = text.replace(sent, &ahead.as_millis().to_string());
    for forged in ["", "{}", "tweet", &changed, &"x".repeat(300_000)] {
        device.publishes(topic, forged).await;
    }
    eventually("they were counted", async || running.heartbeats("forged_probe") == 5.0).await;
    device.publishes(topic, probe.to_vec()).await;
    let other = text.replacen("\"instance\":\"", "\"instance\":\"0123456789abcdef", 1);
    let tag = text.split("\"instance\":\"").nth(1).unwrap().split('"').next().unwrap();
    device.publishes(topic, other.replace(tag, "")).await;
    let before = proved().await;
    eventually("it hears on", async || proved().await > before).await;
    assert!(proved().await < Some(ahead));
    assert_eq!(
        running.heartbeats("forged_probe"),
        5.0,
        "neither a repeated one nor another fleet's is forged"
    );
    assert_eq!(world.units().await, 0);
    running.stop().await;
}
