//! Every route, and the least role that it answers.

use std::collections::BTreeSet;
use std::path::Path;

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use rollcall::http::{Role, UnitMetrics};

use super::changes::token;
use super::web::browser;
use super::world::Fleet;

/// The least role whose requests are answered; `Anyone`: requests of every client are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MinimumSince {
    Anyone,
    Viewer,
    /// Devices and operators; a viewer only looks.
    Device,
    Operator,
    Admin,
}

use MinimumSince::{Admin, Anyone, Device, Operator, Viewer};

pub(super) const ROUTES: &[(&str, &str, MinimumSince)] = &[
    ("get", "/healthz", Anyone),
    ("get", "/readyz", Anyone),
    ("get", "/login", Anyone),
    ("post", "/login", Anyone),
    ("get", "/assets/style.css", Anyone),
    ("get", "/assets/script.js", Anyone),
    ("get", "/", Viewer),
    ("get", "/units/{kind}/{unit}", Viewer),
    ("get", "/records", Viewer),
    ("get", "/deliveries", Viewer),
    ("get", "/deliveries/{id}", Viewer),
    ("get", "/silences", Viewer),
    ("get", "/instances", Viewer),
    ("get", "/timers", Viewer),
    ("get", "/reports", Viewer),
    ("get", "/reports.csv", Viewer),
    ("get", "/policy", Viewer),
    ("get", "/api/v1/policy/try", Viewer),
    ("get", "/incidents", Viewer),
    ("get", "/configuration", Viewer),
    ("get", "/about", Viewer),
    ("get", "/strangers", Viewer),
    ("post", "/strangers/admit", Admin),
    ("get", "/api/v1/strangers", Viewer),
    ("get", "/api/v1/openapi.json", Viewer),
    ("post", "/logout", Viewer),
    ("get", "/metrics", Viewer),
    ("get", "/metrics/units", Viewer),
    ("get", "/probe", Viewer),
    ("get", "/api/v1/prometheus/targets", Viewer),
    ("get", "/api/v1/summary", Viewer),
    ("get", "/api/v1/stream", Viewer),
    ("get", "/api/v1/units", Viewer),
    ("get", "/api/v1/units/{kind}/{unit}", Viewer),
    ("get", "/api/v1/units/{kind}/{unit}/timeline", Viewer),
    ("get", "/api/v1/units/{kind}/{unit}/rhythm", Viewer),
    ("get", "/api/v1/units:export", Viewer),
    ("get", "/api/v1/availability", Viewer),
    ("get", "/api/v1/history/counts", Viewer),
    ("get", "/api/v1/suggest", Viewer),
    ("get", "/api/v1/records", Viewer),
    ("get", "/api/v1/records/{id}", Viewer),
    ("get", "/api/v1/deliveries", Viewer),
    ("get", "/api/v1/deliveries/{id}", Viewer),
    ("get", "/api/v1/silences", Viewer),
    ("get", "/api/v1/silences/{id}", Viewer),
    ("get", "/api/v1/timers", Viewer),
    ("get", "/api/v1/timers/{id}", Viewer),
    ("get", "/api/v1/breaker", Viewer),
    ("get", "/api/v1/instances", Viewer),
    ("get", "/api/v1/receivers", Viewer),
    ("get", "/api/v1/audit", Viewer),
    ("get", "/alertmanager/metrics", Viewer),
    ("get", "/alertmanager/api/v2/status", Viewer),
    ("get", "/alertmanager/api/v2/receivers", Viewer),
    ("get", "/alertmanager/api/v2/alerts", Viewer),
    ("get", "/alertmanager/api/v2/alerts/groups", Viewer),
    ("get", "/alertmanager/api/v2/silences", Viewer),
    ("get", "/alertmanager/api/v2/silence/{id}", Viewer),
    ("post", "/api/v1/heartbeats", Device),
    ("get", "/ping/{kind}/{unit}", Device),
    ("post", "/ping/{kind}/{unit}", Device),
    ("get", "/ping/{kind}/{unit}/start", Device),
    ("post", "/ping/{kind}/{unit}/start", Device),
    ("get", "/ping/{kind}/{unit}/fail", Device),
    ("post", "/ping/{kind}/{unit}/fail", Device),
    ("put", "/api/v1/records/{id}/ack", Operator),
    ("delete", "/api/v1/records/{id}/ack", Operator),
    ("put", "/api/v1/units/{kind}/{unit}/pause", Operator),
    ("delete", "/api/v1/units/{kind}/{unit}/pause", Operator),
    ("post", "/api/v1/deliveries/{id}/replay", Operator),
    ("post", "/api/v1/deliveries/replay", Operator),
    ("post", "/api/v1/deliveries/purge", Operator),
    ("post", "/api/v1/silences", Operator),
    ("post", "/api/v1/silences/{id}/extend", Operator),
    ("put", "/api/v1/silences/{id}", Operator),
    ("delete", "/api/v1/silences/{id}", Operator),
    ("post", "/api/v1/timers", Operator),
    ("put", "/api/v1/timers/{id}", Operator),
    ("delete", "/api/v1/timers/{id}", Operator),
    ("post", "/api/v1/timers:cancel", Operator),
    ("post", "/api/v1/breaker/release", Operator),
    ("post", "/alertmanager/api/v2/silences", Operator),
    ("delete", "/alertmanager/api/v2/silence/{id}", Operator),
    ("post", "/-/reload", Operator),
    ("post", "/units/{kind}/{unit}/ack", Operator),
    ("post", "/units/{kind}/{unit}/unack", Operator),
    ("post", "/units/{kind}/{unit}/pause", Operator),
    ("post", "/units/{kind}/{unit}/unpause", Operator),
    ("post", "/deliveries/{id}/replay", Operator),
    ("post", "/deliveries/replay", Operator),
    ("post", "/silences", Operator),
    ("post", "/silences/{id}/expire", Operator),
    ("post", "/timers/cancel", Operator),
    ("post", "/demo/power", Operator),
    ("post", "/incidents/release", Operator),
    ("put", "/api/v1/units/{kind}/{unit}", Admin),
    ("delete", "/api/v1/units/{kind}/{unit}", Admin),
    ("post", "/api/v1/units:import", Admin),
    ("post", "/api/v1/deliveries/discard", Admin),
    ("post", "/units/{kind}/{unit}/remove", Admin),
];

/// The methods and paths of the routes in the sources.
fn routes(folder: &Path, found: &mut BTreeSet<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            routes(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            add_routes(&std::fs::read_to_string(&path).unwrap(), found);
        }
    }
}

fn add_routes(code: &str, found: &mut BTreeSet<(String, String)>) {
    let of_file = code.split_once("const PATH: &str = \"").map(|(_, rest)| rest.split('"').next().unwrap());
    for call in code.split(".route(").skip(1) {
        let (path, rest) = call.split_once(',').unwrap();
        let path = if path == "PATH" { of_file.unwrap() } else { path.trim_matches('"') };
        // The methods stand between the path and the parenthesis that closes the call.
        let (mut depth, mut end) = (1, rest.len());
        for (at, c) in rest.char_indices() {
            depth += i32::from(c == '(') - i32::from(c == ')');
            if depth == 0 {
                end = at;
                break;
            }
        }
        let mut has_method = false;
        for method in ["get", "post", "put", "delete", "patch", "any"] {
            let mut calls = rest[..end]
                .split('(')
                .map(|text| text.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
            if calls.any(|mut words| words.next() == Some(method)) {
                has_method = true;
                found.insert((method.to_owned(), path.to_owned()));
            }
        }
        assert!(has_method, "no method of {path}");
    }
}

#[tokio::test]
async fn every_route_answers_those_roles_that_it_is_for_and_no_other() {
    let mut found = BTreeSet::new();
    routes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http"), &mut found);
    let rows: BTreeSet<(String, String)> =
        ROUTES.iter().map(|(method, path, _)| (method.to_string(), path.to_string())).collect();
    assert_eq!(rows, found, "the table of this test and the routers differ");

    let roles =
        [("pump", Role::Device), ("screen", Role::Viewer), ("desk", Role::Operator), ("owner", Role::Admin)];
    let tokens = roles.map(|(name, role)| token(name, role)).into();
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    fleet.hear(&["detector:1"]).await;
    let client = browser();
    for &(method, path, least) in ROUTES {
        let is_form =
            !path.starts_with("/api/") && !path.starts_with("/alertmanager/") && path != "/-/reload";
        let path = path.replace("{kind}", "detector").replace("{unit}", "1").replace("{id}", "ntf_0");
        for (token, role) in [
            (None, Anyone),
            (Some("pump"), Device),
            (Some("screen"), Viewer),
            (Some("desk"), Operator),
            (Some("owner"), Admin),
        ] {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let request = client.request(method.clone(), format!("{}{path}", fleet.url));
            let request = match (is_form, &method) {
                (_, &Method::GET) => request,
                (true, _) => request
                    .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body("token=screen&sure=yes"),
                (false, _) => request.header(CONTENT_TYPE, "application/json").body("{}"),
            };
            let request = match token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            let status = request.send().await.unwrap().status().as_u16();
            let refused = match role {
                Anyone => status == 401,
                _ => status == 403,
            };
            // A device looks at nothing but what every client may see.
            let is_refused = if role == Device { !matches!(least, Device | Anyone) } else { role < least };
            assert_eq!(refused, is_refused, "{method} {path} as {token:?}: {status}");
            assert!(status < 500 || path == "/-/reload" || path == "/readyz", "{method} {path}: {status}");
        }
    }
}
