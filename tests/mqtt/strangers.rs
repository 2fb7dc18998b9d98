//! A client that is no instance of the fleet and takes a part of the messages of the shared subscription.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use crate::support::facts::until;
use crate::support::redis::Redis;
use crate::unheard::{DETECTORS, Engine, Rollcall, WRITES, World};

const SHARE: &str = "share = \"all\"\n";
const TAKEN: &[&str] = &["share_taken", "shared subscription all"];

struct Stranger(Child);

impl Stranger {
    fn joins(world: &World) -> Stranger {
        let port = world.broker.port().to_string();
        let child = Command::new("mosquitto_sub")
            .args(["-p", &port, "-u", "rollcall", "-P", "secret", "-t", "$share/all/units/+/heartbeat"])
            .stdout(Stdio::null())
            .spawn();
        Stranger(child.unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn world(engine: Engine) -> (World, impl Fn() + use<>) {
    let mut world = World::new(engine);
    world.rules(&[WRITES, "topic read units/#\n"]);
    let dies = world.fleet();
    (world, move || dies.store(true, Ordering::Relaxed))
}

async fn a_stranger_marks_no_living_unit_offline(engine: Engine, names: &[&str]) {
    let (world, die) = world(engine);
    let start = |name: &&str| Rollcall::start(&world, name, DETECTORS, SHARE);
    let all: Vec<Rollcall> = names.iter().map(start).collect();
    for one in &all {
        one.is_ready().await;
    }
    all[0].knows("detector/dies").await;
    all[0].knows("detector/alive-19").await;
    let stranger = Stranger::joins(&world);
    until("it says so", async || all[0].readyz(503, TAKEN).await || all[0].readyz(200, TAKEN).await).await;
    all[0].hears_on(150.0).await;
    assert_eq!(all[0].offline().await, Vec::<String>::new());
    die();
    drop(stranger);
    until("the dead unit is reported", async || !all[0].offline().await.is_empty()).await;
    all[0].hears_on(60.0).await;
    assert_eq!(all[0].offline().await, ["dies"]);
    assert_eq!(all[0].lines(&["ERROR", "allow rollcall to read"]), 0, "no right is missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_beside_one_instance_is_noticed_and_marks_no_living_unit_offline() {
    a_stranger_marks_no_living_unit_offline(Engine::Embedded, &["one"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_beside_two_instances_is_noticed_and_marks_no_living_unit_offline() {
    a_stranger_marks_no_living_unit_offline(Engine::Redis(Redis::start()), &["one", "two"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_come_and_go_are_no_strangers() {
    let (world, die) = world(Engine::Redis(Redis::start()));
    let start = |name: &str| Rollcall::start(&world, name, DETECTORS, SHARE);
    let one = start("one");
    one.is_ready().await;
    for name in ["two", "three", "four"] {
        let other = start(name);
        other.is_ready().await;
        other.hears_on(20.0).await;
        // The other instance is killed.
        drop(other);
        one.hears_on(20.0).await;
    }
    one.is_ready().await;
    assert_eq!(one.offline().await, Vec::<String>::new());
    assert_eq!(one.lines(&["a stranger takes messages"]), 0);
    die();
    until("the dead unit is reported", async || !one.offline().await.is_empty()).await;
    assert_eq!(one.offline().await, ["dies"]);
}
