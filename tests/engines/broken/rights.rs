//! A user that lacks a right: the error names it.

use std::collections::BTreeSet;
use std::sync::Arc;

use redis::cmd;
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::Examine;
use rollcall::store::{
    redis::COMMANDS, redis::OF_A_CONNECTION, redis::OPTIONAL, redis::RedisConfig, redis::RedisEngine,
    redis::survey,
};
use rollcall::telemetry::{EngineWarning, Severity};

use super::fleet::{Fleet, POISONED, hours, telemetry};

struct Guarded {
    server: Server,
    _dir: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Guarded {
        let dir = tempfile::tempdir().unwrap();
        Guarded { server: Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap(), _dir: dir }
    }

    fn client(&self) -> redis::Connection {
        let url = format!("redis://127.0.0.1:{}/0", self.server.port());
        redis::Client::open(url).unwrap().get_connection().unwrap()
    }

    fn permit(&self, rules: &[&str]) -> RedisConfig {
        let all = ["reset", "on", ">secret", "~*", "&*", "+@all"];
        let mut set = cmd("ACL");
        set.arg("SETUSER").arg("roll").arg(&all[..]).arg(rules).exec(&mut self.client()).unwrap();
        let url = format!("redis://roll:secret@127.0.0.1:{}/0", self.server.port());
        RedisConfig { url, partitions: Some(2), ..RedisConfig::default() }
    }
}

async fn refusal(config: &RedisConfig) -> String {
    let (telemetry, _) = telemetry();
    match survey(config, hours(0), telemetry).await {
        Err(error) => error.to_string(),
        Ok(condition) => format!("nothing is refused: {condition:?}"),
    }
}

fn name(text: &str) -> String {
    text.split(' ').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_that_a_user_lacks_is_named() {
    let server = Guarded::start();
    for text in COMMANDS.iter().chain(OF_A_CONNECTION) {
        let name = name(text);
        let config = server.permit(&[&format!("-{}", name.to_lowercase())]);
        let said = refusal(&config).await;
        assert!(said.contains(&name), "without {name}: {said}");
    }
    assert!(refusal(&server.permit(&[])).await.starts_with("nothing is refused"));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_a_user_may_not_touch_are_named() {
    let server = Guarded::start();
    let said = refusal(&server.permit(&["resetkeys", "~rollcall:{p0}:*", "~rollcall:meta"])).await;
    for named in ["rollcall:{hearing}:heard", "ACL SETUSER <user> ~rollcall:*"] {
        assert!(said.contains(named), "{named} is not in: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_that_is_sent_is_tried() {
    let server = Guarded::start();
    let config = server.permit(&[]);
    let (telemetry, clock) = telemetry();
    let engine = Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap());
    cmd("CONFIG").arg("RESETSTAT").exec(&mut server.client()).unwrap();
    let mut fleet = Fleet::on(engine, telemetry, clock);
    fleet.live().await;
    fleet.heard_until(hours(POISONED + 49)).await;
    fleet.pass(hours(POISONED + 49), true).await;
    let stats: String = cmd("INFO").arg("commandstats").query(&mut server.client()).unwrap();
    let used = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split([':', '|']).next());
    let used: BTreeSet<String> = used.map(str::to_uppercase).collect();
    let mut tried: BTreeSet<String> = COMMANDS.iter().chain(OF_A_CONNECTION).map(|text| name(text)).collect();
    tried.extend(OPTIONAL.iter().map(|name| (*name).to_owned()));
    // Commands of the client library about itself, and of this test.
    tried.extend(["ACL", "AUTH", "CLIENT", "HELLO", "SELECT", "DISCARD"].map(str::to_owned));
    let untried: Vec<&String> = used.difference(&tried).collect();
    assert!(untried.is_empty(), "not among the commands of rights.rs: {untried:?}");
    assert!(used.len() > 25, "hardly anything was asked: {used:?}");
}

/// Checks that a script calls only commands that are tried, also on paths that no test takes.
#[test]
fn every_command_of_a_script_is_tried() {
    let tried: BTreeSet<String> = COMMANDS
        .iter()
        .map(|text| name(text))
        .chain(OPTIONAL.iter().map(|name| (*name).to_owned()))
        .collect();
    let scripts = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/scripts");
    for script in std::fs::read_dir(scripts).unwrap() {
        let path = script.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for call in text.split("call('").skip(1) {
            let command = call.split('\'').next().unwrap();
            assert!(
                tried.contains(command),
                "{} calls {command}, which rights.rs does not try",
                path.display()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_whose_user_lost_a_right_is_not_ready_and_says_which() {
    let server = Guarded::start();
    let config = server.permit(&[]);
    let (telemetry, _) = telemetry();
    let engine = RedisEngine::connect(&config, telemetry.clone()).await.unwrap();
    cmd("ACL").arg("SETUSER").arg("roll").arg("-xadd").exec(&mut server.client()).unwrap();
    let warnings = engine.examine(hours(0)).await.unwrap();
    let lost = warnings.iter().find(|warning| warning.name == EngineWarning::RightsMissing).unwrap();
    assert!(lost.text.contains("XADD") && lost.text.contains("+xadd"), "{}", lost.text);
    telemetry.engine_warning(lost.name, Some(&lost.text));
    let problem = telemetry.problems().into_iter().find(|problem| problem.name == "rights_missing").unwrap();
    assert_eq!(problem.severity, Severity::Serious);
}
