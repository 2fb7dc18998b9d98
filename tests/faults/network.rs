//! An instance that the network cuts off from everything: Redis, the broker, and the receivers.
//!
//! The instance runs in a network namespace, at the other end of a virtual cable that the test pulls. Only root may
//! make a namespace, or an ordinary user within a user namespace.

use std::process::Command;
use std::time::Duration;

use rollcall::simulate::servers::{ExitCleanup, free_port};

use crate::namespaces::{Own, is_done_elsewhere, this_test};
use crate::world::instance::{Instance, TOKEN_SHA256};
use crate::world::proxy::Proxy;
use crate::world::{Plan, TIMEOUT, World};

const SECOND: Duration = Duration::from_secs(1);

/// A network namespace with a cable to the test's network.
pub struct Namespace {
    name: String,
    /// The address of the test's end of the cable, and of the other end.
    pub ours: String,
    pub theirs: String,
    // The guard removes the namespace even if this process is killed.
    _guard: ExitCleanup,
}

impl Namespace {
    pub fn new() -> Namespace {
        let number: u16 = rand::random();
        let name = format!("rollcall{number:04x}");
        let [third, fourth] = [number >> 8, number & 0xfc];
        let subnet = |last: u16| format!("10.213.{third}.{}", fourth + last);
        let (ours, theirs) = (subnet(1), subnet(2));
        let guard = ExitCleanup::new("ip netns del \"$1\"; ip link del \"$1\"", &name).unwrap();
        let (inner, addresses) = (format!("{name}i"), [format!("{ours}/30"), format!("{theirs}/30")]);
        ip(&["netns", "add", &name]);
        ip(&["link", "add", &name, "type", "veth", "peer", "name", &inner]);
        ip(&["link", "set", &inner, "netns", &name]);
        ip(&["addr", "add", &addresses[0], "dev", &name]);
        ip(&["link", "set", &name, "up"]);
        ip(&["-n", &name, "addr", "add", &addresses[1], "dev", &inner]);
        ip(&["-n", &name, "link", "set", &inner, "up"]);
        ip(&["-n", &name, "link", "set", "lo", "up"]);
        Namespace { name, ours, theirs, _guard: guard }
    }

    pub fn before(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(str::to_owned).to_vec()
    }

    pub fn unplug(&self) {
        ip(&["link", "set", &self.name, "down"]);
    }

    pub fn plug(&self) {
        ip(&["link", "set", &self.name, "up"]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for line in [["netns", "del"], ["link", "del"]] {
            let _ = Command::new("ip").args(line).arg(&self.name).output();
        }
    }
}

fn ip(args: &[&str]) {
    let done = Command::new("ip").args(args).output();
    let done = done.unwrap_or_else(|why| panic!("ip cannot be run ({why}); install the package iproute2"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "ip {args:?}: {said}; this test needs the right to make network namespaces"
    );
}

/// Adds an instance at the other end of the cable, which reaches broker and receiver by proxies at the test's end.
/// `redis`: the address of the engine as the instance reaches it.
pub async fn add_remote(world: &mut World, network: &Namespace, redis: &str) -> Vec<Proxy> {
    let broker = lead(network, world.broker.port()).await;
    let hook = lead(network, world.sink.port()).await;
    let (ours, number) = (&network.ours, world.instances.len());
    let http = format!("{}:{}", network.theirs, free_port().unwrap());
    let config = world.config(
        number,
        redis,
        &format!("mqtt://{ours}:{}", broker.port()),
        &http,
        &format!("http://{ours}:{}/hook", hook.port()),
    );
    // An address that other machines can reach needs a token.
    let token = format!("[[http.token]]\nname = \"test\"\nsha256 = \"{TOKEN_SHA256}\"\nrole = \"viewer\"\n");
    let config = format!("{config}\n{token}");
    let mut remote = Instance::new(world.dir(), &format!("instance-{number}"), &http, &config);
    remote.before = network.before();
    remote.start();
    world.instances.push(remote);
    world.ready().await;
    vec![broker, hook]
}

/// A proxy at the test's end of the cable to a port of the loopback address.
async fn lead(network: &Namespace, port: u16) -> Proxy {
    Proxy::start(&format!("{}:0", network.ours), &format!("127.0.0.1:{port}")).await
}

/// The third instance is cut off while the fleet lives.
async fn cut_off(share: &str) {
    let network = Namespace::new();
    let mut world = World::new(Plan { share: share.to_owned(), ..Plan::new(2) }).await;
    let redis = lead(&network, world.redis.port()).await;
    let redis_url = format!("redis://{}:{}/0", network.ours, redis.port());
    let _proxies = add_remote(&mut world, &network, &redis_url).await;

    world.live(4 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    network.unplug();
    world.pass(TIMEOUT).await;
    // Meanwhile the other instances record and notify silences.
    let remote = world.instances.pop().expect("it was added");
    world.probe().await;
    world.instances.push(remote);
    network.plug();
    world.disturbed_since(mark);
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_cut_off_marks_no_unit_offline_and_the_others_go_on() {
    if is_done_elsewhere(this_test!(), Own::Network) {
        return;
    }
    cut_off("rollcall").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_cut_off_brings_no_dead_unit_back() {
    if is_done_elsewhere(this_test!(), Own::Network) {
        return;
    }
    cut_off("").await;
}
