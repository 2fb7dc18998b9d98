//! The roster: leases of instances, and the clock that they share.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::pipe;

use super::RedisEngine;
use crate::clock::Timestamp;
use crate::presence::MAX_LEASE;
use crate::store::roster::Counts;
use crate::store::{EngineError, RenewalReply, Result, Roster};

/// A renewal that the server has answered.
struct Renewal {
    sent: Instant,
    answered: Instant,
    attendance: RenewalReply,
    /// The expected time of the server's clock, if the answer shows a jump that the renewal did not handle.
    unhandled: Option<Timestamp>,
}

#[async_trait]
impl Roster for RedisEngine {
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<RenewalReply> {
        let jumped = self.server_clock().jumped();
        let mut renewed = self.renew_once(instance, lease, heard, jumped).await?;
        // The repetition tells the server of a jump that the answer revealed.
        if renewed.unhandled.is_some() {
            let is_new = renewed.attendance.is_new;
            renewed = self.renew_once(instance, lease, heard, renewed.unhandled).await?;
            renewed.attendance.is_new |= is_new;
        }
        let Renewal { sent, answered, attendance, .. } = renewed;
        self.comparisons.has_lease(instance);
        self.server_clock().renewed(sent, attendance.engine_clock);
        self.partition_clocks().renewed(sent, attendance.now);
        // A primary that was replaced while it was away accepts writes for some seconds after its return.
        let clocks = self.topology.check_roles().await;
        self.follow_clocks(&clocks, (sent, answered), attendance.now).await?;
        self.topology.share(attendance.instances.len());
        Ok(attendance)
    }

    async fn resign(&self, instance: &str) -> Result<()> {
        let mut leave = pipe();
        leave.zrem(self.keys.roster(), instance).ignore();
        leave.del(self.keys.address(instance)).ignore();
        leave.del(self.keys.counts(instance)).ignore();
        leave.del(self.keys.compared(instance)).ignore();
        self.topology.send::<()>("resign", &leave).await?;
        let mut notify = pipe();
        notify.publish(self.keys.roster(), instance).ignore();
        self.topology.send("resign", &notify).await
    }

    async fn announce(&self, instance: &str, address: &str, lease: Duration) -> Result<()> {
        let mut pipe = pipe();
        pipe.pset_ex(self.keys.address(instance), address, lease.as_millis() as u64).ignore();
        self.topology.send("announce", &pipe).await
    }

    async fn addresses(&self, instances: &[String]) -> Result<Vec<Option<String>>> {
        let mut pipe = pipe();
        for instance in instances {
            pipe.get(self.keys.address(instance));
        }
        self.topology.send("addresses", &pipe).await
    }

    async fn announce_counts(&self, instance: &str, counts: &Counts, ttl: Duration) -> Result<()> {
        let text = serde_json::to_string(counts).expect("names and numbers are always JSON");
        let mut pipe = pipe();
        pipe.pset_ex(self.keys.counts(instance), text, ttl.as_millis() as u64).ignore();
        self.topology.send("announce_counts", &pipe).await
    }

    async fn counts(&self, instances: &[String]) -> Result<Vec<Counts>> {
        let mut pipe = pipe();
        for instance in instances {
            pipe.get(self.keys.counts(instance));
        }
        let texts: Vec<Option<Vec<u8>>> = self.topology.send("counts", &pipe).await?;
        Ok(texts.into_iter().flatten().filter_map(|text| serde_json::from_slice(&text).ok()).collect())
    }

    async fn changed(&self) {
        self.roster_changed.notified().await;
    }
}

impl RedisEngine {
    /// The clock by which the fleet goes, and how long its answer took.
    pub async fn time(&self) -> Result<(Timestamp, Duration)> {
        let mut question = pipe();
        // The key leads to the server by whose clock the fleet goes: a cluster may send TIME alone to another one.
        question.hmget(self.keys.heard(), &["at"]).ignore().cmd("TIME");
        let sent = Instant::now();
        let ((seconds, micros),): ((i64, i64),) = self.topology.send("time", &question).await?;
        Ok((Timestamp::from_millis(seconds * 1000 + micros / 1000), sent.elapsed()))
    }

    /// `jumped`: the expected time of the server's clock when a jump was detected, which the renewal handles.
    async fn renew_once(
        &self,
        instance: &str,
        lease: Duration,
        heard: Option<Timestamp>,
        jumped: Option<Timestamp>,
    ) -> Result<Renewal> {
        let last = self.server_clock().last_renewal();
        let mut script = self.scripts.renew.prepare_invoke();
        script.key(self.keys.roster()).key(self.keys.clock()).key(self.keys.heard());
        script.arg(instance).arg(lease.as_millis() as u64);
        script.arg(heard.map_or(0, Timestamp::as_millis)).arg(self.keys.roster());
        script.arg(jumped.map(|without| without.as_millis().to_string()).unwrap_or_default());
        script.arg(MAX_LEASE.as_millis() as u64);
        let sent = Instant::now();
        let answer: Vec<Vec<u8>> = self.topology.run("renew", &script).await?;
        let answered = Instant::now();
        let attendance = attendance(&answer)?;
        let mut clock = self.server_clock();
        match jumped {
            Some(without) => {
                let seconds = attendance.engine_clock.since(without).as_secs_f64();
                tracing::warn!(
                    seconds,
                    "the clock of the engine jumped forward, and expiry keys expired too early"
                );
            }
            None => {
                clock.read(last, answered, attendance.engine_clock);
            }
        }
        let unhandled = clock.jumped().filter(|_| jumped.is_none());
        Ok(Renewal { sent, answered, attendance, unhandled })
    }
}

/// Reads the answer of `renew.lua`, and reports the leases that it removed.
fn attendance(answer: &[Vec<u8>]) -> Result<RenewalReply> {
    let answer: Vec<String> = answer.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
    let [now, engine_clock, first_end, is_new, too_late, others @ ..] = answer.as_slice() else {
        return Err(EngineError::Damaged("the roster did not answer with a time".to_owned()));
    };
    let (now, engine_clock) = (moment(now)?, moment(engine_clock)?);
    let first_end = first_end.parse().ok().map(Timestamp::from_millis);
    let (too_late, instances) = others.split_at(too_late.parse().unwrap_or(0).min(others.len()));
    for name in too_late {
        tracing::warn!(
            name,
            "a lease in the roster ended later than any that an instance requests; it is not valid and was removed"
        );
    }
    let mut instances = instances.to_vec();
    instances.sort();
    Ok(RenewalReply { now, engine_clock, instances, is_new: is_new == "1", first_end })
}

fn moment(ms: &str) -> Result<Timestamp> {
    let damaged = || EngineError::Damaged(format!("the roster answered {ms:?}, which is not a time"));
    ms.parse().map(Timestamp::from_millis).map_err(|_| damaged())
}
