//! Timers that are due, and their firing: see `fire_timers.lua`.

use std::collections::BTreeMap;

use super::RedisEngine;
use super::due_members::{due_members, few_first};
use super::steps::Steps;
use super::timer_lists::{ids, read_waiting, unexpected};
use crate::clock::Timestamp;
use crate::presence::{FiredTimer, Timer, TimerClass, TimerId, TimerLifecycle};
use crate::store::notification::Notification;
use crate::store::timer_text::{begin_of_fired, encode, fired_part};
use crate::store::timers::without_postponed;
use crate::store::{Delivery, Fired, Result, TimerCapacity, TimerClasses};

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
    let timers = |partition: u16| engine.keys.in_partition(partition, "timers");
    let names = ("due_timers", "due_timers");
    let share = |counts: &[usize]| few_first(counts, limit);
    let found = due_members(engine, names, timers, partitions, until, share).await?;
    let mut due: Vec<TimerId> = Vec::new();
    for (partition, members) in found {
        due.extend(ids(engine, partition, "timers", members).await?);
    }
    let stored = read_waiting(engine, &due).await?;
    let waits =
        |timer: &Option<Timer>| timer.as_ref().is_some_and(|one| one.lifecycle == TimerLifecycle::Waiting);
    let lost: Vec<&TimerId> =
        due.iter().zip(&stored).filter(|(_, timer)| !waits(timer)).map(|(id, _)| id).collect();
    engine.leave_index(&lost).await?;
    let is_due = |timer: &Timer| timer.lifecycle == TimerLifecycle::Waiting && timer.due <= until;
    let (due, postponed) = without_postponed(stored.into_iter().flatten().filter(is_due), engine.stepped());
    postpone(engine, &postponed).await?;
    Ok(due)
}

/// Gives timers that are still as they were read another moment.
async fn postpone(engine: &RedisEngine, timers: &[(Timer, Timer)]) -> Result<()> {
    let mut by_partition: BTreeMap<u16, Vec<&(Timer, Timer)>> = BTreeMap::new();
    for pair in timers {
        by_partition.entry(engine.timer_page(&pair.0.id).0).or_default().push(pair);
    }
    for (partition, timers) in by_partition {
        let index = engine.keys.in_partition(partition, "timers");
        for step in timers.chunks(PUT_OFF_STEP) {
            let mut steps = Steps::default();
            for (before, after) in step {
                let page = engine.timer_key(engine.timer_page(&before.id));
                let (id, due) = (before.id.as_str().as_bytes(), after.due.as_millis().to_string());
                steps.begin().expect_field(&page, id, Some(encode(before).as_ref()));
                steps.write("HSET", &page, &[id, encode(after).as_bytes()]);
                steps.write("ZADD", &index, &[b"XX", due.as_bytes(), id]);
            }
            engine.write_steps("postpone_timers", steps).await?;
        }
    }
    Ok(())
}

pub(super) async fn fire(
    engine: &RedisEngine,
    timers: &[Timer],
    classes: &TimerClasses,
    capacity: &TimerCapacity,
    now: Timestamp,
) -> Result<Fired> {
    let mut free = capacity.most.clone();
    let mut by_class: BTreeMap<(u16, &str), Vec<(u32, &Timer)>> = BTreeMap::new();
    for timer in timers.iter().filter(|timer| timer.due <= now) {
        let (partition, page) = engine.timer_page(&timer.id);
        by_class.entry((partition, timer.timer_type.as_str())).or_default().push((page, timer));
    }
    by_class.values_mut().for_each(|of_class| of_class.sort_by_key(|(page, _)| *page));
    let mut steps = Vec::new();
    for ((partition, _), of_class) in &by_class {
        let Some(class) = classes.get(&of_class[0].1.timer_type) else { continue };
        for step in of_class.chunks(STEP) {
            let most = take(&mut free, &class.receivers, step.len());
            let step = fire_step(engine, *partition, class, step, most, capacity.until, now);
            steps.push((engine.keys.slot(*partition), step));
        }
    }
    let mut fired = Fired::default();
    for step in engine.topology.run_limited(steps).await? {
        fired.timers.extend(step.timers);
        fired.has_queued |= step.has_queued;
        fired.deliveries.extend(step.deliveries);
    }
    // Before any receiver is notified: see `replication.rs`.
    engine.wait_for_replicas_of(&fired.deliveries).await;
    Ok(fired)
}

/// Takes up to `wanted` free slots for each of these receivers. Answers how many.
fn take(free: &mut BTreeMap<String, usize>, receivers: &[String], wanted: usize) -> Vec<usize> {
    let take = |name| {
        let free = free.get_mut(name)?;
        let taken = wanted.min(*free);
        *free -= taken;
        Some(taken)
    };
    receivers.iter().map(take).map(Option::unwrap_or_default).collect()
}

/// Fires timers of one class and partition, which come with their pages and in the order of these.
async fn fire_step(
    engine: &RedisEngine,
    partition: u16,
    class: &TimerClass,
    step: &[(u32, &Timer)],
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
    let pages: Vec<&[(u32, &Timer)]> = step.chunk_by(|a, b| a.0 == b.0).collect();
    for on_page in &pages {
        script.key(engine.timer_key((partition, on_page[0].0)));
    }
    script.arg(now.as_millis()).arg((now + class.keep).as_millis()).arg(class.timer_type.as_str());
    script.arg(receivers.len()).arg(step.len()).arg(until.as_millis()).arg(pages.len());
    script.arg(fired_part(class, now)).arg(begin_of_fired(class.guarantee)).arg(&most);
    script.arg(pages.iter().map(|on_page| on_page.len()).collect::<Vec<_>>());
    script.arg(step.iter().map(|(_, timer)| timer.id.as_str()).collect::<Vec<_>>());
    script.arg(step.iter().map(|(_, timer)| timer.due.as_millis()).collect::<Vec<_>>());
    script.arg(step.iter().map(|(_, timer)| encode(timer)).collect::<Vec<_>>());
    script.arg(step.iter().map(|(_, timer)| timer.firing()).collect::<Vec<_>>());
    let answers: Vec<String> =
        engine.topology.run_alerting("fire_timers", engine.keys.slot(partition), &script).await?;
    if answers.len() != step.len() {
        return Err(unexpected("fire_timers", answers));
    }
    let mut fired = Fired::default();
    for ((_, timer), answer) in step.iter().zip(answers).filter(|(_, answer)| !answer.is_empty()) {
        for (receiver, letter) in receivers.iter().zip(answer.chars()) {
            match letter {
                'l' => fired.deliveries.push(delivery(timer, class, receiver, now)),
                _ => fired.has_queued = true,
            }
        }
        fired.timers.push((*timer).clone().fired(class, now));
    }
    Ok(fired)
}

/// The first attempt to deliver a timer to a receiver.
fn delivery(timer: &Timer, class: &TimerClass, receiver: &str, now: Timestamp) -> Delivery {
    let notification = Notification::of_timer(FiredTimer::new(timer, class, now));
    notification.delivery(format!("{}.{receiver}", timer.firing()), receiver, 1)
}

pub(super) async fn put_off(engine: &RedisEngine, timers: &[Timer], until: Timestamp) -> Result<()> {
    let until = until.as_millis().to_string();
    let mut by_partition: BTreeMap<u16, Vec<&Timer>> = BTreeMap::new();
    for timer in timers {
        by_partition.entry(engine.timer_page(&timer.id).0).or_default().push(timer);
    }
    for (partition, timers) in by_partition {
        for step in timers.chunks(PUT_OFF_STEP) {
            let (waiting, mut steps) = (engine.keys.in_partition(partition, "timers"), Steps::default());
            for timer in step {
                let (page, id) =
                    (engine.timer_key(engine.timer_page(&timer.id)), timer.id.as_str().as_bytes());
                steps.begin().expect_field(&page, id, Some(encode(timer).as_ref()));
                steps.write("ZADD", &waiting, &[b"XX", until.as_bytes(), id]);
            }
            engine.write_steps("put_off_timers", steps).await?;
        }
    }
    Ok(())
}
