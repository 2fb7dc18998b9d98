//! The running instance of a configuration on this machine, for commands that also work without it.

use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::remote::{ClientToken, Remote};
use crate::config::Config;

/// How long the instance may take to answer, so that a frozen instance does not block the command.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The items of a list of the API; `None` if no instance answers, or if it needs another token.
async fn list(config: &Config, page: &str, items: &str) -> Option<(String, Vec<Value>)> {
    let remote = Remote::beside(config, ClientToken::of_environment().ok()?).ok()?;
    let mut answer = timeout(TIMEOUT, remote.get(&["api", "v1", page], &[], items)).await.ok()?.ok()?;
    match answer[items].take() {
        Value::Array(list) => Some((remote.place(), list)),
        _ => None,
    }
}

/// The instances whose kinds, routes, receivers or timers differ from this configuration; `None` if no instance
/// answers.
pub(super) async fn instances_that_differ(config: &Config) -> Option<Vec<String>> {
    let wanted = format!("{:012x}", config.sections.shared(&config.sections));
    let (_, instances) = list(config, "instances", "instances").await?;
    let differ = instances.iter().filter(|one| one["configuration"] != wanted.as_str());
    Some(differ.filter_map(|one| one["name"].as_str().map(str::to_owned)).collect())
}

/// The address of the running instance if it lacks a receiver of that name.
pub(super) async fn place_without(config: &Config, receiver: &str) -> Option<String> {
    let (place, receivers) = list(config, "receivers", "receivers").await?;
    // A receiver without a type is not configured there; only notifications of it are left.
    let has = receivers.iter().any(|one| one["name"] == receiver && !one["type"].is_null());
    (!has).then_some(place)
}
