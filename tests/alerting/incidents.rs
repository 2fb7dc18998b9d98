//! Claims about one incident for one cause.

use std::time::Duration;

use rollcall::presence::{Declared, Heartbeat};
use rollcall::simulate::mail_sink::{self, MailSink};
use serde_json::{Value, json};

use super::world::{TIMEOUT, WAIT, World, hook, unit};
use super::*;

impl World {
    /// Hears these units of a site.
    pub async fn hear_at(&self, site: &str, ids: &[String]) {
        let at = self.clock.now();
        let declared = Declared { labels: labels(&[("site", site)]), ..Declared::default() };
        let beat =
            |id: &String| Heartbeat { unit: unit(id), at, not_before: None, declared: declared.clone() };
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
    let mail = MailSink::start(mail_sink::Options::default()).await.unwrap();
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
    let over = incident(&sink.wait_for(2, MAX_WAIT).await.unwrap()[1]);
    assert_eq!(part(&over, &fields[..5]), json!(["site", "north", 18, 20, 1]));
    assert!(over["until"].is_string(), "{over}");
    let letter = &mail.wait_for(2, MAX_WAIT).await.unwrap()[1];
    let subject = letter.header("Subject").unwrap();
    assert!(
        subject.starts_with("BACK: site north, 18 units, offline for ")
            && subject.ends_with(", 2 still offline"),
        "{subject}"
    );
    world.hear_at("north", &north[17..18]).await;
    world.delivered("hook").await;
    world.delivered("mail").await;
    world.advance(5 * WAIT);
    assert_eq!(incident(&sink.wait_for(3, MAX_WAIT).await.unwrap()[2]), Value::Null, "it is notified once");
    world.stop().await;
}
