//! Last wills that lie: of sessions that are taken over, of a broker that ends or stands still, and in the wrong order.

use std::collections::BTreeSet;
use std::time::Duration;

use rollcall::clock::Stopwatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::world::{Plan, World, signal};

const LAMPS: usize = 40;
const SECOND: Duration = Duration::from_secs(1);

/// A kind whose units announce their presence, on a topic of their own or on that of their heartbeats.
fn plan(instances: usize, presence: &str) -> Plan {
    of_lamps(Plan::new(instances), presence)
}

fn of_lamps(plan: Plan, presence: &str) -> Plan {
    let kinds = format!(
        "[[kind]]\nname = \"lamp\"\ntimeout = \"1h\"\ntopics = [\"lamps/{{unit}}/data\"]\n\
         presence = {{ format = \"last_will\", trust = \"proof\"{presence} }}\n"
    );
    Plan { units: 10, kinds, ..plan }
}

const STATUS: &str = ", topics = [\"lamps/{unit}/status\"]";

fn id(number: usize) -> String {
    format!("lamp-{number}")
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

fn packet(kind: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    let rest = parts.concat();
    [&[kind, u8::try_from(rest.len()).unwrap()], &rest[..]].concat()
}

/// Publishes a word at QoS 1, and waits until the broker has it.
async fn says(stream: &mut TcpStream, topic: &str, word: &str) {
    let publish = packet(0x32, &[text(topic), vec![0, 1], word.into()]);
    stream.write_all(&publish).await.unwrap();
    stream.read_exact(&mut [0; 4]).await.unwrap();
}

fn status(number: usize) -> String {
    format!("lamps/{}/status", id(number))
}

/// A lamp that is connected, with a will.
async fn enter(port: u16, number: usize) -> TcpStream {
    enter_for(port, number, 0).await
}

/// A lamp whose session ends if it sends nothing for one and a half of these seconds, or only with its connection.
async fn enter_for(port: u16, number: usize, keep_alive: u8) -> TcpStream {
    let status = status(number);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let will = [text(&status), text("offline")].concat();
    let connect = packet(0x10, &[text("MQTT"), vec![4, 0b0000_1110, 0, keep_alive], text(&id(number)), will]);
    stream.write_all(&connect).await.unwrap();
    stream.read_exact(&mut [0; 4]).await.unwrap();
    stream
}

/// A lamp that is connected, and says that it is there.
async fn lamp(port: u16, number: usize) -> TcpStream {
    let mut stream = enter(port, number).await;
    says(&mut stream, &status(number), "online").await;
    stream
}

async fn lamps(port: u16) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for number in 0..LAMPS {
        all.push(lamp(port, number).await);
    }
    all
}

/// Pings several times within a keep-alive of a second, until the connection ends.
async fn pings(mut stream: TcpStream) {
    let mut every = tokio::time::interval(SECOND / 4);
    while stream.write_all(&[0xc0, 0]).await.is_ok() {
        every.tick().await;
    }
}

/// The lamps that are or were offline.
async fn told(world: &World) -> Vec<String> {
    let records = world.records().await.expect("it answers");
    let of_lamps = records.into_iter().filter(|record| record.kind.as_str() == "lamp");
    let mut all: Vec<String> = of_lamps.map(|record| record.unit.as_str().to_owned()).collect();
    all.sort();
    all
}

async fn are_known(world: &World) {
    let all = 10 + LAMPS;
    world.eventually("all are known", async |world| world.known().await == Some(all)).await;
}

/// A lamp that dies now is found, and with it all that would have been found before.
async fn only_the_last_is_told(world: &World, mut all: Vec<TcpStream>, slow: &BTreeSet<String>) {
    // A will right after a birth may be that of a former session.
    world.pass(SECOND / 2).await;
    drop(all.pop());
    let last = id(LAMPS - 1);
    world.eventually("a lamp is told", async |world| told(world).await.contains(&last)).await;
    world.pass(SECOND).await;
    let mut told = told(world).await;
    told.retain(|lamp| !slow.contains(lamp));
    let expected: Vec<String> = [last].into_iter().filter(|last| !slow.contains(last)).collect();
    assert_eq!(told, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_takeovers_marks_no_unit_offline() {
    let mut world = World::new(plan(2, STATUS)).await;
    world.live(SECOND);
    let port = world.broker.port();
    let mut all = lamps(port).await;
    are_known(&world).await;
    let mut slow = BTreeSet::new();
    for _ in 0..5 {
        let mut streams = all.iter_mut().enumerate();
        while streams.len() > 0 {
            let mut some: Vec<_> = streams.by_ref().take(3).collect();
            let begun = Stopwatch::start();
            for (number, stream) in &mut some {
                // The broker publishes the will of the session that it ends.
                **stream = enter(port, *number).await;
            }
            // The births of the next sessions come a moment later.
            world.pass(SECOND / 20).await;
            for (number, stream) in &mut some {
                says(stream, &status(*number), "online").await;
            }
            // A birth counts if it comes within a quarter of a second: on a busy machine some do not.
            if begun.elapsed() > SECOND / 5 {
                slow.extend(some.iter().map(|(number, _)| id(*number)));
            }
        }
        world.pass(SECOND).await;
    }
    assert!(slow.len() < LAMPS, "the machine is too busy");
    only_the_last_is_told(&world, all, &slow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_publishes_every_will_and_ends_marks_no_unit_offline() {
    let mut world = World::new(plan(2, STATUS)).await;
    world.live(SECOND);
    let mut all = lamps(world.broker.port()).await;
    are_known(&world).await;
    let mark = world.disturb();
    signal(world.broker.pid(), "TERM");
    for stream in &mut all {
        let _ = stream.read(&mut [0; 16]).await;
    }
    world.kill_broker();
    world.start_broker();
    world.broker_away_since(mark);
    let all = lamps(world.broker.port()).await;
    world.ready().await;
    only_the_last_is_told(&world, all, &BTreeSet::new()).await;
}

/// A broker with lamps that ping all the time, and others that give up while it stands still and are back later. No other
/// message proves that time blind. Returns the connections that ping.
async fn stands_still(world: &mut World, stop: impl Fn(&World), go_on: impl Fn(&World)) -> JoinSet<()> {
    const THIRD: usize = LAMPS / 3;
    let port = world.broker.port();
    let mut pinging = JoinSet::new();
    let (mut impatient, mut patient) = (Vec::new(), Vec::new());
    for number in 0..LAMPS {
        match number / THIRD {
            0 => {
                let mut stream = enter_for(port, number, 1).await;
                says(&mut stream, &status(number), "online").await;
                pinging.spawn(pings(stream));
            }
            1 => impatient.push(lamp(port, number).await),
            _ => patient.push((number, lamp(port, number).await)),
        }
    }
    world.eventually("all are known", async |world| world.known().await == Some(LAMPS)).await;
    stop(world);
    world.pass(SECOND).await;
    impatient.clear();
    world.pass(3 * SECOND / 2).await;
    go_on(world);
    world.pass(SECOND / 2).await;
    for number in THIRD..2 * THIRD {
        impatient.push(lamp(port, number).await);
    }
    // A lamp that dies later is found, and with it all that would have been found before; right after the standstill its
    // will says nothing.
    let mut dead = Vec::new();
    while told(world).await.is_empty() {
        let (number, stream) = patient.pop().expect("a lamp is told");
        drop(stream);
        dead.push(id(number));
        world.pass(SECOND).await;
    }
    let told = told(world).await;
    assert!(told.iter().all(|lamp| dead.contains(lamp)), "{told:?} of {dead:?}");
    pinging
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stands_still_marks_no_lamp_offline_that_pings_or_gives_up_and_comes_back() {
    let mut world = World::new(Plan { units: 0, ..plan(1, STATUS) }).await;
    let stop = |world: &World| signal(world.broker.pid(), "STOP");
    // Whether it ends sessions of lamps that ping depends on what it does first when it goes on.
    stands_still(&mut world, stop, |world| signal(world.broker.pid(), "CONT")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_stands_still_as_the_broker_ends_no_session_of_lamps_that_ping() {
    let mut world = World::new(Plan { units: 0, ..of_lamps(Plan::alone(), STATUS) }).await;
    let stop = |world: &World| world.instances[0].freeze();
    let mut pinging = stands_still(&mut world, stop, |world| world.instances[0].thaw()).await;
    assert!(pinging.try_join_next().is_none(), "a session ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_will_that_a_share_gives_to_another_instance_than_the_birth_marks_no_unit_offline() {
    let presence = plan(2, "");
    let mut world = World::new(Plan { share: "all".to_owned(), ..presence }).await;
    world.live(SECOND);
    let port = world.broker.port();
    let mut stream = lamp(port, LAMPS).await;
    let data = |number: usize| format!("lamps/{}/data", id(number));
    for number in 0..LAMPS {
        says(&mut stream, &data(number), "online").await;
    }
    are_known(&world).await;
    for _ in 0..3 {
        world.pass(SECOND).await;
        for number in 0..LAMPS {
            // The birth of a session, and the will of the session before it.
            says(&mut stream, &data(number), "online").await;
            says(&mut stream, &data(number), "offline").await;
        }
    }
    world.pass(SECOND).await;
    let last = LAMPS - 1;
    says(&mut stream, &data(last), "offline").await;
    world.eventually("a lamp is told", async |world| !told(world).await.is_empty()).await;
    assert_eq!(told(&world).await, [id(last)]);
}

/// A message is acknowledged when it is recorded, and an announcement waits for its proof after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_whose_announcement_a_crash_loses_is_found_by_its_timeout() {
    let kinds = format!(
        "[[kind]]\nname = \"lamp\"\ntimeout = \"10s\"\ntopics = [\"lamps/{{unit}}/data\"]\n\
         presence = {{ format = \"last_will\", trust = \"proof\"{STATUS} }}\n"
    );
    let mut world = World::new(Plan { units: 10, kinds, ..Plan::new(1) }).await;
    world.live(SECOND);
    let mut stream = lamp(world.broker.port(), 0).await;
    let mut lost = None;
    for number in (0..LAMPS).step_by(2) {
        says(&mut stream, &status(number), "online").await;
        // A will right after its first birth may be that of a former session.
        world.pass(SECOND / 2).await;
        let before = world.known().await.unwrap_or(usize::MAX);
        says(&mut stream, &status(number), "offline").await;
        says(&mut stream, &status(number + 1), "online").await;
        world
            .eventually("what came after the will is recorded", async |world| {
                world.known().await.is_some_and(|known| known > before)
            })
            .await;
        world.kill_member(0);
        if !told(&world).await.contains(&id(number)) {
            lost = Some(id(number));
            break;
        }
        world.instances[0].start();
        world.ready().await;
    }
    let lost = lost.expect("a crash came before the check of an announcement");
    world.instances[0].start();
    world.ready().await;
    world.eventually("it is found", async |world| told(world).await.contains(&lost)).await;
    let records = world.records().await.unwrap();
    let of_it: Vec<&str> = records
        .iter()
        .filter(|record| record.unit.as_str() == lost)
        .map(|record| record.cause.as_str())
        .collect();
    assert_eq!(of_it, ["silence"]);
}
