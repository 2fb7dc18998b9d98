//! The replicas of a primary, as the primary reports them, and dangers for a failover.

use std::fmt;
use std::time::Duration;

use redis::InfoDict;

use crate::store::Warning;
use crate::telemetry::EngineWarning;

/// A replica whose last report is older does not keep up; replicas report once a second.
const LATEST: Duration = Duration::from_secs(5);

/// A replica that is connected to its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    address: String,
    /// `online`, or a step of the first copy.
    state: String,
    /// The time since the last report of the replica.
    lag: Duration,
    /// The bytes of the replication stream that the replica does not have yet.
    behind: u64,
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Replica { address, state, lag, behind } = self;
        write!(f, "{address} ({state}, lag {} s, {behind} bytes behind)", lag.as_secs())
    }
}

/// The replicas in the answer to `INFO replication`.
pub(super) fn replicas(info: &InfoDict) -> Vec<Replica> {
    let written = info.get::<u64>("master_repl_offset").unwrap_or(0);
    let count = info.get::<usize>("connected_slaves").unwrap_or(0);
    // The numbers of replicas have no gaps.
    (0..count).filter_map(|index| replica(&info.get::<String>(&format!("slave{index}"))?, written)).collect()
}

/// `ip=…,port=…,state=…,offset=…,lag=…`
fn replica(line: &str, written: u64) -> Option<Replica> {
    let of = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let host = of("ip")?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let offset = of("offset").and_then(|offset| offset.parse().ok()).unwrap_or(0);
    Some(Replica {
        address: format!("{host}:{}", of("port")?),
        state: of("state")?.to_owned(),
        lag: Duration::from_secs(of("lag").and_then(|lag| lag.parse().ok()).unwrap_or(0)),
        behind: written.saturating_sub(offset),
    })
}

/// The warnings about the replicas of a primary. `known` is their number by the other servers, `least` is
/// `min-replicas-to-write`, if it can be read.
pub(super) fn warnings(replicas: &[Replica], known: usize, least: Option<&str>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |name, text: String| warnings.push(Warning { name, text });
    if replicas.is_empty() {
        let text = "no replica is connected to the primary: if it fails, its part of the fleet is blind until it is \
                    back, \
             and without its disk that part is lost; start a replica, and see that it follows: INFO replication";
        warn(EngineWarning::ReplicaMissing, text.to_owned());
    }
    let is_late = |replica: &&Replica| replica.state != "online" || replica.lag > LATEST;
    let mut late: Vec<String> = replicas.iter().filter(is_late).map(Replica::to_string).collect();
    if !replicas.is_empty() && known > replicas.len() {
        late.push(format!("{} that run but do not follow", known - replicas.len()));
    }
    if !late.is_empty() {
        let text = format!(
            "replicas do not keep up: {}; one that is promoted lacks the newest heartbeats, and that time is blind; \
             see \
             their logs, the network, and their load",
            late.join(", ")
        );
        warn(EngineWarning::ReplicaLags, text);
    }
    // With only one replica, the promoted replica would have none itself, and would refuse every write.
    if replicas.len() > 1 && least == Some("0") {
        let text = "a primary that is cut off from its replicas accepts writes, which are lost when it comes back; set \
             min-replicas-to-write 1 and min-replicas-max-lag 3 on all servers";
        warn(EngineWarning::MinReplicasOff, text.to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &str) -> Vec<Replica> {
        replicas(&InfoDict::new(lines))
    }

    fn names(lines: &str, known: usize, least: &str) -> Vec<EngineWarning> {
        warnings(&of(lines), known, Some(least)).iter().map(|warning| warning.name).collect()
    }

    const ONE: &str = "role:master\r\nconnected_slaves:1\r\n\
        slave0:ip=10.0.0.2,port=6379,state=online,offset=90,lag=1\r\nmaster_repl_offset:100\r\n";
    const TWO: &str = "connected_slaves:2\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=100,lag=0\r\n\
        slave1:ip=fe80::1,port=6380,state=online,offset=100,lag=5\r\nmaster_repl_offset:100\r\n";

    #[test]
    fn a_replica_is_read_with_its_lag() {
        let shown: Vec<String> = of(ONE).iter().map(Replica::to_string).collect();
        assert_eq!(shown, ["10.0.0.2:6379 (online, lag 1 s, 10 bytes behind)"]);
        assert_eq!(of(TWO)[1].address, "[fe80::1]:6380");
        assert_eq!(of("role:master\r\n"), []);
        assert_eq!(of("connected_slaves:1\r\nslave0:x\r\n"), []);
    }

    #[test]
    fn what_endangers_a_failover_is_a_warning() {
        use EngineWarning::{MinReplicasOff, ReplicaLags, ReplicaMissing};
        assert_eq!(names(ONE, 1, "0"), [], "one replica needs no min-replicas-to-write");
        assert_eq!(names(TWO, 2, "1"), []);
        assert_eq!(names(TWO, 2, "0"), [MinReplicasOff]);
        assert_eq!(names("connected_slaves:0", 0, "0"), [ReplicaMissing]);
        assert_eq!(names("connected_slaves:0", 1, "0"), [ReplicaMissing]);
        assert_eq!(names(ONE, 2, "0"), [ReplicaLags]);
        assert_eq!(names(&ONE.replace("lag=1", "lag=6"), 1, "0"), [ReplicaLags]);
        assert_eq!(names(&ONE.replace("state=online", "state=wait_bgsave"), 1, "0"), [ReplicaLags]);
    }
}
