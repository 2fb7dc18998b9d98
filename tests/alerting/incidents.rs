//! Claims about one incident for one cause.

use std::collections::BTreeSet;
use std::time::Duration;

use rollcall::presence::{Declared, Heartbeat};
use rollcall::simulate::mail_sink::{self, MailSink};
use rollcall::simulate::webhook_sink::WebhookSink;
use serde_json::{Value, json};

use super::services::{actions, pager};
use super::world::{On, TIMEOUT, WAIT, World, hook, named, unit};
use super::*;

impl World {
    /// Hears these units of a site.
    pub async fn hear_at(&self, site: &str, ids: &[String]) {
        let at = self.clock.now();
        let declared = Declared { labels: labels(&[("site", site)]), ..Declared::default() };
        let beat = |id: &String| Heartbeat { declared: declared.clone(), ..Heartbeat::of(unit(id), at) };
        self.roll.hear(&ids.iter().map(beat).collect::<Vec<_>>(), at).await.unwrap();
        self.joined().await;
    }

    /// Checks the deadlines of these units.
    pub async fn check(&self, ids: &[String]) {
        self.roll.canary_returned(self.clock.now()).await.unwrap();
        let units: Vec<Unit> = ids.iter().map(|id| unit(id)).collect();
        self.roll.check_deadlines(&units, self.clock.now()).await.unwrap();
        self.joined().await;
    }
}

pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:02}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn most_units_of_a_site_are_one_incident_for_every_receiver_and_its_end_is_told_once() {
    let (sink, second) = (hook().await, hook().await);
    let mail = MailSink::start(mail_sink::MailSinkOptions::default()).await.unwrap();
    let receivers = vec![
        webhook_to(sink.url(), None),
        super::world::named("second", webhook_to(second.url(), None)),
        mail_to(mail.url(), &["ops@example.org"]),
    ];
    let mut world = World::new("kind", receivers).await;
    let (north, south) = (names("north", 20), names("south", 10));
    world.hear_at("north", &north).await;
    world.hear_at("south", &south).await;
    world.advance(TIMEOUT / 2);
    // Nine of ten units in the south and two of twenty in the north still send heartbeats.
    world.hear_at("south", &south[1..]).await;
    world.hear_at("north", &north[18..]).await;
    world.advance(TIMEOUT / 2 + Duration::from_secs(1));
    world.check(&[&north[..], &south[..]].concat()).await;
    world.advance(WAIT + Duration::from_secs(1));
    let incident =
        |received: &rollcall::simulate::webhook_sink::Received| received.json()["data"]["incident"].clone();
    let first = sink.wait_for(1, MAX_WAIT).await.unwrap();
    let notified = incident(&first[0]);
    let part =
        |notified: &Value, names: &[&str]| names.iter().map(|name| notified[name].clone()).collect::<Value>();
    let fields = ["label", "value", "offline", "units", "still_offline", "until"];
    assert_eq!(part(&notified, &fields), json!(["site", "north", 18, 20, 18, null]));
    assert_eq!(notified["first"]["kind"], "detector");
    assert_eq!(
        incident(&second.wait_for(1, MAX_WAIT).await.unwrap()[0]),
        notified,
        "every receiver is notified the same"
    );
    let letter = &mail.wait_for(1, MAX_WAIT).await.unwrap()[0];
    assert_eq!(letter.header("Subject").unwrap(), "OFFLINE: 18 of 20 units at site north, 1 other");
    let [cause, others] =
        ["Offline at site north (18)", "Others offline (1)"].map(|title| letter.data.find(title));
    assert!(cause.is_some() && cause < others, "{}", letter.data);

    // Another instance, or the same one after a restart, notifies of the end.
    world.delivered("mail").await;
    world.stop().await;
    world.start();
    world.hear_at("north", &north[..17]).await;
    world.delivered("hook").await;
    world.delivered("second").await;
    world.advance(5 * WAIT);
    let lasts = incident(&sink.wait_for(2, MAX_WAIT).await.unwrap()[1]);
    assert_eq!(part(&lasts, &fields), json!(["site", "north", 18, 20, 1, null]));
    mail.wait_for(2, MAX_WAIT).await.unwrap();
    world.hear_at("north", &north[17..18]).await;
    world.delivered("hook").await;
    world.delivered("mail").await;
    world.advance(5 * WAIT);
    let over = incident(&sink.wait_for(3, MAX_WAIT).await.unwrap()[2]);
    assert_eq!(part(&over, &fields[..5]), json!(["site", "north", 18, 20, 0]));
    assert!(over["until"].is_string(), "{over}");
    let letter = &mail.wait_for(3, MAX_WAIT).await.unwrap()[2];
    let subject = letter.header("Subject").unwrap();
    assert!(
        subject.starts_with("BACK: site north, 18 units, offline for ")
            && subject.ends_with(", 1 still offline"),
        "{subject}"
    );
    world.hear_at("south", &south[..1]).await;
    world.delivered("hook").await;
    world.delivered("mail").await;
    world.advance(5 * WAIT);
    assert_eq!(incident(&sink.wait_for(4, MAX_WAIT).await.unwrap()[3]), Value::Null, "it is notified once");
    world.stop().await;
}

/// The keys of the alerts that are open at a pager.
pub fn open_pages(calls: &WebhookSink) -> BTreeSet<String> {
    let mut open = BTreeSet::new();
    for request in calls.received() {
        let event = request.json();
        let key = event["dedup_key"].as_str().unwrap().to_owned();
        match event["event_action"].as_str().unwrap() {
            "trigger" => drop(open.insert(key)),
            "resolve" => drop(open.remove(&key)),
            _ => {}
        }
    }
    open
}

impl World {
    /// Lets these units of a site, which were heard, fall silent. Their notification is delivered to the pager.
    async fn storm(&self, ids: &[String]) {
        self.check(ids).await;
        self.settle().await;
    }

    /// Hears these units of a site. Their notification is delivered.
    async fn return_to(&self, site: &str, ids: &[String]) {
        self.hear_at(site, ids).await;
        self.settle().await;
    }

    async fn settle(&self) {
        self.joined().await;
        self.advance(6 * WAIT);
        self.sealed().await;
        for receiver in &self.config.receivers {
            self.delivered(&receiver.name).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_incident_is_closed_with_its_last_unit_however_its_units_end() {
    for on in [On::Redis, On::Directory] {
        let calls = hook().await;
        let mut world = World::on(on, "kind", vec![pager(&calls)]).await;
        let (north, south) = (names("north", 10), names("south", 3));
        world.hear_at("north", &north).await;
        world.hear_at("south", &south).await;
        world.advance(TIMEOUT + Duration::from_secs(1));
        // A unit of each site has an alert of its own before the incident.
        world.storm(&[&north[..1], &south[..1]].concat()).await;
        let alone = open_pages(&calls);
        assert_eq!(alone.len(), 2);
        world.storm(&north[1..9]).await;
        let page: Vec<String> = open_pages(&calls).difference(&alone).cloned().collect();
        assert!(page.len() == 1 && page[0].starts_with("incident:"), "{page:?}");
        // By now the site has so many units that it would be none.
        world.hear_at("north", &names("more", 20)).await;
        world.return_to("north", &north[1..4]).await;
        world.stop().await;
        world.start();
        assert!(world.roll.retire(&unit(&north[4]), world.clock.now()).await.unwrap());
        world.settle().await;
        world.return_to("north", &north[5..8]).await;
        assert_eq!(actions(&calls.received()), ["trigger"; 3], "one unit of it is offline");
        world.return_to("north", &north[8..9]).await;
        assert_eq!(open_pages(&calls), alone, "{on:?}");
        world.return_to("north", &north[..1]).await;
        world.return_to("south", &south[..1]).await;
        assert_eq!(open_pages(&calls), BTreeSet::new(), "{on:?}");
        assert_eq!(actions(&calls.received())[3..], ["resolve"; 3], "each is closed once");
        // The next storm is an alert of its own.
        let (more, before) = (names("more", 20), calls.received().len());
        world.storm(&more).await;
        let next = open_pages(&calls);
        assert!(next.len() == 1 && !next.contains(&page[0]), "{next:?}");
        world.return_to("north", &more).await;
        assert_eq!(actions(&calls.received())[before..], ["trigger", "resolve"]);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_while_a_unit_of_the_last_one_is_silent_calls_again_and_ends_the_first_incident() {
    for on in [On::Redis, On::Directory] {
        let (calls, chat) = (hook().await, hook().await);
        let receivers = vec![pager(&calls), named("chat", webhook_to(chat.url(), None))];
        let mut world = World::on(on, "site", receivers).await;
        let north = names("north", 10);
        let fall_silent = async |units: &[String]| {
            world.advance(TIMEOUT + Duration::from_secs(1));
            world.storm(units).await;
        };
        world.hear_at("north", &north).await;
        fall_silent(&north).await;
        world.return_to("north", &north[..9]).await;
        world.advance(HOUR);
        world.hear_at("north", &north[..9]).await;
        fall_silent(&north[..9]).await;
        assert_eq!(actions(&calls.received()), ["trigger", "resolve", "trigger"]);
        assert_eq!(open_pages(&calls).len(), 1);
        let told: Vec<Value> =
            chat.received().iter().map(|one| one.json()["data"]["incident"]["offline"].clone()).collect();
        assert_eq!(told, [json!(10), json!(10), json!(9)]);
        world.return_to("north", &north).await;
        assert_eq!(open_pages(&calls), BTreeSet::new());
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_incident_is_acknowledged_when_its_last_unit_without_an_operator_is_removed() {
    for on in [On::Redis, On::Directory] {
        let calls = hook().await;
        let mut world = World::on(on, "site", vec![pager(&calls)]).await;
        let north = names("north", 8);
        world.hear_at("north", &north).await;
        world.advance(TIMEOUT + Duration::from_secs(1));
        world.storm(&north[..7]).await;
        for name in &north[..5] {
            world.acknowledge(name).await;
        }
        world.settle().await;
        assert!(world.roll.retire(&unit(&north[5]), world.clock.now()).await.unwrap());
        world.settle().await;
        assert_eq!(actions(&calls.received()), ["trigger"], "one unit of it has no operator");
        assert!(world.roll.retire(&unit(&north[6]), world.clock.now()).await.unwrap());
        world.settle().await;
        assert_eq!(actions(&calls.received()), ["trigger", "acknowledge"], "{on:?}");
        world.return_to("north", &north[..5]).await;
        assert_eq!(open_pages(&calls), BTreeSet::new(), "{on:?}");
        world.stop().await;
    }
}
