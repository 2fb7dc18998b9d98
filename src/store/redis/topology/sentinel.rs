//! The primary that sentinels name.
//!
//! # Why every sentinel is asked
//! A sentinel that is cut off from the others still names the old primary. Each failover has a number (its epoch), so
//! the answers with the highest number count. The role of the primary is checked before the primary is used: a
//! primary that was replaced while it was away still takes itself for the primary for some seconds after its return,
//! and loses the writes of that time.
//!
//! # Why each sentinel is asked twice
//! `SENTINEL MASTER` has the epoch. While the sentinel that leads a failover makes the other replicas follow the new
//! primary, for seconds or for minutes, that answer already has the new epoch and still the address of the old
//! primary, which accepts writes. `SENTINEL GET-MASTER-ADDR-BY-NAME` already names the new primary.
//!
//! # Why the events of every sentinel are followed
//! Any sentinel may hang, or be cut off from the others, and would then report no failover.
//!
//! # Why the beginning of a promotion is followed, too
//! In a planned failover the old primary takes writes for a second more, after its replica has been promoted without
//! them, and other replicas acknowledge these writes. The sentinel that leads a failover announces the promotion a
//! tenth of a second before.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, select_all};
use futures_util::{FutureExt, StreamExt};
use redis::{Client, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, pipe};

use super::address::HostPort;
use super::discovery::{Discovery, MAX_WAIT, Observer, Primary, TopologyEvent, ask, most};
use super::errors::{LOGIN, NoAnswer, first_of};
use super::login::Login;
use crate::store::Result;

/// The options of the login at every sentinel.
const LOGIN_AT_SENTINELS: &str = "engine.sentinel_username and engine.sentinel_password_file";

/// The events that are followed.
const PROMOTES: &str = "+failover-state-send-slaveof-noone";
const SWITCHED: &str = "+switch-master";

/// How long the events of a sentinel are followed over one connection, so that a cut that neither side has noticed
/// does not last longer.
const FOLLOWED: Duration = Duration::from_secs(30);

pub struct Sentinel {
    login: Login,
    service: String,
}

/// The primary that a sentinel names.
#[derive(Debug)]
struct NamedPrimary {
    primary: HostPort,
    epoch: u64,
}

/// The answers of a sentinel.
struct SentinelAnswers {
    /// The answer to `SENTINEL MASTER`, whose address is out of date during a failover.
    fields: HashMap<String, String>,
    primary: Option<HostPort>,
    /// For further questions.
    client: Client,
}

impl Sentinel {
    pub fn new(login: Login, service: &str) -> Sentinel {
        Sentinel { login, service: service.to_owned() }
    }

    /// A sentinel's answers about the primary.
    async fn state(&self, sentinel: &HostPort) -> RedisResult<SentinelAnswers> {
        let client = self.login.sentinel(&sentinel.host, sentinel.port)?;
        let mut questions = pipe();
        // In this order: a failover between the two answers shows the new address under the old epoch.
        questions.cmd("SENTINEL").arg("MASTER").arg(&self.service);
        questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let (fields, primary): (_, Option<(String, u16)>) = ask(&client, &questions).await?;
        let primary = primary.map(|(host, port)| HostPort { host, port });
        Ok(SentinelAnswers { fields, primary, client })
    }

    async fn ask(&self, sentinel: &HostPort) -> std::result::Result<NamedPrimary, NoAnswer> {
        let SentinelAnswers { fields, primary, .. } =
            self.state(sentinel).await.map_err(|error| self.no_answer(sentinel, &error))?;
        let primary = primary.ok_or_else(|| format!("the sentinel at {sentinel} names no address"))?;
        let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Ok(NamedPrimary { primary, epoch })
    }

    /// Why a sentinel does not name the primary.
    fn no_answer(&self, sentinel: &HostPort, error: &RedisError) -> NoAnswer {
        let name = format!("the sentinel at {sentinel}");
        match error.to_string().contains("No such master") {
            true => format!("{name} watches no service {:?}; check engine.url", self.service).into(),
            false => NoAnswer::of(&name, error, LOGIN_AT_SENTINELS),
        }
    }

    /// Checks that a server is a primary. Answers its replicas.
    async fn role(&self, at: &HostPort) -> std::result::Result<Vec<HostPort>, NoAnswer> {
        let name = format!("{at}, which the sentinels name,");
        let no_answer = |error| NoAnswer::of(&name, &error, LOGIN);
        let client = self.client(at).map_err(no_answer)?;
        let mut question = pipe();
        question.cmd("ROLE");
        let (role,): (Vec<Value>,) = ask(&client, &question).await.map_err(no_answer)?;
        let found = role.first().map(|role| redis::from_redis_value::<String>(role.clone()));
        match found {
            Some(Ok(found)) if found == "master" => {}
            _ => return Err(format!("{name} is not yet the primary").into()),
        }
        let replicas = role.get(2).cloned().unwrap_or(Value::Nil);
        let replicas: Vec<(String, String, String)> = redis::from_redis_value(replicas).unwrap_or_default();
        let parse =
            |(host, port, _): (String, String, String)| Some(HostPort { host, port: port.parse().ok()? });
        Ok(replicas.into_iter().filter_map(parse).collect())
    }

    /// The state of a sentinel, for an operator. `used` is the current primary.
    async fn observe(
        &self,
        sentinel: &HostPort,
        used: Option<&HostPort>,
    ) -> std::result::Result<String, String> {
        let todo = "start it, or remove it from engine.url";
        let SentinelAnswers { fields, primary, client } =
            self.state(sentinel).await.map_err(|error| self.no_answer(sentinel, &error).advised(todo))?;
        let mut quorum = pipe();
        quorum.cmd("SENTINEL").arg("CKQUORUM").arg(&self.service);
        if let Err(error) = ask::<Value>(&client, &quorum).await {
            let error = first_of(&error);
            if error.code() == Some("NOQUORUM") {
                return Err(format!("the sentinels cannot promote a replica: {error}; start the others"));
            }
            if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) {
                return Err(self.no_answer(sentinel, &error).text);
            }
        }
        if let Err(error) = follows_promotions(&client).await
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        {
            return Err(format!(
                "the user at the sentinel at {sentinel} may not follow {PROMOTES}, so changes of the first second of a \
                 planned failover are lost; ACL SETUSER its name &{PROMOTES} there"
            ));
        }
        if let Some((named, used)) = primary.as_ref().zip(used)
            && named != used
        {
            return Err(format!(
                "the sentinel at {sentinel} names {named} as the primary, and the fleet is at {used}, which the other \
                 sentinels name or named; let it watch that one: SENTINEL REMOVE, then SENTINEL MONITOR, there"
            ));
        }
        let of = |name: &str| fields.get(name).map_or("?", String::as_str);
        Ok(format!(
            "sentinel, {} is the primary of {}, {} replicas, {} other sentinels, quorum {}",
            primary.map_or("?".to_owned(), |primary| primary.to_string()),
            self.service,
            of("num-slaves"),
            of("num-other-sentinels"),
            of("quorum")
        ))
    }

    /// The replicas, former primaries included, from the first sentinel that answers, and whether that sentinel
    /// cannot reach them.
    async fn replicas(&self) -> Vec<(HostPort, bool)> {
        for sentinel in &self.login.address().servers {
            let Ok(client) = self.login.sentinel(&sentinel.host, sentinel.port) else { continue };
            let mut question = pipe();
            question.cmd("SENTINEL").arg("REPLICAS").arg(&self.service);
            let answer = ask::<(Vec<HashMap<String, String>>,)>(&client, &question).await;
            let Ok((replicas,)) = answer else { continue };
            let is_down = |flags: &String| flags.split(',').any(|flag| flag == "s_down");
            let replica = |fields| Some((address(fields)?, fields.get("flags").is_some_and(is_down)));
            return replicas.iter().filter_map(replica).collect();
        }
        Vec::new()
    }

    /// Why a replica is useless, for an operator: the sentinels cannot reach it, or it refuses the login.
    async fn observe_replica(&self, at: &HostPort, is_down: bool) -> Option<String> {
        let name = format!("the replica at {at}");
        let mut question = pipe();
        question.cmd("ROLE");
        let answer = match self.client(at) {
            Ok(client) => ask::<(Value,)>(&client, &question).await,
            Err(error) => Err(error),
        };
        match answer.map_err(|error| NoAnswer::of(&name, &error, LOGIN)) {
            Ok(_) if is_down => Some(format!(
                "{name} answers, but the sentinels do not reach it; check the network between them"
            )),
            Err(why) if is_down || why.is_refused => {
                let todo = "start it, or let the sentinels forget it: SENTINEL RESET, at one after the other";
                Some(why.advised(todo))
            }
            _ => None,
        }
    }

    /// Waits for the next event of a sentinel.
    async fn hear_of_failover(&self, sentinel: &HostPort) -> TopologyEvent {
        loop {
            if let Ok(Some(event)) = self.follow(sentinel).await {
                return event;
            }
            tokio::time::sleep(MAX_WAIT).await;
        }
    }

    /// Follows the events of a sentinel for a while. Answers the first event.
    async fn follow(&self, sentinel: &HostPort) -> RedisResult<Option<TopologyEvent>> {
        let client = self.login.sentinel(&sentinel.host, sentinel.port)?;
        let subscribed = async {
            let mut events = client.get_async_pubsub().await?;
            events.subscribe(SWITCHED).await?;
            // Ignored: the user may be permitted to follow only `+switch-master`.
            let _ = events.subscribe(PROMOTES).await;
            RedisResult::Ok(events.into_on_message())
        };
        let Ok(events) = tokio::time::timeout(MAX_WAIT, subscribed).await else { return Ok(None) };
        let mut events = events?;
        let first = async {
            while let Some(message) = events.next().await {
                let text: String = message.get_payload().unwrap_or_default();
                if let Some(event) = event(message.get_channel_name(), &text, &self.service) {
                    return Some(event);
                }
            }
            None
        };
        Ok(tokio::time::timeout(FOLLOWED, first).await.unwrap_or(None))
    }
}

/// Fails if the user may not follow promotions. A late answer is no failure.
async fn follows_promotions(client: &Client) -> RedisResult<()> {
    let subscribed = async { client.get_async_pubsub().await?.subscribe(PROMOTES).await };
    tokio::time::timeout(MAX_WAIT, subscribed).await.unwrap_or(Ok(()))
}

/// The meaning of an event of a sentinel, if it is about the service. The text names a replica as
/// `slave <name> <ip> <port> @ <service> <ip> <port>`; the text about a primary begins with its service.
fn event(channel: &str, text: &str, service: &str) -> Option<TopologyEvent> {
    let mut words = text.split(' ');
    match channel {
        SWITCHED => (words.next() == Some(service)).then_some(TopologyEvent::Changed),
        _ => {
            let of = words.skip_while(|word| *word != "@").nth(1);
            (of == Some(service)).then_some(TopologyEvent::Promotion)
        }
    }
}

/// The primaries in the answers with the highest epoch. There are two if an answer came in the middle of a failover.
fn newest(named: &[NamedPrimary]) -> Vec<&HostPort> {
    let highest = named.iter().map(|named| named.epoch).max();
    let mut newest: Vec<&HostPort> = Vec::new();
    for NamedPrimary { primary, .. } in named.iter().filter(|named| Some(named.epoch) == highest) {
        if !newest.contains(&primary) {
            newest.push(primary);
        }
    }
    newest
}

/// The address of a server in the answer of a sentinel.
fn address(of: &HashMap<String, String>) -> Option<HostPort> {
    Some(HostPort { host: of.get("ip")?.clone(), port: of.get("port")?.parse().ok()? })
}

#[async_trait]
impl Discovery for Sentinel {
    async fn learn(&self, _: &[HostPort]) -> Result<Vec<Primary>> {
        let sentinels = &self.login.address().servers;
        let answers = most(sentinels.iter().map(|sentinel| self.ask(sentinel)).collect()).await;
        let (mut named, mut failed) = (Vec::new(), Vec::new());
        for answer in answers.into_iter().flatten() {
            match answer {
                Ok(answer) => named.push(answer),
                Err(why) => failed.push(why),
            }
        }
        let newest = newest(&named);
        if newest.is_empty() {
            return Err(NoAnswer::all(failed));
        }
        let roles = join_all(newest.iter().map(|at| self.role(at))).await;
        let mut failed = Vec::new();
        for (at, role) in newest.into_iter().zip(roles) {
            match role {
                Ok(replicas) => {
                    return Ok(vec![Primary {
                        at: at.clone(),
                        slots: None,
                        replicas,
                        lacks_replicas: false,
                    }]);
                }
                Err(why) => failed.push(why),
            }
        }
        Err(NoAnswer::all(failed))
    }

    fn client(&self, at: &HostPort) -> RedisResult<Client> {
        self.login.client(&at.host, at.port)
    }

    async fn observers(&self, known: &[Primary]) -> Vec<Observer> {
        let sentinels = self.login.address().servers.iter();
        let used = known.first().map(|primary| &primary.at);
        let observed = sentinels.map(|one| async move { (one.to_string(), self.observe(one, used).await) });
        let mut observed = join_all(observed).await;
        let mut replicas = self.replicas().await;
        replicas.retain(|(at, _)| Some(at) != used);
        let replicas = replicas.iter().map(|(at, is_down)| async move {
            let why = self.observe_replica(at, *is_down).await?;
            Some((at.to_string(), Err(why)))
        });
        observed.extend(join_all(replicas).await.into_iter().flatten());
        observed
    }

    async fn is_promoting(&self) -> bool {
        let sentinels = self.login.address().servers.iter();
        let states = most(sentinels.map(|sentinel| self.state(sentinel)).collect()).await;
        let flags = states.iter().flatten().flatten().filter_map(|state| state.fields.get("flags"));
        flags.into_iter().any(|flags| flags.split(',').any(|flag| flag == "failover_in_progress"))
    }

    async fn changed(&self) -> TopologyEvent {
        let sentinels = self.login.address().servers.iter();
        select_all(sentinels.map(|sentinel| self.hear_of_failover(sentinel).boxed())).await.0
    }
}

#[cfg(test)]
mod tests;
