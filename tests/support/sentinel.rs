//! A primary, its replicas and three Sentinels of a test's own, with `config/redis/replicated.conf` and
//! `sentinel.conf`, as `make sentinel` starts them. A test may end each of them and start it again, and promote a
//! replica.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue, cmd};

use super::certificates::Authority;
use super::node::{Node, Place, in_parallel, shipped, until};
use rollcall::clock::monotonic;

/// The name of the service.
pub const SERVICE: &str = "main";
const SENTINELS: usize = 3;

#[derive(Clone)]
pub struct SentinelPlan {
    pub replicas: usize,
    /// How long the primary may be silent before it counts as down.
    pub down_after: Duration,
    /// Half of the time until an attempt that failed is repeated.
    pub failover_timeout: Duration,
    /// Further lines for the file of every server.
    pub settings: String,
    /// The places of the first servers; the others are on loopback.
    pub places: Vec<Place>,
    /// The authority of the certificates, if the servers and the sentinels speak TLS.
    pub authority: Option<Arc<Authority>>,
}

impl SentinelPlan {
    pub fn new(replicas: usize) -> SentinelPlan {
        SentinelPlan {
            replicas,
            down_after: Duration::from_millis(1000),
            failover_timeout: Duration::from_millis(3000),
            settings: String::new(),
            places: Vec::new(),
            authority: None,
        }
    }

    /// Gives all servers and sentinels certificates of this authority.
    pub fn with_tls(mut self, authority: &Arc<Authority>) -> SentinelPlan {
        self.authority = Some(authority.clone());
        self
    }

    /// Makes every server write to disk before it answers.
    pub fn durable(mut self) -> SentinelPlan {
        self.settings += "appendfsync always\n";
        self
    }

    /// The place of a server; a sentinel never has one of the first places.
    fn place(&self, number: usize) -> Place {
        let usual = || Place { authority: self.authority.clone(), ..Place::default() };
        self.places.get(number).cloned().unwrap_or_else(usual)
    }

    /// The file of the servers. With fewer than two replicas, no replica would be left to write to after a failover.
    fn server(&self, primary: Option<u16>) -> String {
        let least = usize::from(self.replicas >= 2);
        let follows = primary.map(|port| format!("replicaof 127.0.0.1 {port}\n")).unwrap_or_default();
        format!("{}\nmin-replicas-to-write {least}\n{follows}{}", shipped("replicated.conf"), self.settings)
    }

    fn sentinel(&self, primary: u16) -> String {
        let text = shipped("sentinel.conf");
        let watched = text.replace("main 127.0.0.1 6379 2", &format!("{SERVICE} 127.0.0.1 {primary} 2"));
        assert_ne!(watched, text, "the line of the primary changed");
        let (down, timeout) = (self.down_after.as_millis(), self.failover_timeout.as_millis());
        format!(
            "{watched}\nsentinel down-after-milliseconds {SERVICE} {down}\n\
             sentinel failover-timeout {SERVICE} {timeout}\n"
        )
    }
}

/// The servers by number, at first with the primary in front.
pub struct Sentinel {
    pub servers: Vec<Node>,
    pub sentinels: Vec<Node>,
    plan: SentinelPlan,
    // The last field, so that the servers have ended when the directory is removed.
    _dir: tempfile::TempDir,
}

impl Sentinel {
    /// Starts all of it and waits until the Sentinels know all replicas and one another, which takes some seconds.
    pub async fn start(plan: SentinelPlan) -> Sentinel {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str, number: usize| dir.path().join(format!("{name}-{number}"));
        let place = |number: usize| plan.place(number);
        let mut servers = vec![Node::start_in(&at("server", 0), &plan.server(None), &place(0))];
        let primary = servers[0].port();
        let follows = plan.server(Some(primary));
        servers.extend(in_parallel(1..=plan.replicas, |number| {
            Node::start_in(&at("server", number), &follows, &place(number))
        }));
        for server in &servers {
            until("every replica follows", async || server.is_linked().await).await;
        }
        // Only now: a Sentinel asks a primary for its replicas at once, and then every ten seconds.
        let watches = plan.sentinel(primary);
        let sentinels = in_parallel(1..=SENTINELS, |number| {
            Node::sentinel(&at("sentinel", number), &watches, &plan.place(usize::MAX))
        });
        let all = Sentinel { servers, sentinels, plan, _dir: dir };
        all.until_whole().await;
        all
    }

    /// Waits until every Sentinel that runs knows the primary, all replicas and the other Sentinels, and finds all that
    /// runs alive, and until every replica that runs follows the primary.
    pub async fn until_whole(&self) {
        let (replicas, sentinels) = (self.plan.replicas, self.sentinels.len());
        let known = format!("slaves={replicas},sentinels={sentinels}");
        let fine = format!("master0:name={SERVICE},status=ok,");
        for sentinel in self.sentinels.iter().filter(|one| one.answers()) {
            until("the Sentinel knows all of them", async || {
                let info = sentinel.info("sentinel").await.unwrap_or_default();
                info.contains(&fine) && info.contains(&known) && self.primary_by(sentinel).await.is_some()
            })
            .await;
        }
        for (number, server) in self.servers.iter().enumerate().filter(|(_, one)| one.answers()) {
            until("every replica follows the primary", async || {
                // On a busy machine another one may be promoted meanwhile.
                let Some(primary) = self.primary_now().await else { return false };
                let info = server.info("replication").await.unwrap_or_default();
                let followed = format!("master_port:{}\r\n", self.servers[primary].port());
                number == primary || info.contains("master_link_status:up") && info.contains(&followed)
            })
            .await;
        }
    }

    /// The value of `engine.url`.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(Node::address).collect();
        let scheme = if self.plan.authority.is_some() { "rediss" } else { "redis" };
        format!("{scheme}-sentinel://{}/{SERVICE}/0", addresses.join(","))
    }

    /// The primary that a Sentinel names, if that one says so itself.
    async fn primary_by(&self, sentinel: &Node) -> Option<usize> {
        let ask = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(SERVICE).to_owned();
        let (_, port): (String, u16) = sentinel.try_ask(&ask).await.ok()?;
        let number = self.servers.iter().position(|server| server.port() == port)?;
        let server = &self.servers[number];
        let says = server.answers() && server.info("replication").await.ok()?.contains("role:master");
        says.then_some(number)
    }

    /// The primary; `None` while there is none.
    pub async fn primary_now(&self) -> Option<usize> {
        for sentinel in self.sentinels.iter().filter(|one| one.answers()) {
            let found = self.primary_by(sentinel).await;
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The primary; waits until there is one.
    pub async fn primary(&self) -> usize {
        self.until_primary(|_| true).await
    }

    /// Waits until another server than `former` is the primary.
    pub async fn until_promoted(&self, former: usize) -> usize {
        self.until_primary(|number| number != former).await
    }

    async fn until_primary(&self, is_right: impl Fn(usize) -> bool) -> usize {
        let mut found = None;
        until("a server is the primary", async || {
            found = self.primary_now().await.filter(|number| is_right(*number));
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// Sends a command to the primary.
    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        self.servers[self.primary().await].ask(command).await
    }

    /// Promotes a replica by hand; the number of the new primary.
    pub async fn failover(&self) -> usize {
        let former = self.primary().await;
        let sentinel = self.sentinels.iter().find(|one| one.answers()).expect("a Sentinel runs");
        // Another failover may still be under way, and a failover that has begun may find no replica that is good
        // enough.
        let ask = cmd("SENTINEL").arg("FAILOVER").arg(SERVICE).to_owned();
        let mut asked: Option<Instant> = None;
        let mut found = None;
        until("a replica is promoted", async || {
            if asked.is_none_or(|at| monotonic().duration_since(at) > 3 * self.plan.failover_timeout)
                && sentinel.try_ask::<()>(&ask).await.is_ok()
            {
                asked = Some(monotonic());
            }
            found = self.primary_now().await.filter(|number| *number != former);
            found.is_some()
        })
        .await;
        found.unwrap()
    }
}
