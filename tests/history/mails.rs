//! Reports by mail: each is sent once, whichever instances run, start again, or believe to own everything.

use std::sync::Arc;
use std::time::Duration;

use rollcall::alerting::{self, AlertingConfig};
use rollcall::config::{self, Config};
use rollcall::fleet::{Ownership, RemovedKinds, Silences, Timers};
use rollcall::history::{HistoryReader, fleet_digest};
use rollcall::simulate::mail_sink::{Mail, MailSink, MailSinkOptions};
use rollcall::store::{StoredDeliveries, StoredGroups};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::reports::fleet;
use crate::world::{EngineType, PARTITIONS, SECOND, World, until};

const SITES: &str = "[[report]]\nname = \"sites\"\nreceivers = [\"mail\"]\nevery = \"day\"\ngroup_by = \"site\"\n\
                     target = 99.5\n";
const WEEK: &str = "[[report]]\nname = \"week\"\nreceivers = [\"mail\"]\nevery = \"day\"\nrange = \"7d\"\n";

/// The alerting loops of an instance that believes to own everything.
struct Instance {
    stop: CancellationToken,
    run: JoinHandle<anyhow::Result<()>>,
}

impl Instance {
    fn start(world: &World, config: &Config) -> Instance {
        let engine = world.engine.clone();
        let timers =
            Timers::new(engine.clone(), config.timers.clone(), Arc::default(), world.telemetry.clone());
        let stores = alerting::Stores {
            outbox: engine.clone(),
            groups: StoredGroups::new(engine.clone()),
            hearing: engine.clone(),
            queries: engine.clone(),
            cells: engine.clone(),
            units: engine.clone(),
            deliveries: StoredDeliveries::new(engine.clone()),
            timers: Arc::new(timers),
            history: Some(Arc::new(HistoryReader::new(world.access.clone(), fleet_digest(world.roll.key())))),
            silences: Arc::new(Silences::new(engine.clone())),
            roll: world.roll.clone(),
            roster: engine,
            removed_kinds: Arc::new(RemovedKinds::new(Duration::MAX)),
        };
        let alerting =
            AlertingConfig { blind_after: Duration::from_secs(1 << 30), ..config.alerting.clone() };
        let own = Ownership::of_everything(PARTITIONS);
        let (clock, telemetry, stop) =
            (world.clock.clone(), world.telemetry.clone(), CancellationToken::new());
        let run =
            alerting::run(alerting, stores, own, clock, telemetry, Arc::new(Notify::new()), stop.clone());
        Instance { stop, run: tokio::spawn(run) }
    }

    async fn end(self) {
        self.stop.cancel();
        self.run.await.unwrap().unwrap();
    }
}

fn configured(sink: &MailSink, reports: &str) -> Config {
    let text = format!(
        "[history]\nurl = \"postgres://rollcall@127.0.0.1/fleet\"\n\
         [[receiver]]\nname = \"mail\"\ntype = \"email\"\nsmtp = \"{}\"\nfrom = \"rollcall@example.org\"\n\
         to = [\"ops@example.org\"]\n[route]\nreceivers = [\"mail\"]\n{reports}",
        sink.url()
    );
    config::parse(&text, None, []).unwrap()
}

/// The mails with reports; others tell of the blind time that the test makes.
fn reports(sink: &MailSink) -> Vec<Mail> {
    let is_report = |mail: &Mail| mail.header("Subject").unwrap().starts_with("Availability");
    sink.mails().into_iter().filter(is_report).collect()
}

/// The subjects of reports, once there are so many.
async fn subjects(sink: &MailSink, count: usize) -> Vec<String> {
    until(async || reports(sink).len() >= count).await;
    let mut subjects: Vec<String> =
        reports(sink).iter().map(|mail| mail.header("Subject").unwrap()).collect();
    subjects.sort();
    subjects
}

/// A fleet whose first day is summed, at six in the morning of the next one.
async fn summed(world: &mut World) {
    fleet(world).await;
    world.clock.advance(6 * 3600 * SECOND);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.write();
    until(async || world.count("daily").await > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_mailed_once_though_two_instances_make_it_and_others_start_later() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut world = World::new(EngineType::Redis).await;
    summed(&mut world).await;
    let sink = MailSink::start(MailSinkOptions::default()).await.unwrap();
    let config = configured(&sink, SITES);
    let (one, other) = (Instance::start(&world, &config), Instance::start(&world, &config));
    let sites = "Availability, 2023-11-14 to 2023-11-14: 1 of 2 miss the target";
    assert_eq!(subjects(&sink, 1).await, [sites]);
    let Mail { data, .. } = reports(&sink).remove(0);
    for part in ["north", "50.000", "target: 99.500 %", "filename=\"report.csv\"", "class=3D\"missed\""] {
        assert!(data.contains(part), "{part} in {data}");
    }
    one.end().await;
    other.end().await;
    // A later start finds it sent; the next report comes after it.
    let both = configured(&sink, &format!("{SITES}{WEEK}"));
    let later = Instance::start(&world, &both);
    let week = "Availability, 2023-11-08 to 2023-11-14";
    assert_eq!(subjects(&sink, 2).await, [week, sites]);
    // A day later the report of that day follows.
    world.pass(300 * SECOND).await;
    world.clock.advance(86_400 * SECOND);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    let found = subjects(&sink, 4).await;
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found[2].starts_with("Availability, 2023-11-14 to 2023-11-14"), "{found:?}");
    assert!(found[3].starts_with("Availability, 2023-11-15 to 2023-11-15"), "{found:?}");
    later.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_is_due_while_the_database_is_away_is_mailed_when_it_is_back() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut world = World::new(EngineType::Embedded).await;
    summed(&mut world).await;
    world.end_writers().await;
    world.postgres.kill();
    let sink = MailSink::start(MailSinkOptions::default()).await.unwrap();
    let instance = Instance::start(&world, &configured(&sink, SITES));
    world.postgres.restart();
    assert_eq!(subjects(&sink, 1).await, ["Availability, 2023-11-14 to 2023-11-14: 1 of 2 miss the target"]);
    instance.end().await;
}
