//! How the pages look: a small fleet, a large one, a storm, and while Rollcall is blind. Pictures of them are kept.

use std::sync::Arc;

use rollcall::fleet::{MassBreaker, Silences};
use rollcall::presence::MassOfflineRule;
use rollcall::telemetry::{ConnectionLoss, Loop};
use serde_json::json;
use tempfile::TempDir;

use super::inspection::{fits, inspect, rate};
use crate::http::world::{Fleet, SECOND};
use crate::support::browser::{Browser, ENTER, SIZES};
use crate::support::http::CLIENT;
use crate::world::World;

const SITES: [&str; 5] = ["north", "south", "east", "west", "Zürich <Altstadt>"];

/// Hostile text, as a device may send it.
const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'`{{}}\u{202e}";

/// Pages beside those of the fleet and of units.
const PAGES: [&str; 11] = [
    "timers",
    "reports",
    "records",
    "incidents",
    "deliveries",
    "silences",
    "strangers",
    "instances",
    "configuration",
    "about",
    "policy",
];

async fn fleet_that_is_heard() -> Fleet {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    fleet.telemetry.engine_answered(Loop::Sweep, "");
    fleet.telemetry.mqtt_connected(("main", "fleet"), "mqtt://127.0.0.1");
    fleet.telemetry.blind(false, Some(fleet.clock.now()));
    fleet
}

/// Hears five units, one of which falls silent.
async fn hear_five(fleet: &Fleet) {
    for (at, site) in SITES.iter().enumerate() {
        let unit = if at == 4 { format!("detector:pump {HOSTILE}") } else { format!("meter:meter-{at}") };
        fleet.hear_at(site, &unit).await;
    }
    fleet.pass(150 * SECOND, &[&format!("detector:pump {HOSTILE}")]).await;
}

/// Hears five hundred units. Answers those that fall silent later, most of a site.
async fn hear_many(fleet: &Fleet) -> Vec<String> {
    let mut north = Vec::new();
    for number in 0..500 {
        let unit = format!("detector:unit-{number:04}");
        fleet.hear_at(SITES[number % 4], &unit).await;
        north.extend((number % 4 == 0 || number % 9 == 0).then_some(unit));
    }
    north
}

/// Lets these units fall silent, which trips the breaker.
async fn storm(fleet: &Fleet, silent: &[String]) {
    let silent: Vec<&str> = silent.iter().map(String::as_str).collect();
    fleet.pass(150 * SECOND, &silent).await;
    let rule = MassOfflineRule { share: 0.2, min_units: 50, window: 60 * SECOND, max_hold: 900 * SECOND };
    let silences = Arc::new(Silences::new(fleet.engine.clone()));
    let engine = || fleet.engine.clone();
    let breaker =
        MassBreaker::new(Some((rule, engine())), engine(), engine(), silences, fleet.telemetry.clone());
    assert!(breaker.judge(fleet.clock.now()).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_rated_well_also_those_of_a_large_fleet_in_a_storm() {
    let fleet = fleet_that_is_heard().await;
    hear_five(&fleet).await;
    let silent = hear_many(&fleet).await;
    storm(&fleet, &silent).await;
    for path in ["/", "/units/detector/unit-0000", "/deliveries"] {
        rate(&format!("{}{path}", fleet.url)).await;
    }
    fleet.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_small_and_legible_on_every_screen_for_everybody() {
    let fleet = fleet_that_is_heard().await;
    let dir = TempDir::new().unwrap();
    let browser = Browser::start(dir.path()).await;
    let open = async |path: &str| browser.open(&format!("{}{path}", fleet.url)).await;
    // First the fleet is empty, then it has five units, one of which is silent.
    open("/").await;
    browser.shows("No unit is known").await;
    inspect(&browser, "fleet-of-none").await;
    hear_five(&fleet).await;
    open("/").await;
    browser.shows("1 of 5 units is silent").await;
    browser.shows("pump").await;
    inspect(&browser, "fleet-of-five").await;
    // The silent unit is on the first screen.
    for (size, (width, height)) in SIZES {
        browser.look((width, height), "light").await;
        let top = "return document.querySelector('.units tbody tr').getBoundingClientRect().bottom";
        let bottom = browser.run(top, json!([])).await;
        assert!(bottom.as_f64() <= Some(height.into()), "the unit ends at {bottom} px of a {size}");
    }
    browser.look(SIZES[0].1, "light").await;
    browser.click("tbody th a").await;
    browser.shows("Its deadline passed").await;
    inspect(&browser, "unit").await;
    for page in PAGES {
        open(&format!("/{page}")).await;
        inspect(&browser, page).await;
    }

    // A large fleet; then most of a site falls silent, and the breaker trips.
    let silent = hear_many(&fleet).await;
    open("/").await;
    inspect(&browser, "fleet-of-many").await;
    storm(&fleet, &silent).await;
    open("/").await;
    browser.shows("A large part of the fleet fell silent at once").await;
    browser.shows("of 505 units are silent").await;
    inspect(&browser, "fleet-in-a-storm").await;
    // However far down, a table has its header.
    let header = "const table = [...document.querySelectorAll('.units')].at(-1); \
        table.querySelector('tbody tr:last-child').scrollIntoView(); \
        return [scrollY, table.querySelector('thead th').getBoundingClientRect().top]";
    let header = browser.run(header, json!([])).await;
    assert!(header[0].as_f64() > Some(1000.0) && header[1] == 0, "{header}");
    browser.run("scrollTo(0, 0)", json!([])).await;

    // Rollcall hears nothing, and its engine is away: the open page shows it in words.
    fleet.telemetry.blind(true, Some(fleet.clock.now()));
    let lost = (ConnectionLoss::Broken, "connection refused");
    fleet.telemetry.mqtt_disconnected(("main", "fleet"), "mqtt://127.0.0.1", lost, SECOND);
    browser.shows("Rollcall is blind").await;
    inspect(&browser, "fleet-while-blind").await;

    assert_eq!(browser.complaints().await, [] as [String; 0]);
    let requests = browser.requests().await;
    let elsewhere: Vec<&String> = requests.iter().filter(|url| !url.starts_with(&fleet.url)).collect();
    assert!(requests.len() > 20 && elsewhere.is_empty(), "{elsewhere:?} of {}", requests.len());
    fleet.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_telephone_has_every_page_in_a_menu_for_a_finger_and_for_the_keyboard() {
    let fleet = fleet_that_is_heard().await;
    let dir = TempDir::new().unwrap();
    let browser = Browser::start(dir.path()).await;
    let reach = "return [...document.querySelectorAll('header nav a')].filter((one) => { \
        const box = one.getBoundingClientRect(); \
        return one.checkVisibility() && box.height >= 24 && box.left >= 0 && box.right <= innerWidth; }).map((one) => one.textContent)";
    let pages = json!([
        "Fleet",
        "Incidents",
        "Records",
        "Deliveries",
        "Silences",
        "Timers",
        "Reports",
        "Strangers",
        "Instances"
    ]);
    for (width, in_menu) in [(320, true), (360, true), (767, true), (768, false), (1280, false)] {
        browser.look((width, 800), "light").await;
        browser.open(&format!("{}/records", fleet.url)).await;
        if in_menu {
            assert_eq!(browser.run(reach, json!([])).await, json!([]), "the menu is closed, at {width} px");
            let here =
                browser.run("return document.querySelector('.menu summary').innerText", json!([])).await;
            assert!(here.as_str().is_some_and(|here| here.ends_with("Records")), "{here} at {width} px");
            browser.click(".menu summary").await;
        }
        assert_eq!(browser.run(reach, json!([])).await, pages, "at {width} px");
    }
    browser.look((360, 800), "light").await;
    browser.open(&format!("{}/records", fleet.url)).await;
    browser.tab_to(".menu summary").await;
    browser.press(ENTER).await;
    browser.tab_to(".menu a[href$='/instances']").await;
    browser.press(ENTER).await;
    browser.eventually("the page of instances", "location.pathname === '/instances'").await;
    browser.click(".menu summary").await;
    inspect(&browser, "menu").await;
    fleet.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_scrolls_sideways_also_with_the_longest_names() {
    let options = "timer = [{ type = \"report-of-the-morning\", receivers = [\"hook\"] }]\n\
        [[kind]]\nname = \"detector\"\ntopics = [\"units/{unit}/heartbeat\", \"sites/{site}/{unit}/heartbeat\"]\n\
        timeout = \"1s\"\n\
        [[kind]]\nname = \"gate\"\ntopics = [\"gates/{unit}/heartbeat\"]\nregistry = \"closed\"\n";
    let world = World::new(options, &[]).await;
    let dir = TempDir::new().unwrap();
    let browser = Browser::start(dir.path()).await;
    // Unit ids and timer ids have at most 128 bytes.
    let [unit, of_a_site, stranger, waiting, fired] =
        ["u", "w", "s", "t", "f"].map(|letter| letter.repeat(128));
    world.beat(std::slice::from_ref(&unit)).await;
    world.beat_to(&format!("sites/{}", "n".repeat(64)), std::slice::from_ref(&of_a_site)).await;
    world.beat_to("gates", std::slice::from_ref(&stranger)).await;
    let timers = json!([
        { "id": waiting, "type": "report-of-the-morning", "in": "2h" },
        { "id": fired, "type": "report-of-the-morning", "in": "1s" },
    ]);
    let silence = json!({
        "matchers": [format!("unit=\"{unit}\"")], "for": "30m", "author": "a".repeat(100), "comment": "c".repeat(200),
    });
    for (path, body) in [("/api/v1/timers", timers), ("/api/v1/silences", silence)] {
        let request = CLIENT.post(world.url(path)).header("content-type", "application/json");
        let answer = request.body(body.to_string()).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }
    let unit_page = format!("/units/detector/{unit}");
    let [gone, delivery, month] =
        [("g", 128), ("d", 90), ("m", 80)].map(|(letter, count)| letter.repeat(count));
    let gone_page = format!("/units/detector/{gone}");
    let (delivery_page, month_page) = (format!("/deliveries/{delivery}"), format!("/reports?month={month}"));
    let pages = [
        ("/", &unit),
        ("/?state=offline", &of_a_site),
        (&unit_page, &unit),
        ("/records", &unit),
        ("/incidents", &unit),
        ("/deliveries", &fired),
        ("/timers", &waiting),
        ("/timers?state=", &fired),
        ("/silences", &unit),
        ("/strangers", &stranger),
        // Pages of problems say what was wanted.
        (&gone_page, &gone),
        (&delivery_page, &delivery),
        (&month_page, &month),
    ];
    for (path, name) in pages {
        browser.look(SIZES[0].1, "light").await;
        let has_name = format!("document.body.textContent.includes('{name}')");
        world
            .eventually(path, async || {
                browser.open(&world.url(path)).await;
                browser.run(&format!("return {has_name}"), json!([])).await == true
            })
            .await;
        browser
            .run(
                "document.querySelectorAll('main details').forEach((one) => { one.open = true; })",
                json!([]),
            )
            .await;
        fits(&browser, path).await;
    }
}
