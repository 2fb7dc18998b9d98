//! Known clients: users of a proxy, other instances, and logins, which are limited.

use futures_util::future::join_all;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use rollcall::http::{Proxies, ProxyUsers, Role};
use rollcall::store::Roster;
use serde_json::json;

use super::changes::token;
use super::web::browser;
use super::world::{Fleet, SECOND, assert_problem};

const FORWARDED_FOR: &str = "x-forwarded-for";

/// A fleet behind a proxy of this machine, which names users if `has_users`.
async fn behind_a_proxy(has_users: bool) -> Fleet {
    let roles = [("ana".to_owned(), Role::Operator)].into();
    let users = ProxyUsers { header: "x-user".try_into().unwrap(), role: Role::Viewer, roles };
    let networks = vec!["127.0.0.0/8".parse().unwrap()];
    Fleet::start_configured(|config| {
        config.tokens = vec![token("desk", Role::Operator)];
        config.proxies = Proxies { networks, users: has_users.then_some(users) };
    })
    .await
}

async fn log_in(fleet: &Fleet, client: &str, token: &str) -> Response {
    let request = browser().post(format!("{}/login", fleet.url)).header(FORWARDED_FOR, client);
    let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    request.body(format!("token={token}")).send().await.unwrap()
}

#[tokio::test]
async fn a_client_that_sends_wrong_tokens_has_to_wait_and_no_other() {
    let fleet = behind_a_proxy(false).await;
    let wrong = join_all((0..5).map(|_| log_in(&fleet, "192.0.2.1", "wrong"))).await;
    assert!(wrong.iter().all(|answer| answer.status() == StatusCode::FORBIDDEN));
    for token in ["wrong", "desk"] {
        let refused = log_in(&fleet, "198.51.100.1, 192.0.2.1", token).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        let wait: u64 = refused.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
        assert!((1..=61).contains(&wait), "{wait}");
    }
    assert_eq!(log_in(&fleet, "192.0.2.2", "desk").await.status(), StatusCode::SEE_OTHER);
    fleet.clock.advance(60 * SECOND);
    assert_eq!(log_in(&fleet, "192.0.2.1", "desk").await.status(), StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn an_address_that_tries_bearer_tokens_has_to_wait_and_no_known_token() {
    let fleet = behind_a_proxy(false).await;
    let ask = |client: &str, token: &str| {
        let request = fleet.client.get(format!("{}/api/v1/summary", fleet.url)).header(FORWARDED_FOR, client);
        request.bearer_auth(token).send()
    };
    for number in 0..5 {
        assert_eq!(ask("192.0.2.1", &format!("wrong{number}")).await.unwrap().status(), 401);
    }
    let refused = ask("192.0.2.1", "wrong").await.unwrap();
    let wait: u64 = refused.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_problem(refused, 429).await;
    assert_eq!(ask("192.0.2.1", "desk").await.unwrap().status(), 200);
    assert_eq!(log_in(&fleet, "192.0.2.1", "desk").await.status(), StatusCode::SEE_OTHER);
    assert_eq!(ask("192.0.2.2", "wrong").await.unwrap().status(), 401);
    fleet.clock.advance(60 * SECOND);
    assert_eq!(ask("192.0.2.1", "wrong").await.unwrap().status(), 401);
}

#[tokio::test]
async fn a_user_of_the_proxy_has_the_configured_role() {
    let fleet = behind_a_proxy(true).await;
    fleet.hear(&["detector:a"]).await;
    let ask = |user: &str| {
        let request = browser().get(format!("{}/", fleet.url)).header(ACCEPT, "text/html");
        request.header("x-user", user).send()
    };
    assert_eq!(ask("bob").await.unwrap().status(), StatusCode::OK);
    assert_eq!(ask("").await.unwrap().headers()[LOCATION], "/login");
    let pause = |user: &str| {
        let body = json!({"until": "2027-01-01T00:00:00Z", "author": "x", "comment": ""}).to_string();
        let request = fleet.client.put(format!("{}/api/v1/units/detector/a/pause", fleet.url));
        request.header("x-user", user).header(CONTENT_TYPE, "application/json").body(body).send()
    };
    assert_problem(pause("bob").await.unwrap(), 403).await;
    assert_eq!(pause("ana").await.unwrap().status(), StatusCode::OK);
    let request = fleet.client.get(format!("{}/api/v1/audit", fleet.url)).header("x-user", "bob");
    let audit = request.send().await.unwrap().text().await.unwrap();
    assert!(audit.contains("x (ana)"), "{audit}");
}

#[tokio::test]
async fn without_a_trusted_proxy_nobody_names_a_user() {
    let users =
        ProxyUsers { header: "x-user".try_into().unwrap(), role: Role::Admin, roles: Default::default() };
    let networks = vec!["192.0.2.0/24".parse().unwrap()];
    let proxies = Proxies { networks, users: Some(users) };
    let fleet = Fleet::start_configured(|config| config.proxies = proxies).await;
    let answer = fleet.client.get(format!("{}/api/v1/units", fleet.url)).header("x-user", "ana");
    assert_problem(answer.send().await.unwrap(), 401).await;
}

#[tokio::test]
async fn an_instance_shows_its_units_to_those_that_have_the_key_of_the_fleet() {
    let fleet = behind_a_proxy(false).await;
    let other = behind_a_proxy(false).await;
    let units = async || {
        let request = fleet.client.get(format!("{}/api/v1/units", fleet.url));
        let answer = request.header(AUTHORIZATION, "Bearer desk").send().await.unwrap();
        serde_json::from_str::<serde_json::Value>(&answer.text().await.unwrap()).unwrap()
    };
    // The fleet gets another name, and then an instance of another fleet is asked.
    fleet.fill();
    let announce = async |url: &str| {
        let address = url.trim_start_matches("http://");
        let roster: &dyn Roster = &*fleet.engine;
        roster.announce("two", address).await.unwrap();
    };
    announce(&fleet.url).await;
    assert_eq!(units().await["incomplete"], json!([]));
    announce(&other.url).await;
    assert_eq!(units().await["incomplete"], json!(["two"]));
    for proof in ["", "1.00", "a.b", "99999999999999999999.00"] {
        let request = fleet.client.get(format!("{}/api/v1/units", fleet.url)).header("rollcall-peer", proof);
        assert_problem(request.header("rollcall-scope", "own").send().await.unwrap(), 401).await;
    }
}

#[tokio::test]
async fn a_client_that_sends_too_many_requests_has_to_wait_and_no_other() {
    let fleet = Fleet::start_configured(|config| {
        config.tokens = vec![token("desk", Role::Operator), token("wall", Role::Viewer)];
        config.requests_per_second = 5;
    })
    .await;
    let ask = |path: &str, token: &str| {
        let request = fleet.client.get(format!("{}{path}", fleet.url));
        request.header(AUTHORIZATION, format!("Bearer {token}")).send()
    };
    let answers = join_all((0..50).map(|_| ask("/api/v1/summary", "desk"))).await;
    let mut refused =
        answers.into_iter().map(Result::unwrap).filter(|answer| answer.status() != StatusCode::OK);
    let first = refused.next().expect("fifty within two seconds are too many");
    assert_eq!(first.headers()[RETRY_AFTER], "1");
    let problem = assert_problem(first, 429).await;
    assert!(problem["detail"].as_str().unwrap().contains("http.requests_per_second"), "{problem}");
    assert!(refused.all(|answer| answer.status() == StatusCode::TOO_MANY_REQUESTS));
    assert_eq!(ask("/api/v1/summary", "wall").await.unwrap().status(), StatusCode::OK);
    // A client without a known token counts as another client, and pages for health are not counted.
    assert_eq!(ask("/api/v1/summary", "unknown").await.unwrap().status(), StatusCode::UNAUTHORIZED);
    let healthy = join_all((0..50).map(|_| ask("/healthz", "desk"))).await;
    assert!(healthy.into_iter().all(|answer| answer.unwrap().status() == StatusCode::OK));
}
