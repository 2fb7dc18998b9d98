use std::process::Command;

use async_trait::async_trait;
use futures_util::FutureExt;
use redis::{Client, RedisError, RedisResult};

use super::*;
use crate::clock::Clock;
use crate::simulate::servers::{self as process, free_port};
use crate::store::redis::topology::errors::is_cut;

/// Two primaries with half of the slots each.
struct HalfSlots(Arc<Mutex<[u16; 2]>>);

#[async_trait]
impl Discovery for HalfSlots {
    async fn learn(&self, _: &[HostPort]) -> Result<Vec<Primary>> {
        let ports = *self.0.lock();
        let primary = |half: usize| Primary {
            at: HostPort { host: "127.0.0.1".to_owned(), port: ports[half] },
            slots: Some((0..8192).map(|slot| half as u16 * 8192 + slot).collect()),
            replicas: Vec::new(),
            lacks_replicas: false,
        };
        Ok(vec![primary(0), primary(1)])
    }

    fn client(&self, at: &HostPort) -> RedisResult<Client> {
        Client::open(format!("redis://{at}"))
    }

    fn has_parts(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_storm_is_that_of_the_server_that_has_the_partition_and_goes_where_it_goes() {
    let ports = Arc::new(Mutex::new([1, 2]));
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let servers = Servers::new(Box::new(HalfSlots(ports.clone())), telemetry);
    servers.learn(0).await.unwrap();
    let storms = || {
        let view = servers.now();
        view.map.servers().iter().map(|server| *server.admission().storms().borrow()).collect::<Vec<bool>>()
    };
    assert_eq!(storms(), [false, false]);
    servers.begin_storm(7, 100);
    assert_eq!(storms(), [true, false]);
    servers.end_storms([200, 9000].into_iter());
    assert_eq!(storms(), [true, false], "another partition of that server is swept");
    // The other half takes over, and the first one is a new server.
    *ports.lock() = [2, 3];
    tokio::time::sleep(MIN_PERIOD).await;
    servers.learn(servers.now().number).await.unwrap();
    assert_eq!(storms(), [true, false]);
    servers.begin_storm(8, 9000);
    assert_eq!(storms(), [true, true]);
    servers.end_storms([9000].into_iter());
    assert_eq!(storms(), [false, true]);
    servers.end_storms(std::iter::empty());
    assert_eq!(storms(), [false, false]);
}

#[tokio::test]
async fn a_server_that_does_not_say_its_role_is_in_doubt() {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let ports = [free_port().unwrap(), free_port().unwrap()];
    let servers = Servers::new(Box::new(HalfSlots(Arc::new(Mutex::new(ports)))), telemetry);
    servers.learn(0).await.unwrap();
    assert_eq!(servers.doubt.notified().now_or_never(), None);
    servers.check_roles().await;
    assert_eq!(servers.doubt.notified().now_or_never(), Some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_a_server_that_hangs_ends_when_another_one_has_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let server = process::Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
    let ports = Arc::new(Mutex::new([server.port(), 1]));
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let servers = Servers::new(Box::new(HalfSlots(ports.clone())), telemetry);
    servers.learn(0).await.unwrap();
    let call = async || {
        let mut ping = redis::pipe();
        ping.cmd("PING");
        servers.now().map.server(0).unwrap().clone().send(&ping, 0, 1).await
    };
    call().await.unwrap();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &server.pid().to_string()]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    let is_replaced = async {
        *ports.lock() = [2, 1];
        tokio::time::sleep(MIN_PERIOD).await;
        servers.learn(servers.now().number).await.unwrap();
    };
    let (answer, ()) = tokio::join!(call(), is_replaced);
    signal("-CONT");
    // The error must not be that of a timeout.
    let is_replaced =
        |error: &RedisError| is_cut(error) && error.to_string().contains("another server is the primary now");
    assert!(answer.as_ref().is_err_and(is_replaced), "{answer:?}");
}
