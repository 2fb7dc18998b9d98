//! The servers for `rollcall check`: the faults that the service would find, before it uses the servers. Changes
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use redis::{InfoDict, Pipeline, pipe};

use super::clock_difference::{ClockOffset, servers_off};
use super::examine::{
    MEANWHILE, ServerState, check_version, read_server, read_servers, replica_warnings, slots_missing,
};
use super::keys::Keys;
use super::replicas::replicas;
use super::topology::{HostPort, RedisServer, Topology, classify};
use super::{RedisConfig, meta, rights};
use crate::clock::{Stopwatch, Timestamp};
use crate::store::{Condition, EngineError, Result, ServerCondition, Warning};
use crate::telemetry::EngineWarning;

/// Examines a server that the service does not use yet, and tries every right that the service needs.
pub(super) async fn survey(topology: &Topology, config: &RedisConfig, now: Timestamp) -> Result<Condition> {
    survey_fleet(topology, config, now).await.map_err(|error| match error {
        // Missing slots explain why reads fail.
        EngineError::Unavailable(_) | EngineError::Passing(_) => {
            slots_missing(topology).map_or(error, |one| EngineError::Unavailable(one.text))
        }
        other => other,
    })
}

async fn survey_fleet(topology: &Topology, config: &RedisConfig, now: Timestamp) -> Result<Condition> {
    let began = Stopwatch::start();
    let (keys, stored) = match meta::read_keys(topology, config).await {
        Ok(keys) => (keys, Ok(())),
        // If the user may not read the fleet, the next step names all missing rights.
        Err(refused @ EngineError::Refused(_)) => (meta::new_keys(config), Err(refused)),
        Err(error) => return Err(error),
    };
    let keys = &keys;
    if let Some(text) = rights::missing(topology, keys).await? {
        return Err(EngineError::Refused(text));
    }
    let states = read_servers(topology, (now, began)).await?;
    let states = states.into_iter().map(|(_, state)| state).collect::<Result<Vec<ServerState>>>()?;
    states.iter().try_for_each(|state| check_version(&state.info))?;
    meta::check_whole(topology, keys).await?;
    stored?;
    topology.send::<()>("probe", &partitions(keys)).await?;
    for key in one_key_of_each(topology, keys).await? {
        topology.send::<()>("probe", &probe(&key)).await?;
    }
    let Some(first) = states.first() else {
        return Err(EngineError::Unavailable(format!("no primary is known at {}", topology.address())));
    };
    if !topology.is_fixed() {
        let (count, name) = (states.len(), name(&first.info));
        let server =
            if topology.has_parts() { format!("a cluster of {count} primaries ({name})") } else { name };
        return Ok(Condition { server, warnings: slots_missing(topology).into_iter().collect() });
    }
    let mut warnings = primary_warnings(topology, config, first).await;
    warnings.extend(clock_off(first));
    Ok(Condition { server: name(&first.info), warnings })
}

/// Examines each of several servers: the primaries, their replicas, and the sentinels. Empty for a single server.
pub(super) async fn servers(
    topology: &Topology,
    config: &RedisConfig,
    now: Timestamp,
) -> Result<Vec<ServerCondition>> {
    if topology.is_fixed() {
        return Ok(Vec::new());
    }
    let began = Stopwatch::start();
    // The survey reports why no primary is known. The sentinels may add reasons.
    let primaries = read_servers(topology, (now, began)).await.unwrap_or_default();
    let replicas: BTreeSet<HostPort> =
        primaries.iter().flat_map(|(server, _)| topology.replicas(server)).collect();
    let replicas = replicas.into_iter().map(|at| async move {
        let state = match topology.open(&at) {
            Ok(server) => read_server(topology, server, (now, began)).await,
            Err(why) => Err(why),
        };
        (at.to_string(), state)
    });
    let (replicas, observers) = tokio::join!(join_all(replicas), topology.observers());
    let by = clock_of_hearing(topology, &primaries);
    let clock_warning = |address: &str, state: &ServerState| match &by {
        Some((by, clock)) if by != address => servers_off((by, *clock), &[(address, state.clock)]),
        _ => clock_off(state),
    };
    let mut found = Vec::new();
    for (server, state) in primaries {
        let mut warnings = Vec::new();
        if let Ok(state) = &state {
            warnings = primary_warnings(topology, config, state).await;
            warnings.extend(clock_warning(server.address(), state));
        }
        found.push(condition(server.address().to_owned(), state, warnings));
    }
    for (address, state) in replicas {
        let mut warnings = Vec::new();
        if let Ok(state) = &state {
            warnings = of_replica(config, state);
            warnings.extend(clock_warning(&address, state));
        }
        found.push(condition(address, state, warnings));
    }
    // A replica that refuses the login is among the replicas and the observers.
    let known: BTreeSet<String> = found.iter().map(|one| one.address.clone()).collect();
    let observers = observers.into_iter().filter(|(address, _)| !known.contains(address));
    found.extend(observers.map(|(address, state)| ServerCondition { address, state, warnings: Vec::new() }));
    Ok(found)
}

/// The clock of the fleet, and the address of its server.
fn clock_of_hearing(
    topology: &Topology,
    primaries: &[(Arc<RedisServer>, Result<ServerState>)],
) -> Option<(String, ClockOffset)> {
    let of_hearing = topology.server_of_hearing()?;
    let (server, state) = primaries.iter().find(|(server, _)| server.address() == of_hearing.address())?;
    Some((server.address().to_owned(), state.as_ref().ok()?.clock))
}

fn clock_off(state: &ServerState) -> Option<Warning> {
    state.clock.off().map(|text| Warning { name: EngineWarning::ClockOff, text })
}

fn condition(address: String, state: Result<ServerState>, warnings: Vec<Warning>) -> ServerCondition {
    let state = match state {
        Ok(state) => check_version(&state.info).map(|()| described(&state)),
        Err(why) => Err(why),
    };
    ServerCondition { address, state: state.map_err(|why| why.to_string()), warnings }
}

async fn primary_warnings(topology: &Topology, config: &RedisConfig, state: &ServerState) -> Vec<Warning> {
    let mut warnings = state.warnings(&config.allow_eviction);
    warnings.extend(replica_warnings(topology, state));
    let has_notifications = warnings.iter().all(|warning| warning.name != EngineWarning::NotificationsOff);
    if has_notifications && let Some(text) = missing_channel_right(&state.server).await {
        warnings.push(Warning { name: EngineWarning::NotificationsOff, text });
    }
    warnings
}

/// The warnings about a replica. The service switches notifications on when the replica is promoted.
fn of_replica(config: &RedisConfig, state: &ServerState) -> Vec<Warning> {
    let mut warnings = state.warnings(&config.allow_eviction);
    warnings.retain(|warning| warning.name != EngineWarning::NotificationsOff);
    let link = state.info.get::<String>("master_link_status");
    if link.is_some_and(|link| link != "up") {
        let text = "its link to the primary is down: it does not get the newest writes; see its log, the network, and \
             masterauth and masteruser";
        warnings.push(Warning { name: EngineWarning::ReplicaLags, text: text.to_owned() });
    }
    warnings
}

/// The role, the version and the settings of a server.
fn described(state: &ServerState) -> String {
    let info = &state.info;
    let of = |name: &str| info.get::<String>(name).unwrap_or_default();
    let is_replica = of("role") == "slave";
    let role = match is_replica {
        true => format!("replica of {}:{}", of("master_host"), of("master_port")),
        false => "primary".to_owned(),
    };
    let append_only = if of("aof_enabled") == "1" { "yes" } else { "no" };
    let mut parts = vec![role, name(info), format!("appendonly {append_only}")];
    let policy = of("maxmemory_policy");
    parts.extend((!policy.is_empty()).then(|| format!("maxmemory-policy {policy}")));
    for name in ["notify-keyspace-events", "min-replicas-to-write"] {
        let value = state.setting(name).ok();
        parts.extend(value.map(|value| format!("{name} {}", if value.is_empty() { "\"\"" } else { value })));
    }
    if is_replica {
        let ago = of("master_last_io_seconds_ago");
        parts.push(format!("link {}, heard from its primary {ago} s ago", of("master_link_status")));
    } else {
        let replicas: Vec<String> = replicas(info).iter().map(ToString::to_string).collect();
        parts.push(match replicas.is_empty() {
            true => "no replica".to_owned(),
            false => format!("replicas: {}", replicas.join(", ")),
        });
    }
    parts.join(", ")
}

/// Reads from each partition, which a node of a cluster that has only a part of the slots refuses.
fn partitions(keys: &Keys) -> Pipeline {
    let mut pipe = pipe();
    for partition in 0..keys.partitions() {
        pipe.exists(keys.in_partition(partition, "deadlines")).ignore();
    }
    pipe.exists(keys.heard()).ignore();
    pipe
}

/// For each primary a key that does not exist, so that a write is tried at each of them.
async fn one_key_of_each(topology: &Topology, keys: &Keys) -> Result<Vec<String>> {
    let mut of_servers = BTreeMap::new();
    for partition in 0..keys.partitions() {
        let server = topology.server(keys.slot(partition)).await?;
        of_servers.entry(server.address().to_owned()).or_insert(keys.in_partition(partition, "probe"));
    }
    Ok(of_servers.into_values().collect())
}

/// Tries every kind of command on a key that does not exist, so that nothing changes. A replica, a server that
/// refuses writes, and a user without the rights fail it.
fn probe(key: &str) -> Pipeline {
    let mut pipe = pipe();
    pipe.cmd("SET").arg(key).arg(0).arg("PX").arg(1).arg("XX").arg("GET").ignore();
    pipe.cmd("ZADD").arg(key).arg("XX").arg("LT").arg(0).arg("x").ignore();
    pipe.zrem(key, "x").ignore().hdel(key, "x").ignore().xdel(key, &["0-1"]).ignore();
    pipe.mget(&[key]).ignore().hgetall(key).ignore().zrevrangebyscore(key, "+inf", "-inf").ignore();
    let try_writing = "return redis.call('XADD', KEYS[1], 'NOMKSTREAM', '*', 'x', 'x')";
    pipe.cmd("EVAL").arg(try_writing).arg(1).arg(key).ignore();
    pipe
}

/// Why the user cannot subscribe to notifications; `None` if it can.
async fn missing_channel_right(server: &RedisServer) -> Option<String> {
    let client = server.client();
    let database = client.get_connection_info().redis_settings().db();
    let subscribed = async {
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(format!("__keyevent@{database}__:expired")).await
    };
    let why = classify(server.address(), &subscribed.await.err()?);
    Some(format!(
        "notifications of expiry cannot be heard ({why}); permit the channel to the user. {MEANWHILE}"
    ))
}

fn name(info: &InfoDict) -> String {
    let version = |name: &str| info.get::<String>(name);
    match version("valkey_version") {
        Some(valkey) => format!("Valkey {valkey}"),
        None => format!("Redis {}", version("redis_version").unwrap_or_default()),
    }
}
