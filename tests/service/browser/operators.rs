//! The pages of a whole service as operators use them, with the mouse and with the keyboard alone.

use rollcall::http::Token;
use rollcall::simulate::webhook_sink::Answer;
use serde_json::json;
use tempfile::TempDir;

use super::inspection::inspect;
use crate::support::browser::{Browser, ENTER, ESCAPE, TAB};
use crate::support::http::CLIENT;
use crate::world::World;

/// The token of a role: a word alone is refused.
fn token_of(role: &str) -> String {
    format!("{role}-of-the-tests")
}

/// Detectors fall silent after three seconds; meters do not. The first answer of the receiver is that it wants no
/// more.
fn options() -> String {
    let token = |name: &str| {
        let sha256 = Token::digest(&token_of(name)).map(|byte| format!("{byte:02x}")).concat();
        // A long name, beside which the pages have to be on one row of a screen.
        format!(
            "[[http.token]]\nname = \"{name}-of-the-night-shift\"\nrole = \"{name}\"\nsha256 = \"{sha256}\"\n"
        )
    };
    let kinds = "http.count_by_labels = [\"site\"]\n\
        [[kind]]\nname = \"detector\"\ntopics = [\"units/{unit}/heartbeat\"]\ntimeout = \"3s\"\n\
        [[kind]]\nname = \"meter\"\ntopics = [\"sites/{site}/{unit}/heartbeat\"]\ntimeout = \"48h\"\n";
    kinds.to_owned() + &["viewer", "operator", "admin"].map(token).concat()
}

/// Logs in by the keyboard alone: the field for the token has the focus.
async fn log_in(browser: &Browser, world: &World, token: &str) {
    browser.open(&world.url("/")).await;
    browser.shows("Log in").await;
    browser.eventually("the field has the focus", "document.activeElement.name === 'token'").await;
    browser.press(&format!("{}{ENTER}", token_of(token))).await;
    browser.eventually("the fleet is shown", "document.querySelector('nav.counts')").await;
}

async fn log_out(browser: &Browser) {
    browser.click(".logout button").await;
    browser.shows("Log in").await;
}

/// The number beside a state.
fn count_is(state: &str, count: u32) -> String {
    format!("document.querySelector('.counts a.{state} b').textContent === '{count}'")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_a_unit_fall_silent_and_does_what_the_role_allows() {
    let world = World::new(&options(), &[]).await;
    let dir = TempDir::new().unwrap();
    let browser = Browser::start(dir.path()).await;
    world.hook.answer_with([Answer::Status(410)]);

    // A token that is unknown is refused in words.
    browser.open(&world.url("/records")).await;
    browser.shows("Log in").await;
    inspect(&browser, "login").await;
    browser.press(&format!("wrong{ENTER}")).await;
    browser.shows("This is no known token.").await;
    let complaints = browser.complaints().await;
    assert!(complaints.len() == 1 && complaints[0].contains("403"), "{complaints:?}");

    // A viewer sees the counts change without a new page.
    log_in(&browser, &world, "viewer").await;
    let meters: Vec<String> = (0..4).map(|n| format!("meter-{n}")).collect();
    world.beat_to("sites/north", &meters).await;
    browser.eventually("the meters are online", &count_is("online", 4)).await;
    browser.run("window.isTheSamePage = true", json!([])).await;
    world.beat(&["pump 7".to_owned()]).await;
    browser.eventually("a unit falls silent", &count_is("offline", 1)).await;
    browser.eventually("the title says so", "document.title.startsWith('(1) ')").await;
    browser.shows("pump 7").await;
    browser.eventually("nothing was loaded again", "window.isTheSamePage").await;

    // A count filters; so does the search, which a key reaches.
    browser.click(".counts a.offline").await;
    browser.eventually("one row is left", "document.querySelectorAll('.units tbody tr').length === 1").await;
    assert_eq!(browser.path().await, "/?state=offline");
    browser.press("/").await;
    browser.eventually("the search has the focus", "document.activeElement.id === 'search'").await;
    browser.press(&format!("meter-3{ENTER}")).await;
    browser.eventually("the unit is found", "location.search.includes('contains=meter-3')").await;
    browser.shows("meter-3").await;
    assert!(!browser.text().await.contains("meter-2"));

    // Keys: help, and the pages. The first Tab reaches the link that skips the navigation.
    browser.press("?").await;
    browser.eventually("the help is open", "document.getElementById('help').open").await;
    browser.press(ESCAPE).await;
    browser.eventually("the help is closed", "!document.getElementById('help').open").await;
    browser.press("gr").await;
    browser.eventually("the records", "location.pathname === '/records'").await;
    browser.press(&format!("{TAB}{ENTER}")).await;
    browser.eventually("the navigation is skipped", "location.hash === '#main'").await;
    browser.tab_to("tbody th a").await;
    browser.press(ENTER).await;
    browser
        .eventually("the first record leads to its unit", "location.pathname === '/units/detector/pump%207'")
        .await;
    let page = browser.text().await;
    assert!(page.contains("Its deadline passed") && !page.contains("Acknowledge"), "{page}");
    log_out(&browser).await;

    // An operator acknowledges, silences, pauses; and delivers again what the receiver has not taken.
    let unit = world.url("/units/detector/pump%207");
    log_in(&browser, &world, "operator").await;
    browser.open(&unit).await;
    browser.eventually("only administrators remove", "!document.getElementById('act-remove')").await;
    browser.click("#act-ack summary").await;
    browser.write("form[action$='/ack'] [name=author]", "Ana").await;
    browser.write("form[action$='/ack'] [name=comment]", "on my way").await;
    browser.click("form[action$='/ack'] button").await;
    browser.shows("by Ana").await;
    browser.shows("on my way").await;
    // The page of the fleet says who was notified and who takes care. The webhook has not taken it.
    browser.open(&world.url("/?state=offline")).await;
    browser.shows("1 of 5 units is silent; Rollcall hears, last proof ").await;
    browser.shows("1 notification in the last hour, none waiting, 1 given up").await;
    browser.shows("mail ").await;
    browser.shows("Ana takes care").await;
    inspect(&browser, "fleet-with-one-silent").await;
    browser.open(&unit).await;
    browser.click("form[action$='/silences'] button").await;
    browser
        .eventually(
            "the matchers are there",
            "document.querySelector('[name=matchers]').value.includes('pump 7')",
        )
        .await;
    browser
        .eventually("the name is remembered", "document.querySelector('[name=author]').value === 'Ana'")
        .await;
    browser.write("[name=comment]", "new battery").await;
    browser.click("form[action$='/silences'] button").await;
    browser.shows("active").await;
    inspect(&browser, "silences-with-one").await;
    browser.click("form[action$='/expire'] button").await;
    browser.shows("over").await;
    browser.open(&unit).await;
    browser.click("#act-pause summary").await;
    browser.write("form[action$='/pause'] [name=hours]", "1.5").await;
    browser.click("form[action$='/pause'] button").await;
    browser.shows("Paused until").await;
    browser.click("form[action$='/unpause'] button").await;
    browser.eventually("it may be paused again", "document.getElementById('act-pause')").await;
    // A receiver that answered that it wants no more is asked again after a reload.
    let reload = CLIENT.post(world.url("/-/reload")).bearer_auth(token_of("operator")).send().await.unwrap();
    assert_eq!(reload.status(), 200);
    let before = world.hook.received().len();
    browser.open(&world.url("/deliveries?state=dead")).await;
    browser.shows("410 Gone").await;
    inspect(&browser, "deliveries-given-up").await;
    browser.click("form[action$='/replay'] button").await;
    world.eventually("it comes again", async || world.hook.received().len() > before).await;
    browser.eventually("the page of the delivery", "/^\\/deliveries\\/.+/.test(location.pathname)").await;
    browser.shows("delivered").await;
    inspect(&browser, "delivery").await;
    log_out(&browser).await;

    // An administrator removes.
    log_in(&browser, &world, "admin").await;
    browser.open(&unit).await;
    browser.click("#act-remove summary").await;
    browser.click("form[action$='/remove'] button").await;
    browser
        .eventually("it asks whether that is meant", "document.querySelector('[name=sure]:invalid')")
        .await;
    browser.click("[name=sure]").await;
    browser.click("form[action$='/remove'] button").await;
    browser.eventually("the fleet without it", &count_is("offline", 0)).await;
    assert!(!browser.text().await.contains("pump 7"));

    // Without a login there are no pages.
    log_out(&browser).await;
    browser.open(&unit).await;
    browser.shows("Log in").await;
    assert_eq!(browser.complaints().await, [] as [String; 0]);
    let address = world.url("/");
    let requests = browser.requests().await;
    let elsewhere: Vec<&String> = requests.iter().filter(|url| !url.starts_with(&address)).collect();
    assert!(requests.len() > 50 && elsewhere.is_empty(), "{elsewhere:?} of {}", requests.len());
    // The audit has the operators by the names of their tokens.
    let audit = CLIENT.get(world.url("/api/v1/audit")).bearer_auth(token_of("viewer")).send().await.unwrap();
    let audit = audit.text().await.unwrap();
    for name in ["operator", "admin"] {
        assert!(audit.contains(name), "{audit}");
    }
}
