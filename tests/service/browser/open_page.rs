//! A page that stays open while the fleet, and Rollcall itself, change: what an operator has begun there stays, and the
//! page never says more than it knows.

use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::support::browser::{Browser, ENTER};
use crate::support::http::CLIENT;
use crate::world::World;

const OPTIONS: &str = "kind = [{ name = \"detector\", timeout = \"1s\" }]\n\
    timer = [{ type = \"report\", receivers = [\"hook\"] }]";

/// Adds a silence or a timer to the list of that page.
async fn add_to(world: &World, page: &str, name: &str, after: &str) {
    let body = match page {
        "/timers" => json!([{ "id": name, "type": "report", "in": after }]),
        _ => json!({ "matchers": ["site=\"north\""], "for": after, "author": "ana", "comment": name }),
    };
    let request =
        CLIENT.post(world.url(&format!("/api/v1{page}"))).header("content-type", "application/json");
    let answer = request.body(body.to_string()).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
}

/// The row with the focus: its place in the table, where 1 is the first, and its text.
async fn row_with_focus(browser: &Browser) -> (u64, String) {
    let row =
        "const row = document.activeElement.closest('tr'); return [row?.rowIndex ?? 0, row?.innerText ?? '']";
    let row = browser.run(row, json!([])).await;
    (row[0].as_u64().unwrap(), row[1].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_button_with_the_focus_stays_that_of_its_row_when_other_rows_come() {
    let world = World::new(OPTIONS, &[]).await;
    let dir = TempDir::new().unwrap();
    let browser = Browser::start(dir.path()).await;

    // Both lists begin with what ends soonest.
    for (page, button) in
        [("/silences", "form[action$='/expire'] button"), ("/timers", "form[action$='/cancel'] button")]
    {
        add_to(&world, page, "mine", "2h").await;
        browser.open(&world.url(page)).await;
        browser.tab_to(button).await;
        add_to(&world, page, "sooner", "1h").await;
        browser.shows("sooner").await;
        let (place, row) = row_with_focus(&browser).await;
        assert!(place == 2 && row.contains("mine"), "{place}: {row}");
        browser.press(ENTER).await;
        browser.eventually("one is left", "document.querySelectorAll('td button').length === 1").await;
    }
    let timer = async |id: &str| world.json(&format!("/api/v1/timers/{id}")).await["state"].clone();
    assert_eq!((timer("mine").await, timer("sooner").await), (json!("cancelled"), json!("waiting")));
    let ended = world.json("/api/v1/silences?state=expired").await["silences"].clone();
    assert!(ended.as_array().unwrap().len() == 1 && ended[0]["comment"] == "mine", "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_group_and_a_half_written_form_stay_while_deliveries_and_warnings_come_and_go() {
    let mut world = World::new(OPTIONS, &[]).await;
    let dir = TempDir::new().unwrap();
    let browser = Browser::start(dir.path()).await;

    world.beat(&["pump-1".to_owned()]).await;
    browser.open(&world.url("/deliveries")).await;
    browser.shows("2 deliveries").await;
    browser.click("tr.more summary").await;
    world.beat(&["pump-2".to_owned()]).await;
    browser.shows("4 deliveries").await;
    browser.eventually("the group is open", "document.querySelector('tr.more details').open").await;

    browser.open(&world.url("/units/detector/pump-1")).await;
    browser.click("#act-ack summary").await;
    browser.write("#act-ack [name=comment]", "on my way, with a").await;
    let is_kept = "document.activeElement.name === 'comment' && document.activeElement.value === 'on my way, with a' \
        && document.getElementById('act-ack').open";
    world.broker.kill();
    browser.shows("Rollcall is blind").await;
    browser.eventually("the form is as it was", is_kept).await;
    world.restart_broker();
    browser.eventually("the warning goes", "!document.body.innerText.includes('Rollcall is blind')").await;
    browser.eventually("the form is as it was", is_kept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_go_on_as_at_the_instance_whatever_the_clock_of_the_browser() {
    let world = World::new("kind = [{ name = \"detector\", timeout = \"1h\" }]", &[]).await;
    let dir = TempDir::new().unwrap();
    let browser = Browser::start(dir.path()).await;
    world.beat(&["pump-1".to_owned()]).await;
    world.eventually("it is online", async || world.state("pump-1").await == "online").await;
    browser.open(&world.url("/units/detector/pump-1")).await;
    browser.shows("It is offline in").await;
    // The clock of the browser is five minutes ahead, and the page is read again.
    let ahead = "const now = Date.now; Date.now = () => now.call(Date) + 300000; \
        window.before = document.getElementById('live').dataset.now";
    browser.run(ahead, json!([])).await;
    world.beat(&["pump-2".to_owned()]).await;
    browser.eventually("it is read", "document.getElementById('live').dataset.now !== window.before").await;
    // What has passed goes on beside what is to come: "last heard 3s ago" and "offline in 59m".
    let forget = "for (const one of document.querySelectorAll('.lead time')) one.textContent = '?'";
    browser.run(forget, json!([])).await;
    let counts = "/^(1h|59m)/.test(document.querySelector('[data-countdown]').textContent)";
    browser.eventually("it counts down", counts).await;
    let counts = "/^(\\d|[1-5]\\d)s ago$|^[1-3]m( \\d+s)? ago$/.test(document.querySelector('.lead [data-since]').textContent)";
    browser.eventually("it counts on", counts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_says_that_rollcall_does_not_answer_until_it_does() {
    let mut world = World::new(OPTIONS, &[]).await;
    let dir = TempDir::new().unwrap();
    let browser = Browser::start(dir.path()).await;
    let says = "document.querySelector('#warnings [role=alert]')?.textContent.match(/^This page is from .*; Rollcall does not answer/)";
    let is_grey = "const of = (one) => getComputedStyle(document.querySelector(one)).color; \
        return of('#state') === of('footer')";
    browser.open(&world.url("/")).await;
    browser.shows("Rollcall hears").await;
    assert_eq!(browser.run(is_grey, json!([])).await, false);

    world.stop().await;
    browser.eventually("it says so of a process that is gone", says).await;
    assert_eq!(browser.run(is_grey, json!([])).await, true);
    world.start().await;
    browser.eventually("it goes on", &format!("!{says}")).await;
    assert_eq!(browser.run(is_grey, json!([])).await, false);

    browser.delay(Duration::from_secs(600)).await;
    browser.eventually("it says so of a process that is frozen", says).await;
    browser.delay(Duration::ZERO).await;
    browser.eventually("it goes on", &format!("!{says}")).await;
    assert_eq!(browser.run(is_grey, json!([])).await, false);
}
