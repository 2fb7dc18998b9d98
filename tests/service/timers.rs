//! Timers through the whole service: registered over HTTP and MQTT, out to a receiver, through a restart and a reload.

use std::time::Duration;

use reqwest::Method;
use rollcall::clock::Clock;
use rumqttc::mqttbytes::v5::PublishProperties;
use rumqttc::{AsyncClient, Event, MqttOptions, Packet, PublishOptions, QoS};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::http::CLIENT;
use crate::world::{MAX_WAIT, World, units};

const TIMERS: &str = "mqtt.timers = true\ntimer = [{ type = \"report\", receivers = [\"hook\"] }]";
const ANSWERS: &str = "planner/answers";

fn on_embedded() -> String {
    format!("engine.type = \"embedded\"\nengine.path = \"{{dir}}/fleet\"\n{TIMERS}")
}

async fn request(world: &World, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let request = CLIENT.request(method, world.url(path)).header("content-type", "application/json");
    let answer = request.body(body.to_string()).send().await.unwrap();
    let status = answer.status().as_u16();
    (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
}

async fn register(world: &World, id: &str, due: Value) -> Value {
    let mut body = due;
    body["type"] = "report".into();
    let (status, answer) = request(world, Method::PUT, &format!("/api/v1/timers/{id}"), &body).await;
    assert!(status == 200 || status == 201, "{answer}");
    answer
}

async fn state(world: &World, id: &str) -> String {
    let timer = world.json(&format!("/api/v1/timers/{id}")).await;
    timer["state"].as_str().unwrap_or("none").to_owned()
}

/// The timers that the receiver got, each with the id of its firing, in the order of their arrival.
fn fired(world: &World) -> Vec<(String, Value)> {
    let received = world.hook.received();
    let timers = received.iter().filter(|one| one.json()["type"] == "rollcall.timer").flat_map(|one| {
        let body = one.json();
        let timers = body["data"]["timers"].as_array().unwrap().clone();
        timers.into_iter().map(|timer| (one.header("webhook-id").to_owned(), timer)).collect::<Vec<_>>()
    });
    timers.collect()
}

/// A program that registers timers over MQTT and reads the answers.
struct Planner {
    client: AsyncClient,
    answers: mpsc::UnboundedReceiver<(Option<String>, Value)>,
    follows: JoinHandle<()>,
}

impl Planner {
    async fn start(world: &World) -> Planner {
        let mut options = MqttOptions::new("planner", ("127.0.0.1", world.broker.port()));
        options.set_clean_start(true);
        let (client, mut events) = AsyncClient::builder(options).capacity(64).build();
        client.subscribe(ANSWERS, QoS::AtLeastOnce).await.unwrap();
        while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
        let (sender, answers) = mpsc::unbounded_channel();
        let follows = tokio::spawn(async move {
            while let Ok(event) = events.poll().await {
                let Event::Incoming(Packet::Publish(message)) = event else { continue };
                let correlation = message.properties.and_then(|properties| properties.correlation_data);
                let correlation = correlation.map(|data| String::from_utf8(data.to_vec()).unwrap());
                let _ = sender.send((correlation, serde_json::from_slice(&message.payload).unwrap()));
            }
        });
        Planner { client, answers, follows }
    }

    /// Publishes a request and waits until the broker has it.
    async fn publish(&self, id: &str, payload: &str, answer_to: Option<&str>, is_retained: bool) {
        let properties = PublishProperties {
            response_topic: answer_to.map(str::to_owned),
            correlation_data: answer_to.map(|_| format!("about {id}").into()),
            ..PublishProperties::default()
        };
        let mut options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
        if is_retained {
            options = options.retained();
        }
        let topic = format!("rollcall/timers/{id}");
        let notice = self.client.publish_tracked(topic, payload.to_owned(), options).await.unwrap();
        notice.wait_async().await.unwrap();
    }

    /// The answer to a request.
    async fn ask(&mut self, id: &str, payload: &str) -> Value {
        self.publish(id, payload, Some(ANSWERS), false).await;
        let (correlation, answer) =
            tokio::time::timeout(MAX_WAIT, self.answers.recv()).await.expect("it is answered").unwrap();
        assert_eq!(correlation, Some(format!("about {id}")));
        answer
    }

    async fn leave(self) {
        self.client.disconnect().await.unwrap();
        self.follows.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_registered_over_any_road_reaches_the_receiver_once_under_the_id_of_its_moment() {
    for options in [TIMERS.to_owned(), on_embedded()] {
        let world = World::new(&options, &[]).await;
        let data = json!({ "site": "north", "list": [1, null] });
        let put = register(&world, "by%20http", json!({ "in": "200ms", "data": data })).await;
        let batch = json!([{ "id": "by-batch", "type": "report", "due": "2020-01-01T00:00:00Z" }]);
        assert_eq!(request(&world, Method::POST, "/api/v1/timers", &batch).await.1["created"], 1);
        let mut planner = Planner::start(&world).await;
        let answer = planner.ask("by-mqtt", r#"{"type":"report","in":"100ms","data":"x"}"#).await;
        assert_eq!((&answer["state"], &answer["result"]), (&"waiting".into(), &"created".into()));

        world
            .eventually("all are delivered", async || {
                let ids = ["by%20http", "by-batch", "by-mqtt"];
                futures_util::future::join_all(ids.map(|id| state(&world, id))).await == ["delivered"; 3]
            })
            .await;
        let mut got = fired(&world);
        got.sort_by_key(|(_, timer)| timer["id"].to_string());
        let names: Vec<&str> = got.iter().map(|(_, timer)| timer["id"].as_str().unwrap()).collect();
        assert_eq!(names, ["by http", "by-batch", "by-mqtt"]);
        let (id, timer) = &got[0];
        assert_eq!((&timer["type"], &timer["data"], &timer["due"]), (&"report".into(), &data, &put["due"]));
        assert!(timer["fired_at"].as_str() >= timer["due"].as_str(), "{timer}");
        let due = timer["due"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond();
        assert!(id.starts_with(&format!("by%20http:{due}")), "{id}");
        assert!(got[1].0.starts_with("by-batch:1577836800000"), "{}", got[1].0);
        assert_eq!(got[2].1["data"], "x");
        planner.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_that_is_cancelled_or_moved_does_not_fire_at_its_first_moment() {
    for options in [TIMERS.to_owned(), on_embedded()] {
        let world = World::new(&options, &[]).await;
        for id in ["cancelled", "moved", "canceled-together"] {
            register(&world, id, json!({ "in": "1500ms" })).await;
        }
        let later = register(&world, "moved", json!({ "in": "1h" })).await;
        assert_eq!(later["result"], "changed");
        let cancelled = request(&world, Method::DELETE, "/api/v1/timers/cancelled", &json!({})).await;
        assert_eq!(cancelled, (200, json!({ "cancelled": true })));
        let many = json!({ "ids": ["canceled-together", "never"] });
        assert_eq!(request(&world, Method::POST, "/api/v1/timers:cancel", &many).await.1["cancelled"], 1);
        // A timer that is due after all of them shows that their moment is over.
        register(&world, "after", json!({ "in": "1600ms" })).await;
        world
            .eventually("the last one is delivered", async || state(&world, "after").await == "delivered")
            .await;
        let names: Vec<Value> = fired(&world).into_iter().map(|(_, timer)| timer["id"].clone()).collect();
        assert_eq!(names, ["after"]);
        assert_eq!(
            (state(&world, "cancelled").await, state(&world, "moved").await),
            ("cancelled".into(), "waiting".into())
        );
        assert_eq!(
            request(&world, Method::DELETE, "/api/v1/timers/after", &json!({})).await.1["cancelled"],
            false
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_that_come_due_while_no_instance_runs_fire_when_one_starts() {
    for options in [TIMERS.to_owned(), on_embedded()] {
        let mut world = World::new(&options, &[]).await;
        let due = Clock::machine() + Duration::from_secs(2);
        for id in ["one", "two"] {
            register(&world, id, json!({ "due": due })).await;
        }
        register(&world, "later", json!({ "in": "1h" })).await;
        world.stop().await;
        assert_eq!(fired(&world), []);
        world.eventually("they are due", async || Clock::machine() > due).await;
        world.start().await;
        world
            .eventually("they are delivered", async || {
                state(&world, "one").await == "delivered" && state(&world, "two").await == "delivered"
            })
            .await;
        assert_eq!((fired(&world).len(), state(&world, "later").await.as_str()), (2, "waiting"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_mqtt_are_answered_each_and_hostile_ones_are_refused() {
    let mut world = World::new(TIMERS, &[]).await;
    let mut planner = Planner::start(&world).await;
    let created = planner.ask("a b", r#"{"type":"report","due":"2030-01-02T00:00:00Z"}"#).await;
    assert_eq!(
        created,
        json!({ "id": "a b", "type": "report", "due": "2030-01-02T00:00:00.000Z", "state": "waiting", "result": "created" })
    );
    let changed = planner.ask("a b", r#"{"type":"report","due":"2030-01-01T00:00:00Z"}"#).await;
    assert_eq!(
        (&changed["result"], &changed["due"]),
        (&"changed".into(), &"2030-01-01T00:00:00.000Z".into())
    );
    for (id, payload, why) in [
        ("a b", r#"{"type":"report","in":"1h","if_absent":true}"#, "if_absent"),
        ("a b", r#"{"type":"nothing","in":"1h"}"#, "there is no class"),
        ("a b", r#"{"type":"report"}"#, "either due"),
        ("a b", "noon", "JSON object"),
        ("a b", r#"{"id":"c","type":"report","in":"1h"}"#, "is not the id a b of the request"),
        (&"x".repeat(129), r#"{"type":"report","in":"1h"}"#, "128 bytes"),
        ("", r#"{"type":"report","in":"1h"}"#, "at least one character"),
    ] {
        let answer = planner.ask(id, payload).await;
        assert!(answer["error"].as_str().unwrap().contains(why), "{id} {payload}: {answer}");
    }
    for (id, expected) in [
        ("a b", json!({ "id": "a b", "cancelled": true, "state": "cancelled" })),
        ("a b", json!({ "id": "a b", "cancelled": false, "state": "cancelled" })),
        ("never", json!({ "id": "never", "cancelled": false, "state": null })),
    ] {
        assert_eq!(planner.ask(id, "").await, expected);
    }
    // Neither a retained request nor a request without a response topic is answered; the second is applied, and so is
    // a request whose answer would be a heartbeat.
    let unit = units(1).remove(0);
    let heartbeat = format!("units/{unit}/heartbeat");
    let payload = r#"{"type":"report","in":"1h"}"#;
    planner.publish("quiet", payload, None, false).await;
    planner.publish("as-a-heartbeat", payload, Some(&heartbeat), false).await;
    planner.publish("as-rollcall", payload, Some("rollcall/timers/forged"), false).await;
    assert_eq!(planner.ask("last", payload).await["result"], "created");
    for id in ["quiet", "as-a-heartbeat", "as-rollcall"] {
        assert_eq!(state(&world, id).await, "waiting", "{id}");
    }
    assert_eq!((world.state(&unit).await, state(&world, "forged").await), ("none".into(), "none".into()));
    // The broker keeps this request for a Rollcall that connects later.
    planner.publish("retained", payload, Some(ANSWERS), true).await;
    let (_, answer) = planner.answers.recv().await.unwrap();
    assert_eq!(answer["id"], "retained", "it comes as any other to those that are subscribed");
    request(&world, Method::DELETE, "/api/v1/timers/retained", &json!({})).await;
    world.stop().await;
    world.start().await;
    assert_eq!(planner.ask("after-it", payload).await["result"], "created");
    assert_eq!(state(&world, "retained").await, "cancelled");
    planner.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_over_mqtt_are_applied_in_their_order_beside_heartbeats() {
    let world = World::new(TIMERS, &[]).await;
    let mut planner = Planner::start(&world).await;
    let all = units(50);
    let (client, count) = (planner.client.clone(), 300);
    let sending = async {
        for number in 0..count {
            for payload in [r#"{"type":"report","in":"1h"}"#, "", r#"{"type":"report","in":"2h"}"#] {
                let properties = PublishProperties {
                    response_topic: Some(ANSWERS.to_owned()),
                    correlation_data: Some(number.to_string().into()),
                    ..PublishProperties::default()
                };
                let options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
                client.publish(format!("rollcall/timers/t{number}"), payload, options).await.unwrap();
            }
        }
    };
    tokio::join!(sending, world.beat(&all));
    let mut answers = vec![String::new(); count];
    for _ in 0..3 * count {
        let answer = tokio::time::timeout(MAX_WAIT, planner.answers.recv()).await.expect("each is answered");
        let (correlation, answer) = answer.unwrap();
        let number: usize = correlation.unwrap().parse().unwrap();
        let what = answer["result"].as_str().map_or_else(|| answer["cancelled"].to_string(), str::to_owned);
        answers[number] += &format!("{what} ");
    }
    assert!(answers.iter().all(|all| all == "created true created "), "{answers:?}");
    for unit in &all {
        world.eventually("the unit is online", async || world.state(unit).await == "online").await;
    }
    planner.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_option_nothing_on_the_broker_is_a_timer() {
    let world = World::new("timer = [{ type = \"report\", receivers = [\"hook\"] }]", &[]).await;
    let planner = Planner::start(&world).await;
    planner.publish("a", r#"{"type":"report","in":"1h"}"#, None, false).await;
    let all = units(1);
    world.beat(&all).await;
    world.eventually("what came after it is heard", async || world.state(&all[0]).await == "online").await;
    assert_eq!(state(&world, "a").await, "none");
    planner.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_replaces_the_classes_and_limits_of_timers() {
    let world = World::new(TIMERS, &[]).await;
    let reload = async || CLIENT.post(world.url("/-/reload")).send().await.unwrap().status().as_u16();
    let command = json!({ "type": "command", "in": "0s" });
    let (status, why) = request(&world, Method::PUT, "/api/v1/timers/a", &command).await;
    assert!(status == 400 && why["detail"].as_str().unwrap().contains("no class of timers command"), "{why}");
    world.rewrite("timer = [", "timer = [{ type = \"command\", receivers = [\"hook\"], max = 1 }, ");
    assert_eq!(reload().await, 200);
    assert_eq!(request(&world, Method::PUT, "/api/v1/timers/a", &command).await.0, 201);
    world.eventually("it is delivered", async || state(&world, "a").await == "delivered").await;
    world.rewrite("timer = [", "timer = [{ type = \"command\", receivers = [\"nobody\"] }, ");
    assert_eq!(reload().await, 500, "there is no such receiver");
    assert_eq!(
        request(&world, Method::PUT, "/api/v1/timers/b", &command).await.0,
        201,
        "nothing has changed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_that_was_delivered_is_shown_and_delivered_again_unless_at_most_once() {
    let once = "timer = [{ type = \"report\", receivers = [\"hook\"] }, \
                { type = \"once\", receivers = [\"hook\"], guarantee = \"at_most_once\" }]";
    for engine in ["", "engine.type = \"embedded\"\nengine.path = \"{dir}/fleet\"\n"] {
        let world = World::new(&format!("{engine}{once}"), &[]).await;
        let data = json!({ "do": "reboot" });
        let batch = json!([
            { "id": "a b", "type": "report", "due": "2020-01-01T00:00:00Z", "data": data },
            { "id": "c", "type": "once", "due": "2020-01-01T00:00:00Z" },
        ]);
        assert_eq!(request(&world, Method::POST, "/api/v1/timers", &batch).await.1["created"], 2);
        let are_delivered = async || {
            futures_util::future::join_all(["a%20b", "c"].map(|id| state(&world, id))).await
                == ["delivered"; 2]
        };
        world.eventually("both are delivered", are_delivered).await;

        let listed = world.json("/api/v1/deliveries?state=delivered").await;
        let timers = listed["deliveries"].as_array().unwrap().iter().map(|line| line["timer"].as_str());
        let mut timers: Vec<&str> = timers.flatten().collect();
        timers.sort_unstable();
        assert_eq!(timers, ["a b", "c"]);
        let path = "/api/v1/deliveries/a%2520b:1577836800000.hook";
        let shown = world.json(path).await;
        let timer = &shown["timers"][0];
        assert_eq!((&timer["id"], &timer["data"]), (&"a b".into(), &data), "{shown}");

        let (status, answer) = request(&world, Method::POST, &format!("{path}/replay"), &json!({})).await;
        assert_eq!((status, &answer["count"]), (200, &1.into()), "{answer}");
        world.eventually("it comes again", async || fired(&world).len() == 3).await;
        let got = fired(&world);
        let again: Vec<_> = got.iter().filter(|(_, timer)| timer["id"] == "a b").collect();
        assert_eq!(again[0], again[1], "under the same id");
        world.eventually("both are delivered", are_delivered).await;

        let path = "/api/v1/deliveries/c:1577836800000.hook/replay";
        let (status, refusal) = request(&world, Method::POST, path, &json!({})).await;
        assert!(status == 409 || status == 422 || status == 400, "{status}");
        assert!(refusal["detail"].as_str().unwrap().contains("at most once"), "{refusal}");
    }
}
