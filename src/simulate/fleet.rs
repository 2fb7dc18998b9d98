//! A fleet over real MQTT: units that send heartbeats at intervals, fall silent and come back.
//!
//! Thousands of units share a connection, which publishes for each on its own topic. The behaviour of the fleet follows
//! from the seed alone (see `schedule`); a slow or unreachable broker delays it. A heartbeat that is due without a
//! connection is not sent, as from a device without a network; it is counted as missed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rumqttc::{
    AsyncClient, Event, EventLoop, MqttOptions, NetworkOptions, Packet, PublishOptions, QoS, ValidatedTopic,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::address::{BrokerAddress, Scheme};
use crate::backoff::Backoff;
use crate::cause;
use crate::clock::monotonic;
pub use events::{FleetEvent, FleetEvents};
pub use power::PowerCuts;
use schedule::{Schedule, ScheduledHeartbeat};

mod events;
mod power;
mod schedule;

/// The waits between attempts to connect.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(5) };
/// How long the broker may take to acknowledge the last heartbeats.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most heartbeats that wait for a connection; a full queue delays the fleet.
const QUEUE: usize = 4096;
/// How many units share a connection by default.
const UNITS_PER_CONNECTION: usize = 5000;

#[derive(Clone, Debug)]
pub struct FleetConfig {
    /// The address of the broker: `mqtt://host:port`.
    pub url: String,
    /// User name and password for the broker.
    pub credentials: Option<(String, String)>,
    /// The number of units, `sim-000001` and so on.
    pub units: usize,
    /// The number of sites, `site-01` and so on.
    pub sites: usize,
    /// The topic of the heartbeats, with `{unit}` and optionally `{site}`.
    pub topic: String,
    /// The usual time between two heartbeats of a unit.
    pub interval: Duration,
    /// The share of the interval by which it varies, 0 to 1.
    pub jitter: f64,
    /// The chance that a heartbeat is the last before a silence, 0 to 1.
    pub silence_chance: f64,
    /// The length of silences.
    pub silence_for: Range<Duration>,
    pub power_cuts: Option<PowerCuts>,
    /// The power switch of each site, `true` if off; sites beyond the list have power.
    pub switched_off: Arc<[AtomicBool]>,
    /// The quality of service, 0 or 1.
    pub qos: u8,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The number of connections; 0 means one for each five thousand units.
    pub connections: usize,
    /// How long the fleet runs; `None` means until the stop.
    pub duration: Option<Duration>,
}

impl FleetConfig {
    /// A hundred units with a heartbeat every ten seconds and no silences.
    pub fn new(url: &str) -> FleetConfig {
        FleetConfig {
            url: url.to_owned(),
            credentials: None,
            units: 100,
            sites: 4,
            topic: "units/{unit}/heartbeat".to_owned(),
            interval: Duration::from_secs(10),
            jitter: 0.1,
            silence_chance: 0.0,
            silence_for: Duration::from_secs(60)..Duration::from_secs(300),
            power_cuts: None,
            switched_off: Arc::default(),
            qos: 0,
            seed: 1,
            connections: 0,
            duration: None,
        }
    }

    fn connections(&self) -> usize {
        match self.connections {
            0 => self.units / UNITS_PER_CONNECTION + 1,
            connections => connections,
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=10_000_000).contains(&self.units), "a fleet has 1 to 10 000 000 units");
        ensure!(self.sites > 0, "a fleet has at least one site");
        self.power_cuts.map_or(Ok(()), |cuts| cuts.check(self.sites))?;
        ensure!((0.0..=1.0).contains(&self.jitter), "jitter is between 0 and 1");
        ensure!((0.0..=1.0).contains(&self.silence_chance), "the chance of a silence is between 0 and 1");
        ensure!(self.interval >= Duration::from_millis(1), "the interval is at least 1 ms");
        ensure!(self.qos <= 1, "QoS is 0 or 1");
        ensure!(self.topic.contains("{unit}"), "the topic {:?} has no {{unit}}", self.topic);
        let topic = self.topic_of(0);
        ensure!(
            !topic.contains(['{', '}']) && ValidatedTopic::new(&topic).is_ok(),
            "the topic {:?} is not made of text, {{unit}}, {{site}}, + and #",
            self.topic
        );
        Ok(())
    }

    /// The id of a unit, by its number from 0.
    pub fn unit(&self, number: u32) -> String {
        format!("sim-{:06}", number + 1)
    }

    /// The number of a unit's site, from 0.
    pub fn site(&self, number: u32) -> usize {
        number as usize % self.sites
    }

    /// The name of a site, by its number from 0.
    pub fn site_name(&self, site: usize) -> String {
        format!("site-{:02}", site + 1)
    }

    fn topic_of(&self, number: u32) -> String {
        let site = self.site_name(self.site(number));
        let topic = self.topic.replace("{unit}", &self.unit(number)).replace("{site}", &site);
        // The topic as the template of a kind, in which + and # match any levels.
        topic
            .split('/')
            .map(|level| if matches!(level, "+" | "#") { "x" } else { level })
            .collect::<Vec<_>>()
            .join("/")
    }
}

/// The state of a running fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetProgress {
    pub sent: u64,
    /// Heartbeats without a connection.
    pub missed: u64,
    /// Heartbeats sent in the last second.
    pub per_second: f64,
    /// Units that are in a silence now.
    pub silent: u64,
    /// The number of units.
    pub total: usize,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub sent: u64,
    /// Heartbeats without a connection.
    pub missed: u64,
    /// How long the fleet ran.
    pub took: Duration,
}

#[derive(Default)]
struct Counters {
    sent: AtomicU64,
    missed: AtomicU64,
    silent: AtomicI64,
}

/// Runs a fleet until `stop`, or for its duration, and reports its progress about once a second.
///
/// # Errors
/// An invalid configuration, or a broker that cannot be reached at the start. A connection that is lost later is
/// retried without end.
pub async fn run(
    config: FleetConfig,
    progress: watch::Sender<FleetProgress>,
    stop: CancellationToken,
) -> anyhow::Result<Summary> {
    config.check()?;
    let config = Arc::new(config);
    let counters = Arc::new(Counters::default());
    // The child token is cancelled when this function returns.
    let stop = stop.child_token();
    let _stopped = stop.clone().drop_guard();
    let began = monotonic();
    let mut connections = JoinSet::new();
    for number in 0..config.connections() {
        let connection =
            FleetConnection { number, config: config.clone(), counters: counters.clone(), began };
        connections.spawn(connection.publish(stop.clone()));
    }
    let end = config.duration.map(|duration| began + duration);
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let mut before = (0, began);
    loop {
        tokio::select! {
            ended = connections.join_next() => match ended {
                Some(ended) => ended.context("a connection of the fleet failed")??,
                None => break,
            },
            () = async { sleep_until(end.expect("checked").into()).await }, if end.is_some() && !stop.is_cancelled() => {
                stop.cancel();
            }
            now = ticks.tick() => {
                let now = now.into_std();
                let sent = counters.sent.load(Relaxed);
                let seconds = now.saturating_duration_since(before.1).as_secs_f64().max(0.001);
                report(&progress, &counters, config.units, (sent - before.0) as f64 / seconds);
                before = (sent, now);
            }
        }
    }
    report(&progress, &counters, config.units, 0.0);
    Ok(Summary {
        sent: counters.sent.load(Relaxed),
        missed: counters.missed.load(Relaxed),
        took: monotonic().duration_since(began),
    })
}

fn report(progress: &watch::Sender<FleetProgress>, counters: &Counters, total: usize, per_second: f64) {
    progress.send_replace(FleetProgress {
        sent: counters.sent.load(Relaxed),
        missed: counters.missed.load(Relaxed),
        per_second,
        silent: counters.silent.load(Relaxed).max(0) as u64,
        total,
    });
}

/// The units of one connection.
struct FleetConnection {
    number: usize,
    config: Arc<FleetConfig>,
    counters: Arc<Counters>,
    began: Instant,
}

impl FleetConnection {
    async fn publish(self, stop: CancellationToken) -> anyhow::Result<()> {
        let (client, mut events) = self.open()?;
        let first = stop.run_until_cancelled(events.poll()).await;
        match first {
            None => return Ok(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let why = cause::why("--url", "broker", &error);
                bail!("no connection to the MQTT broker at {}: {why}", self.config.url)
            }
        }
        let connected = Arc::new(AtomicBool::new(true));
        let polling = tokio::spawn(poll(events, connected.clone()));
        let mut schedule = Schedule::new(&self.config, self.number);
        while let Some(due) = schedule.due() {
            if stop.run_until_cancelled(sleep_until((self.began + due).into())).await.is_none() {
                break;
            }
            let Some(heartbeat) = schedule.next() else { break };
            let site = self.config.site(heartbeat.unit);
            if self.config.switched_off.get(site).is_some_and(|off| off.load(Relaxed)) {
                continue;
            }
            if stop.run_until_cancelled(self.send(&client, heartbeat, &connected)).await.is_none() {
                break;
            }
        }
        let _ = client.try_disconnect_with_timeout(DISCONNECT_TIMEOUT);
        drop(client);
        let abort = polling.abort_handle();
        if timeout(2 * DISCONNECT_TIMEOUT, polling).await.is_err() {
            abort.abort();
        }
        Ok(())
    }

    fn open(&self) -> anyhow::Result<(AsyncClient, EventLoop)> {
        let address: BrokerAddress = self.config.url.parse()?;
        ensure!(address.scheme == Scheme::Mqtt, "a simulated fleet connects by mqtt:// only, not {address}");
        // Ids that begin with `rollcall` are reserved, and the in-process broker refuses them.
        let id = format!("simulated-fleet-{:08x}-{}", rand::random::<u32>(), self.number);
        let mut options = MqttOptions::new(id, (address.host, address.port));
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        options
            .set_network_options(network)
            .set_keep_alive(30)
            .set_outgoing_inflight_upper_limit(1000)
            .set_max_request_batch(256);
        if let Some((name, password)) = &self.config.credentials {
            options.set_credentials(name, password.clone());
        }
        Ok(AsyncClient::builder(options).capacity(QUEUE).build())
    }

    async fn send(&self, client: &AsyncClient, heartbeat: ScheduledHeartbeat, connected: &AtomicBool) {
        self.counters.silent.fetch_add(
            i64::from(heartbeat.after.is_silence()) - i64::from(heartbeat.before.is_silence()),
            Relaxed,
        );
        let topic = self.config.topic_of(heartbeat.unit);
        let payload =
            format!("{{\"battery\":{}}}", 50 + (heartbeat.unit + heartbeat.at.as_secs() as u32 / 3600) % 50);
        let qos = if self.config.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        let heard =
            connected.load(Relaxed) && client.publish(topic, payload, PublishOptions::new(qos)).await.is_ok();
        let counter = if heard { &self.counters.sent } else { &self.counters.missed };
        counter.fetch_add(1, Relaxed);
    }
}

/// Polls a connection until its last client handle is dropped.
async fn poll(mut events: EventLoop, connected: Arc<AtomicBool>) {
    let mut failures = 0;
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => {
                failures = 0;
                connected.store(true, Relaxed);
            }
            Ok(_) => {}
            Err(rumqttc::ConnectionError::RequestsDone) => return,
            Err(error) => {
                connected.store(false, Relaxed);
                failures += 1;
                let wait = BACKOFF.wait(failures, rand::random());
                tracing::debug!("a connection of the fleet was lost, next attempt in {wait:?}: {error}");
                tokio::time::sleep(wait).await;
            }
        }
    }
}
