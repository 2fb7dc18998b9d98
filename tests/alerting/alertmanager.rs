//! Claims about the channel to Alertmanager, with two real servers in a cluster.

use std::collections::BTreeSet;
use std::net::{TcpListener, UdpSocket};
use std::path::Path;

use rollcall::alerting::{AlertmanagerConfig, Fallback, Format, Route, open, send_test};
use rollcall::routing::parse_matchers;
use rollcall::simulate::servers::{Server, free_port};
use rollcall::simulate::webhook_sink::{Answer, WebhookSink};
use rollcall::store::{Escalation, FollowUps, Pace, StoredDeliveries};
use serde_json::Value;

use super::mass_offline::{RULE, names};
use super::route_changes::always;
use super::silences::silence;
use super::support::http;
use super::world::{On, WAIT, World, hook, named, until};
use super::*;

const RESEND: Duration = Duration::from_secs(1);
/// After this long, a group that was held is looked at again.
const HELD: Duration = Duration::from_secs(10);

fn server(dir: &Path, port: u16, gossip: u16, peer: Option<u16>) -> Server {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(
        dir.join("alertmanager.yml"),
        "route:\n  receiver: nothing\nreceivers:\n  - name: nothing\n",
    )
    .unwrap();
    let mut args = vec![
        "--config.file=alertmanager.yml".to_owned(),
        "--storage.path=data".to_owned(),
        format!("--web.listen-address=127.0.0.1:{port}"),
        format!("--cluster.listen-address=127.0.0.1:{gossip}"),
        "--cluster.settle-timeout=1s".to_owned(),
    ];
    args.extend(peer.map(|peer| format!("--cluster.peer=127.0.0.1:{peer}")));
    Server::start("prometheus-alertmanager", &args, dir, port, "Listening on").unwrap()
}

/// A port that is free for TCP and UDP: that of `free_port` is claimed by a UDP socket of this process.
fn gossip_port() -> u16 {
    let port = || {
        let claim = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = claim.local_addr().unwrap().port();
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    };
    std::iter::repeat_with(port).flatten().next().unwrap()
}

fn two(dir: &Path) -> [Server; 2] {
    let ports = [free_port().unwrap(), gossip_port(), free_port().unwrap(), gossip_port()];
    [
        server(&dir.join("one"), ports[0], ports[1], None),
        server(&dir.join("two"), ports[2], ports[3], Some(ports[1])),
    ]
}

fn config(servers: &[Server; 2]) -> AlertmanagerConfig {
    AlertmanagerConfig {
        urls: servers.iter().map(|server| format!("http://127.0.0.1:{}", server.port())).collect(),
        resend: RESEND,
        max_alerts: 100,
        ..AlertmanagerConfig::default()
    }
}

fn to(config: AlertmanagerConfig) -> ReceiverConfig {
    receiver("hook", ChannelConfig::Alertmanager(Box::new(config)))
}

/// The alerts that a server shows as active.
async fn active(server: &Server) -> Vec<Value> {
    let url = format!("http://127.0.0.1:{}/api/v2/alerts?active=true", server.port());
    let text = http::get(url).await.unwrap().text().await.unwrap();
    serde_json::from_str(&text).unwrap()
}

async fn eventually(what: &str, server: &Server, fact: impl Fn(&[Value]) -> bool) {
    let awaited = async {
        while !fact(&active(server).await) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

#[tokio::test]
async fn a_silence_is_an_alert_of_both_servers_until_its_unit_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let servers = two(dir.path());
    let channel = open(&to(AlertmanagerConfig { resend: HOUR, ..config(&servers) })).unwrap();
    let down = OfflineRecord { labels: labels(&[("site", "north")]), ..silent("detector:a", now()) };
    channel.send(&delivery(vec![down.clone()], vec![]), now()).await.unwrap();
    let webhook = WebhookConfig {
        url: "http://127.0.0.1:1".to_owned(),
        format: Format::Alertmanager,
        ..WebhookConfig::default()
    };
    let payload = open(&receiver("hook", webhook_of(webhook))).unwrap();
    let payload = payload.render(&delivery(vec![down.clone()], vec![])).unwrap();
    let payload: Value = serde_json::from_str(&payload).unwrap();
    for server in &servers {
        let alerts = active(server).await;
        let [alert] = &alerts[..] else { panic!("{alerts:?}") };
        let expected = serde_json::json!(
            {"alertname": "UnitOffline", "kind": "detector", "site": "north", "unit": "a"}
        );
        assert_eq!(alert["labels"], expected);
        assert_eq!(alert["fingerprint"], payload["alerts"][0]["fingerprint"]);
        let starts_at: Timestamp = serde_json::from_value(alert["startsAt"].clone()).unwrap();
        assert_eq!(starts_at, down.deadline);
    }
    channel.send(&delivery(vec![], vec![back(&down, now())]), now()).await.unwrap();
    for server in &servers {
        eventually("the alert is over", server, <[Value]>::is_empty).await;
    }
    send_test(&to(config(&servers)), now()).await.unwrap();
}

#[tokio::test]
async fn an_alert_that_is_not_sent_again_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let servers = two(dir.path());
    let channel = open(&to(config(&servers))).unwrap();
    channel.send(&delivery(vec![silent("detector:a", now())], vec![]), now()).await.unwrap();
    assert_eq!(active(&servers[0]).await.len(), 1);
    eventually("the alert has ended", &servers[0], <[Value]>::is_empty).await;
}

#[tokio::test]
async fn beyond_the_cap_there_is_one_mass_alert() {
    let dir = tempfile::tempdir().unwrap();
    let servers = two(dir.path());
    let channel = open(&to(AlertmanagerConfig { max_alerts: 5, resend: HOUR, ..config(&servers) })).unwrap();
    let storm: Vec<_> = (0..20).map(|at| silent(&format!("detector:{at}"), now())).collect();
    channel.send(&delivery(storm, vec![]), now()).await.unwrap();
    let alerts = active(&servers[1]).await;
    assert_eq!(alerts.len(), 6, "{alerts:?}");
    let mass = alerts.iter().find(|alert| alert["labels"]["alertname"] == "UnitsOffline").unwrap();
    assert_eq!(mass["annotations"]["summary"], "OFFLINE: 20 units");
}

#[tokio::test]
async fn a_server_that_was_away_is_told_what_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let [port, later] = [(); 2].map(|()| free_port().unwrap());
    let [gossip, later_gossip] = [(); 2].map(|()| gossip_port());
    let first = server(&dir.path().join("one"), port, gossip, None);
    let urls = [port, later].map(|port| format!("http://127.0.0.1:{port}")).into();
    let config =
        AlertmanagerConfig { urls, resend: RESEND, max_alerts: 100, ..AlertmanagerConfig::default() };
    let mut world = World::new("unit", vec![to(config)]).await;
    world.notify_loss(&["a"]).await;
    eventually("the first server is told", &first, |alerts| alerts.len() == 1).await;
    let second = server(&dir.path().join("two"), later, later_gossip, Some(gossip));
    eventually("the second server is told", &second, |alerts| alerts.len() == 1).await;
    world.stop().await;
}

#[tokio::test]
async fn a_record_that_a_silence_covers_is_no_alert_and_one_that_was_notified_before_stays_one() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port().unwrap();
    let server = server(dir.path(), port, gossip_port(), None);
    let urls = vec![format!("http://127.0.0.1:{port}")];
    let config =
        AlertmanagerConfig { urls, resend: RESEND, max_alerts: 100, ..AlertmanagerConfig::default() };
    let mut world = World::new("unit", vec![to(config)]).await;
    world.notify_loss(&["before"]).await;
    eventually("one is an alert", &server, |alerts| alerts.len() == 1).await;
    let id = silence(&world, "kind=detector", 100 * HOUR).await;
    world.lose(&["covered"]).await;
    world.joined().await;
    world.advance(HOUR);
    // After two more rounds, at least one of them has begun since.
    for _ in 0..2 {
        let updated = async || active(&server).await[0]["updatedAt"].clone();
        let before = updated().await;
        until("open records are sent again", async || updated().await != before).await;
    }
    let alerts = active(&server).await;
    assert_eq!(alerts.len(), 1, "{alerts:?}");
    assert_eq!(alerts[0]["labels"]["unit"], "before");
    assert!(world.silences.expire(id, "ana", world.clock.now()).await.unwrap());
    let both = async || {
        world.advance(HELD);
        active(&server).await.len() == 2
    };
    until("the other one is an alert, too", both).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blindness_that_lasts_is_sent_again_also_without_the_engine_and_ended_when_it_is_over() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![to(config_of_sink(&sink))]).await;
    world.stop().await;
    world.config.blind_after = HOUR;
    world.start();
    world.notify_loss(&["a"]).await;
    let sent = |name: &str, since: usize| sent(&sink, name, since);
    until("the unit is an alert", async || !sent("UnitOffline", 0).is_empty()).await;
    world.advance(2 * HOUR);
    until("blindness is sent again", async || sent("RollcallBlind", 0).len() >= 3).await;
    let longest = world.clock.now() + HOUR / 4;
    assert!(sent("RollcallBlind", 0).iter().all(|ends| *ends > world.clock.now() && *ends <= longest));

    world.redis.signal("-STOP");
    let before = sink.received().len();
    let both = async || ["RollcallBlind", "UnitOffline"].iter().all(|name| sent(name, before).len() >= 2);
    until("both are sent again while the engine is away", both).await;
    world.redis.signal("-CONT");

    let heard = async || world.roll.canary_returned(world.clock.now()).await.is_ok();
    until("it is heard again", heard).await;
    let is_over = |ends: &Timestamp| *ends <= world.clock.now();
    until("the end is sent", async || sent("RollcallBlind", 0).last().is_some_and(is_over)).await;
    let before = sink.received().len();
    until("records are sent again", async || sent("UnitOffline", before).len() >= 3).await;
    assert!(sent("RollcallBlind", before).iter().all(is_over), "it is not sent again any more");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trip_of_the_breaker_is_sent_again_while_it_holds_and_ended_with_it() {
    for on in [On::Redis, On::Directory] {
        let sink = hook().await;
        let mut world = World::on(on, "unit", vec![to(config_of_sink(&sink))]).await;
        world.stop().await;
        world.config.breaker = Some(RULE);
        world.start();
        world.lose_twelve(&names(0, 20)).await;
        world.pass(3 * WAIT).await;
        world.notified(true).await;
        let sent = |since: usize| sent(&sink, BREAKER, since);
        until("it is sent again", async || sent(0).len() >= 3).await;
        assert!(sent(0).iter().all(|ends| *ends > world.clock.now()), "it lasts");
        // Another instance continues.
        world.stop().await;
        world.start();
        let before = sink.received().len();
        until("it is sent again by the next instance", async || sent(before).len() >= 3).await;
        assert_eq!(texts(&sink, BREAKER).len(), 1, "it is the same alert");

        let now = world.clock.now();
        assert!(world.breaker().release(("ana", "seen"), now).await.unwrap());
        world.notified(false).await;
        let is_over = |ends: &Timestamp| *ends <= world.clock.now();
        until("the end is sent", async || sent(0).last().is_some_and(is_over)).await;
        // The records that it held are sent again from their notification on.
        world.advance(HELD);
        let before = sink.received().len();
        until("rounds go on", async || sink.received().len() >= before + 3).await;
        assert!(sent(before).iter().all(is_over), "it is not sent again any more");
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_route_has_not_notified_of_it_is_not_sent_again() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![to(config_of_sink(&sink))]).await;
    world.stop().await;
    let root = world.config.route.clone();
    let of =
        |unit: &str| Route { matchers: parse_matchers(&format!("unit={unit}")).unwrap(), ..root.clone() };
    let lasting = Route { pace: Pace { lasts: HOUR, ..root.pace }, ..of("lasting") };
    world.config.route.routes = vec![lasting, Route { times: always(), ..of("muted") }];
    world.start();
    world.notify_loss(&["lasting", "muted", "other"]).await;
    let resent = async |unit: &str, since: usize| {
        until("it is sent again", async || {
            units(&sink, since).iter().filter(|one| *one == unit).count() >= 3
        })
        .await;
    };
    resent("other", 0).await;
    assert!(units(&sink, 0).iter().all(|unit| unit == "other"), "{:?}", units(&sink, 0));
    let before = sink.received().len();
    world.advance(HOUR);
    resent("lasting", before).await;
    assert!(units(&sink, 0).iter().all(|unit| unit != "muted"));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_group_waits_for_its_next_notification_is_not_sent_before() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![to(config_of_sink(&sink))]).await;
    world.stop().await;
    world.config.route.pace.interval = 100 * HOUR;
    world.start();
    world.notify_loss(&["a"]).await;
    let resent = async |unit: &str, since: usize| {
        until("it is sent again", async || {
            units(&sink, since).iter().filter(|one| *one == unit).count() >= 3
        })
        .await;
    };
    resent("a", 0).await;
    world.lose(&["b"]).await;
    world.joined().await;
    world.advance(2 * WAIT);
    resent("a", sink.received().len()).await;
    assert!(units(&sink, 0).iter().all(|unit| unit == "a"), "its group has not notified of it");
    world.advance(100 * HOUR);
    resent("b", sink.received().len()).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_sent_again_to_a_receiver_that_knows_of_it_by_escalation_or_as_a_fallback() {
    for (on, how) in [(On::Redis, "escalation"), (On::Directory, "fallback"), (On::Directory, "escalation")] {
        let (sink, chat) = (hook().await, hook().await);
        let mut world = World::on(on, "unit", vec![to(config_of_sink(&sink))]).await;
        world.stop().await;
        let mut first = named("chat", webhook_to(chat.url(), None));
        world.config.route.receivers = vec!["chat".to_owned()];
        if how == "escalation" {
            let step = Escalation { after: HOUR / 4, receivers: vec!["hook".to_owned()] };
            world.config.route.again = FollowUps { repeat: None, escalate: vec![step] };
        } else {
            chat.answer_with(vec![Answer::Status(503); 100]);
            first.fallback = Some(Fallback { receiver: "hook".to_owned(), after: HOUR / 4 });
        }
        world.config.receivers.push(first);
        world.start();
        world.notify_loss(&["a"]).await;
        chat.wait_for(1, MAX_WAIT).await.unwrap();
        if how == "escalation" {
            world.delivered("chat").await;
        } else {
            let now = world.clock.now();
            let is_down = async || {
                StoredDeliveries::new(world.engine.clone()).down_since("chat", now).await.unwrap() <= now
            };
            until("that it fails is known", is_down).await;
        }
        assert_eq!(units(&sink, 0), [""; 0], "{how}: it is too early");
        world.advance(HOUR / 4);
        until("it is told", async || !units(&sink, 0).is_empty()).await;
        until("it is sent again", async || units(&sink, 0).len() >= 4).await;
        let ends = sent(&sink, "UnitOffline", 0);
        assert!(ends.iter().all(|ends| *ends > world.clock.now()), "{how}: {ends:?}");
        world.hear(&["a"]).await;
        world.joined().await;
        world.advance(HOUR);
        let is_over =
            async || sent(&sink, "UnitOffline", 0).last().is_some_and(|ends| *ends <= world.clock.now());
        until("the end is sent", is_over).await;
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_record_is_sent_to_a_server_that_came_to_its_route_after_it_was_notified() {
    for on in [On::Redis, On::Directory] {
        let (sink, chat) = (hook().await, hook().await);
        let mut world = World::on(on, "unit", vec![to(config_of_sink(&sink))]).await;
        world.stop().await;
        world.config.route.receivers = vec!["chat".to_owned()];
        world.config.receivers.push(named("chat", webhook_to(chat.url(), None)));
        world.start();
        world.notify_loss(&["a"]).await;
        chat.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("chat").await;
        world.stop().await;
        world.config.route.receivers.push("hook".to_owned());
        world.start();
        world.lose(&["b"]).await;
        world.joined().await;
        until("it is sent again and again", async || units(&sink, 0).len() >= 4).await;
        assert!(units(&sink, 0).iter().all(|unit| unit == "a"), "the group of b waits");
        world.hear(&["a", "b"]).await;
        world.joined().await;
        let is_over =
            async || sent(&sink, "UnitOffline", 0).last().is_some_and(|ends| *ends <= world.clock.now());
        until("the end is sent", is_over).await;
        world.stop().await;
    }
}

const BREAKER: &str = "RollcallBreakerTripped";

fn config_of_sink(sink: &WebhookSink) -> AlertmanagerConfig {
    let (urls, resend) = (vec![sink.base()], Duration::from_millis(100));
    AlertmanagerConfig { urls, resend, max_alerts: 100, ..AlertmanagerConfig::default() }
}

/// The units of the alerts in each request after the first `since`.
fn units(sink: &WebhookSink, since: usize) -> Vec<String> {
    let unit = |alert: &Value| alert["labels"]["unit"].as_str().unwrap().to_owned();
    alerts_named(sink, "UnitOffline", since).iter().map(unit).collect()
}

/// When the alerts of this name end, in each request after the first `since`.
fn sent(sink: &WebhookSink, name: &str, since: usize) -> Vec<Timestamp> {
    let ends = |alert: &Value| serde_json::from_value(alert["endsAt"].clone()).unwrap();
    alerts_named(sink, name, since).iter().map(ends).collect()
}

/// The summaries under which the alerts of this name were sent.
fn texts(sink: &WebhookSink, name: &str) -> BTreeSet<String> {
    let summary = |alert: &Value| alert["annotations"]["summary"].as_str().unwrap().to_owned();
    alerts_named(sink, name, 0).iter().map(summary).collect()
}

fn alerts_named(sink: &WebhookSink, name: &str, since: usize) -> Vec<Value> {
    let posts: Vec<Value> = sink.received()[since..].iter().map(|one| one.json()).collect();
    let alerts = posts.iter().flat_map(|post| post.as_array().unwrap());
    alerts.filter(|alert| alert["labels"]["alertname"] == name).cloned().collect()
}
