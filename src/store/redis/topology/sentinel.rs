//! The primary that sentinels name.
//!
//! # Why every sentinel is asked
//! A sentinel that is cut off from the others still names the old primary. Each failover has a number (its epoch), so
//! the answer with the highest number counts. The primary is asked for its role before it is used: a primary that
//! was replaced while it was away believes for some seconds after its return that it still is one, and loses what
//! it is told then.

use std::collections::HashMap;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::join_all;
use redis::{Client, RedisResult, Value, pipe};

use super::address::HostPort;
use super::discovery::{Discovery, Observer, PATIENCE, Primary, ask};
use super::errors::{LOGIN, NoAnswer, first_of};
use super::login::Login;
use crate::store::Result;

/// The options of the login at every sentinel.
const LOGIN_AT_SENTINELS: &str = "engine.sentinel_username and engine.sentinel_password_file";

pub struct Sentinel {
    login: Login,
    service: String,
}

/// The primary that a sentinel names.
struct Named {
    primary: HostPort,
    epoch: u64,
}

impl Sentinel {
    pub fn new(login: Login, service: &str) -> Sentinel {
        Sentinel { login, service: service.to_owned() }
    }

    /// What a sentinel says of the primary, and a client for further questions.
    async fn state(&self, sentinel: &HostPort) -> RedisResult<(HashMap<String, String>, Client)> {
        let client = self.login.sentinel(&sentinel.host, sentinel.port)?;
        let mut question = pipe();
        question.cmd("SENTINEL").arg("MASTER").arg(&self.service);
        let (state,) = ask(&client, &question).await?;
        Ok((state, client))
    }

    async fn ask(&self, sentinel: &HostPort) -> std::result::Result<Named, NoAnswer> {
        let name = format!("the sentinel at {sentinel}");
        let (state, _) = self.state(sentinel).await.map_err(|error| {
            match error.to_string().contains("No such master") {
                true => format!("{name} watches no service {:?}; check engine.url", self.service).into(),
                false => NoAnswer::of(&name, &error, LOGIN_AT_SENTINELS),
            }
        })?;
        let primary = address(&state).ok_or_else(|| format!("{name} names no address"))?;
        let epoch = state.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Ok(Named { primary, epoch })
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

    /// The state of a sentinel, for an operator.
    async fn observe(&self, sentinel: &HostPort) -> std::result::Result<String, String> {
        let failed = |error| NoAnswer::of(&format!("the sentinel at {sentinel}"), &error, LOGIN_AT_SENTINELS);
        let todo = "start it, or remove it from engine.url";
        let (state, client) = self.state(sentinel).await.map_err(|error| failed(error).advised(todo))?;
        let mut quorum = pipe();
        quorum.cmd("SENTINEL").arg("CKQUORUM").arg(&self.service);
        if let Err(error) = ask::<Value>(&client, &quorum).await
            && first_of(&error).code() == Some("NOQUORUM")
        {
            let error = first_of(&error);
            return Err(format!("the sentinels cannot promote a replica: {error}; start the others"));
        }
        let of = |name: &str| state.get(name).map_or("?", String::as_str);
        Ok(format!(
            "sentinel, {}:{} is the primary of {}, {} replicas, {} other sentinels, quorum {}",
            of("ip"),
            of("port"),
            self.service,
            of("num-slaves"),
            of("num-other-sentinels"),
            of("quorum")
        ))
    }

    /// The replicas that the first sentinel that answers cannot reach; former primaries are among them.
    async fn replicas_down(&self) -> Vec<HostPort> {
        for sentinel in &self.login.address().servers {
            let Ok(client) = self.login.sentinel(&sentinel.host, sentinel.port) else { continue };
            let mut question = pipe();
            question.cmd("SENTINEL").arg("REPLICAS").arg(&self.service);
            let answer = ask::<(Vec<HashMap<String, String>>,)>(&client, &question).await;
            let Ok((replicas,)) = answer else { continue };
            let is_down = |flags: &String| flags.split(',').any(|flag| flag == "s_down");
            let replicas = replicas.iter().filter(|replica| replica.get("flags").is_some_and(is_down));
            return replicas.filter_map(address).collect();
        }
        Vec::new()
    }

    /// Why a replica that the sentinels cannot reach is of no use, for an operator.
    async fn observe_replica(&self, at: &HostPort) -> String {
        let name = format!("the replica at {at}");
        let mut question = pipe();
        question.cmd("ROLE");
        let answer = match self.client(at) {
            Ok(client) => ask::<(Value,)>(&client, &question).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(_) => {
                format!("{name} answers, but the sentinels do not reach it; check the network between them")
            }
            Err(error) => NoAnswer::of(&name, &error, LOGIN)
                .advised("start it, or let the sentinels forget it: SENTINEL RESET, at one after the other"),
        }
    }

    /// Ends after a failover, or when the sentinel does not answer.
    async fn follow(&self, sentinel: &HostPort) -> RedisResult<()> {
        let client = self.login.sentinel(&sentinel.host, sentinel.port)?;
        let mut events = client.get_async_pubsub().await?;
        events.subscribe("+switch-master").await?;
        let service = format!("{} ", self.service);
        let mut events = events.into_on_message();
        while let Some(event) = events.next().await {
            let text: String = event.get_payload().unwrap_or_default();
            if text.starts_with(&service) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The address of a server, as sentinels say it.
fn address(of: &HashMap<String, String>) -> Option<HostPort> {
    Some(HostPort { host: of.get("ip")?.clone(), port: of.get("port")?.parse().ok()? })
}

#[async_trait]
impl Discovery for Sentinel {
    async fn learn(&self, _: &[HostPort]) -> Result<Vec<Primary>> {
        let sentinels = &self.login.address().servers;
        let answers = join_all(sentinels.iter().map(|sentinel| self.ask(sentinel))).await;
        let (named, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(std::result::Result::is_ok);
        let newest = named.into_iter().flatten().max_by_key(|named| named.epoch);
        let Some(Named { primary, .. }) = newest else {
            return Err(NoAnswer::all(failed.into_iter().filter_map(std::result::Result::err).collect()));
        };
        let replicas = self.role(&primary).await.map_err(|why| NoAnswer::all(vec![why]))?;
        Ok(vec![Primary { at: primary, slots: None, replicas, lacks_replicas: false }])
    }

    fn client(&self, at: &HostPort) -> RedisResult<Client> {
        self.login.client(&at.host, at.port)
    }

    async fn observers(&self, known: &[HostPort]) -> Vec<Observer> {
        let sentinels = self.login.address().servers.iter();
        let observed = sentinels.map(|one| async move { (one.to_string(), self.observe(one).await) });
        let mut observed = join_all(observed).await;
        let mut down = self.replicas_down().await;
        down.retain(|at| !known.contains(at));
        let down = down.iter().map(|at| async move { (at.to_string(), Err(self.observe_replica(at).await)) });
        observed.extend(join_all(down).await);
        observed
    }

    async fn changed(&self) {
        loop {
            for sentinel in &self.login.address().servers {
                if self.follow(sentinel).await.is_ok() {
                    return;
                }
            }
            tokio::time::sleep(PATIENCE).await;
        }
    }
}
