//! The findings about client ids and names: another client could take over Rollcall's session, or another instance has
//! the same id or name.

use std::net::SocketAddr;

use serde_json::Value;

use super::{Finding, TIMEOUT, health, reachable, with_timeout};
use crate::config::is_loopback;
use crate::fleet::is_renamed;
use crate::intake;
use crate::telemetry::PROBLEMS_OF_IDS;

pub(super) async fn examine(config: &intake::Config) -> Option<Finding> {
    // Without user names the broker cannot bind ids to them, and on loopback only local programs connect. With TLS the
    // broker may authenticate a client by its certificate, and this check presents the same certificate.
    if config.credentials.is_none() && (is_loopback(&config.url) || config.tls.is_some()) {
        return None;
    }
    let is_open = with_timeout(intake::accepts_anonymous(config)).await.unwrap_or(false);
    is_open.then(|| {
        let text = format!(
            "{} accepts a client without a user name and with a client id that begins with {}-: any client can take \
             Rollcall's session over and receive the messages of devices; give every client a user name \
             (allow_anonymous false in Mosquitto) and bind client ids to user names, as \
             config/mosquitto/production.conf does",
            config.url, config.client_id
        );
        Finding::warn("client ids", text)
    })
}

/// The problems with the name and the client id that the running instance reports.
pub(super) async fn of_running_instance(http: SocketAddr) -> Vec<Finding> {
    let asked = tokio::time::timeout(TIMEOUT, health::ask(reachable(http), "/readyz")).await;
    let Ok(Ok(answer)) = asked else { return Vec::new() };
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let Ok(page) = serde_json::from_str::<Value>(body) else { return Vec::new() };
    let list = |name: &str| page[name].as_array().cloned().unwrap_or_default();
    let is_of_ids = |problem: &Value| PROBLEMS_OF_IDS.iter().any(|name| problem["name"] == *name);
    let problems = list("problems").into_iter().filter(is_of_ids);
    let mut texts: Vec<String> =
        problems.filter_map(|problem| problem["text"].as_str().map(str::to_owned)).collect();
    let name = page["instance"].as_str().unwrap_or_default();
    for other in list("instances") {
        if let Some(other) = other.as_str().filter(|other| is_renamed(name, other)) {
            texts.push(format!(
                "another process has the name {name} in its configuration too, and calls itself {other}: give it an \
                 instance.name of its own"
            ));
        }
    }
    texts.into_iter().map(|text| Finding::warn("running instance", text)).collect()
}
