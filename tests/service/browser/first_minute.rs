//! The first minute on the page: a fleet of 500 units in which a few are silent, as an operator meets it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{CountedPart, IncidentMark, MinuteCounts, add_mark, floor};
use rollcall::store::redis::{RedisConfig, RedisEngine};
use rollcall::store::{Documents, Layout};
use rollcall::telemetry::Telemetry;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::inspection::inspect;
use crate::support::browser::{Browser, SIZES};
use crate::support::http::CLIENT;
use crate::world::World;

const SITES: [&str; 5] = ["antwerp", "gdansk", "hamburg", "rotterdam", "valencia"];

/// The units that fall silent a second after their only heartbeat.
const SILENT: [&str; 4] = ["rot-gas-017", "rot-gas-041", "rot-gas-088", "ham-gas-063"];

/// A unit with a short time left.
const SHORT: &str = "val-gas-005";

const OPTIONS: &str = "http.count_by_labels = [\"site\"]\n\
    [[kind]]\nname = \"gas\"\ntopics = [\"sites/{site}/{unit}/heartbeat\"]\ntimeout = \"48h\"\n";

const HOUR: Duration = Duration::from_secs(3600);

/// Sends one heartbeat of each unit.
async fn report(world: &World) {
    let beat = |site: &str, number: usize| {
        let unit = format!("{}-gas-{number:03}", &site[..3]);
        let timeout = match unit.as_str() {
            name if SILENT.contains(&name) => json!(1),
            SHORT => json!("10m"),
            _ => Value::Null,
        };
        let mut beat = json!({ "kind": "gas", "unit": unit, "labels": { "site": site } });
        if !timeout.is_null() {
            beat["timeout"] = timeout;
        }
        beat
    };
    let beats: Vec<Value> =
        SITES.iter().flat_map(|site| (1..=100).map(move |number| beat(site, number))).collect();
    let answer = CLIENT
        .post(world.url("/api/v1/heartbeats"))
        .header("content-type", "application/json")
        .body(Value::from(beats).to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
}

/// The fleet a day long, as instances have counted it: a few units are silent, and once a site was without power.
async fn count_the_last_day(world: &World) {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let url = format!("redis://127.0.0.1:{}/0", world.redis.port());
    let engine =
        RedisEngine::connect(&RedisConfig { url, ..RedisConfig::default() }, telemetry).await.unwrap();
    let (partitions, documents) = (engine.partitions(), Documents::new(Arc::new(engine)));
    let now = Clock::system().now();
    let outage = floor(now, HOUR) - 9 * HOUR;
    for back in 0..=24 {
        let hour = floor(now, HOUR) - back * HOUR;
        let stored = documents.one::<MinuteCounts>(&(hour.as_millis() / 3_600_000)).await.unwrap();
        let mut counts = stored.value.clone().unwrap_or_default();
        for minute in 0..60_u8 {
            let at = hour + Duration::from_secs(60) * u32::from(minute);
            if at < floor(now, Duration::from_secs(60)) {
                counts.add(minute, "before", at_that_time(at, outage, partitions), &["site".to_owned()]);
            }
        }
        if back == 9 {
            let place = "site=hamburg".to_owned();
            add_mark(&mut counts.marks, IncidentMark { at: outage, place, offline: 97, units: 100 });
        }
        let change = documents.change(&stored, Some(&counts)).unwrap();
        assert_eq!(documents.write(&[change]).await.unwrap(), [true]);
    }
}

fn at_that_time(at: Timestamp, outage: Timestamp, partitions: u16) -> CountedPart {
    let minute = at.as_millis() / 60_000;
    let few = 1 + u64::from(minute % 190 < 70) + u64::from(minute % 430 < 45);
    let since = at.since(outage).as_secs() / 60;
    let at_hamburg = match since {
        _ if at < outage => 0,
        0..50 => 97,
        50..70 => 97 - 4 * (since - 49),
        _ => 0,
    };
    let late = u64::from(minute % 37 == 0) + if since < 3 && at >= outage { 3 } else { 0 };
    let places = [("site=rotterdam", few), ("site=hamburg", at_hamburg)];
    let places: BTreeMap<String, u64> = places
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(place, count)| (place.to_owned(), count))
        .collect();
    let offline = few + at_hamburg;
    CountedPart(partitions, [500 - offline - late, late, offline, 0, 0, 0], places, false, 0, 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_on_the_page_says_what_is_silent_who_knows_and_how_it_was() {
    let world = World::new(OPTIONS, &["--appendonly", "yes"]).await;
    let dir = TempDir::new().unwrap();
    let browser = Browser::start(dir.path()).await;
    report(&world).await;
    count_the_last_day(&world).await;
    world
        .eventually("all four are delivered", async || {
            let summary = world.json("/api/v1/summary").await;
            summary["states"]["offline"] == 4
                && world.json("/api/v1/receivers").await["receivers"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|one| one["waiting"] == 0 && one["last_success"].is_string())
        })
        .await;
    let taken = CLIENT
        .post(world.url(&format!("/units/gas/{}/ack", SILENT[0])))
        .header("content-type", "application/x-www-form-urlencoded")
        .body("author=Ana+Silva&comment=on+my+way")
        .send()
        .await
        .unwrap();
    assert_eq!(taken.status(), 200);

    browser.open(&world.url("/")).await;
    browser.shows("4 of 500 units are silent, 3 of them at rotterdam; Rollcall hears, last proof ").await;
    browser.shows("in the last hour, none waiting.").await;
    browser.shows("hook, mail").await;
    browser.shows("Ana Silva takes care").await;
    browser.eventually("the fleet has settled", "!document.querySelector('.banner')").await;
    let first = "document.querySelector('.bars .bar').innerText.startsWith('rotterdam')";
    browser.eventually("the worst site is the first", first).await;
    let said = browser.run("return document.querySelector('.chart svg').ariaLabel", json!([])).await;
    let said = said.as_str().unwrap_or_default();
    assert!(
        said.contains("98 at most") || said.contains("99 at most") || said.contains("100 at most"),
        "{said}"
    );
    assert!(said.contains("1 incident"), "{said}");
    browser.shows("97 of 100 units with site=hamburg fell silent together").await;
    // Silent units, the picture and the places are on the first screen; the other units follow.
    browser.look(SIZES[0].1, "light").await;
    let rows = "return [...document.querySelectorAll('.units')].map((one) => one.querySelectorAll('tbody tr').length)";
    assert_eq!(browser.run(rows, json!([])).await, json!([4, 96]));
    let places = "return document.querySelector('.groups').getBoundingClientRect().bottom";
    let places = browser.run(places, json!([])).await;
    assert!(places.as_f64() < Some(1000.0), "the places end at {places} px");
    inspect(&browser, "first-minute").await;
    // A telephone has the picture as high, with words as large as those of the page.
    for (size, pixels) in SIZES {
        browser.look(pixels, "light").await;
        let drawn = "return [document.querySelector('.drawing svg').getBoundingClientRect().height, \
            ...[...document.querySelectorAll('.drawing span')].map((one) => parseFloat(getComputedStyle(one).fontSize))]";
        let drawn = browser.run(drawn, json!([])).await;
        assert_eq!(drawn, json!([160, 14, 14, 14, 14, 14, 14]), "on a {size}");
    }
    browser.look(SIZES[0].1, "light").await;

    // Ranges and filters go together; the numbers are a table.
    browser.click(".ranges a[href*='7d']").await;
    browser.eventually("a week", "location.search === '?range=7d'").await;
    browser.click(".bars .bar").await;
    browser.eventually("a week of a site", "location.search === '?label=site%3Drotterdam&range=7d'").await;
    browser.shows("Units that are silent with site=rotterdam").await;
    browser.click("#chart-numbers summary").await;
    browser
        .eventually("a row an hour", "document.querySelectorAll('#chart-numbers tbody tr').length === 168")
        .await;
    inspect(&browser, "first-minute-of-a-site").await;

    // The page of a unit counts down.
    browser.open(&world.url(&format!("/units/gas/{SHORT}"))).await;
    browser
        .eventually("an hour of minutes", "document.querySelectorAll('.hour .strip i').length === 60")
        .await;
    let left = browser.run("return document.querySelector('[data-countdown]').textContent", json!([])).await;
    let same = "[...document.querySelectorAll('[data-countdown]')].map((one) => one.textContent)";
    let same = browser.run(&format!("return {same}"), json!([])).await;
    assert!(
        same.as_array().is_some_and(|all| all.len() > 1 && all.iter().all(|one| *one == all[0])),
        "{same}"
    );
    browser
        .eventually(
            "it counts down",
            &format!("document.querySelector('[data-countdown]').textContent !== {left}"),
        )
        .await;
    browser.open(&world.url(&format!("/units/gas/{}", SILENT[0]))).await;
    browser.shows("Acknowledged by Ana Silva").await;
    inspect(&browser, "first-minute-of-a-unit").await;
    browser.open(&world.url("/deliveries")).await;
    inspect(&browser, "first-minute-of-deliveries").await;
    assert_eq!(browser.complaints().await, [] as [String; 0]);
}
