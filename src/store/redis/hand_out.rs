//! Silences that are sealed as soon as they join, because their group waits for no other member. The caller gets
//! their deliveries in the same step.

use std::collections::BTreeMap;

use super::RedisEngine;
use super::joining::Joining;
use crate::clock::Timestamp;
use crate::presence::Form;
use crate::store::json::to_json;
use crate::store::notification::{Lone, notification_id};
use crate::store::{Capacity, Delivery, Joined, OutboxEvent, Pace, Result};

/// How many silences one script hands out: about a quarter of a millisecond, because Redis serves no other command
/// meanwhile, and each of several instances has such a script under way.
const STEP: usize = 32;

/// A silence and the id of its notification.
struct Silence<'a> {
    joining: Joining<'a>,
    id: String,
}

/// Hands out silences that may be sealed at once. Answers the deliveries, and the transitions that have to join their
/// groups, in order.
pub(super) async fn hand_out<'a>(
    engine: &RedisEngine,
    joining: Vec<Joining<'a>>,
    pace: Pace,
    receivers: &[String],
    capacity: &Capacity,
    now: Timestamp,
) -> Result<(Joined, Vec<Joining<'a>>)> {
    let mut free: Vec<usize> =
        (0..receivers.len()).map(|r| capacity.most.get(r).copied().unwrap_or(0)).collect();
    let is_allowed = pace.wait.is_zero() && free.iter().any(|free| *free > 0);
    let is_lone = |joining: &Joining| is_allowed && joining.is_alone && joining.member.form == Form::Offline;
    let (lone, mut rest): (Vec<Joining>, Vec<Joining>) = joining.into_iter().partition(is_lone);
    let mut partitions: BTreeMap<u16, Vec<Silence>> = BTreeMap::new();
    for joining in lone {
        let group = &joining.join.group.key;
        let id = notification_id(group, &format!("o{}", joining.member.id));
        partitions.entry(engine.keys.partition_of_group(group)).or_default().push(Silence { joining, id });
    }
    let mut steps = Vec::new();
    for (partition, mut lone) in partitions {
        while !lone.is_empty() {
            let step: Vec<Silence> = lone.drain(..lone.len().min(STEP)).collect();
            let most: Vec<usize> = free.iter().map(|free| step.len().min(*free)).collect();
            free.iter_mut().zip(&most).for_each(|(free, most)| *free -= most);
            let capacity = Capacity { most, until: capacity.until };
            let step = hand_out_step(engine, partition, step, pace, receivers, capacity, now);
            steps.push((engine.keys.slot(partition), step));
        }
    }
    let mut joined = Joined::default();
    for (handed_out, refused) in engine.topology.few_at_once(steps).await? {
        joined.sealed += handed_out.sealed;
        joined.deliveries.extend(handed_out.deliveries);
        // No other transition of this call is of their groups, so they may join last.
        rest.extend(refused);
    }
    Ok((joined, rest))
}

async fn hand_out_step<'a>(
    engine: &RedisEngine,
    partition: u16,
    step: Vec<Silence<'a>>,
    pace: Pace,
    receivers: &[String],
    capacity: Capacity,
    now: Timestamp,
) -> Result<(Joined, Vec<Joining<'a>>)> {
    let mut script = engine.scripts.hand_out.prepare_invoke();
    for name in ["groups", "members", "sealed"] {
        script.key(engine.keys.in_partition(partition, name));
    }
    for name in ["queue", "lanes"] {
        for receiver in receivers {
            script.key(engine.keys.of(partition, name, receiver));
        }
    }
    script.arg(now.as_millis()).arg(pace.interval.as_millis() as u64);
    script.arg(receivers.len()).arg(step.len()).arg(capacity.until.as_millis()).arg(&capacity.most);
    for lone in &step {
        script.arg(&lone.joining.join.group.key);
    }
    for lone in &step {
        script.arg(lone.joining.name());
    }
    let names = receivers.join(",");
    for lone in &step {
        script.arg(format!("t{}:{names}", lone.joining.member.detected_at.as_millis()));
    }
    for Silence { joining, id } in &step {
        let OutboxEvent::Record(record) = &joining.join.event else { continue };
        let json = to_json(&Lone::new(&joining.join.group, record, now))?;
        script.arg(format!("1 {id}\n{json}"));
    }
    let answers: Vec<u8> =
        engine.topology.run_alerting("hand_out", engine.keys.slot(partition), &script).await?;
    Ok(handed_out(step, answers, receivers, &capacity, now))
}

/// The deliveries that the caller gets, and the transitions that have to join their groups: those with the answer 0.
fn handed_out<'a>(
    step: Vec<Silence<'a>>,
    answers: Vec<u8>,
    receivers: &[String],
    capacity: &Capacity,
    now: Timestamp,
) -> (Joined, Vec<Joining<'a>>) {
    let (mut joined, mut refused) = (Joined::default(), Vec::new());
    for (Silence { joining, id }, answer) in step.into_iter().zip(answers) {
        if answer == 0 {
            refused.push(joining);
            continue;
        }
        let (index, OutboxEvent::Record(record)) = (joined.sealed, &joining.join.event) else { continue };
        joined.sealed += 1;
        for (receiver, _) in receivers.iter().zip(&capacity.most).filter(|(_, most)| index < **most) {
            joined.deliveries.push(Delivery {
                id: format!("{id}.{receiver}"),
                receiver: receiver.clone(),
                group: joining.join.group.clone(),
                sealed_at: now,
                offline: vec![record.clone()],
                online: Vec::new(),
                blind: Vec::new(),
                attempt: 1,
            });
        }
    }
    (joined, refused)
}
