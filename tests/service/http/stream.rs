//! The stream of events for clients that follow the fleet.

use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use rollcall::store::Roster;
use serde_json::Value;

use super::connections::allow_many_files;
use super::world::{Fleet, MAX_WAIT, SECOND};

const PATH: &str = "/api/v1/stream";

/// An event: its name, its id and its data.
#[derive(Debug)]
struct Event {
    name: String,
    id: String,
    data: Value,
}

/// A client of the stream.
struct Client {
    answer: Response,
    /// The text after the last event.
    rest: String,
}

impl Client {
    /// `last`: the id of the last event that the client has read; empty: none.
    async fn start(fleet: &Fleet, last: &str) -> Client {
        let request = fleet.client.get(format!("{}{PATH}", fleet.url));
        let request = if last.is_empty() { request } else { request.header("last-event-id", last) };
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()[CONTENT_TYPE], "text/event-stream");
        Client { answer, rest: String::new() }
    }

    async fn next(&mut self) -> Event {
        let reading = async {
            loop {
                if let Some((event, rest)) = self.rest.split_once("\n\n") {
                    let event = event.to_owned();
                    self.rest = rest.to_owned();
                    // A comment shows that the stream lives.
                    if event.starts_with("event: ") {
                        return event;
                    }
                    continue;
                }
                let bytes = self.answer.chunk().await.unwrap().expect("the stream goes on");
                self.rest += std::str::from_utf8(&bytes).unwrap();
            }
        };
        let event = tokio::time::timeout(MAX_WAIT, reading).await.expect("an event in time");
        let field = |name: &str| {
            let line = event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.unwrap_or_else(|| panic!("no {name} in {event}")).to_owned()
        };
        let data = serde_json::from_str(&field("data")).unwrap();
        Event { name: field("event"), id: field("id"), data }
    }

    /// The next event of this name; summaries and transitions come in any order.
    async fn next_of(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().await;
            if event.name == name {
                return event;
            }
        }
    }
}

#[tokio::test]
async fn a_stream_says_when_the_fleet_has_changed() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1"]).await;
    let mut client = Client::start(&fleet, "").await;
    let first = client.next().await;
    assert_eq!((first.name.as_str(), &first.data["states"]["online"]), ("summary", &1.into()));
    fleet.hear(&["detector:2"]).await;
    let second = client.next().await;
    assert_eq!((second.name.as_str(), &second.data["states"]["online"]), ("summary", &2.into()));
    // A client that reconnects with the id of the last summary has that summary already.
    let mut again = Client::start(&fleet, &second.id).await;
    fleet.hear(&["detector:3"]).await;
    assert_eq!(again.next().await.data["states"]["online"], 3);
    fleet.stop.cancel();
}

#[tokio::test]
async fn transitions_of_every_instance_are_told_once_and_a_client_goes_on_where_it_was() {
    let (fleet, other) = (Fleet::start().await, Fleet::start().await);
    let address = other.url.trim_start_matches("http://");
    let roster: &dyn Roster = &*fleet.engine;
    roster.announce("two", address).await.unwrap();
    fleet.hear_at("north", "detector:a").await;
    other.hear(&["detector:b"]).await;
    let mut client = Client::start(&fleet, "").await;
    // From then on the transitions of both instances are followed.
    client.next_of("summary").await;
    fleet.pass(121 * SECOND, &["detector:a"]).await;
    let gone = client.next_of("transition").await;
    assert_eq!(gone.data["transition"], "offline");
    let record = &gone.data["record"];
    assert_eq!((&record["unit"], &record["labels"]["site"]), (&"a".into(), &"north".into()));
    other.pass(121 * SECOND, &["detector:b"]).await;
    assert_eq!(client.next_of("transition").await.data["record"]["unit"], "b");

    // The client disconnects meanwhile.
    drop(client);
    fleet.hear(&["detector:a"]).await;
    let mut client = Client::start(&fleet, &gone.id).await;
    let missed = client.next().await;
    assert_eq!((missed.name.as_str(), &missed.data["record"]["unit"]), ("transition", &"b".into()));
    let back = client.next_of("transition").await;
    assert_eq!((&back.data["transition"], &back.data["record"]["id"]), (&"online".into(), &record["id"]));

    // Another client begins now.
    let mut new = Client::start(&fleet, "").await;
    assert_eq!(new.next().await.name, "summary");
    fleet.pass(121 * SECOND, &["detector:a"]).await;
    for client in [&mut client, &mut new] {
        let event = client.next_of("transition").await;
        assert_eq!(
            (&event.data["transition"], &event.data["record"]["unit"]),
            (&"offline".into(), &"a".into())
        );
    }
}

#[tokio::test]
async fn a_client_that_has_missed_too_much_is_told_to_read_anew() {
    let fleet = Fleet::start().await;
    let first = Client::start(&fleet, "").await.next().await;
    let units: Vec<String> = (0..5000).map(|number| format!("detector:{number}")).collect();
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    for units in units.chunks(500) {
        fleet.hear(units).await;
    }
    fleet.pass(121 * SECOND, &units).await;
    let other = if first.id.starts_with('f') { "0" } else { "f" };
    let of_another = first.id.replacen(|_: char| true, other, 1);
    for (last, reason) in [
        (first.id.as_str(), "more transitions came than are kept"),
        ("3fa2b1", "another process sent the last event"),
        (of_another.as_str(), "another process sent the last event"),
    ] {
        let mut client = Client::start(&fleet, last).await;
        let event = client.next().await;
        assert_eq!((event.name.as_str(), &event.data["reason"]), ("reset", &reason.into()), "{last}");
        // From there the stream continues.
        let summary = client.next_of("summary").await;
        assert_eq!(summary.data["states"]["offline"], 5000);
        let mut client = Client::start(&fleet, &event.id).await;
        assert_eq!(client.next().await.name, "summary");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_clients_follow_an_instance_and_there_is_a_bound() {
    allow_many_files();
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:a"]).await;
    let mut clients = Vec::new();
    for _ in 0..512 {
        clients.push(Client::start(&fleet, "").await);
    }
    let refused = fleet.get(PATH).await;
    assert_eq!(refused.status(), 503);
    // Other pages are answered meanwhile.
    assert_eq!(fleet.text("/healthz").await, "ok");
    fleet.pass(121 * SECOND, &["detector:a"]).await;
    for client in &mut clients {
        assert_eq!(client.next_of("transition").await.data["record"]["unit"], "a");
    }
    drop(clients);
    // A client that disconnects makes room.
    let room = async {
        while fleet.get(PATH).await.status() != 200 {
            tokio::time::sleep(SECOND / 20).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, room).await.expect("there is room again");
}
