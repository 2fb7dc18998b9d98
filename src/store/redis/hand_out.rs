//! Silences that are sealed as soon as they join, because their group waits for no other member. The caller gets
//! their deliveries in the same step.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::RedisEngine;
use super::joining::JoiningEvent;
use crate::clock::Timestamp;
use crate::presence::MemberTransition;
use crate::store::json::to_json;
use crate::store::notification::{SingleSilence, notification_id};
use crate::store::{
    Capacity, Delivery, Destination, Destinations, Index, JoinResult, OutboxEvent, ReceiverName, Result,
    Table,
};

/// How many silences one script hands out: about a quarter of a millisecond, because Redis serves no other command
/// meanwhile, and each of several instances has such a script under way.
const STEP: usize = 32;

/// A silence and the id of its notification.
struct ImmediateSilence<'a> {
    joining: JoiningEvent<'a>,
    id: String,
}

/// Hands out silences that may be sealed at once. Answers the deliveries, and the transitions that have to join their
/// groups, in order.
pub(super) async fn hand_out<'a>(
    engine: &RedisEngine,
    joining: Vec<JoiningEvent<'a>>,
    destinations: &Destinations,
    capacity: &Capacity,
    now: Timestamp,
) -> Result<(JoinResult, Vec<JoiningEvent<'a>>)> {
    let mut free: HashMap<&str, usize> =
        destinations.receivers().iter().map(String::as_str).zip(capacity.most.iter().copied()).collect();
    let (lone, mut rest) = lone(engine, joining, destinations, &free, now);
    let mut steps = Vec::new();
    for ((partition, destination), mut lone) in lone {
        while !lone.is_empty() {
            let step: Vec<ImmediateSilence> = lone.drain(..lone.len().min(STEP)).collect();
            let mut most = Vec::with_capacity(destination.receivers.len());
            for name in &destination.receivers {
                let free = free.get_mut(name.as_str());
                let taken = free.as_ref().map_or(0, |free| step.len().min(**free));
                free.into_iter().for_each(|free| *free -= taken);
                most.push(taken);
            }
            let capacity = Capacity { most, until: capacity.until };
            let step = hand_out_step(engine, partition, step, destination.clone(), capacity, now);
            steps.push((engine.keys.slot(partition), step));
        }
    }
    let mut joined = JoinResult::default();
    for (handed_out, refused) in engine.topology.run_limited(steps).await? {
        joined.sealed += handed_out.sealed;
        joined.has_queued |= handed_out.has_queued;
        joined.deliveries.extend(handed_out.deliveries);
        // No other transition of this call is of their groups, so they may join last.
        rest.extend(refused);
    }
    Ok((joined, rest))
}

/// Silences by partition and destination.
type LoneSilences<'a> = BTreeMap<(u16, Arc<Destination>), Vec<ImmediateSilence<'a>>>;

/// The silences that may be sealed at once, and the other transitions. `free`: the deliveries that the caller takes.
fn lone<'a>(
    engine: &RedisEngine,
    joining: Vec<JoiningEvent<'a>>,
    destinations: &Destinations,
    free: &HashMap<&str, usize>,
    now: Timestamp,
) -> (LoneSilences<'a>, Vec<JoiningEvent<'a>>) {
    let (mut lone, mut rest) = (LoneSilences::new(), Vec::new());
    for joining in joining {
        let group = &joining.group.key;
        let destination = destinations.of(group);
        let is_free = |name: &String| free.get(name.as_str()).is_some_and(|free| *free > 0);
        let is_held = joining.held().is_some() || destinations.held_until(group, now).is_some();
        let is_lone = joining.is_alone && joining.member.form == MemberTransition::Offline && !is_held;
        if is_lone && destination.pace.is_at_once() && destination.receivers.iter().any(is_free) {
            let id = notification_id(group, &format!("o{}", joining.member.id));
            let target = (engine.keys.partition_of_group(group), destination);
            lone.entry(target).or_default().push(ImmediateSilence { joining, id });
        } else {
            rest.push(joining);
        }
    }
    (lone, rest)
}

async fn hand_out_step<'a>(
    engine: &RedisEngine,
    partition: u16,
    step: Vec<ImmediateSilence<'a>>,
    destination: Arc<Destination>,
    capacity: Capacity,
    now: Timestamp,
) -> Result<(JoinResult, Vec<JoiningEvent<'a>>)> {
    let Destination { receivers, pace, .. } = &*destination;
    let mut script = engine.scripts.hand_out.prepare_invoke();
    for name in ["groups", "members", "sealed"] {
        script.key(engine.keys.in_partition(partition, name));
    }
    for table in [Table::Notifications, Table::Owed] {
        script.key(engine.keys.cells(partition, table));
    }
    for receiver in receivers {
        script.key(engine.keys.index(partition, Index::Queue(ReceiverName::of(receiver))));
    }
    for receiver in receivers {
        script.key(engine.keys.cells(partition, Table::Lanes(ReceiverName::of(receiver))));
    }
    script.arg(now.as_millis()).arg(pace.interval.as_millis() as u64);
    script.arg(receivers.len()).arg(step.len()).arg(capacity.until.as_millis()).arg(&capacity.most);
    for lone in &step {
        script.arg(&lone.joining.group.key);
    }
    for lone in &step {
        script.arg(lone.joining.name());
    }
    let names = receivers.join(",");
    for lone in &step {
        script.arg(format!("t{}:{names}", lone.joining.member.detected_at.as_millis()));
    }
    for ImmediateSilence { id, .. } in &step {
        script.arg(id);
    }
    for ImmediateSilence { joining, .. } in &step {
        let OutboxEvent::Record(record) = joining.event else { continue };
        script.arg(to_json(&SingleSilence::new(joining.group, record, now))?);
    }
    let answers: Vec<u8> =
        engine.topology.run_alerting("hand_out", engine.keys.slot(partition), &script).await?;
    Ok(handed_out(step, answers, receivers, &capacity, now))
}

/// The deliveries that the caller gets, and the transitions that have to join their groups: those with the answer 0.
fn handed_out<'a>(
    step: Vec<ImmediateSilence<'a>>,
    answers: Vec<u8>,
    receivers: &[String],
    capacity: &Capacity,
    now: Timestamp,
) -> (JoinResult, Vec<JoiningEvent<'a>>) {
    let (mut joined, mut refused) = (JoinResult::default(), Vec::new());
    for (ImmediateSilence { joining, id }, answer) in step.into_iter().zip(answers) {
        if answer == 0 {
            refused.push(joining);
            continue;
        }
        let (index, OutboxEvent::Record(record)) = (joined.sealed, joining.event) else { continue };
        joined.sealed += 1;
        joined.has_queued |= capacity.most.iter().any(|most| index >= *most);
        for (receiver, _) in receivers.iter().zip(&capacity.most).filter(|(_, most)| index < **most) {
            joined.deliveries.push(Delivery {
                offline: vec![record.clone()],
                ..Delivery::new(format!("{id}.{receiver}"), receiver, joining.group.clone(), now)
            });
        }
    }
    (joined, refused)
}
