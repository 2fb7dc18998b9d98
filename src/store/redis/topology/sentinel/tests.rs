use std::path::Path;
use std::process::Command;

use redis::{Cmd, FromRedisValue, cmd};
use tempfile::TempDir;

use super::*;
use crate::simulate::servers::{Server, free_port};
use crate::store::redis::RedisConfig;

const SERVICE: &str = "main";

/// A primary, a replica, and a replica that is never promoted. Sentinels watch them.
struct SentinelWorld {
    primary: Server,
    replica: Server,
    last: Server,
    sentinels: Vec<Server>,
    // Last, so that the servers have ended when the directory is removed.
    _dir: TempDir,
}

fn server(dir: &Path, follows: Option<u16>, settings: &[&str]) -> Server {
    let port = free_port().unwrap();
    let primary = follows.map(|primary| primary.to_string());
    let follows = primary.as_ref().map(|primary| ["--replicaof", "127.0.0.1", primary]);
    let args = [follows.as_ref().map_or(&[][..], |args| args), settings].concat();
    Server::redis(&dir.join(port.to_string()), port, &args).unwrap()
}

/// A sentinel that does not declare a server down during a test.
fn sentinel(dir: &Path, primary: u16) -> Server {
    let port = free_port().unwrap();
    let dir = dir.join(format!("sentinel-{port}"));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("sentinel.conf");
    let watches = format!("sentinel monitor {SERVICE} 127.0.0.1 {primary} 1\n");
    let patience = format!("sentinel down-after-milliseconds {SERVICE} 600000\n");
    std::fs::write(&file, watches + &patience).unwrap();
    let port_option = port.to_string();
    let args = [&file.display().to_string(), "--sentinel", "--port", &port_option].map(str::to_owned);
    Server::start("redis-server", &args, &dir, port, "+monitor").unwrap()
}

fn signal(server: &Server, name: &str) {
    let sent = Command::new("kill").args([name, &server.pid().to_string()]).status();
    assert!(sent.unwrap().success());
}

async fn to<T: FromRedisValue>(server: &Server, command: &Cmd) -> RedisResult<T> {
    let client = Client::open(("127.0.0.1", server.port())).unwrap();
    command.query_async(&mut client.get_multiplexed_async_connection().await?).await
}

async fn until(what: &str, mut fact: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !fact().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), waited).await.is_ok(), "not in time: {what}");
}

fn of_sentinel(what: &str) -> Cmd {
    cmd("SENTINEL").arg(what).arg(SERVICE).to_owned()
}

impl SentinelWorld {
    async fn new(sentinels: usize) -> SentinelWorld {
        let dir = tempfile::tempdir().unwrap();
        let primary = server(dir.path(), None, &[]);
        let replica = server(dir.path(), Some(primary.port()), &[]);
        let last = server(dir.path(), Some(primary.port()), &["--replica-priority", "0"]);
        for replica in [&replica, &last] {
            until("it follows", async || {
                let info: String = to(replica, cmd("INFO").arg("replication")).await.unwrap();
                info.contains("master_link_status:up")
            })
            .await;
        }
        let sentinels: Vec<Server> = (0..sentinels).map(|_| sentinel(dir.path(), primary.port())).collect();
        let world = SentinelWorld { primary, replica, last, sentinels, _dir: dir };
        for sentinel in &world.sentinels {
            until("the sentinel knows the replicas", async || {
                let known: Vec<HashMap<String, String>> =
                    to(sentinel, &of_sentinel("REPLICAS")).await.unwrap();
                let has_asked = |one: &HashMap<String, String>| one["master-link-status"] == "ok";
                known.len() == 2 && known.iter().all(has_asked)
            })
            .await;
        }
        world
    }

    fn discovery(&self) -> Sentinel {
        let at: Vec<String> = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
        let url = format!("redis-sentinel://{}/{SERVICE}", at.join(","));
        Sentinel::new(Login::new(&RedisConfig { url, ..RedisConfig::default() }).unwrap(), SERVICE)
    }
}

fn named(port: u16, epoch: u64) -> NamedPrimary {
    NamedPrimary { primary: HostPort { host: "a".to_owned(), port }, epoch }
}

#[test]
fn the_answers_with_the_highest_epoch_count_and_all_of_their_addresses() {
    let cases = [
        (vec![], vec![]),
        (vec![(1, 0), (1, 0)], vec![1]),
        (vec![(1, 3), (2, 4), (1, 3)], vec![2]),
        (vec![(2, 4), (1, 4), (2, 4), (3, 3)], vec![2, 1]),
    ];
    for (answers, expected) in cases {
        let answers: Vec<NamedPrimary> = answers.iter().map(|(port, epoch)| named(*port, *epoch)).collect();
        let ports: Vec<u16> = newest(&answers).into_iter().map(|at| at.port).collect();
        assert_eq!(ports, expected, "{answers:?}");
    }
}

/// The sentinel waits for the last replica, which is frozen, before it reconfigures the former primary.
#[tokio::test(flavor = "multi_thread")]
async fn the_new_primary_is_learned_while_other_replicas_do_not_follow_it_yet() {
    let mut world = SentinelWorld::new(1).await;
    let sentinel = world.discovery();
    let learned = async || sentinel.learn(&[]).await.unwrap()[0].at.port;
    assert_eq!(learned().await, world.primary.port());
    signal(&world.last, "-STOP");
    to::<()>(&world.sentinels[0], &of_sentinel("FAILOVER")).await.unwrap();
    until("the replica is promoted", async || {
        let (_, port): (String, u16) =
            to(&world.sentinels[0], &of_sentinel("GET-MASTER-ADDR-BY-NAME")).await.unwrap();
        port == world.replica.port()
    })
    .await;
    let state: HashMap<String, String> = to(&world.sentinels[0], &of_sentinel("MASTER")).await.unwrap();
    assert_eq!(state["port"], world.primary.port().to_string(), "the failover is under way");
    assert_eq!(learned().await, world.replica.port());
    world.primary.kill();
    assert_eq!(learned().await, world.replica.port());
    signal(&world.last, "-CONT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_is_heard_of_while_the_first_sentinel_hangs() {
    let world = SentinelWorld::new(2).await;
    let discovery = world.discovery();
    let [first, second] = &world.sentinels[..] else { panic!("there are two") };
    signal(first, "-STOP");
    let failover = async {
        until("the other one is followed", async || {
            let clients: String = to(second, cmd("CLIENT").arg("LIST")).await.unwrap();
            !clients.contains(" sub=0 ") || clients.contains(" sub=2 ")
        })
        .await;
        to::<()>(second, &of_sentinel("FAILOVER")).await.unwrap();
    };
    let heard = async { tokio::join!(discovery.changed(), failover) };
    tokio::time::timeout(Duration::from_secs(90), heard).await.expect("it is heard of");
    signal(first, "-CONT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_names_another_primary_than_the_others_is_a_problem() {
    let world = SentinelWorld::new(2).await;
    let discovery = world.discovery();
    let known = discovery.learn(&[]).await.unwrap();
    let used = &known[0].at;
    let states_of = async || {
        let observed = discovery.observers(&known).await.into_iter();
        observed.map(|(_, state)| state).collect::<Vec<_>>()
    };
    let states = states_of().await;
    assert!(states.iter().all(std::result::Result::is_ok), "{states:?}");
    let second = &world.sentinels[1];
    to::<()>(second, &of_sentinel("REMOVE")).await.unwrap();
    let other = of_sentinel("MONITOR").arg("127.0.0.1").arg(world.last.port()).arg(1).to_owned();
    to::<()>(second, &other).await.unwrap();
    let states = states_of().await;
    assert!(states[0].is_ok(), "{states:?}");
    let why = states[1].as_ref().unwrap_err();
    assert!(why.contains(&second.port().to_string()) && why.contains(&used.to_string()), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connected_replica_that_refuses_the_login_is_a_problem() {
    let world = SentinelWorld::new(1).await;
    let login = ["SETUSER", "fleet", "on", ">pw", "~*", "&*", "+@all"];
    for server in [&world.primary, &world.last] {
        to::<()>(server, cmd("ACL").arg(&login)).await.unwrap();
    }
    let url = format!("redis-sentinel://fleet@127.0.0.1:{}/{SERVICE}", world.sentinels[0].port());
    let config = RedisConfig { url, password: Some("pw".to_owned()), ..RedisConfig::default() };
    let discovery = Sentinel::new(Login::new(&config).unwrap(), SERVICE);
    let known = discovery.learn(&[]).await.unwrap();
    assert_eq!(known[0].replicas.len(), 2, "both are connected");
    let observed = discovery.observers(&known).await.into_iter();
    let wrong: Vec<String> = observed.filter_map(|(_, state)| state.err()).collect();
    let port = world.replica.port().to_string();
    assert!(
        wrong.len() == 1 && wrong[0].contains(&port) && wrong[0].contains("refused the login"),
        "{wrong:?}"
    );
}
