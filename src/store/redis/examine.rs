//! The examination of a server that answers: each fault has a name, and advice for the operator.
//!
//! Reading the condition changes nothing, so `rollcall check` may examine a server in use (`survey.rs`). Repairs are
//! a separate step, for the service.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{InfoDict, pipe};

use super::clock_difference::{ClockOffset, servers_off};
use super::keys::Keys;
use super::topology::{RedisServer, Topology};
use super::{RedisEngine, eviction, meta, quarantine, replicas, rights};
use crate::clock::{Stopwatch, Timestamp, monotonic};
use crate::store::{EngineError, Result, Warning};
use crate::telemetry::EngineWarning;

/// The oldest server that knows every command of Rollcall.
const OLDEST: (u32, u32) = (6, 2);

/// How long a replica may take to answer with its time; a later answer is left out.
const FARTHEST_REPLICA: Duration = Duration::from_secs(1);

/// How long one of several servers may be silent before that is a warning: a failover may replace it meanwhile.
const FAILOVER: Duration = Duration::from_secs(10);

/// The number of steps that one examination takes of the scan of the keys from before the start: 200 000 keys.
const STEPS_OF_FIRST_SCAN: usize = 800;

/// For how long `/readyz` shows that a part of the fleet was lost.
const LOSS_SHOWN: Duration = Duration::from_secs(86_400);

/// The advice of warnings about notifications: detection does not depend on them.
pub(super) const MEANWHILE: &str = "Detection works by the deadline index meanwhile";

/// The condition of a server at one moment.
pub(super) struct ServerState {
    pub server: Arc<RedisServer>,
    pub info: InfoDict,
    /// `save`, `notify-keyspace-events` and `min-replicas-to-write`, if the user may read them.
    settings: Result<HashMap<String, String>>,
    pub clock: ClockOffset,
}

/// Examines the servers of a running service, and repairs faults as far as possible. If only some servers do not
/// answer, that is a warning, and the others are examined anyway.
pub(super) async fn examine(engine: &RedisEngine, now: Timestamp) -> Result<Vec<Warning>> {
    let began = Stopwatch::start();
    let (states, others) = read_all(&engine.topology, (now, began)).await?;
    let is_partial = is_partial(&states);
    let are_down = states.iter().all(|(_, state)| state.is_err());
    let failed =
        states.iter().filter(|(_, state)| state.is_err()).map(|(server, _)| server.address().to_owned());
    let lasting =
        engine.away.note(failed.chain(others.iter().map(|(address, _)| address.clone())), monotonic());
    if engine.away.has_any() {
        engine.topology.request_examination();
    }
    let missing = missing(others.into_iter().filter(|(address, _)| lasting.contains(address)), are_down);
    if are_down {
        // The examination fails, and this warning may say why no replica replaces the primary.
        let text = missing.as_ref().map(|missing| missing.text.as_str());
        engine.telemetry.engine_warning(EngineWarning::ServerMissing, text);
    }
    // The examination of the fleet needs every server. If some are missing, it waits for the next examination.
    let slots = slots_missing(&engine.topology);
    let mut warnings = match examine_fleet(engine, now).await {
        Err(EngineError::Unavailable(_) | EngineError::Passing(_)) if is_partial || slots.is_some() => {
            Vec::new()
        }
        examined => examined?,
    };
    let clocks = clock_warning(&engine.topology, &states, (now, began)).await;
    let mut all = Vec::new();
    for (server, state) in states {
        let found = match state {
            Ok(state) => {
                check_version(&state.info)?;
                let mut found = state.warnings(&engine.allow_eviction);
                found.extend(replica_warnings(&engine.topology, &state));
                switch_notifications_on(engine, &state, &mut found).await;
                found
            }
            Err(why) if is_partial && lasting.contains(server.address()) => vec![down(&why)],
            Err(_) if is_partial => Vec::new(),
            Err(why) => return Err(why),
        };
        all.push((server, found));
    }
    warnings.extend(merged(all));
    warnings.extend(clocks);
    warnings.extend(engine.late_replicas());
    warnings.extend(slots);
    warnings.extend(missing);
    Ok(warnings)
}

/// The condition of every primary, and the other servers that fail in their work, with the reason.
async fn read_all(
    topology: &Topology,
    at: (Timestamp, Stopwatch),
) -> Result<(Vec<(Arc<RedisServer>, Result<ServerState>)>, Vec<(String, String)>)> {
    if topology.is_fixed() {
        return Ok((read_servers(topology, at).await?, Vec::new()));
    }
    let (states, observed) = tokio::join!(read_servers(topology, at), topology.observers());
    let others = observed.into_iter().filter_map(|(address, state)| Some((address, state.err()?)));
    let states = states?;
    // Existing connections may still work. If no primary answers, the errors of the primaries say the same.
    let has_any = states.iter().any(|(_, state)| state.is_ok());
    let unknown = topology
        .learn_failure()
        .filter(|_| has_any)
        .map(|why| (topology.address().to_owned(), format!("the primaries cannot be learned again: {why}")));
    Ok((states, others.chain(unknown).collect()))
}

/// Whether some of several servers do not answer.
fn is_partial(states: &[(Arc<RedisServer>, Result<ServerState>)]) -> bool {
    let away = states.iter().filter(|(_, state)| state.is_err()).count();
    (1..states.len()).contains(&away)
}

/// The warning about servers that are needed only for a failover. `are_down`: no primary answers, so the failover is
/// needed now.
fn missing(others: impl Iterator<Item = (String, String)>, are_down: bool) -> Option<Warning> {
    // All sentinels report a missing quorum in the same words.
    let reasons: BTreeSet<String> = others.map(|(_, why)| why).collect();
    let text = || {
        let reasons = reasons.iter().cloned().collect::<Vec<_>>().join("; ");
        match are_down {
            true => format!(
                "{reasons}; without them nothing takes the place of the primary, which does not answer"
            ),
            false => format!("{reasons}; the fleet goes on, and a further failure may stop a part of it"),
        }
    };
    (!reasons.is_empty()).then(|| Warning { name: EngineWarning::ServerMissing, text: text() })
}

/// The servers that did not answer at the last examination, and since when.
#[derive(Default)]
pub(super) struct Unreachable(Mutex<BTreeMap<String, Instant>>);

impl Unreachable {
    /// Notes the servers that do not answer now. Answers those whose silence a failover does not explain.
    fn note(&self, addresses: impl Iterator<Item = String>, now: Instant) -> BTreeSet<String> {
        let mut all = self.0.lock();
        let known = std::mem::take(&mut *all);
        all.extend(addresses.map(|address| {
            let since = known.get(&address).copied().unwrap_or(now);
            (address, since)
        }));
        let lasting = all.iter().filter(|(_, since)| now.duration_since(**since) >= FAILOVER);
        lasting.map(|(address, _)| address.clone()).collect()
    }

    fn has_any(&self) -> bool {
        !self.0.lock().is_empty()
    }
}

/// Scans all keys for wrong types if a command found one; otherwise continues the scan of the keys from before the
/// start.
async fn quarantine_wrong_types(engine: &RedisEngine, now: Timestamp) -> Result<()> {
    let (topology, keys) = (&engine.topology, &engine.keys);
    let mut first = engine.first_scan.lock().await;
    let is_requested = topology.take_quarantine_request();
    if is_requested {
        *first = Some(quarantine::scan(keys));
    }
    let Some(scan) = &mut *first else { return Ok(()) };
    let steps = if is_requested { usize::MAX } else { STEPS_OF_FIRST_SCAN };
    let scanned =
        quarantine::quarantine_wrong_types(topology, keys, &engine.telemetry, (scan, steps), now).await;
    match scanned {
        Ok(true) => *first = None,
        Ok(false) => {}
        Err(error) => {
            *first = Some(quarantine::scan(keys));
            if is_requested {
                topology.postpone_quarantine();
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Quarantines unreadable values, and examines all servers together: the rights, and the id of the fleet.
async fn examine_fleet(engine: &RedisEngine, now: Timestamp) -> Result<Vec<Warning>> {
    quarantine_wrong_types(engine, now).await?;
    quarantine::report_quarantined(&engine.topology, &engine.keys, &engine.telemetry).await?;
    let fleet = read_fleet(&engine.topology, &engine.keys).await?;
    let mut warnings = Vec::new();
    if let Some(text) = rights::missing(&engine.topology, &engine.keys).await? {
        warnings.push(Warning { name: EngineWarning::RightsMissing, text });
    }
    let is_another = fleet.as_ref() != Some(&engine.fleet);
    if is_another {
        meta::replace(&engine.topology, &engine.scripts, &engine.keys, &engine.key).await?;
    }
    let emptied_at = engine.known_fleet.lock().emptied_at.map(Timestamp::from_millis);
    // The next canary writes when the fleet was lost.
    let lost_at = emptied_at.or(is_another.then_some(now));
    if let Some(at) = lost_at.filter(|at| now.since(*at) < LOSS_SHOWN) {
        let text = format!(
            "redis lost its part of the fleet, or all of it, at {at}: units are known again when they are \
             heard, those that stay silent are not: compare with your registry, or restore a backup; this is shown for a \
             day"
        );
        warnings.push(Warning { name: EngineWarning::LostItsData, text });
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
        let servers =
            topology.changes().borrow().map.servers().first().map(|server| server.address().to_owned());
        let node = servers.unwrap_or("HOST:PORT".to_owned());
        format!(
            "{missing} of the 16384 slots have no primary, and rollcall is blind if the fleet has keys there: see \
             redis-cli --cluster check {node}, and repair the cluster with redis-cli --cluster fix {node}"
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

/// The warning about the clock of a single server, or about the clocks of several servers and of their replicas.
async fn clock_warning(
    topology: &Topology,
    states: &[(Arc<RedisServer>, Result<ServerState>)],
    (now, began): (Timestamp, Stopwatch),
) -> Option<Warning> {
    let read =
        states.iter().filter_map(|(server, state)| Some((server.address().to_owned(), state.as_ref().ok()?)));
    let mut clocks: Vec<(String, ClockOffset)> =
        read.map(|(address, state)| (address, state.clock)).collect();
    if topology.is_fixed() {
        let text = clocks.first()?.1.off()?;
        return Some(Warning { name: EngineWarning::ClockOff, text });
    }
    let replicas = states.iter().flat_map(|(server, _)| topology.replicas(server));
    let replicas = replicas.map(|at| async move {
        // Not every replica can be reached from here.
        let server = topology.open(&at).ok()?;
        let mut question = pipe();
        question.cmd("TIME");
        let (sent_at, sent) = (now + began.elapsed(), Stopwatch::start());
        let answer = tokio::time::timeout(FARTHEST_REPLICA, server.send(&question, 0, 1)).await.ok()?.ok()?;
        let time = redis::from_redis_value(answer.into_iter().next()?).ok()?;
        Some((at.to_string(), ClockOffset::of(time, sent_at, sent.elapsed())))
    });
    clocks.extend(join_all(replicas).await.into_iter().flatten());
    let of_hearing = topology.server_of_hearing()?;
    let clocks: Vec<(&str, ClockOffset)> =
        clocks.iter().map(|(address, clock)| (address.as_str(), *clock)).collect();
    let by = clocks.iter().find(|(address, _)| *address == of_hearing.address())?;
    servers_off(*by, &clocks)
}

/// The warnings of all servers, one for each name. Unless there is only one server, the text lists the servers that
/// have it.
fn merged(of_servers: Vec<(Arc<RedisServer>, Vec<Warning>)>) -> Vec<Warning> {
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

/// Switches notifications on; if the user may not do that, adds a warning.
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

async fn read_fleet(topology: &Topology, keys: &Keys) -> Result<Option<String>> {
    let mut meta = pipe();
    meta.hget(keys.meta(), "fleet");
    let (fleet,): (Option<String>,) = topology.send("meta", &meta).await?;
    Ok(fleet)
}

/// The condition of every primary. `now` is the time at `began`, which may be a while ago: clocks are compared at the
/// moment of the answer.
pub(super) async fn read_servers(
    topology: &Topology,
    (now, began): (Timestamp, Stopwatch),
) -> Result<Vec<(Arc<RedisServer>, Result<ServerState>)>> {
    let servers = topology.servers().await?;
    let states = servers
        .into_iter()
        .map(|server| async move { (server.clone(), read_server(topology, server, (now, began)).await) });
    Ok(join_all(states).await)
}

pub(super) async fn read_server(
    topology: &Topology,
    server: Arc<RedisServer>,
    (now, began): (Timestamp, Stopwatch),
) -> Result<ServerState> {
    let mut read = pipe();
    read.cmd("TIME").cmd("INFO");
    let (sent_at, sent) = (now + began.elapsed(), Stopwatch::start());
    let (time, info): ((i64, i64), InfoDict) = topology.send_to("info", &server, &read).await?;
    let clock = ClockOffset::of(time, sent_at, sent.elapsed());
    let mut read = pipe();
    read.cmd("CONFIG").arg("GET").arg("save");
    read.cmd("CONFIG").arg("GET").arg("notify-keyspace-events");
    read.cmd("CONFIG").arg("GET").arg("min-replicas-to-write");
    let settings = topology.send_to::<Vec<HashMap<String, String>>>("config_get", &server, &read).await;
    // The server was lost between the two questions.
    if let Err(lost @ EngineError::Passing(_)) = settings {
        return Err(lost);
    }
    let settings = settings.map(|maps| maps.into_iter().flatten().collect());
    Ok(ServerState { server, info, settings, clock })
}

impl ServerState {
    pub fn setting(&self, name: &str) -> std::result::Result<&str, &EngineError> {
        self.settings.as_ref().map(|settings| settings.get(name).map_or("", String::as_str))
    }

    /// `permitted`: the policy of eviction that an operator permits.
    pub fn warnings(&self, permitted: &str) -> Vec<Warning> {
        let info = &self.info;
        let evicted = info.get::<u64>("evicted_keys").unwrap_or(0) > 0;
        let policy = info.get::<String>("maxmemory_policy").unwrap_or_default();
        let has_aof = info.get::<u8>("aof_enabled") == Some(1);
        let forgets = !has_aof && self.setting("save").is_ok_and(str::is_empty);
        let fixed = [
            (
                evicted,
                EngineWarning::KeysEvicted,
                "redis has removed keys because its memory was full: a unit whose expiry key is gone counts as heard up \
                 to then, so its silence may be told one timeout late, and with a policy allkeys-… units may be lost; \
                 raise its maxmemory, set maxmemory-policy noeviction, and compare the fleet with your own list",
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
        let refused = eviction::is_refused(&policy, permitted);
        warn(EngineWarning::EvictionPossible, refused.then(|| eviction::fault(&policy)));
        warn(EngineWarning::NotificationsOff, self.notifications_off());
        warnings
    }

    /// Why the server sends no notifications of expiry; `None` if it sends them.
    fn notifications_off(&self) -> Option<String> {
        match self.setting("notify-keyspace-events") {
            Err(why) => Some(format!(
                "redis does not let its settings be read ({why}); permit CONFIG GET, or set notify-keyspace-events to \
                 Ex yourself. {MEANWHILE}"
            )),
            Ok(flags) if notifies(flags) => None,
            Ok(flags) => Some(format!(
                "redis does not notify expiry: notify-keyspace-events is {flags:?} and lacks Ex; rollcall serve sets \
                 it at its start, if the user may. {MEANWHILE}"
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

/// Whether these flags of `notify-keyspace-events` include expiry as key events.
fn notifies(flags: &str) -> bool {
    flags.contains('E') && (flags.contains('x') || flags.contains('A'))
}

#[cfg(test)]
mod tests {
    use super::*;

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
