//! Timers that are due, and their firing: see `fire_timers.lua`.

use std::collections::BTreeMap;

use redis::pipe;

use super::RedisEngine;
use super::timer_lists::{ids, read, unexpected};
use crate::clock::Timestamp;
use crate::presence::{FiredTimer, Timer, TimerClass, TimerId, TimerStanding};
use crate::store::json::to_json;
use crate::store::notification::FiredNotification;
use crate::store::timer_text::encode;
use crate::store::{Delivery, Fired, Group, Result, TimerCapacity, TimerClasses, group_of_timer};

/// How many timers one script fires: about half a millisecond, because Redis serves no other command meanwhile.
const STEP: usize = 64;
/// How many timers one script puts off.
const PUT_OFF_STEP: usize = 200;

pub(super) async fn due(
    engine: &RedisEngine,
    partitions: &[u16],
    until: Timestamp,
    limit: usize,
) -> Result<Vec<Timer>> {
    if partitions.is_empty() || limit == 0 {
        return Ok(Vec::new());
    }
    // A fair share of each, so that a storm in one partition delays no other.
    let share = limit.div_ceil(partitions.len()).max(1);
    let mut index = pipe();
    for partition in partitions {
        let timers = engine.keys.in_partition(*partition, "timers");
        index.zrangebyscore_limit(timers, "-inf", until.as_millis(), 0, share as isize);
    }
    let members: Vec<Vec<Vec<u8>>> = engine.topology.send("due_timers", &index).await?;
    let mut due: Vec<TimerId> = Vec::new();
    for (&partition, members) in partitions.iter().zip(members) {
        due.extend(ids(engine, partition, "timers", members).await?);
    }
    let stored = read(engine, &due).await?;
    let waits =
        |timer: &Option<Timer>| timer.as_ref().is_some_and(|one| one.standing == TimerStanding::Waiting);
    let lost: Vec<&TimerId> =
        due.iter().zip(&stored).filter(|(_, timer)| !waits(timer)).map(|(id, _)| id).collect();
    engine.leave_index(&lost).await?;
    let is_due = |timer: &Timer| timer.standing == TimerStanding::Waiting && timer.due <= until;
    Ok(stored.into_iter().flatten().filter(is_due).collect())
}

pub(super) async fn fire(
    engine: &RedisEngine,
    timers: &[Timer],
    classes: &TimerClasses,
    capacity: &TimerCapacity,
    now: Timestamp,
) -> Result<Fired> {
    let mut free = capacity.most.clone();
    let mut by_class: BTreeMap<(u16, &str), Vec<&Timer>> = BTreeMap::new();
    for timer in timers.iter().filter(|timer| timer.due <= now) {
        let partition = engine.timer_page(&timer.id).0;
        by_class.entry((partition, timer.timer_type.as_str())).or_default().push(timer);
    }
    let mut steps = Vec::new();
    for ((partition, _), of_class) in &by_class {
        let Some(class) = classes.get(&of_class[0].timer_type) else { continue };
        for step in of_class.chunks(STEP) {
            let most: Vec<usize> = class
                .receivers
                .iter()
                .map(|name| {
                    let free = free.get_mut(name);
                    let taken = free.as_deref().map_or(0, |free| step.len().min(*free));
                    free.into_iter().for_each(|free| *free -= taken);
                    taken
                })
                .collect();
            let step = fire_step(engine, *partition, class, step, most, capacity.until, now);
            steps.push((engine.keys.slot(*partition), step));
        }
    }
    let mut fired = Fired::default();
    for step in engine.topology.few_at_once(steps).await? {
        fired.timers.extend(step.timers);
        fired.has_queued |= step.has_queued;
        fired.deliveries.extend(step.deliveries);
    }
    // Before any receiver is notified: see `replication.rs`.
    engine.wait_for_replicas_of(&fired.deliveries).await;
    Ok(fired)
}

/// Fires timers of one class and partition.
///
/// In one piece: its arguments and answers are those of the script.
async fn fire_step(
    engine: &RedisEngine,
    partition: u16,
    class: &TimerClass,
    step: &[&Timer],
    most: Vec<usize>,
    until: Timestamp,
    now: Timestamp,
) -> Result<Fired> {
    let receivers = &class.receivers;
    let mut script = engine.scripts.fire_timers.prepare_invoke();
    engine.add_timer_keys(&mut script, partition);
    for name in ["notifications", "owed"] {
        script.key(engine.keys.in_partition(partition, name));
    }
    for name in ["queue", "lanes"] {
        for receiver in receivers {
            script.key(engine.keys.of(partition, name, receiver));
        }
    }
    script.arg(now.as_millis()).arg((now + class.keep).as_millis()).arg(class.timer_type.as_str());
    script.arg(receivers.len()).arg(step.len()).arg(until.as_millis()).arg(&most);
    let mut pages: Vec<u32> = Vec::new();
    let mut after = Vec::with_capacity(step.len());
    for timer in step {
        let (_, page) = engine.timer_page(&timer.id);
        let number = pages.iter().position(|known| *known == page).unwrap_or_else(|| {
            pages.push(page);
            pages.len() - 1
        });
        let fired = (*timer).clone().fired(class, now);
        let body = to_json(&FiredNotification::new(vec![FiredTimer::new(timer, class, now)]))?;
        script.arg(number + 1).arg(timer.id.as_str()).arg(timer.due.as_millis());
        script.arg(encode(timer)).arg(encode(&fired)).arg(timer.firing()).arg(body);
        after.push(fired);
    }
    for page in &pages {
        script.key(engine.timer_key((partition, *page)));
    }
    let answers: Vec<String> =
        engine.topology.run_alerting("fire_timers", engine.keys.slot(partition), &script).await?;
    if answers.len() != step.len() {
        return Err(unexpected("fire_timers", answers));
    }
    let mut fired = Fired::default();
    for (timer, answer) in after.into_iter().zip(answers).filter(|(_, answer)| !answer.is_empty()) {
        for (receiver, letter) in receivers.iter().zip(answer.chars()) {
            match letter {
                'l' => fired.deliveries.push(delivery(&timer, class, receiver, now)),
                _ => fired.has_queued = true,
            }
        }
        fired.timers.push(timer);
    }
    Ok(fired)
}

/// The first attempt to deliver a timer to a receiver.
fn delivery(timer: &Timer, class: &TimerClass, receiver: &str, now: Timestamp) -> Delivery {
    let mut notification = FiredNotification::new(vec![FiredTimer::new(timer, class, now)]).notification();
    notification.group = Group { key: group_of_timer(&timer.id), ..notification.group };
    notification.delivery(format!("{}.{receiver}", timer.firing()), receiver, 1)
}

pub(super) async fn put_off(engine: &RedisEngine, timers: &[Timer], until: Timestamp) -> Result<()> {
    let mut by_partition: BTreeMap<u16, Vec<&Timer>> = BTreeMap::new();
    for timer in timers {
        by_partition.entry(engine.timer_page(&timer.id).0).or_default().push(timer);
    }
    for (partition, timers) in by_partition {
        for step in timers.chunks(PUT_OFF_STEP) {
            let mut script = engine.scripts.put_off_timers.prepare_invoke();
            script.key(engine.keys.in_partition(partition, "timers")).arg(until.as_millis());
            for timer in step {
                script.key(engine.timer_key(engine.timer_page(&timer.id)));
                script.arg(timer.id.as_str()).arg(encode(timer));
            }
            engine.topology.run::<usize>("put_off_timers", &script).await?;
        }
    }
    Ok(())
}
