//! The examination of a server that answers: each fault has a name, and advice for the operator.
//!
//! Reading the condition changes nothing, so `rollcall check` may examine a server in use (`survey.rs`). Repairs are a
//! step of their own, for the service.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{InfoDict, pipe};
use tokio::time::Instant;

use super::keys::Keys;
use super::topology::{Server, Topology};
use super::{RedisEngine, meta, quarantine, replicas, rights};
use crate::clock::Timestamp;
use crate::store::{EngineError, Result, Warning};
use crate::telemetry::EngineWarning;

/// The oldest server that knows every command of Rollcall.
const OLDEST: (u32, u32) = (6, 2);

/// A larger difference of clocks is a fault.
const FARTHEST: Duration = Duration::from_millis(500);

/// A server of several that does not answer is asked again after this time: a failover replaces it meanwhile.
const FAILOVER: Duration = Duration::from_secs(10);

/// Detection does not depend on notifications.
pub(super) const MEANWHILE: &str = "Detection works by the deadline index meanwhile";

/// The condition of a server, as it was read.
pub(super) struct ServerState {
    pub server: Arc<Server>,
    pub info: InfoDict,
    /// `save`, `notify-keyspace-events` and `min-replicas-to-write`, if the user may read them.
    settings: Result<HashMap<String, String>>,
    clock: Option<String>,
}

/// Examines the servers of a running service, and repairs faults as far as possible. If some of several servers do not
/// answer, that is a warning, and the others are examined all the same.
pub(super) async fn examine(engine: &RedisEngine, now: Timestamp) -> Result<Vec<Warning>> {
    let began = Instant::now();
    let mut states = read_servers(&engine.topology, (now, began)).await?;
    let away =
        |states: &[(Arc<Server>, Result<ServerState>)]| states.iter().filter(|one| one.1.is_err()).count();
    if (1..states.len()).contains(&away(&states)) {
        tokio::time::sleep(FAILOVER).await;
        states = read_servers(&engine.topology, (now, began)).await?;
    }
    let is_partial = (1..states.len()).contains(&away(&states));
    // What needs every server waits for the next examination.
    let mut warnings = match examine_fleet(engine).await {
        Err(EngineError::Unavailable(_) | EngineError::Passing(_)) if is_partial => Vec::new(),
        examined => examined?,
    };
    let mut all = Vec::new();
    for (server, state) in states {
        let found = match state {
            Ok(state) => {
                check_version(&state.info)?;
                let mut found = state.warnings();
                found.extend(replica_warnings(&engine.topology, &state));
                switch_notifications_on(engine, &state, &mut found).await;
                found
            }
            Err(why) if is_partial => vec![down(&why)],
            Err(why) => return Err(why),
        };
        all.push((server, found));
    }
    warnings.extend(merged(all));
    warnings.extend(engine.late_replicas());
    warnings.extend(slots_missing(&engine.topology));
    Ok(warnings)
}

/// Quarantines unreadable values, and examines what is no matter of a single server: the rights, and which fleet is
/// there.
async fn examine_fleet(engine: &RedisEngine) -> Result<Vec<Warning>> {
    if engine.topology.take_quarantine_request() {
        quarantine::quarantine_wrong_types(&engine.topology, &engine.keys, &engine.telemetry).await?;
    }
    quarantine::report_quarantined(&engine.topology, &engine.keys, &engine.telemetry).await?;
    let fleet = read_fleet(&engine.topology, &engine.keys).await?;
    let mut warnings = Vec::new();
    if let Some(text) = rights::missing(&engine.topology, &engine.keys).await? {
        warnings.push(Warning { name: EngineWarning::RightsMissing, text });
    }
    if fleet.as_ref() != Some(&engine.fleet) {
        meta::replace(&engine.topology, &engine.scripts, &engine.keys, &engine.key).await?;
        let text = "the fleet in redis is not the one that was there at the start; units are known again when they \
             are heard, those that stay silent are not: compare with your registry, then restart rollcall";
        warnings.push(Warning { name: EngineWarning::LostItsData, text: text.into() });
    }
    Ok(warnings)
}

fn down(why: &EngineError) -> Warning {
    let text =
        format!("{why}; its part of the fleet is blind until it answers or one of its replicas is promoted");
    Warning { name: EngineWarning::ServerDown, text }
}

pub(super) fn slots_missing(topology: &Topology) -> Option<Warning> {
    let missing = topology.missing_slots();
    let text = || {
        format!(
            "{missing} of the 16384 slots have no primary: units there are not watched, and rollcall is blind; see \
             redis-cli --cluster check, and repair the cluster with redis-cli --cluster fix"
        )
    };
    (missing > 0).then(|| Warning { name: EngineWarning::SlotsMissing, text: text() })
}

/// The warnings about the replicas of a primary. A single server needs none.
pub(super) fn replica_warnings(topology: &Topology, state: &ServerState) -> Vec<Warning> {
    if topology.is_fixed() {
        return Vec::new();
    }
    let known = topology.replicas(&state.server).len();
    let least = state.setting("min-replicas-to-write").ok();
    replicas::warnings(&replicas::replicas(&state.info), known, least)
}

/// The warnings of all servers: one of a name, which says which servers have it, unless there is only one server.
fn merged(of_servers: Vec<(Arc<Server>, Vec<Warning>)>) -> Vec<Warning> {
    let is_only = of_servers.len() == 1;
    let mut all: Vec<Warning> = Vec::new();
    for (server, warnings) in of_servers {
        for Warning { name, text } in warnings {
            let text = if is_only { text } else { format!("at {}: {text}", server.address()) };
            match all.iter_mut().find(|known| known.name == name) {
                Some(known) => known.text += &format!("; {text}"),
                None => all.push(Warning { name, text }),
            }
        }
    }
    all
}

/// Switches notifications on; a warning says if the user may not do that.
async fn switch_notifications_on(engine: &RedisEngine, state: &ServerState, warnings: &mut Vec<Warning>) {
    let Ok(flags) = state.setting("notify-keyspace-events") else { return };
    if notifies(flags) {
        return;
    }
    warnings.retain(|warning| warning.name != EngineWarning::NotificationsOff);
    let mut pipe = pipe();
    pipe.cmd("CONFIG").arg("SET").arg("notify-keyspace-events").arg(format!("{flags}Ex")).ignore();
    if let Err(why) = engine.topology.send_to::<()>("config_set", &state.server, &pipe).await {
        let text = format!(
            "redis does not notify expiry and does not let that be changed ({why}); set notify-keyspace-events to \
             Ex. {MEANWHILE}"
        );
        warnings.push(Warning { name: EngineWarning::NotificationsOff, text });
    }
}

/// The id of the fleet.
async fn read_fleet(topology: &Topology, keys: &Keys) -> Result<Option<String>> {
    let mut meta = pipe();
    meta.hget(keys.meta(), "fleet");
    let (fleet,): (Option<String>,) = topology.send("meta", &meta).await?;
    Ok(fleet)
}

/// The condition of every primary. `now` is the time at `began`: a while ago, and the clocks are compared as of the
/// answer.
pub(super) async fn read_servers(
    topology: &Topology,
    (now, began): (Timestamp, Instant),
) -> Result<Vec<(Arc<Server>, Result<ServerState>)>> {
    let servers = topology.servers().await?;
    let states = servers
        .into_iter()
        .map(|server| async move { (server.clone(), read_server(topology, server, (now, began)).await) });
    Ok(join_all(states).await)
}

pub(super) async fn read_server(
    topology: &Topology,
    server: Arc<Server>,
    (now, began): (Timestamp, Instant),
) -> Result<ServerState> {
    let mut read = pipe();
    read.cmd("TIME").cmd("INFO");
    let sent = Instant::now();
    let (time, info): ((i64, i64), InfoDict) = topology.send_to("info", &server, &read).await?;
    let clock = check_clock(time, now + sent.duration_since(began), sent.elapsed());
    let mut read = pipe();
    read.cmd("CONFIG").arg("GET").arg("save");
    read.cmd("CONFIG").arg("GET").arg("notify-keyspace-events");
    read.cmd("CONFIG").arg("GET").arg("min-replicas-to-write");
    let settings = topology.send_to::<Vec<HashMap<String, String>>>("config_get", &server, &read).await;
    let settings = settings.map(|maps| maps.into_iter().flatten().collect());
    Ok(ServerState { server, info, settings, clock })
}

impl ServerState {
    pub fn setting(&self, name: &str) -> std::result::Result<&str, &EngineError> {
        self.settings.as_ref().map(|settings| settings.get(name).map_or("", String::as_str))
    }

    pub fn warnings(&self) -> Vec<Warning> {
        let info = &self.info;
        let evicted = info.get::<u64>("evicted_keys").unwrap_or(0) > 0;
        let may_evict = info.get::<String>("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
        let has_aof = info.get::<u8>("aof_enabled") == Some(1);
        let forgets = !has_aof && self.setting("save").is_ok_and(str::is_empty);
        let fixed = [
            (
                evicted,
                EngineWarning::KeysEvicted,
                "redis has evicted keys and may have dropped units; raise its maxmemory and set maxmemory-policy \
                 noeviction",
            ),
            (
                may_evict,
                EngineWarning::EvictionPossible,
                "redis may evict keys when it is full; set maxmemory-policy noeviction",
            ),
            (
                forgets,
                EngineWarning::PersistenceOff,
                "redis forgets the fleet when it restarts; set appendonly yes (or save points)",
            ),
        ];
        let fixed = fixed.into_iter().filter(|(present, ..)| *present);
        let mut warnings: Vec<Warning> =
            fixed.map(|(_, name, text)| Warning { name, text: text.into() }).collect();
        let mut warn = |name, text: Option<String>| warnings.extend(text.map(|text| Warning { name, text }));
        warn(EngineWarning::ClockOff, self.clock.clone());
        warn(EngineWarning::NotificationsOff, self.notifications_off());
        warnings
    }

    /// Why the server sends no notifications of expiry; `None` if it sends them.
    fn notifications_off(&self) -> Option<String> {
        match self.setting("notify-keyspace-events") {
            Err(why) => Some(format!(
                "redis does not let its settings be read ({why}); permit CONFIG GET, or see to it that \
                 notify-keyspace-events contains Ex. {MEANWHILE}"
            )),
            Ok(flags) if notifies(flags) => None,
            Ok(flags) => Some(format!(
                "redis does not notify expiry: notify-keyspace-events is {flags:?} and lacks Ex; the service sets it \
                 when it starts, if it is permitted to. {MEANWHILE}"
            )),
        }
    }
}

pub(super) fn check_version(info: &InfoDict) -> Result<()> {
    let version: String = info.get("redis_version").unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let release = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if release < OLDEST {
        let (major, minor) = OLDEST;
        return Err(EngineError::Refused(format!(
            "redis is version {version}, but {major}.{minor} or newer is needed; upgrade it"
        )));
    }
    Ok(())
}

/// How far the server's clock is off; `None` if it is not. The server read its clock at some moment between `now`
/// and `took` later, so only a time outside of that is a difference of clocks.
fn check_clock((seconds, micros): (i64, i64), now: Timestamp, took: Duration) -> Option<String> {
    let theirs = Timestamp::from_millis(seconds.saturating_mul(1000).saturating_add(micros / 1000));
    let (ahead, behind) = (theirs.since(now + took), now.since(theirs));
    let (apart, direction) = if behind.is_zero() { (ahead, "ahead of") } else { (behind, "behind") };
    (apart > FARTHEST).then(|| {
        format!(
            "the clock of redis is {} ms {direction} that of this machine; one of them tells wrong times: run a \
             time service such as chrony on both",
            apart.as_millis()
        )
    })
}

/// Whether these flags of `notify-keyspace-events` include expiry as key events.
fn notifies(flags: &str) -> bool {
    flags.contains('E') && (flags.contains('x') || flags.contains('A'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_differ_if_the_round_trip_does_not_explain_the_difference() {
        let now = Timestamp::from_millis(1_700_000_000_000);
        // (their time after ours, the round trip, the text)
        let cases = [
            (0, 0, None),
            (500, 0, None),
            (-500, 0, None),
            (501, 0, Some("501 ms ahead of")),
            (-501, 0, Some("501 ms behind")),
            (2500, 2000, None),
            (2501, 2000, Some("501 ms ahead of")),
            (-501, 2000, Some("501 ms behind")),
        ];
        for (apart, took, expected) in cases {
            let theirs = now.as_millis() + apart;
            let time = (theirs / 1000, theirs % 1000 * 1000 + 999);
            let text = check_clock(time, now, Duration::from_millis(took));
            let as_expected = match (&text, expected) {
                (Some(text), Some(expected)) => text.contains(expected),
                (text, expected) => text.is_none() && expected.is_none(),
            };
            assert!(as_expected, "{apart} ms within {took} ms: {text:?}");
        }
    }

    #[test]
    fn expiry_is_notified_if_key_events_and_expired_or_all_are_on() {
        for (flags, expected) in [
            ("", false),
            ("Ex", true),
            ("xE", true),
            ("AE", true),
            ("Kx", false),
            ("E", false),
            ("AKE", true),
        ] {
            assert_eq!(notifies(flags), expected, "{flags}");
        }
    }
}
