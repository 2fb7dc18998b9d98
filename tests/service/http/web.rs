//! The pages for people.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use reqwest::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, LOCATION, ORIGIN, SET_COOKIE};
use reqwest::{Client, Response, redirect};
use rollcall::http::{AlertRoutes, Role, Switches, Token, UnitMetrics};
use rollcall::presence::Pace;
use rollcall::routing::{Escalation, FollowUps, Route, Routes};

use super::changes::token;
use super::world::{Fleet, NOON, SECOND, assert_problem};

const HTML: &str = "text/html";

/// A browser that shows every answer and follows no redirect.
pub(super) fn browser() -> Client {
    Client::builder().no_proxy().redirect(redirect::Policy::none()).build().unwrap()
}

pub(super) async fn submit(fleet: &Fleet, path: &str, cookie: &str, origin: &str, fields: &str) -> Response {
    let request =
        browser().post(format!("{}{path}", fleet.url)).header(ORIGIN, origin).header(COOKIE, cookie);
    let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    request.body(fields.to_owned()).send().await.unwrap()
}

#[tokio::test]
async fn the_front_page_shows_the_fleet_and_nothing_of_a_device_is_markup() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear_at("<script>alert(1)</script>", "detector:\"><img src=x>").await;
    fleet.hear_at("north", "detector:pump").await;
    fleet.pass(121 * SECOND, &["detector:pump"]).await;
    let answer = fleet.get("/").await;
    let headers = answer.headers().clone();
    let page = answer.text().await.unwrap();
    assert!(headers[CONTENT_TYPE].to_str().unwrap().starts_with(HTML));
    let policy = headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for text in
        ["/units/detector/pump", "offline", "&lt;script&gt;alert(1)&lt;/script&gt;", "<title>(1) Fleet"]
    {
        assert!(page.contains(text), "{text} in {page}");
    }
    assert!(!page.contains("<script>alert") && !page.contains("<img"), "{page}");
    let found = fleet.text("/?contains=pum&state=offline&kind=").await;
    assert!(found.contains("/units/detector/pump") && !found.contains("img src"), "{found}");
    assert!(fleet.text("/?q=nothing").await.contains("No units match"));
    assert_eq!(fleet.get("/?state=up").await.status(), 400);
}

#[tokio::test]
async fn without_receivers_pages_say_that_nobody_will_be_told_and_what_to_do() {
    let fleet = Fleet::start().await;
    assert!(!fleet.text("/").await.contains("Nobody will be told"));
    let why = "no receiver is configured; add one";
    fleet.routes.send_replace(Arc::new(AlertRoutes { unsent: Some(why), ..AlertRoutes::default() }));
    for path in ["/", "/deliveries"] {
        let page = fleet.text(path).await;
        assert!(page.contains("Nobody will be told") && page.contains(why), "{page}");
    }
}

#[tokio::test]
async fn an_empty_fleet_names_a_topic_of_its_own_and_has_no_chart() {
    let topic = "sites/north/pump-7/beat";
    let fleet = Fleet::start_configured(|config| config.example_topic = Some(topic.to_owned())).await;
    fleet.fill();
    let page = fleet.text("/").await;
    assert!(page.contains(topic) && !page.contains("chart-title"), "{page}");
}

#[tokio::test]
async fn silent_units_come_before_the_chart_and_a_telephone_shows_what_its_tables_leave_out() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    fleet.telemetry.topic_of_no_kind("elsewhere/pump-7");
    fleet.hear_at("north", "detector:pump").await;
    fleet.pass(121 * SECOND, &["detector:pump"]).await;
    let page = fleet.text("/").await;
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text} in {page}"));
    assert!(place("nav class=\"counts\"") < place("id=\"silent\""));
    assert!(
        place("id=\"silent\"") < place("chart-title") && place("chart-title") < place("class=\"groups\"")
    );
    // A note for newcomers is on this page alone.
    assert!(page.contains("elsewhere/pump-7"));
    let records = fleet.text("/records").await;
    assert!(!records.contains("elsewhere/pump-7"), "{records}");
    // A telephone shows kind and labels below the unit.
    assert!(
        records.contains("<span class=\"phone\">detector <span class=\"label short\">site=north"),
        "{records}"
    );
    assert!(fleet.text("/incidents").await.contains("<span class=\"phone\">to mail</span>"));
}

#[tokio::test]
async fn every_place_is_on_the_page_of_the_fleet() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    for place in 10..22 {
        fleet.hear_at(&format!("place-{place}"), &format!("detector:{place}")).await;
    }
    let page = fleet.text("/").await;
    assert!(page.contains("<summary class=\"quiet\">and 2 more</summary>"), "{page}");
    for place in 10..22 {
        assert!(page.contains(&format!("href=\"/?label=site%3Dplace-{place}\"")), "place-{place} in {page}");
    }
}

#[tokio::test]
async fn the_answer_of_a_receiver_is_short_above_the_fleet_and_whole_on_the_page_of_instances() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    let (long, short) = ("x".repeat(300), format!("500, &quot;{}…&quot;; correct", "x".repeat(80)));
    fleet.telemetry.receiver_state("hook", Some(&format!("500, \"{long}\"")));
    let advice = "try it with <code>rollcall send-test --receiver hook</code>";
    let page = fleet.text("/").await;
    assert!(page.contains(&short) && page.contains(advice) && !page.contains(&long), "{page}");
    let page = fleet.text("/instances").await;
    let (_, problems) = page.split_once("<h2>Problems</h2>").unwrap();
    assert!(problems.contains(&long) && problems.contains(advice), "{page}");
}

#[tokio::test]
async fn the_list_and_the_page_of_a_unit_have_one_reason_why_nobody_was_notified() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    let pace = Pace { lasts: 1800 * SECOND, ..Route::default().pace };
    let route = Route { receivers: vec!["mail".to_owned()], pace, ..Route::default() };
    let routes = Routes::new(route);
    fleet.routes.send_replace(Arc::new(AlertRoutes { routes, ..AlertRoutes::default() }));
    fleet.hear_at("north", "detector:pump").await;
    fleet.pass(121 * SECOND, &["detector:pump"]).await;
    for path in ["/", "/units/detector/pump"] {
        let page = fleet.text(path).await;
        assert!(page.contains("the silence must last for another"), "{path}: {page}");
    }
}

#[tokio::test]
async fn a_page_of_more_silent_units_than_are_looked_up_says_where_the_rest_is() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    let units: Vec<String> = (0..101).map(|number| format!("detector:{number}")).collect();
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    fleet.hear(&units).await;
    fleet.pass(121 * SECOND, &units).await;
    let page = fleet.text("/?state=offline&limit=200").await;
    assert_eq!(page.matches("see the unit").count(), 1, "{page}");
}

#[tokio::test]
async fn pages_say_that_a_route_without_receivers_escalates() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    let step = Escalation { after: 1800 * SECOND, receivers: vec!["boss".to_owned()] };
    let again = FollowUps { repeat: None, escalate: vec![step] };
    let routes = Routes::new(Route { again, ..Route::default() });
    fleet.routes.send_replace(Arc::new(AlertRoutes { routes, ..AlertRoutes::default() }));
    fleet.hear_at("north", "detector:pump").await;
    fleet.pass(121 * SECOND, &["detector:pump"]).await;
    let page = fleet.text("/").await;
    assert!(
        page.contains("nobody: its group waits for another") && !page.contains("has no receiver;"),
        "{page}"
    );
    assert!(fleet.text("/incidents").await.contains("to boss"));
    let unit = fleet.text("/units/detector/pump").await;
    assert!(!unit.contains("has no receiver;"), "{unit}");
}

#[tokio::test]
async fn the_page_of_a_unit_says_why_it_is_offline_and_its_forms_change_it() {
    let fleet = Fleet::start().await;
    fleet.hear_at("north", "detector:pump 7").await;
    fleet.pass(121 * SECOND, &["detector:pump 7"]).await;
    const PAGE: &str = "/units/detector/pump%207";
    let page = fleet.text(PAGE).await;
    for text in ["pump 7", ">2m 1s ago</time>. Its deadline passed <time", ">1s ago</time>.", "Open record"] {
        assert!(page.contains(text), "{text} in {page}");
    }
    let own = fleet.url.clone();
    let refused = submit(&fleet, &format!("{PAGE}/ack"), "", "http://evil.example", "author=ana").await;
    assert_eq!(refused.status(), 403);
    let taken = submit(&fleet, &format!("{PAGE}/ack"), "", &own, "author=ana&comment=on+my+way").await;
    assert_eq!((taken.status().as_u16(), taken.headers()[LOCATION].to_str().unwrap()), (303, PAGE));
    let page = fleet.text(PAGE).await;
    assert!(page.contains("on my way") && page.contains("by ana: on my way"), "{page}");
    assert_eq!(submit(&fleet, &format!("{PAGE}/unack"), "", &own, "").await.status(), 303);
    // The history keeps the acknowledgement.
    let page = fleet.text(PAGE).await;
    assert!(
        !page.contains("Take the acknowledgement back") && page.contains("acknowledgement undone"),
        "{page}"
    );

    let silently = submit(&fleet, &format!("{PAGE}/ack"), "", &own, "author=ben&comment=").await;
    assert_eq!(silently.status(), 303);
    let page = fleet.text(PAGE).await;
    assert!(page.contains("by ben</span>") && !page.contains("<span>by ben:"), "{page}");

    for wrong in
        ["hours=0&author=ana", "hours=NaN&author=ana", "hours=1e300&author=ana", "hours=1", "author=ana"]
    {
        assert_eq!(submit(&fleet, &format!("{PAGE}/pause"), "", &own, wrong).await.status(), 400, "{wrong}");
    }
    assert_eq!(
        submit(&fleet, &format!("{PAGE}/pause"), "", &own, "hours=1.5&author=ana").await.status(),
        303
    );
    assert!(fleet.text(PAGE).await.contains("End the pause"));
    assert_eq!(submit(&fleet, &format!("{PAGE}/unpause"), "", &own, "").await.status(), 303);
    assert_eq!(submit(&fleet, &format!("{PAGE}/remove"), "", &own, "").await.status(), 400);
    let removed = submit(&fleet, &format!("{PAGE}/remove"), "", &own, "sure=yes").await;
    assert_eq!((removed.status().as_u16(), removed.headers()[LOCATION].to_str().unwrap()), (303, "/"));
    assert_eq!(fleet.get(PAGE).await.status(), 404);
    assert!(fleet.text("/records").await.contains("removed"));
    assert!(fleet.text("/instances").await.contains("two"));
}

#[tokio::test]
async fn a_browser_logs_in_with_a_token_and_may_do_what_its_role_may() {
    let tokens = vec![token("screen", Role::Viewer), token("desk", Role::Operator)];
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    fleet.hear(&["detector:1"]).await;
    let get = async |path: &str, cookie: &str| {
        let request = browser().get(format!("{}{path}", fleet.url)).header("accept", HTML);
        request.header(COOKIE, cookie).send().await.unwrap()
    };
    let sent_away = get("/", "").await;
    assert_eq!(
        (sent_away.status().as_u16(), sent_away.headers()[LOCATION].to_str().unwrap()),
        (303, "/login")
    );
    let sent_away = get("/units/detector/1?x=%22", "").await;
    let login = sent_away.headers()[LOCATION].to_str().unwrap().to_owned();
    assert_eq!(login, "/login?next=%2Funits%2Fdetector%2F1%3Fx%3D%2522");
    let form = get(&login, "").await.text().await.unwrap();
    assert!(form.contains("name=\"next\" value=\"/units/detector/1?x=%22\""), "{form}");
    assert_eq!(fleet.get("/api/v1/units").await.status(), 401);
    assert_eq!(get("/login", "").await.status(), 200);
    assert_eq!(get("/assets/style.css", "").await.status(), 200);

    let own = fleet.url.clone();
    assert_eq!(submit(&fleet, "/login", "", &own, "token=wrong").await.status(), 403);
    assert_eq!(submit(&fleet, "/login", "", "http://evil.example", "token=desk").await.status(), 403);
    let led = submit(&fleet, "/login", "", &own, "token=desk&next=%2Funits%2Fdetector%2F1").await;
    assert_eq!(led.headers()[LOCATION], "/units/detector/1");
    let log_in = async |token: &str| {
        let answer = submit(&fleet, "/login", "", &own, &format!("token={token}")).await;
        assert_eq!(answer.status(), 303);
        let cookie = answer.headers()[SET_COOKIE].to_str().unwrap().to_owned();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        cookie.split(';').next().unwrap().to_owned()
    };
    let (screen, desk) = (log_in("screen").await, log_in("desk").await);
    for (cookie, may_change) in [(&screen, false), (&desk, true)] {
        assert_eq!(get("/", cookie).await.status(), 200);
        assert_eq!(get("/api/v1/summary", cookie).await.status(), 200);
        let page = get("/units/detector/1", cookie).await.text().await.unwrap();
        assert_eq!(page.contains("Pause"), may_change);
        assert!(!page.contains("Remove"), "only an administrator removes units");
        let paused = submit(&fleet, "/units/detector/1/pause", cookie, &own, "hours=1&author=ana").await;
        assert_eq!(paused.status().as_u16(), if may_change { 303 } else { 403 });
        let removed = submit(&fleet, "/units/detector/1/remove", cookie, &own, "sure=yes").await;
        assert_eq!(removed.status(), 403);
    }
    // A logout ends this session of the token, also for others that have its cookie, and no other session.
    let copied = log_in("screen").await;
    assert_eq!(submit(&fleet, "/logout", &copied, "http://evil.example", "").await.status(), 403);
    assert_eq!(get("/", &copied).await.status(), 200);
    assert_eq!(submit(&fleet, "/logout", &copied, &own, "").await.status(), 303);
    assert_eq!(get("/", &copied).await.status(), 303);
    assert_eq!(get("/", &screen).await.status(), 200);
    // The session is over after twelve hours.
    fleet.clock.advance(12 * 3600 * SECOND);
    assert_eq!(get("/", &desk).await.status(), 303);
    let ended = submit(&fleet, "/logout", &desk, &own, "").await;
    assert_eq!(ended.status(), 401);
}

#[tokio::test]
async fn the_sites_of_a_simulated_fleet_have_switches_and_other_fleets_have_none() {
    let switches = Switches::new(["north", "<south>"].map(str::to_owned));
    let fleet = Fleet::start_configured(|config| config.switches = Some(switches.clone())).await;
    let page = fleet.text("/").await;
    assert!(page.contains("Switch north off") && page.contains("Switch &lt;south&gt; off"), "{page}");
    let own = fleet.url.clone();
    let turn =
        async |origin: &str, fields: &str| submit(&fleet, "/demo/power", "", origin, fields).await.status();
    assert_eq!(turn("http://evil.example", "site=north&off=true").await, 403);
    assert_eq!(turn(&own, "site=north&off=true").await, 303);
    let off = || switches.off().iter().map(|off| off.load(Relaxed)).collect::<Vec<bool>>();
    assert_eq!(off(), [true, false]);
    assert!(fleet.text("/").await.contains("Switch north on"));
    assert_eq!(turn(&own, "site=north&off=false").await, 303);
    assert_eq!(off(), [false, false]);
    assert_eq!(turn(&own, "site=west&off=true").await, 404);

    let plain = Fleet::start().await;
    assert!(!plain.text("/").await.contains("Switch "));
    let answer = submit(&plain, "/demo/power", "", &plain.url.clone(), "site=north&off=true").await;
    assert_eq!(answer.status(), 404);
}

#[tokio::test]
async fn where_there_is_no_page_a_browser_gets_one_and_a_program_a_problem() {
    let fleet = Fleet::start().await;
    let ask = |accept: &str| browser().get(format!("{}/nowhere", fleet.url)).header("accept", accept).send();
    let page = ask(HTML).await.unwrap();
    assert_eq!(page.status(), 404);
    assert!(page.headers()["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
    assert!(page.text().await.unwrap().contains("There is no such page"));
    assert_problem(ask("application/json").await.unwrap(), 404).await;
    assert_problem(fleet.get("/api/v1/nowhere").await, 404).await;
}

#[tokio::test]
async fn pages_about_errors_stay_below_the_path_of_the_external_url() {
    let external = Some("https://fleet.example.org/rollcall".to_owned());
    let fleet = Fleet::start_configured(|config| config.external_url = external).await;
    fleet.fill();
    for (path, status) in
        [("/nowhere", 404), ("/units/detector/nobody", 404), ("/?state=up", 400), ("/login", 200)]
    {
        let asked =
            browser().get(format!("{}{path}", fleet.url)).header("accept", HTML).send().await.unwrap();
        assert_eq!(asked.status(), status, "{path}");
        assert!(asked.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'"));
        let page = asked.text().await.unwrap();
        assert!(page.contains("href=\"/rollcall/assets/style.css?v="), "{path}: {page}");
        let links = page.split("href=\"/").skip(1);
        assert!(links.into_iter().all(|link| link.starts_with("rollcall/")), "{path}: {page}");
    }
}

#[tokio::test]
async fn without_tokens_a_page_that_resolves_to_this_machine_reads_nothing() {
    let external = Some("https://fleet.example.org:8443/rollcall".to_owned());
    let fleet = Fleet::start_configured(|config| config.external_url = external).await;
    let ask =
        |path: &str, host: &str| browser().get(format!("{}{path}", fleet.url)).header("host", host).send();
    for path in ["/", "/api/v1/units", "/metrics", "/readyz", "/alertmanager/api/v2/status", "/login"] {
        for host in
            ["evil.example", "127.0.0.1.evil.example:8080", "localhost.evil.example", "192.0.2.1", "x[::1]"]
        {
            assert_eq!(ask(path, host).await.unwrap().status(), 403, "{path} {host}");
        }
        for host in ["localhost:8080", "127.0.0.1", "[::1]:80", "fleet.example.org", "Fleet.example.org:8443"]
        {
            assert_ne!(ask(path, host).await.unwrap().status(), 403, "{path} {host}");
        }
    }
    assert_eq!(ask("/healthz", "10.0.0.7").await.unwrap().status(), 200);
    let guarded = Fleet::start_with(vec![token("desk", Role::Operator)], UnitMetrics::All).await;
    let asked = browser().get(format!("{}/api/v1/units", guarded.url)).header("host", "any.example");
    assert_eq!(asked.bearer_auth("desk").send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_token_that_expired_is_refused_with_its_session() {
    let until = |seconds: u32| Token {
        expires_at: Some(NOON + seconds * SECOND),
        ..token(&format!("until{seconds}"), Role::Admin)
    };
    let fleet = Fleet::start_with(vec![until(60), until(120)], UnitMetrics::All).await;
    let own = fleet.url.clone();
    let log_in = async |token: &str| submit(&fleet, "/login", "", &own, &format!("token={token}")).await;
    let answer = log_in("until60").await;
    let cookie = answer.headers()[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let ask = async |token: &str, cookie: &str| {
        let request = fleet.client.get(format!("{}/api/v1/summary", fleet.url));
        let request = if token.is_empty() { request } else { request.bearer_auth(token) };
        request.header(COOKIE, cookie).send().await.unwrap()
    };
    fleet.clock.advance(60 * SECOND - SECOND / 1000);
    for (token, cookie) in [("until60", ""), ("until120", ""), ("", cookie.as_str())] {
        assert_eq!(ask(token, cookie).await.status(), 200, "{token} {cookie}");
    }
    fleet.clock.advance(SECOND / 1000);
    let problem = assert_problem(ask("until60", "").await, 401).await;
    assert_eq!(problem["detail"], "this token expired at 2026-03-01T12:01:00.000Z");
    assert_eq!(ask("", &cookie).await.status(), 401);
    assert_eq!(ask("until120", "").await.status(), 200);
    assert_eq!(log_in("until60").await.status(), 403);
    assert_eq!(fleet.get("/healthz").await.status(), 200);
}
