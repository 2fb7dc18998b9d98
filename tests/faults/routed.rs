//! Instances that are killed between the decision about an alert and its acknowledgement: routes, silences and
//! inhibition hold across every restart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::Rng;
use rollcall::simulate::webhook_sink::{self, WebhookSink};
use serde_json::json;

use crate::world::{Plan, World};

const SECOND: Duration = Duration::from_secs(1);
/// The units of each site.
const UNITS: usize = 8;
/// How often an instance is killed.
const KILLS: usize = 6;

on_both_engines! { routes_silences_and_inhibition_hold_while_one_instance_is_killed_again_and_again }

async fn routes_silences_and_inhibition_hold_while_one_instance_is_killed_again_and_again(plan: Plan) {
    kills(plan).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_silences_and_inhibition_hold_while_three_instances_are_killed_in_turn() {
    kills(Plan::new(3)).await;
}

/// The site north has a receiver of its own beside the common one; the site south has a gateway, whose silence
/// inhibits the units behind it; the site west is silenced.
fn routed(plan: Plan, north: &WebhookSink) -> Plan {
    let kinds = format!(
        r#"
        [[route.routes]]
        matchers = ['site="north"']
        receivers = ["north"]
        continue = true
        [[route.routes]]
        receivers = ["hook"]
        [[inhibit]]
        source_matchers = ['unit="gateway"']
        target_matchers = ['unit=~"south-.*"']
        equal = ["site"]
        [[receiver]]
        name = "north"
        type = "webhook"
        url = "{}"
        timeout = "5s"
        retry = {{ first = "200ms", longest = "1s", give_up_after = "1h" }}
        "#,
        north.url()
    );
    Plan { units: 10, route: "group_by = [\"site\"]".to_owned(), kinds, ..plan }
}

async fn kills(plan: Plan) {
    let north = WebhookSink::start(webhook_sink::Options::default()).await.unwrap();
    let mut world = World::new(routed(plan, &north)).await;
    let units: Vec<String> = ["north", "south", "west", "east"]
        .iter()
        .flat_map(|site| (0..UNITS).map(move |number| format!("{site}-{number}")))
        .collect();
    for unit in &units {
        let site = unit.split('-').next().unwrap();
        world.fleet.join(unit, &format!("sites/{site}/{unit}/heartbeat"));
    }
    world.fleet.join("gateway", "sites/south/gateway/heartbeat");
    let all = world.plan.units + units.len() + 1;
    world.eventually("all are known", async |world| world.known().await >= Some(all)).await;
    silence_the_west(&world).await;
    world.fleet.silence("gateway");
    let is_notified = async |world: &World| notified(&world.sink)["offline"].contains_key("gateway");
    world.eventually("the gateway is notified", is_notified).await;

    units.iter().for_each(|unit| world.fleet.silence(unit));
    let (back, gone): (Vec<&String>, Vec<&String>) = units.iter().partition(|unit| unit.ends_with('0'));
    for number in 0..KILLS {
        world.pass_some(2 * SECOND).await;
        let victim = world.chance.random_range(0..world.instances.len());
        world.instances[victim].kill();
        if number == KILLS / 2 {
            back.iter().for_each(|unit| world.fleet.wake(unit));
        }
        world.pass_some(SECOND).await;
        world.instances[victim].start();
    }
    world.ready().await;
    let offline = async |world: &World| world.open().await >= Some(gone.len() + 1);
    world.eventually("every silence has its record", offline).await;
    world.probe().await;

    let expects = |sink: &WebhookSink, sites: &[&str]| {
        let notified = notified(sink);
        gone.iter().all(|unit| {
            let is_expected = sites.iter().any(|site| unit.starts_with(site));
            is_expected == notified["offline"].contains_key(unit.as_str())
        })
    };
    let are_notified =
        async |world: &World| expects(&world.sink, &["north", "east"]) && expects(&north, &["north"]);
    world.eventually("who is to be notified is, and nobody else", are_notified).await;
    world.pass(2 * SECOND).await;
    assert!(are_notified(&world).await);
    for sink in [&world.sink, &north] {
        for (list, by_unit) in notified(sink) {
            for (unit, of_unit) in by_unit {
                assert!(!unit.starts_with("south") && !unit.starts_with("west"), "{unit} is {list}");
                for (record, notifications) in of_unit {
                    assert_eq!(notifications.len(), 1, "{unit} {list}, {record}: {notifications:?}");
                }
            }
        }
    }
}

async fn silence_the_west(world: &World) {
    let silence = json!({
        "matchers": [{ "name": "site", "value": "west", "isRegex": false }],
        "startsAt": "2020-01-01T00:00:00Z",
        "endsAt": "2099-01-01T00:00:00Z",
        "createdBy": "operator",
        "comment": "planned work",
    });
    let address = format!("http://{}/alertmanager/api/v2/silences", world.instances[0].http);
    let request = reqwest::Client::new().post(address).header("content-type", "application/json");
    let answer = request.body(silence.to_string()).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
}

/// The notifications of each record, by list (offline, online), unit and record.
type Notified = BTreeMap<&'static str, BTreeMap<String, BTreeMap<String, BTreeSet<String>>>>;

fn notified(sink: &WebhookSink) -> Notified {
    let mut notified = Notified::new();
    for received in sink.received() {
        let json = received.json();
        for list in ["offline", "online"] {
            let of_list = notified.entry(list).or_default();
            for record in json["data"][list].as_array().into_iter().flatten() {
                let text = |field: &str| record[field].as_str().unwrap().to_owned();
                let of_unit = of_list.entry(text("unit")).or_default();
                let notifications = of_unit.entry(text("id")).or_default();
                notifications.insert(received.header("webhook-id").to_owned());
            }
        }
    }
    for list in ["offline", "online"] {
        notified.entry(list).or_default();
    }
    notified
}
