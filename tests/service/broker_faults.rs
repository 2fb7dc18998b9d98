//! Each fault of a broker, at one of two brokers and at both, with plain and with shared subscriptions: what it blinds, no
//! false alarm, and no silence missed at the other broker.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use rollcall::simulate::servers::{Server, free_port};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::support::clock::Clock;
use super::support::distance::Distance;
use super::world::World;

/// What is wrong with a broker.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Down,
    /// Its answers take most of a second.
    Slow,
    /// It lets nobody in without a password.
    Refuses,
    /// It grants subscriptions, and delivers nothing on the topics of the fleet.
    Withholds,
    /// Another client takes the session of Rollcall for a second.
    Steals,
    /// A connection ends with messages that Rollcall has not received.
    Cuts,
    /// Its clock is a day ahead.
    Clock,
}

impl Fault {
    /// Whether units that were last heard there are held while it lasts.
    fn holds(self) -> bool {
        matches!(self, Fault::Down | Fault::Refuses | Fault::Withholds)
    }

    /// Whether messages of a moment may be lost with a connection.
    fn loses(self) -> bool {
        matches!(self, Fault::Steals | Fault::Cuts)
    }
}

/// How Rollcall subscribes at both brokers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Subscriptions {
    Plain,
    /// Two connections of one instance are members of a share at each.
    Connections,
    /// Two instances are.
    Instances,
}

/// A Mosquitto with a clock of its own, and a distance from each instance.
struct Broker {
    name: &'static str,
    server: Server,
    distances: [Distance; 2],
    /// The distance that is cut.
    cut: usize,
    clock: Clock,
    dir: PathBuf,
    thief: Option<Child>,
}

impl Broker {
    async fn start(name: &'static str, dir: &TempDir, subscriptions: Subscriptions) -> Broker {
        // The second instance is cut off, if there are two.
        let cut = usize::from(subscriptions == Subscriptions::Instances);
        let (dir, clock) = (dir.path().join(name), Clock::right());
        let server = serve(&dir, free_port().unwrap(), &clock, "allow_anonymous true");
        let distance = async || Distance::to(server.port(), Duration::ZERO).await;
        let distances = [distance().await, distance().await];
        Broker { name, server, distances, cut, clock, dir, thief: None }
    }

    fn again(&mut self, access: &str) {
        self.server.kill();
        self.server = serve(&self.dir, self.server.port(), &self.clock, access);
    }

    /// `heartbeats`: units that beat while a connection is about to end.
    fn break_by(&mut self, fault: Fault, heartbeats: &[&str]) {
        match fault {
            Fault::Down => self.server.kill(),
            Fault::Slow => self.away(Duration::from_millis(700)),
            Fault::Refuses => self.again("allow_anonymous false"),
            Fault::Withholds => self.allow("topic readwrite rollcall/#\ntopic write #\n"),
            Fault::Steals => self.thief = Some(self.steal()),
            Fault::Cuts => {
                // What the broker gives to the connection is on its way for too long.
                let distance = &self.distances[self.cut];
                distance.set(Duration::from_secs(60));
                for _ in 0..4 {
                    self.beat(heartbeats);
                }
                distance.cut();
                distance.set(Duration::ZERO);
            }
            Fault::Clock => self.clock.step("+86400"),
        }
    }

    fn heal(&mut self, fault: Fault) {
        match fault {
            Fault::Down | Fault::Refuses => self.again("allow_anonymous true"),
            Fault::Slow => self.away(Duration::ZERO),
            Fault::Withholds => self.allow(EVERYTHING),
            Fault::Steals | Fault::Cuts => {}
            Fault::Clock => self.clock.step("+0"),
        }
    }

    fn away(&self, round_trip: Duration) {
        self.distances.iter().for_each(|distance| distance.set(round_trip));
    }

    fn steal(&self) -> Child {
        let (port, id) = (self.server.port().to_string(), format!("rc-{}", self.name));
        let args = ["-p", &port, "-i", &id, "-c", "-V", "mqttv5", "-x", "3600", "-t", "any", "-W", "1"];
        Command::new("mosquitto_sub").args(args).spawn().unwrap()
    }

    fn allow(&self, rules: &str) {
        std::fs::write(self.dir.join("rules"), rules).unwrap();
        let read_again = Command::new("kill").args(["-HUP", &self.server.pid().to_string()]).status();
        assert!(read_again.unwrap().success());
    }

    /// Publishes a heartbeat of each of these units.
    fn beat(&self, units: &[&str]) {
        let port = self.server.port().to_string();
        for unit in units {
            let topic = format!("{unit}/heartbeat");
            let sent = Command::new("mosquitto_pub")
                .args(["-p", &port, "-q", "1", "-t", &topic, "-m", "{}"])
                .status();
            assert!(sent.unwrap().success(), "{topic}");
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut thief) = self.thief.take() {
            let _ = thief.kill();
            let _ = thief.wait();
        }
    }
}

const EVERYTHING: &str = "topic readwrite #\n";

fn serve(dir: &std::path::Path, port: u16, clock: &Clock, access: &str) -> Server {
    std::fs::create_dir_all(dir).unwrap();
    let (rules, file) = (dir.join("rules"), dir.join("mosquitto.conf"));
    std::fs::write(&rules, EVERYTHING).unwrap();
    let text = format!(
        "user root\nlistener {port} 127.0.0.1\n{access}\npersistence false\nset_tcp_nodelay true\nacl_file {}\n",
        rules.display()
    );
    std::fs::write(&file, text).unwrap();
    let mut args = clock.before();
    args.extend(["mosquitto".to_owned(), "-c".to_owned(), file.display().to_string()]);
    Server::start(&args[0], &args[1..], dir, port, "running").unwrap()
}

fn options(eu: &Broker, us: &Broker, subscriptions: Subscriptions) -> String {
    let share = match subscriptions {
        Subscriptions::Plain => "",
        Subscriptions::Connections => "share = \"all\"\nconnections = 2\n",
        Subscriptions::Instances => "share = \"all\"\n",
    };
    let broker = |broker: &Broker| {
        let (name, port) = (broker.name, broker.distances[0].port());
        format!(
            "[[mqtt]]\nname = \"{name}\"\nclient_id = \"rc\"\nurl = \"mqtt://127.0.0.1:{port}\"\nkeep_alive = \"1s\"\n{share}"
        )
    };
    let kind = |name: &str, brokers: &str| {
        format!(
            "[[kind]]\nname = \"{name}\"\ntopics = [\"{name}/{{unit}}/heartbeat\"]\nbrokers = [{brokers}]\ntimeout = \
             \"5s\"\n"
        )
    };
    let kinds = [kind("pump", "\"eu\""), kind("valve", "\"us\""), kind("truck", "\"eu\", \"us\"")];
    format!("{}{}{}", broker(eu), broker(us), kinds.concat())
}

/// The timeout of all units, as [`options`] says it. A check may be later by a tenth: then it is not known at which broker a
/// unit was heard.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Units, each with the broker that hears it: of a kind of that broker alone, and of a kind of both.
const AT_EU: [&str; 2] = ["pump/1", "truck/e"];
const AT_US: [&str; 2] = ["valve/1", "truck/u"];

async fn state(world: &World, unit: &str) -> Value {
    world.json(&format!("/api/v1/units/{unit}")).await["state"].clone()
}

async fn all_are(world: &World, units: &[&str], wanted: &str) {
    for unit in units {
        world.eventually(&format!("{unit} is {wanted}"), async || state(world, unit).await == wanted).await;
    }
}

/// How many seconds of a unit were blind.
async fn blind(world: &World, unit: &str) -> f64 {
    let availability = world.json(&format!("/api/v1/availability?unit={unit}")).await;
    availability["blind_seconds"].as_f64().unwrap()
}

/// The units with records, in order.
async fn recorded(world: &World) -> Vec<String> {
    let name =
        |record: &Value| format!("{}/{}", record["kind"].as_str().unwrap(), record["unit"].as_str().unwrap());
    let mut units: Vec<String> = world.records().await.iter().map(name).collect();
    units.sort();
    units.dedup();
    units
}

/// Starts an instance that reaches both brokers on ways of its own, and waits until it is a member of both shares.
async fn start_second(world: &World, eu: &Broker, us: &Broker) -> (CancellationToken, Running) {
    let far = |text: String| {
        [eu, us].iter().fold(text, |text, broker| {
            let [one, two] = broker.distances.each_ref().map(|distance| distance.port().to_string());
            text.replace(&one, &two)
        })
    };
    let second = world.start_another_by(far);
    let mut members = redis::cmd("HLEN");
    members.arg("rollcall:{hearing}:members");
    world.eventually("all are members", async || world.ask::<u64>(&members).await == 4).await;
    second
}

type Running = JoinHandle<anyhow::Result<()>>;

/// A fleet at two brokers, of which one or both have a fault.
async fn a_fault((engine, subscriptions): (&str, Subscriptions), fault: Fault, at_both: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut eu = Broker::start("eu", &dir, subscriptions).await;
    let mut us = Broker::start("us", &dir, subscriptions).await;
    let world = World::new(&format!("{engine}\n{}", options(&eu, &us, subscriptions)), &[]).await;
    let second = match subscriptions {
        Subscriptions::Instances => Some(start_second(&world, &eu, &us).await),
        _ => None,
    };
    // The truck of eu comes from us, and the one of us from eu.
    us.beat(&["truck/e"]);
    eu.beat(&["truck/u"]);
    all_are(&world, &["truck/e", "truck/u"], "online").await;
    eu.beat(&AT_EU);
    us.beat(&AT_US);
    all_are(&world, &[AT_EU, AT_US].concat(), "online").await;
    for (unit, broker) in [("truck/e", "eu"), ("truck/u", "us")] {
        let heard_at = async || world.json(&format!("/api/v1/units/{unit}")).await["broker"] == broker;
        world.eventually(&format!("{unit} is heard at {broker}"), heard_at).await;
    }
    // On a busy machine that took a good part of the timeout.
    eu.beat(&AT_EU);
    us.beat(&AT_US);
    eu.break_by(fault, &AT_EU);
    if at_both {
        us.break_by(fault, &AT_US);
    }
    let (faulty, fine) = match at_both {
        true => ([AT_EU, AT_US].concat(), Vec::new()),
        false => (AT_EU.to_vec(), AT_US.to_vec()),
    };
    all_are(&world, &fine, "offline").await;
    if fault.holds() {
        all_are(&world, &faulty, "unknown").await;
        assert_eq!(recorded(&world).await, sorted(&fine), "{fault:?}");
        let page = world.text_of("/metrics").await;
        assert!(page.contains("rollcall_mqtt_blind{broker=\"eu\"} 1"), "{page}");
        assert_eq!(page.contains("rollcall_mqtt_blind{broker=\"us\"} 1"), at_both, "{page}");
        // The time is blind while it lasts, and not only when it is over.
        for (unit, is_blind) in [("truck/e", true), ("truck/u", at_both)] {
            assert_eq!(blind(&world, unit).await > 0.0, is_blind, "{unit} {fault:?}");
        }
    }
    if fault.loses() {
        // Messages of that time may be lost, so their units have longer.
        all_are(&world, &faulty, "offline").await;
        for record in world.records().await {
            let at = |name: &str| -> rollcall::clock::Timestamp {
                serde_json::from_value(record[name].clone()).unwrap()
            };
            let is_later = at("deadline") > at("last_seen") + TIMEOUT;
            let unit = format!("{}/{}", record["kind"].as_str().unwrap(), record["unit"].as_str().unwrap());
            let is_faulty = faulty.contains(&unit.as_str());
            // A check that the machine delayed until the key had expired presumes a later heartbeat, and where is not known.
            let is_presumed = !record["silent_from"].is_null();
            assert!(is_later == is_faulty || is_presumed && !is_faulty, "{record}");
        }
    }
    if !fault.holds() {
        all_are(&world, &faulty, "offline").await;
    }
    eu.heal(fault);
    if at_both {
        us.heal(fault);
    }
    world.eventually("both are heard", async || world.status("/readyz").await == 200).await;
    eu.beat(&AT_EU);
    us.beat(&AT_US);
    all_are(&world, &[AT_EU, AT_US].concat(), "online").await;
    // And each silence is found again.
    all_are(&world, &[AT_EU, AT_US].concat(), "offline").await;
    if fault.holds() {
        // The trucks were heard at different brokers, so their availability differs, too.
        assert!(blind(&world, "truck/e").await > 0.0, "{fault:?}");
        assert_eq!(blind(&world, "truck/u").await > 0.0, at_both, "{fault:?}");
    }
    if let Some((stop, second)) = second {
        stop.cancel();
        second.await.unwrap().unwrap();
    }
}

fn sorted(units: &[&str]) -> Vec<String> {
    let mut units: Vec<String> = units.iter().map(|unit| (*unit).to_owned()).collect();
    units.sort();
    units
}

/// Makes a test for each of these faults, at one broker and at both.
macro_rules! faults {
    ($name:ident, $how:expr, $($fault:ident: $one:ident, $both:ident;)*) => {
        mod $name {
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $one() {
                    a_fault($how, Fault::$fault, false).await;
                }

                #[tokio::test(flavor = "multi_thread")]
                async fn $both() {
                    a_fault($how, Fault::$fault, true).await;
                }
            )*
        }
    };
}

/// The faults of brokers, and those of sessions or of members of a share.
macro_rules! every_fault {
    ($name:ident, $how:expr, $($more:tt)*) => {
        faults! { $name, $how,
            Down: one_broker_is_down, both_brokers_are_down;
            Slow: one_broker_is_slow, both_brokers_are_slow;
            Refuses: one_broker_refuses_rollcall, both_brokers_refuse_rollcall;
            Withholds: one_broker_delivers_nothing, both_brokers_deliver_nothing;
            Clock: the_clock_of_one_broker_is_ahead, the_clocks_of_both_brokers_are_ahead;
            $($more)*
        }
    };
}

const REDIS: &str = "# redis";
const DIRECTORY: &str = "engine = { type = \"embedded\", path = \"{dir}/data\" }\n# engine.type";

every_fault! { on_redis, (REDIS, Subscriptions::Plain),
    Steals: a_client_steals_the_session_at_one_broker, a_client_steals_the_session_at_both_brokers;
}
every_fault! { in_a_directory, (DIRECTORY, Subscriptions::Plain),
    Steals: a_client_steals_the_session_at_one_broker, a_client_steals_the_session_at_both_brokers;
}
every_fault! { shared_by_instances, (REDIS, Subscriptions::Instances),
    Cuts: an_instance_is_cut_off_from_one_broker, an_instance_is_cut_off_from_both_brokers;
}
faults! { shared_by_connections, (DIRECTORY, Subscriptions::Connections),
    Down: one_broker_is_down, both_brokers_are_down;
    Cuts: both_members_are_cut_off_from_one_broker, both_members_are_cut_off_from_both_brokers;
}
