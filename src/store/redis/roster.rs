//! The roster: leases of instances, and the clock that they share.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::pipe;

use super::RedisEngine;
use super::ledger::parse_interval;
use super::topology::ScriptCall;
use crate::clock::{Skip, Stopwatch, Timestamp, monotonic};
use crate::presence::{Interval, MAX_LEASE};
use crate::store::{EngineError, RenewalReply, Result, Roster};

/// The sum of the accepted steps of the clock, and what the last of them skipped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AcceptedSteps {
    sum: Duration,
    pub last: Option<Skip>,
}

/// A renewal that the server has answered.
struct Renewal {
    sent: Instant,
    answered: Instant,
    attendance: RenewalReply,
    steps: AcceptedSteps,
    /// The expected time of the server's clock, if the answer shows a jump that the renewal did not handle.
    unhandled: Option<Timestamp>,
}

#[async_trait]
impl Roster for RedisEngine {
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<RenewalReply> {
        let began = Stopwatch::start();
        let begun = self.renew_once(instance, lease, heard, None).await?;
        // The repetition reports the jump that the answer revealed to the server.
        let renewed = match begun {
            Some(renewed) if renewed.unhandled.is_none() => renewed,
            begun => {
                let mut renewed =
                    self.renew_once(instance, lease, heard, Some(began.elapsed())).await?.ok_or_else(
                        || EngineError::Damaged("the roster did not answer with a time".to_owned()),
                    )?;
                renewed.attendance.is_new |= begun.is_some_and(|begun| begun.attendance.is_new);
                renewed
            }
        };
        let Renewal { sent, answered, attendance, steps, .. } = renewed;
        // Before the clock of this instance follows: no hearing is read without a step that the clock has made.
        *self.steps.lock() = steps;
        self.server_clock.lock().renewed((sent, answered), attendance.engine_clock, attendance.now);
        // A replaced primary accepts writes for some seconds after its return.
        let fleet = || attendance.now + monotonic().duration_since(sent);
        tokio::join!(self.topology.check_roles(), self.follow_evictions(fleet));
        self.store_evictions().await?;
        self.topology.share(attendance.instances.len());
        Ok(attendance)
    }

    fn stepped(&self) -> Duration {
        self.steps.lock().sum
    }

    async fn resign(&self, instance: &str) -> Result<()> {
        let mut leave = pipe();
        leave.zrem(self.keys.roster(), instance).ignore();
        self.topology.send::<()>("resign", &leave).await?;
        let mut notify = pipe();
        notify.publish(self.keys.roster(), instance).ignore();
        self.topology.send("resign", &notify).await
    }

    async fn changed(&self) {
        self.roster_changed.notified().await;
    }
}

impl RedisEngine {
    /// `again`: how long the first attempt took; `None` for the first attempt. The second attempt handles a detected
    /// jump of the server's clock, and a step of that clock: its answer may be as slow as the first, so only a larger
    /// difference is a step. Answers `None`, and renews nothing, if the server's clock seems to have stepped.
    async fn renew_once(
        &self,
        instance: &str,
        lease: Duration,
        heard: Option<Timestamp>,
        again: Option<Duration>,
    ) -> Result<Option<Renewal>> {
        let (last, jumped, expected) = {
            let clock = self.server_clock.lock();
            (clock.last_renewal(), clock.jumped(), clock.fleet_time(monotonic()))
        };
        let mut script = ScriptCall::of(&self.scripts.renew);
        script.key(self.keys.roster()).key(self.keys.clock()).key(self.keys.heard());
        script.arg(instance).arg(lease.as_millis() as u64);
        script.arg(heard.map_or(0, Timestamp::as_millis)).arg(self.keys.roster());
        script.arg(jumped.map(|without| without.as_millis().to_string()).unwrap_or_default());
        script.arg(MAX_LEASE.as_millis() as u64);
        script.arg(expected.map(|at| at.as_millis().to_string()).unwrap_or_default());
        script.arg(again.map(|took| took.as_millis().to_string()).unwrap_or_default());
        let sent = monotonic();
        let answer: Vec<Vec<u8>> = self.topology.run("renew", script).await?;
        let answered = monotonic();
        if let ([first, server], true) = (answer.as_slice(), jumped.is_none())
            && first.is_empty()
        {
            self.server_clock.lock().read(last, answered, moment(&String::from_utf8_lossy(server))?);
        }
        if answer.first().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        let (attendance, steps) = attendance(&answer)?;
        let mut clock = self.server_clock.lock();
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
        Ok(Some(Renewal { sent, answered, attendance, steps, unhandled }))
    }
}

/// Reads the answer of `renew.lua` and the accepted steps, and reports the leases that it removed.
fn attendance(answer: &[Vec<u8>]) -> Result<(RenewalReply, AcceptedSteps)> {
    let answer: Vec<String> = answer.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
    let [now, engine_clock, first_end, is_new, ahead, stepped, skipped, too_late, others @ ..] =
        answer.as_slice()
    else {
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
    let [ahead, stepped] = [ahead, stepped].map(|ms| ms.parse().ok().map(Duration::from_millis));
    let reply = RenewalReply { now, engine_clock, ahead, instances, is_new: is_new == "1", first_end };
    let last = parse_interval(skipped).ok().map(|Interval { from, to }| Skip { from, to });
    Ok((reply, AcceptedSteps { sum: stepped.unwrap_or_default(), last }))
}

fn moment(ms: &str) -> Result<Timestamp> {
    let damaged = || EngineError::Damaged(format!("the roster answered {ms:?}, which is not a time"));
    ms.parse().map(Timestamp::from_millis).map_err(|_| damaged())
}
