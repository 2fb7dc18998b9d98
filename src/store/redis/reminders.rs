//! Groups that are looked at again while their silences last: see `presence/reminding.rs`.

use std::collections::BTreeSet;

use redis::pipe;

use super::reading::snapshot;
use super::steps::KeySteps;
use super::{RedisEngine, group_of};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId, Stage};
use crate::store::notification::MAX_REMINDED;
use crate::store::reminding::{OngoingMember, Reminding, RepeatNotification};
use crate::store::{Destinations, Index, ReceiverName, Result, Table};

/// How many groups of a partition one call looks at.
const GROUPS: isize = 50;

/// See [`GroupStore::remind`](crate::store::GroupStore::remind).
pub(super) async fn remind(
    engine: &RedisEngine,
    partitions: &[u16],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<usize> {
    let mut pipe = pipe();
    for partition in partitions {
        let key = engine.keys.in_partition(*partition, "reminders");
        pipe.zrangebyscore_limit_withscores(key, "-inf", now.as_millis(), 0, GROUPS);
    }
    let due: Vec<Vec<(Vec<u8>, f64)>> = engine.topology.send("reminders", &pipe).await?;
    let mut notified = 0;
    for (partition, groups) in partitions.iter().zip(due) {
        for (group, due) in groups {
            let due = Timestamp::from_millis(due as i64);
            notified += match String::from_utf8(group) {
                Ok(group) => look(engine, *partition, &group, destinations, (due, now)).await?,
                Err(error) => set_next(engine, *partition, error.as_bytes(), None).await?,
            };
        }
    }
    Ok(notified)
}

/// Looks at one group. Answers how many notifications were sealed.
async fn look(
    engine: &RedisEngine,
    partition: u16,
    group: &str,
    destinations: &Destinations,
    (due, now): (Timestamp, Timestamp),
) -> Result<usize> {
    let destination = destinations.of(group);
    if let Some(until) = destinations.held_until(group, now) {
        return set_next(engine, partition, group.as_bytes(), Some(until)).await;
    }
    if destination.again.first().is_none() {
        return set_next(engine, partition, group.as_bytes(), None).await;
    }
    let is_quiet = |record: &OfflineRecord| destinations.is_quiet(record, now);
    let idle = match destination.again.repeat {
        Some(_) => idle(engine, partition, group, &destination.notified_again()).await?,
        None => Vec::new(),
    };
    let (mut begin, mut first, mut next, mut notified) = (0, None, None, 0);
    let mut members = lasting(engine, partition, group, begin).await?;
    loop {
        begin += members.len();
        let following = lasting(engine, partition, group, begin).await?;
        let mut found = Reminding::default();
        if let Some(one) = members.first() {
            let first = *first.get_or_insert(one.notified_at);
            let of_group = group_of::of_member_in(engine, group, &one.name).await?;
            found = Reminding::new(&of_group, (&destination, &idle), &members, &is_quiet, (first, due), now)?;
        }
        next = next.into_iter().chain(found.next).min();
        let newest = members.last().map(|member| member.notified_at);
        let ends = following.is_empty().then_some(Ends { next, count: begin, newest });
        if ends.is_some() || !found.notifications.is_empty() {
            let page = MemberPage { group, members: &members, found: &found, ends };
            if !write(engine, partition, page, (due, now)).await? {
                // The silences changed, or another instance was faster. The next call tries again.
                return Ok(notified);
            }
            notified += found.notifications.len();
        }
        if following.is_empty() {
            return Ok(notified);
        }
        members = following;
    }
}

/// Those of the receivers for which no notification of the group waits.
async fn idle(
    engine: &RedisEngine,
    partition: u16,
    group: &str,
    receivers: &[&String],
) -> Result<Vec<String>> {
    if receivers.is_empty() {
        return Ok(Vec::new());
    }
    let mut read = pipe();
    for receiver in receivers {
        read.hexists(engine.keys.cells(partition, Table::Lanes(ReceiverName::of(receiver))), group);
    }
    let waits: Vec<bool> = engine.topology.send("lanes", &read).await?;
    let idle = receivers.iter().zip(waits).filter(|(_, waits)| !waits);
    Ok(idle.map(|(receiver, _)| (*receiver).clone()).collect())
}

/// Members of a group that are looked at together.
struct MemberPage<'a> {
    group: &'a str,
    members: &'a [OngoingMember],
    found: &'a Reminding,
    /// `None`: more members follow.
    ends: Option<Ends>,
}

/// The end of a look.
struct Ends {
    /// The next look.
    next: Option<Timestamp>,
    /// How many members there were, and when receivers were notified of the newest.
    count: usize,
    newest: Option<Timestamp>,
}

/// Members of a group whose silences last, by when receivers were notified, after the first `begin`.
async fn lasting(
    engine: &RedisEngine,
    partition: u16,
    group: &str,
    begin: usize,
) -> Result<Vec<OngoingMember>> {
    let mut read = pipe();
    let key = engine.keys.of(partition, "lasting", group);
    read.zrange_withscores(&key, begin as isize, (begin + MAX_REMINDED) as isize - 1);
    let (found,): (Vec<(Vec<u8>, f64)>,) = engine.topology.send("lasting", &read).await?;
    let named = found.into_iter().map(|(name, at)| (String::from_utf8_lossy(&name).into_owned(), at));
    let named: Vec<(String, f64)> = named.collect();
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let fields: Vec<String> = named.iter().map(|(name, _)| format!("{group}\n{name}")).collect();
    let mut values = pipe();
    values.cmd("HMGET").arg(engine.keys.in_partition(partition, "members")).arg(&fields);
    let (values,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("members", &values).await?;
    let (mut members, mut over) = (Vec::new(), Vec::new());
    for ((name, at), value) in named.into_iter().zip(values) {
        let value = value.map(|value| String::from_utf8_lossy(&value).into_owned()).unwrap_or_default();
        let (head, body) = value.split_once(' ').unzip();
        let head = head.unwrap_or(&value);
        if head.starts_with(Stage::Notified.letter()) {
            let (at, body) = (Timestamp::from_millis(at as i64), body.map(str::to_owned));
            members.push(OngoingMember::new(name, at, head, body));
        } else {
            over.push(name);
        }
    }
    // Their returns joined while no route of the group reminded.
    if !over.is_empty() {
        let mut remove = pipe();
        remove.zrem(&key, over).ignore();
        engine.topology.send::<()>("lasting", &remove).await?;
    }
    complete(engine, &mut members).await?;
    Ok(members)
}

/// Notes which of these records an operator takes care of, and adds those that are not kept with their members: no route
/// reminded of them when receivers were notified.
async fn complete(engine: &RedisEngine, members: &mut [OngoingMember]) -> Result<()> {
    let records = members.iter_mut().filter_map(|member| Some((member.id()?, member)));
    let records: Vec<(RecordId, &mut OngoingMember)> = records.collect();
    if records.is_empty() {
        return Ok(());
    }
    let mut read = pipe();
    for (id, _) in &records {
        let (partition, page) = engine.keys.page_id(&id.unit);
        read.hget(engine.keys.facts_page(partition, page), id.unit.to_string());
    }
    let facts: Vec<Option<Vec<u8>>> = engine.topology.send("acknowledged", &read).await?;
    for ((id, member), facts) in records.into_iter().zip(facts) {
        let (seen, _) = snapshot(id.unit.clone(), None, facts);
        let open = seen.facts.as_ref().and_then(|facts| facts.open_record(&seen.unit));
        member.complete(open.filter(|open| open.id == id))?;
    }
    Ok(())
}

/// Seals the notifications of a look, and sets the next one. Answers `false` if nothing was changed, because the
/// silences of the group are others by now or it was looked at since.
async fn write(
    engine: &RedisEngine,
    partition: u16,
    page: MemberPage<'_>,
    (due, now): (Timestamp, Timestamp),
) -> Result<bool> {
    let MemberPage { group, members, found, ends } = &page;
    let [reminders, stored] = ["reminders", "members"].map(|name| engine.keys.in_partition(partition, name));
    let lasting = engine.keys.of(partition, "lasting", group);
    let mut steps = KeySteps::default();
    steps.begin().expect_score(&reminders, group.as_bytes(), due.as_millis() as f64);
    for OngoingMember { name, notified_at, .. } in *members {
        steps.expect_score(&lasting, name.as_bytes(), notified_at.as_millis() as f64);
    }
    for (at, receivers) in &found.receivers {
        let OngoingMember { name, head, body, .. } = &members[*at];
        let value = format!("{head}{receivers} {}", body.as_deref().unwrap_or_default());
        steps.write("HSET", &stored, &[format!("{group}\n{name}").as_bytes(), value.as_bytes()]);
    }
    queue(engine, partition, group, &found.notifications, &mut steps, now).await?;
    if let Some(Ends { next, count, newest }) = ends {
        // A silence that was notified since would not be looked at before the next moment.
        steps.expect_count(&lasting, *count, newest.map(Timestamp::as_millis));
        match next.map(|next| next.as_millis().to_string()) {
            Some(next) => steps.write("ZADD", &reminders, &[next.as_bytes(), group.as_bytes()]),
            None => steps.write("ZREM", &reminders, &[group.as_bytes()]),
        };
    }
    engine.write_alerting_step("remind", partition, steps).await
}

/// Adds notifications of a group to the lanes of their receivers.
async fn queue(
    engine: &RedisEngine,
    partition: u16,
    group: &str,
    notifications: &[RepeatNotification],
    steps: &mut KeySteps,
    now: Timestamp,
) -> Result<()> {
    let receivers: BTreeSet<&String> = notifications.iter().flat_map(|one| &one.receivers).collect();
    if receivers.is_empty() {
        return Ok(());
    }
    let mut read = pipe();
    for receiver in &receivers {
        read.hget(engine.keys.cells(partition, Table::Lanes(ReceiverName::of(receiver))), group);
    }
    let lanes: Vec<Option<Vec<u8>>> = engine.topology.send("lanes", &read).await?;
    for (receiver, before) in receivers.into_iter().zip(lanes) {
        let of = ReceiverName::of(receiver);
        let key = engine.keys.cells(partition, Table::Lanes(of));
        let own = notifications.iter().filter(|one| one.receivers.contains(receiver));
        let lane = own.fold(before.clone().unwrap_or_else(|| b"0".to_vec()), |lane, one| {
            [&lane[..], b" ", one.id.as_bytes()].concat()
        });
        steps.expect_field(&key, group.as_bytes(), before.as_deref());
        steps.write("HSET", &key, &[group.as_bytes(), &lane]);
        if before.is_none() {
            let (queue, now) = (engine.keys.index(partition, Index::Queue(of)), now.as_millis().to_string());
            steps.write("ZADD", &queue, &[b"NX", now.as_bytes(), group.as_bytes()]);
        }
    }
    let [bodies, owed] = [Table::Notifications, Table::Owed].map(|table| engine.keys.cells(partition, table));
    for RepeatNotification { id, body, receivers } in notifications {
        steps.write("HSET", &bodies, &[id.as_bytes(), body.as_bytes()]);
        if receivers.len() > 1 {
            steps.write("HSET", &owed, &[id.as_bytes(), receivers.len().to_string().as_bytes()]);
        }
    }
    Ok(())
}

/// Sets the next look at a group, or removes it.
async fn set_next(
    engine: &RedisEngine,
    partition: u16,
    group: &[u8],
    next: Option<Timestamp>,
) -> Result<usize> {
    let key = engine.keys.in_partition(partition, "reminders");
    let mut set = pipe();
    match next {
        Some(next) => set.cmd("ZADD").arg(key).arg("XX").arg(next.as_millis()).arg(group).ignore(),
        None => set.zrem(key, group).ignore(),
    };
    engine.topology.send("reminders", &set).await.map(|()| 0)
}

/// When the next group of these partitions is looked at.
pub(super) async fn first(engine: &RedisEngine, partitions: &[u16]) -> Result<Option<Timestamp>> {
    let keys = partitions.iter().map(|p| engine.keys.in_partition(*p, "reminders"));
    super::units::first_score(engine, "first_reminder", keys).await
}
