//! The members of groups: which silences wait for a notification, which receivers were notified of them, and which
//! silences last.

use redis::pipe;

use super::member_text::MemberText;
use super::steps::{KeySteps, MAX_ATTEMPTS};
use super::{RedisEngine, group_of};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId, Stage};
use crate::store::member_names::{names_of, of_member};
use crate::store::receiver_list::with;
use crate::store::{EngineError, Group, Membership, NotifiedSilence, Result};

/// See [`GroupStore::memberships`](crate::store::GroupStore::memberships).
pub(super) async fn memberships(
    engine: &RedisEngine,
    records: &[&OfflineRecord],
) -> Result<Vec<Vec<Membership>>> {
    let groups = group_of::of_records(engine, records).await?;
    let mut read = pipe();
    for (record, groups) in records.iter().zip(&groups) {
        for group in groups {
            let partition = engine.keys.partition_of_group(&group.key);
            let fields = names_of(record).map(|name| format!("{}\n{name}", group.key));
            read.cmd("HMGET").arg(engine.keys.in_partition(partition, "members")).arg(&fields);
        }
    }
    let values: Vec<Vec<Option<Vec<u8>>>> = engine.topology.send("members", &read).await?;
    let mut values = values.into_iter();
    let memberships = groups.into_iter().map(|groups| {
        let members = groups.into_iter().zip(&mut values).flat_map(|(group, values)| {
            let values = values.into_iter().flatten();
            values.filter_map(move |value| read_member(&group, &value)).collect::<Vec<_>>()
        });
        members.collect()
    });
    Ok(memberships.collect())
}

/// A stored member: its record follows after a space, see `join.lua`.
fn read_member(group: &Group, stored: &[u8]) -> Option<Membership> {
    let head = stored.split(|byte| *byte == b' ').next()?;
    Membership::read(group.clone(), str::from_utf8(head).ok()?)
}

/// See [`GroupStore::lasting`](crate::store::GroupStore::lasting).
pub(super) async fn lasting(
    engine: &RedisEngine,
    group: &str,
    from: Timestamp,
    before: Option<Timestamp>,
) -> Result<Vec<RecordId>> {
    let partition = engine.keys.partition_of_group(group);
    let mut read = pipe();
    let until = before.map_or("+inf".to_owned(), |before| format!("({}", before.as_millis()));
    read.zrangebyscore(engine.keys.of(partition, "lasting", group), from.as_millis(), until);
    let (names,): (Vec<Vec<u8>>,) = engine.topology.send("lasting", &read).await?;
    let names = names.iter().filter_map(|name| str::from_utf8(name).ok());
    Ok(names.filter_map(|name| Some(of_member(name)?.1)).collect())
}

/// How many members of groups one script changes.
const MEMBERS: usize = 500;

/// See [`GroupStore::add_receiver`](crate::store::GroupStore::add_receiver).
pub(super) async fn add_receiver(
    engine: &RedisEngine,
    partition: u16,
    to: &str,
    silences: &[NotifiedSilence],
) -> Result<()> {
    // A silence that was detected again is a member of its own.
    let names = |NotifiedSilence { group, member, detected_at }: &NotifiedSilence| {
        let (name, detected) = (format!("{group}\n{member}"), detected_at.as_millis());
        [(format!("{name} {detected}"), *detected_at), (name, *detected_at)]
    };
    let all: Vec<(String, Timestamp)> = silences.iter().flat_map(names).collect();
    let members = engine.keys.in_partition(partition, "members");
    for names in all.chunks(MEMBERS) {
        let mut attempts = 0;
        while !try_to_add(engine, partition, to, &members, names).await? {
            attempts += 1;
            if attempts == MAX_ATTEMPTS {
                let why = format!("others change the silences that {to} is to know of all the time");
                return Err(EngineError::Unavailable(why));
            }
        }
    }
    Ok(())
}

/// The same for some members: their names, and when their silences were detected. Answers whether none has changed
/// meanwhile.
async fn try_to_add(
    engine: &RedisEngine,
    partition: u16,
    to: &str,
    members: &str,
    names: &[(String, Timestamp)],
) -> Result<bool> {
    let mut read = pipe();
    read.cmd("HMGET").arg(members).arg(names.iter().map(|(name, _)| name).collect::<Vec<_>>());
    let (known,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("fall_back", &read).await?;
    let mut steps = KeySteps::default();
    for ((name, detected), known) in names.iter().zip(&known) {
        if let Some(text) = known.as_ref().and_then(|known| with_receiver(known, *detected, to)) {
            steps.begin().expect_field(members, name.as_bytes(), known.as_deref());
            steps.write("HSET", members, &[name.as_bytes(), text.as_bytes()]);
        }
    }
    engine.write_alerting_step("fall_back", partition, steps).await
}

/// A stored member with one receiver more, unless it knows the receiver, is another silence, or waits for no return.
fn with_receiver(member: &[u8], detected: Timestamp, receiver: &str) -> Option<String> {
    let known = MemberText::read(member)?;
    let is_open = matches!(known.stage, Stage::Notified | Stage::IsBack);
    let is_same = known.detected == detected.as_millis().to_string();
    let receivers = with(known.receivers, receiver).filter(|_| is_open && is_same)?;
    Some(MemberText { receivers: &receivers, ..known }.to_string())
}
