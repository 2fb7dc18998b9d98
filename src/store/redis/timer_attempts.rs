//! Attempts to deliver timers at most once: each is marked before it begins.
//!
//! NotifiedMark ends the delivery, so no instance leases it again, whatever becomes of the one that made the mark. The
//! index of such attempts has those without an outcome: when one of them is too old, its instance died between the mark
//! and the outcome, and whether the receiver got the timer is unknown.

use redis::pipe;

use super::RedisEngine;
use super::finish::FINISH_STEP;
use super::steps::{MAX_ATTEMPTS, Steps};
use crate::clock::Timestamp;
use crate::presence::{Receipt, Timer, TimerId, TimerType};
use crate::store::timer_text::{decode, encode, moment};
use crate::store::{Delivery, Result, firing_of};
use crate::telemetry::Stored;

/// How many attempts of a partition one call gives up.
const GIVEN_UP: usize = 100;

pub(super) async fn begin(
    engine: &RedisEngine,
    deliveries: &[&Delivery],
    now: Timestamp,
) -> Result<Vec<bool>> {
    let queues = engine.by_queue(deliveries.iter().copied().enumerate(), |(_, delivery)| delivery);
    let steps = queues.iter().flat_map(|(&(partition, receiver), deliveries)| {
        let slot = engine.keys.slot(partition);
        let steps = deliveries.chunks(FINISH_STEP);
        steps.map(move |step| (slot, begin_step(engine, partition, receiver, step, now)))
    });
    let mut may_attempt = vec![false; deliveries.len()];
    for (index, answer) in engine.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
        may_attempt[index] = answer == 1;
    }
    let marked: Vec<Delivery> =
        deliveries.iter().zip(&may_attempt).filter(|(_, may)| **may).map(|(one, _)| (*one).clone()).collect();
    // A replica that takes over has the marks.
    engine.wait_for_replicas_of(&marked).await;
    Ok(may_attempt)
}

async fn begin_step(
    engine: &RedisEngine,
    partition: u16,
    receiver: &str,
    step: &[(usize, &Delivery)],
    now: Timestamp,
) -> Result<Vec<(usize, u8)>> {
    let firings = step.iter().filter_map(|(index, one)| Some((*index, *one, firing_of(one)?)));
    let firings: Vec<(usize, &Delivery, (TimerId, Timestamp))> = firings.collect();
    if firings.is_empty() {
        return Ok(Vec::new());
    }
    let mut script = engine.scripts.begin_only_attempts.prepare_invoke();
    for name in ["queue", "lanes"] {
        script.key(engine.keys.of(partition, name, receiver));
    }
    for name in ["notifications", "owed", "timer_attempts", "past_timers"] {
        script.key(engine.keys.in_partition(partition, name));
    }
    script.arg(now.as_millis()).arg(firings.len());
    for (_, one, _) in &firings {
        script.arg(&one.group.key);
    }
    for (_, one, _) in &firings {
        script.arg(one.notification());
    }
    for (_, one, _) in &firings {
        script.arg(one.attempt);
    }
    for (_, _, (id, _)) in &firings {
        script.arg(id.as_str());
    }
    for (_, _, (_, due)) in &firings {
        script.arg(moment(*due));
    }
    let answers: Vec<u8> = engine.topology.run("begin_only_attempts", &script).await?;
    Ok(firings.iter().map(|(index, ..)| *index).zip(answers).collect())
}

pub(super) async fn give_up(
    engine: &RedisEngine,
    partitions: &[u16],
    before: Timestamp,
) -> Result<Vec<TimerType>> {
    let mut read = pipe();
    for partition in partitions {
        let begun = engine.keys.in_partition(*partition, "timer_attempts");
        read.zrangebyscore_limit(begun, "-inf", format!("({}", before.as_millis()), 0, GIVEN_UP as isize);
    }
    let members: Vec<Vec<Vec<u8>>> = engine.topology.send("give_up_only_attempts", &read).await?;
    let mut types = Vec::new();
    for (&partition, members) in partitions.iter().zip(members).filter(|(_, members)| !members.is_empty()) {
        let key = engine.keys.in_partition(partition, "timer_attempts");
        let (mut begun, mut unreadable) = (Vec::new(), Vec::new());
        for member in members {
            match BegunAttempt::parse(engine, partition, &member) {
                Some(attempt) => begun.push(attempt),
                None => unreadable.push(member),
            }
        }
        engine.quarantine_members(&key, &unreadable, Stored::Timer).await?;
        types.extend(give_up_some(engine, partition, begun, before).await?);
    }
    Ok(types)
}

/// Gives up attempts of a partition that still have no outcome. Those of a timer that changes meanwhile are looked at
/// again.
async fn give_up_some(
    engine: &RedisEngine,
    partition: u16,
    mut begun: Vec<BegunAttempt>,
    before: Timestamp,
) -> Result<Vec<TimerType>> {
    let attempts = engine.keys.in_partition(partition, "timer_attempts");
    let past = engine.past_timers(partition);
    let mut types = Vec::new();
    for _ in 0..MAX_ATTEMPTS {
        if begun.is_empty() {
            break;
        }
        let mut read = pipe();
        read.cmd("ZMSCORE").arg(&attempts).arg(begun.iter().map(|one| &one.member).collect::<Vec<_>>());
        read.cmd("HMGET").arg(&past).arg(begun.iter().map(|one| one.timer.as_str()).collect::<Vec<_>>());
        type Answer = (Vec<Option<f64>>, Vec<Option<Vec<u8>>>);
        let (began, texts): Answer = engine.topology.send("give_up_only_attempts", &read).await?;
        let (mut steps, mut decided) = (Steps::default(), Vec::new());
        for ((attempt, began), text) in begun.into_iter().zip(began).zip(texts) {
            let Some(began) = began.filter(|began| *began < before.as_millis() as f64) else { continue };
            let (member, id) = (attempt.member.as_bytes(), attempt.timer.as_str().as_bytes());
            steps.begin().expect_score(&attempts, member, began).expect_field(&past, id, text.as_deref());
            steps.write("ZREM", &attempts, &[member]);
            let changed = text.and_then(|text| attempt.given_up(&text));
            if let Some(changed) = &changed {
                steps.write("HSET", &past, &[id, encode(changed).as_bytes()]);
            }
            decided.push((attempt, changed.map(|timer| timer.timer_type)));
        }
        begun = Vec::new();
        let written = engine.write_steps("give_up_only_attempts", steps).await?;
        for ((attempt, of), is_written) in decided.into_iter().zip(written) {
            if is_written { types.extend(of) } else { begun.push(attempt) }
        }
    }
    Ok(types)
}

/// An only attempt that has begun.
struct BegunAttempt {
    member: String,
    receiver: String,
    /// The moment of its timer, as it is stored.
    due: String,
    timer: TimerId,
}

impl BegunAttempt {
    fn parse(engine: &RedisEngine, partition: u16, member: &[u8]) -> Option<BegunAttempt> {
        let member = std::str::from_utf8(member).ok()?;
        let (receiver, rest) = member.split_once(' ')?;
        let (due, id) = rest.split_once(' ')?;
        let timer: TimerId = id.parse().ok()?;
        let is_here = engine.timer_page(&timer).0 == partition;
        let (member, receiver, due) = (member.to_owned(), receiver.to_owned(), due.to_owned());
        is_here.then_some(BegunAttempt { member, receiver, due, timer })
    }

    /// The stored timer when the outcome of the attempt is unknown; `None` if that changes nothing, or the timer was
    /// registered again since.
    fn given_up(&self, text: &[u8]) -> Option<Timer> {
        let timer = decode(&self.timer, std::str::from_utf8(text).ok()?)?;
        let is_same = moment(timer.due) == self.due;
        timer.with_receipt(&self.receiver, Receipt::Unknown).filter(|_| is_same)
    }
}
