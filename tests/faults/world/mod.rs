//! Real processes around a fleet that keeps a diary: instances of Rollcall, Redis, Mosquitto, a
//! webhook sink, and an oracle that checks the result.
//!
//! A test disturbs the world while the fleet lives, and then lets it settle: it waits for every fact that must hold in
//! the end, and fails at once on a fact that must never hold. All randomness comes from one seed, which is printed;
//! `FAULTS_SEED` repeats it. A failed test keeps the directory with the logs of every process, and prints its path.

#![allow(dead_code, reason = "no family of faults needs all of it")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollcall::clock::{Timestamp, monotonic};
use rollcall::presence::OfflineRecord;
use rollcall::simulate::servers::free_port;
use rollcall::simulate::webhook_sink::{self, WebhookSink};
use tempfile::TempDir;

pub mod broker;
pub mod calendar;
#[path = "../../support/certificates.rs"]
pub mod certificates;
#[path = "../../support/client.rs"]
mod client;
#[path = "../../support/clock.rs"]
pub mod clock;
#[path = "../../support/cluster.rs"]
pub mod cluster;
#[path = "../../support/connect.rs"]
pub mod connect;
mod counted;
pub mod crowd;
pub mod devices;
pub mod diary;
pub mod directory;
#[path = "../../support/http.rs"]
pub mod http;
pub mod instance;
pub mod intruder;
#[path = "../../support/node.rs"]
pub mod node;
pub mod oracle;
pub mod poison;
pub mod primaries;
mod processor;
pub mod proxy;
pub mod redis;
#[path = "../../support/sentinel.rs"]
pub mod sentinel;
mod undisturbed;

use broker::Broker;
use calendar::Calendar;
use counted::Counted;
pub use devices::{Fleet, now};
use directory::Directory;
pub use instance::{Instance, signal};
use oracle::{Evidence, Finding, Loss, NotifiedRecord};
use poison::Broken;
use processor::WaitsMeasured;
use proxy::Proxy;
use redis::{Redis, Topology};
use undisturbed::Undisturbed;

/// The timeout of units.
pub const TIMEOUT: Duration = Duration::from_secs(3);
/// The period of heartbeats: six within a timeout.
pub const PERIOD: Duration = Duration::from_millis(500);
/// The longest wait for a fact.
pub const MAX_WAIT: Duration = Duration::from_secs(300);
/// The most memory that a process may use, with a small fleet.
pub const MAX_MEMORY: u64 = 200 << 20;
/// The prefix of the ids of units without a diary, which the oracle ignores.
pub const CROWD: &str = "crowd-";
/// Messages that the broker acknowledged this shortly before it died may be lost with it.
const IN_MEMORY: Duration = Duration::from_secs(2);

/// The parts of a world.
pub struct Plan {
    pub instances: usize,
    pub units: usize,
    /// Whether the engine is the embedded one; then there is one instance, and no Redis.
    pub embedded: bool,
    /// Whether the broker runs within the instance.
    pub broker_within: bool,
    /// The servers of Redis.
    pub topology: Topology,
    /// Arguments of a single Redis.
    pub redis: Vec<String>,
    /// More lines of the broker's configuration.
    pub broker: String,
    /// Name of a shared subscription; empty: every instance hears everything.
    pub share: String,
    /// Whether each instance reaches the broker by a proxy that can be broken.
    pub wires: bool,
    /// More options of Rollcall.
    pub options: String,
    /// More options of the route.
    pub route: String,
    /// More kinds.
    pub kinds: String,
    /// A prefix of the command line of the first instance.
    pub before: Vec<String>,
    /// A prefix of the command line of Redis, for another clock.
    pub before_redis: Vec<String>,
    /// Whether servers of the topology have other clocks.
    pub has_other_clocks: bool,
}

impl Plan {
    pub fn new(instances: usize) -> Plan {
        Plan {
            instances,
            units: 120,
            embedded: false,
            broker_within: false,
            topology: Topology::Single,
            redis: redis::DURABLE.map(str::to_owned).to_vec(),
            broker: String::new(),
            share: String::new(),
            wires: false,
            options: String::new(),
            route: String::new(),
            kinds: String::new(),
            before: Vec::new(),
            before_redis: Vec::new(),
            has_other_clocks: false,
        }
    }

    /// A plan with one instance on the embedded engine.
    pub fn embedded() -> Plan {
        Plan { embedded: true, ..Plan::new(1) }
    }

    /// A plan with one process that has the embedded engine and broker.
    pub fn alone() -> Plan {
        Plan { broker_within: true, ..Plan::embedded() }
    }

    /// A plan in which Redis loses everything since its last snapshot.
    pub fn with_snapshots(self) -> Plan {
        Plan { redis: redis::SNAPSHOTS.map(str::to_owned).to_vec(), ..self }
    }
}

pub struct World {
    pub chance: StdRng,
    pub fleet: Fleet,
    pub instances: Vec<Instance>,
    pub wires: Vec<Proxy>,
    pub redis: Redis,
    pub directory: Directory,
    pub broker: Broker,
    pub sink: WebhookSink,
    pub plan: Plan,
    seed: u64,
    probes: usize,
    /// A world without faults beside this one, if there are several servers.
    undisturbed: Option<Undisturbed>,
    outages: Vec<(Timestamp, Timestamp)>,
    disturbances: Vec<(Timestamp, Timestamp)>,
    losses: Vec<Loss>,
    /// The broken values of units.
    pub broken: Vec<Broken>,
    /// Present if the clock of Redis is not that of this machine.
    calendar: Option<Calendar>,
    /// Measured since the instances were added.
    waits: Option<WaitsMeasured>,
    /// How many requests of the sink were read, and their contents.
    sink_read: Mutex<(usize, Vec<NotifiedRecord>)>,
    // The last field, so that every process has ended when the directory is removed.
    dir: Option<TempDir>,
}

impl World {
    /// A world whose instances are ready and whose fleet is known.
    pub async fn new(plan: Plan) -> World {
        let seed = std::env::var("FAULTS_SEED").ok().and_then(|seed| seed.parse().ok());
        World::with_seed(plan, seed.unwrap_or_else(rand::random)).await
    }

    pub async fn with_seed(plan: Plan, seed: u64) -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        println!("FAULTS_SEED={seed}");
        let dir = TempDir::new().unwrap();
        let args: Vec<&str> = plan.redis.iter().map(String::as_str).collect();
        let redis = match plan.embedded {
            true => Redis::none(),
            false => Redis::of(&plan.topology, &dir.path().join("redis"), &plan.before_redis, &args).await,
        };
        let has_other_clocks = plan.has_other_clocks || !plan.before_redis.is_empty();
        let calendar = has_other_clocks.then(|| Calendar::keep(redis.ports()));
        let directory = Directory::new(dir.path().join("rollcall-data"));
        let broker = match plan.broker_within {
            true => Broker::within(),
            false => Broker::mosquitto(dir.path(), free_port().unwrap(), &plan.broker),
        };
        let undisturbed = match plan.topology {
            Topology::Single => None,
            _ => Some(Undisturbed::start(seed).await),
        };
        let sink = WebhookSink::start(webhook_sink::Options::default()).await.unwrap();
        let fleet = Fleet::start(broker.port(), []);
        let mut world = World {
            chance: StdRng::seed_from_u64(seed),
            fleet,
            instances: Vec::new(),
            wires: Vec::new(),
            redis,
            directory,
            broker,
            sink,
            seed,
            probes: 0,
            undisturbed,
            outages: Vec::new(),
            disturbances: Vec::new(),
            losses: Vec::new(),
            broken: Vec::new(),
            calendar,
            waits: None,
            sink_read: Mutex::default(),
            dir: Some(dir),
            plan,
        };
        for number in 0..world.plan.instances {
            world.add_instance(number).await;
        }
        world.waits = Some(WaitsMeasured::of(world.instances.iter().map(Instance::process).collect()));
        // The first instance starts alone, so that its session hears the first heartbeats.
        world.ready().await;
        for number in 0..world.plan.units {
            let unit = format!("unit-{number:03}");
            world.fleet.join(&unit, &format!("units/{unit}/heartbeat"));
        }
        let known = async |world: &World| world.known().await >= Some(world.plan.units);
        world.eventually("the fleet is known", known).await;
        world
    }

    async fn add_instance(&mut self, number: usize) {
        let mut broker = format!("mqtt://127.0.0.1:{}", self.broker.port());
        if self.plan.wires {
            let wire = Proxy::start("127.0.0.1:0", &format!("127.0.0.1:{}", self.broker.port())).await;
            broker = format!("mqtt://127.0.0.1:{}", wire.port());
            self.wires.push(wire);
        }
        let http = format!("127.0.0.1:{}", free_port().unwrap());
        let redis = match self.plan.embedded {
            true => String::new(),
            false => self.redis.url(),
        };
        let config = self.config(number, &redis, &broker, &http, &self.sink.url());
        let mut instance = Instance::new(self.dir(), &format!("instance-{number}"), &http, &config);
        if number == 0 {
            instance.before = self.plan.before.clone();
        }
        instance.start();
        self.instances.push(instance);
    }

    /// The configuration of an instance with these addresses.
    pub fn config(&self, number: usize, redis: &str, broker: &str, http: &str, hook: &str) -> String {
        let Plan { share, options, route, kinds, .. } = &self.plan;
        let timeout = TIMEOUT.as_secs();
        let engine = match self.plan.embedded {
            true => "type = \"embedded\"".to_owned(),
            false => format!("url = \"{redis}\"{}", self.redis.more_options()),
        };
        let (mqtt, within) = match self.plan.broker_within {
            true => (String::new(), format!("broker.listen = \"127.0.0.1:{}\"", self.broker.port())),
            false => (format!("url = \"{broker}\","), String::new()),
        };
        format!(
            r#"
            engine = {{ {engine} }}
            {within}
            mqtt = {{ {mqtt} client_id = "instance-{number}", share = "{share}", keep_alive = "2s" }}
            http.listen = "{http}"
            hearing.canary_period = "250ms"
            log.level = "info"
            # Half of the fleet falls silent at once in most worlds.
            breaker.enabled = false
            {options}
            [route]
            receivers = ["hook"]
            group_wait = "500ms"
            group_interval = "100ms"
            {route}
            [[kind]]
            name = "detector"
            timeout = "{timeout}s"
            topics = ["units/{{unit}}/heartbeat", "sites/{{site}}/{{unit}}/heartbeat"]
            {kinds}
            [[receiver]]
            name = "hook"
            type = "webhook"
            url = "{hook}"
            timeout = "5s"
            retry = {{ first = "200ms", longest = "1s", give_up_after = "1h" }}
            "#
        )
    }

    pub fn dir(&self) -> &Path {
        self.dir.as_ref().expect("it is there until the end").path()
    }

    // --- State of the engine; `None` while it does not answer -----------------------------------

    /// How many units are watched.
    pub async fn known(&self) -> Option<usize> {
        if self.plan.embedded { self.directory.known() } else { self.redis.known().await }
    }

    /// Whether the unit `<kind>:<unit>` is watched.
    async fn knows(&self, name: &str) -> Option<bool> {
        if self.plan.embedded { self.directory.knows(name) } else { self.redis.knows(name).await }
    }

    /// Every record of a unit with a diary.
    pub async fn records(&self) -> Option<Vec<OfflineRecord>> {
        if self.plan.embedded { self.directory.records() } else { self.redis.records().await }
    }

    /// How many records are open, those of crowds included.
    pub async fn open(&self) -> Option<usize> {
        if self.plan.embedded { self.directory.open() } else { self.redis.open().await }
    }

    /// How many records there are, those of crowds included.
    async fn recorded(&self) -> Option<usize> {
        if self.plan.embedded { self.directory.recorded() } else { self.redis.recorded().await }
    }

    /// The backlog of notifications.
    pub async fn waiting(&self) -> Option<usize> {
        if self.plan.embedded { self.directory.waiting() } else { self.redis.waiting().await }
    }

    // --- Life -----------------------------------------------------------------------------------

    /// Lets the fleet live for the time `span`, with deaths, returns and pauses at random moments.
    pub fn live(&mut self, span: Duration) {
        self.fleet.plan(&mut self.chance, span);
    }

    /// Waits while the fleet lives. No claim depends on the duration.
    pub async fn pass(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    /// Waits for a random part of `span`.
    pub async fn pass_some(&mut self, span: Duration) {
        let some = span.mul_f64(self.chance.random());
        tokio::time::sleep(some).await;
    }

    /// Begins a disturbance, which lasts until the returned mark is given back.
    pub fn disturb(&self) -> Timestamp {
        now()
    }

    pub fn disturbed_since(&mut self, mark: Timestamp) {
        self.disturbances.push((mark, now()));
    }

    /// Notes that the broker was away since the mark.
    pub fn broker_away_since(&mut self, mark: Timestamp) {
        self.outages.push((mark, now()));
        self.disturbed_since(mark);
    }

    /// Notes that the engine lost everything since `from`.
    pub fn lost_since(&mut self, from: Timestamp, of_everything: bool) {
        let of_other_groups = self.redis.is_cluster();
        self.losses.push(Loss { from, to: now(), of_everything, of_other_groups });
        self.disturbed_since(from);
    }

    /// Notes that the broker, or a member of a shared subscription, died with messages that it had not delivered.
    pub fn forget_unheard(&self, died: Timestamp) {
        for device in self.fleet.devices().iter_mut() {
            for beat in device.beats.iter_mut().rev().take_while(|beat| beat.sent + IN_MEMORY > died) {
                if beat.sent <= died {
                    beat.acked = None;
                }
            }
        }
    }

    /// Notes that the broker may have dropped messages that it acknowledged since the mark.
    pub fn forget_unheard_since(&self, mark: Timestamp) {
        for device in self.fleet.devices().iter_mut() {
            device.beats.iter_mut().filter(|beat| beat.sent >= mark).for_each(|beat| beat.acked = None);
        }
    }

    /// Kills an instance and, if it shares, loses the messages that the broker had sent to it.
    pub fn kill_member(&mut self, number: usize) {
        let died = now();
        self.instances[number].kill();
        if !self.plan.share.is_empty() {
            self.forget_unheard(died);
        }
    }

    pub fn kill_broker(&mut self) {
        let died = now();
        self.broker.kill();
        self.forget_unheard(died);
    }

    pub fn start_broker(&mut self) {
        let port = self.broker.port();
        self.broker = Broker::mosquitto(self.dir(), port, &self.plan.broker);
    }

    /// Records of units that sent all the time; there may never be one.
    pub async fn records_of_the_living(&self) -> Vec<OfflineRecord> {
        let mut records = self.records().await.expect("it answers");
        let devices = self.fleet.devices();
        let spoke = |unit: &str| {
            let device = devices.iter().find(|device| device.unit == unit);
            device.is_some_and(|device| device.spoke_throughout(now()))
        };
        records.retain(|record| spoke(record.unit.as_str()));
        records
    }

    // --- Truth ----------------------------------------------------------------------------------

    /// Awaits a fact about the world.
    pub async fn eventually(&self, what: &str, fact: impl AsyncFn(&World) -> bool) {
        let awaited = async {
            while !fact(self).await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(MAX_WAIT, awaited).await.is_err() {
            panic!("never came true: {what}");
        }
    }

    /// Waits until every instance answers that it is ready.
    pub async fn ready(&self) {
        for instance in &self.instances {
            let what = format!("{} is ready", instance.name);
            let is_ready =
                async |_: &World| instance.page("/readyz").await.is_some_and(|(status, _)| status == 200);
            self.eventually(&what, is_ready).await;
        }
    }

    /// The notifications so far.
    pub fn notified_records(&self) -> Vec<NotifiedRecord> {
        let mut sink_read = self.sink_read.lock().expect("nothing panics under this lock");
        let received = self.sink.received();
        for received in &received[sink_read.0..] {
            let json = received.json();
            for list in ["offline", "online"] {
                for record in json["data"][list].as_array().map(Vec::as_slice).unwrap_or_default() {
                    let notification = received.header("webhook-id").to_owned();
                    let record = serde_json::from_value(record.clone()).unwrap();
                    sink_read.1.push(NotifiedRecord { notification, record });
                }
            }
        }
        sink_read.0 = received.len();
        sink_read.1.clone()
    }

    /// How many blind intervals were notified.
    pub fn blindness_notified(&self) -> usize {
        let received = self.sink.received();
        let intervals = received.iter().flat_map(|one| one.json()["data"]["intervals"].as_array().cloned());
        intervals.flatten().map(|interval| interval.to_string()).collect::<BTreeSet<String>>().len()
    }

    /// The evidence for the oracle now; `None` while the engine does not answer.
    async fn evidence(&self) -> Option<Evidence> {
        // Read in reverse order: every notification has its record by now, and every record its diary.
        let mut notified_records = self.notified_records();
        notified_records.retain(|notified| !notified.record.unit.as_str().starts_with(CROWD));
        let records = self.records().await?;
        let (now, devices) = (now(), self.fleet.devices().clone());
        let mut evidence = Evidence {
            misnamed: oracle::misnamed(&records),
            jumps: self.calendar.as_ref().map(Calendar::jumps).unwrap_or_default(),
            catches_up: self.calendar.as_ref().map_or(Duration::ZERO, |_| calendar::UNNOTICED),
            devices,
            records: Vec::with_capacity(records.len()),
            notified_records,
            outages: self.outages.clone(),
            disturbances: self.disturbances.clone(),
            losses: self.losses.clone(),
            broken: self.broken.clone(),
            blind: self.instances.iter().flat_map(Instance::blind).collect(),
            waits: self.waits.as_ref().map(WaitsMeasured::so_far).unwrap_or_default(),
            now,
        };
        for record in records {
            evidence.add(match &self.calendar {
                Some(calendar) => calendar.readings(&record),
                None => vec![record],
            });
        }
        Some(evidence)
    }

    /// Shows that detection works: a device sends, falls silent, is recorded and notified.
    pub async fn probe(&mut self) {
        self.probes += 1;
        let unit = format!("probe-{}", self.probes);
        self.fleet.join(&unit, &format!("units/{unit}/heartbeat"));
        let has_spoken = |devices: &[diary::Device]| {
            let device = devices.iter().find(|device| device.unit == unit).expect("it was made");
            device.beats.iter().filter(|beat| beat.acked.is_some()).count() >= 2
        };
        self.eventually("the probe has spoken", async |world| has_spoken(&world.fleet.devices())).await;
        // Messages to a member that is cut off are lost, and their unit may stay unknown.
        let name = format!("detector:{unit}");
        let is_known = async |world: &World| world.knows(&name).await == Some(true);
        self.eventually("the probe is known", is_known).await;
        self.fleet.silence(&unit);
        let is_notified = async |world: &World| {
            let notified_records = world.notified_records();
            notified_records.iter().any(|notified| notified.record.unit.as_str() == unit)
        };
        self.eventually("a unit that dies after the fault is notified", is_notified).await;
    }

    /// Lets the world settle: every instance is ready, a probe is found, every death has
    /// one record and was notified, some of the dead return and are notified too, no other unit has a record,
    /// nothing waits, and memory was bounded at all times.
    pub async fn rests(&mut self) {
        self.ready().await;
        self.probe().await;
        self.settles().await;
    }

    /// Settles after all servers are back: detection resumes by itself, and in time.
    pub async fn resumes_and_rests(&mut self) {
        self.resumes().await;
        self.settles().await;
    }

    /// After all servers are back from now on, every instance is ready and detection resumes, within ten seconds of a
    /// machine that is fast enough: see `undisturbed.rs`. `make bench ONLY=failover` measures how soon.
    pub async fn resumes(&mut self) {
        let mut undisturbed = self.undisturbed.take().expect("there are several servers");
        let back = monotonic();
        let resumes = async {
            self.ready().await;
            let ready = monotonic().duration_since(back);
            self.probe().await;
            let took = monotonic().duration_since(back).as_millis();
            println!("ready after {} ms, detection resumed after {took} ms", ready.as_millis());
        };
        let probes = undisturbed.probes_during(resumes).await;
        println!("meanwhile {probes} units that died beside it were notified");
        self.undisturbed = Some(undisturbed);
    }

    async fn settles(&mut self) {
        self.agrees().await;
        let woken = self.fleet.wake_some(&mut self.chance);
        println!("{} units wake", woken.len());
        self.agrees().await;
        self.eventually("nothing waits", async |world| world.waiting().await == Some(0)).await;
        self.counts_are_right().await;
        for instance in &mut self.instances {
            assert_eq!(instance.death(), None);
            let memory = instance.peak_memory();
            println!("{} used at most {} MB", instance.name, memory >> 20);
            assert!(0 < memory && memory < MAX_MEMORY, "{} used {} MB", instance.name, memory >> 20);
        }
        self.ready().await;
    }

    /// Waits until the counts of the instances match the engine.
    async fn counts_are_right(&self) {
        let mut wrong = None;
        let begun = monotonic();
        while monotonic().duration_since(begun) < MAX_WAIT {
            wrong = self.miscounts().await;
            match &wrong {
                Some(wrong) if wrong.is_empty() => {
                    println!("counts are right after {} ms", monotonic().duration_since(begun).as_millis());
                    return;
                }
                _ => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
        panic!("counts are wrong and stay so: {wrong:?}");
    }

    /// Differences between the counts of the instances and the engine; `None` while an instance does not answer.
    async fn miscounts(&self) -> Option<Vec<String>> {
        let mut counted = Counted::default();
        for instance in &self.instances {
            counted.add(&instance.page("/metrics").await?.1);
            counted.add(&instance.page("/metrics/units?mode=all").await?.1);
        }
        let (open, watched, opened) = (self.open().await?, self.known().await?, self.recorded().await?);
        let mut right = vec![
            ("units", counted.units, open + watched),
            ("units that are offline", counted.offline, open),
            ("series of units", counted.shown, open + watched),
            ("series of units that are not up", counted.shown_down, open),
        ];
        // Counters of a process end with it, and do not know of losses of the engine. A primary that is replaced may
        // take a transition with it that was counted, and that is counted again when it is found again.
        let keeps_all = self.losses.is_empty() && matches!(self.plan.topology, Topology::Single);
        if keeps_all && self.instances.iter().all(|instance| instance.starts == 1) {
            right.push(("records opened", counted.opened, opened));
            right.push(("records closed", counted.closed, opened.saturating_sub(open)));
        }
        let wrong = right.into_iter().filter(|(_, counted, right)| counted != right);
        Some(wrong.map(|(what, counted, right)| format!("{counted} {what}, and there are {right}")).collect())
    }

    /// Waits until the oracle has no finding.
    pub async fn agrees(&self) {
        let planned =
            async |world: &World| !world.fleet.devices().iter().any(|device| device.has_plans(now()));
        self.eventually("every device did what it was to do", planned).await;
        let begun = monotonic();
        let mut left = None;
        while monotonic().duration_since(begun) < MAX_WAIT {
            left = self.evidence().await.map(|evidence| (evidence.judge(), evidence));
            match &left {
                Some((findings, _)) if findings.is_empty() => return,
                Some((findings, _)) if findings.iter().any(|finding| !finding.heals) => break,
                _ => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
        let (findings, evidence) = left.expect("the engine answers");
        let calendar = self.calendar.as_ref().map(Calendar::story).unwrap_or_default();
        panic!("{}\ntime of the fleet:{calendar}", report(&findings, &evidence));
    }
}

/// Details for an engineer who reads the failure.
fn report(findings: &[Finding], evidence: &Evidence) -> String {
    const SHOWN: usize = 8;
    let mut text = format!("{} things are not as they must be:\n", findings.len());
    for finding in findings.iter().take(40) {
        let when = if finding.heals { "never came right" } else { "is wrong" };
        text += &format!("  {} {when}: {}\n", finding.unit, finding.what);
    }
    let units: BTreeSet<&str> = findings.iter().map(|finding| finding.unit.as_str()).collect();
    units.into_iter().take(SHOWN).for_each(|unit| text += &evidence.story(unit));
    let spans = |spans: &[(Timestamp, Timestamp)]| {
        let spans = spans.iter().map(|(from, to)| format!("{}..{}", from.as_millis(), to.as_millis()));
        spans.collect::<Vec<_>>().join(" ")
    };
    text + &format!("broker away: {}\ndisturbed: {}", spans(&evidence.outages), spans(&evidence.disturbances))
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let dir = self.dir.take().expect("it is there until the end").keep();
            eprintln!("FAULTS_SEED={} repeats the chances; logs are in {}", self.seed, dir.display());
        }
    }
}
