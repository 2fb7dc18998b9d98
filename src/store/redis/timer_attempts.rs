//! Attempts to deliver timers at most once: each is marked before it begins.
//!
//! Marking ends the delivery, so no instance leases it again, whatever becomes of the one that made the mark. The index
//! of such attempts has those without an outcome: when one of them is too old, its instance died between the mark and the
//! outcome, and whether the receiver got the timer is unknown.

use redis::pipe;

use super::RedisEngine;
use super::ending::FINISH_STEP;
use crate::clock::Timestamp;
use crate::presence::{TimerId, TimerType};
use crate::store::timer_text::moment;
use crate::store::{Delivery, Result, firing_of};

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
    for (index, answer) in engine.topology.few_at_once(steps.collect()).await?.into_iter().flatten() {
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
            match parsed(engine, partition, &member) {
                Some(attempt) => begun.push(attempt),
                None => unreadable.push(member),
            }
        }
        engine.quarantine_members(&key, &unreadable, crate::telemetry::Stored::Timer).await?;
        if begun.is_empty() {
            continue;
        }
        let mut script = engine.scripts.give_up_only_attempts.prepare_invoke();
        script.key(key).key(engine.past_timers(partition)).arg(before.as_millis());
        for (member, receiver, due, id) in &begun {
            script.arg(member).arg(receiver).arg(due).arg(id.as_str());
        }
        let answers: Vec<String> = engine.topology.run("give_up_only_attempts", &script).await?;
        types.extend(answers.iter().filter_map(|of| of.parse::<TimerType>().ok()));
    }
    Ok(types)
}

/// The member of an attempt, its receiver, the moment of its timer as it is stored, and the id.
fn parsed(engine: &RedisEngine, partition: u16, member: &[u8]) -> Option<(String, String, String, TimerId)> {
    let text = std::str::from_utf8(member).ok()?;
    let (receiver, rest) = text.split_once(' ')?;
    let (due, id) = rest.split_once(' ')?;
    let id: TimerId = id.parse().ok()?;
    let is_here = engine.timer_page(&id).0 == partition;
    is_here.then(|| (text.to_owned(), receiver.to_owned(), due.to_owned(), id))
}
