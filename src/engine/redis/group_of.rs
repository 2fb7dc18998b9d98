//! The group in which the news of a record is told: the one that its first news joined.
//!
//! # Why that is kept
//! Groups are made from the configuration and from labels, and either may change while a unit is offline. Its
//! return would fall into another group, which was never told of the silence. So the record keeps its group, and
//! what was told stays where it is looked for. News of one record is told in order with that, too: the return
//! stands behind its silence in the same lane.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use redis::pipe;

use super::RedisEngine;
use super::topology::few_at_once;
use crate::engine::json::{from_json, to_json};
use crate::engine::notification::{Member, of_member};
use crate::engine::{Group, Join, News, Result};

/// How many records are asked for in one script: within a quarter of a millisecond or so.
const STEP: usize = 64;

/// The same transitions, each in the group of its record.
pub(super) async fn settled<'a>(engine: &RedisEngine, joins: &'a [Join]) -> Result<Cow<'a, [Join]>> {
    // Of several transitions of one record the first decides.
    let mut first: HashMap<String, usize> = HashMap::with_capacity(joins.len());
    let mut partitions: BTreeMap<u16, Vec<(String, usize)>> = BTreeMap::new();
    let mut later = Vec::new();
    for (place, join) in joins.iter().enumerate() {
        let News::Record(record) = &join.news else { continue };
        let member = Member::new(&join.news).id;
        match first.get(&member) {
            Some(first) => later.push((place, *first)),
            None => {
                first.insert(member.clone(), place);
                let partition = engine.keys.partition(record.whose());
                partitions.entry(partition).or_default().push((member, place));
            }
        }
    }
    let steps = partitions.iter().flat_map(|(partition, members)| {
        members.chunks(STEP).map(|step| ask(engine, *partition, step, joins))
    });
    let others: HashMap<usize, Group> = few_at_once(steps.collect()).await?.into_iter().flatten().collect();
    if others.is_empty() && later.iter().all(|(place, first)| joins[*place].group == joins[*first].group) {
        return Ok(Cow::Borrowed(joins));
    }
    let mut settled = joins.to_vec();
    others.into_iter().for_each(|(place, group)| settled[place].group = group);
    later.into_iter().for_each(|(place, first)| settled[place].group = settled[first].group.clone());
    Ok(Cow::Owned(settled))
}

/// Answers the groups of those that have joined another than they would now.
async fn ask(
    engine: &RedisEngine,
    partition: u16,
    members: &[(String, usize)],
    joins: &[Join],
) -> Result<Vec<(usize, Group)>> {
    let mut script = engine.scripts.group_of.prepare_invoke();
    script.key(engine.keys.in_partition(partition, "group_of")).arg(members.len());
    for (member, _) in members {
        script.arg(member);
    }
    for (_, place) in members {
        script.arg(to_json(&joins[*place].group)?);
    }
    let answers: Vec<String> = engine.topology.tell("group_of", &script).await?;
    let others = members.iter().zip(answers).filter(|(_, answer)| !answer.is_empty());
    // One that cannot be read is somebody else's: the group that it would join now serves as well.
    Ok(others.filter_map(|((_, place), json)| Some((*place, from_json("a group", &json).ok()?))).collect())
}

/// Forgets the groups of members of groups that are over for good.
pub(super) async fn forget(engine: &RedisEngine, members: impl Iterator<Item = &str>) -> Result<()> {
    let mut pipe = pipe();
    for (member, id) in members.filter_map(of_member) {
        let partition = engine.keys.partition(&id.unit);
        pipe.hdel(engine.keys.in_partition(partition, "group_of"), member).ignore();
    }
    engine.topology.send("forget_groups", &pipe).await
}
