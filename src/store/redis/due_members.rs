//! Due members of sorted sets with one set for each partition, taken from as few partitions as possible, because a
//! script works on one partition.

use redis::pipe;

use super::RedisEngine;
use crate::store::Result;

/// Up to `limit` due members, by partition.
pub(super) async fn due_members(
    engine: &RedisEngine,
    key: impl Fn(u16) -> String,
    partitions: &[u16],
    until: i64,
    limit: usize,
) -> Result<Vec<(u16, Vec<(Vec<u8>, f64)>)>> {
    let mut counts = pipe();
    for partition in partitions {
        counts.zcount(key(*partition), "-inf", until);
    }
    let counts: Vec<usize> = engine.topology.send("due_entries", &counts).await?;
    let (mut chosen, mut members) = (Vec::new(), pipe());
    for (&partition, share) in
        partitions.iter().zip(few_first(&counts, limit)).filter(|(_, share)| *share > 0)
    {
        chosen.push(partition);
        members.zrangebyscore_limit_withscores(key(partition), "-inf", until, 0, share as isize);
    }
    let members: Vec<Vec<(Vec<u8>, f64)>> = engine.topology.send("due_entries", &members).await?;
    Ok(chosen.into_iter().zip(members).collect())
}

/// Takes partitions one after the other, up to `limit` members in all.
fn in_order(counts: &[usize], limit: usize) -> Vec<usize> {
    let mut left = limit;
    let mut take = |count: &usize| {
        let share = left.min(*count);
        left -= share;
        share
    };
    counts.iter().map(&mut take).collect()
}

/// Takes all members of each partition that has few, so that a storm in others does not delay them, and then members
/// of the others in order.
fn few_first(counts: &[usize], limit: usize) -> Vec<usize> {
    let fair = limit.div_ceil(counts.len().max(1));
    let few = |count: &usize| if *count <= fair { *count } else { 0 };
    let few: Vec<usize> = counts.iter().map(few).collect();
    let many: Vec<usize> = counts.iter().zip(&few).map(|(count, few)| count - few).collect();
    let many = in_order(&many, limit.saturating_sub(few.iter().sum()));
    few.into_iter().zip(many).map(|(few, many)| few + many).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_taken_partition_by_partition_and_delays_no_partition_with_few() {
        let cases: [(&[usize], usize, &[usize]); 5] = [
            (&[10, 20], 100, &[10, 20]),
            (&[5000, 3, 5000], 999, &[996, 3, 0]),
            (&[0, 5000, 3, 400], 1000, &[0, 997, 3, 0]),
            (&[100, 300, 600], 1000, &[100, 300, 600]),
            (&[1, 1, 1], 2, &[1, 1, 1]),
        ];
        for (counts, limit, expected) in cases {
            assert_eq!(few_first(counts, limit), expected, "{counts:?} {limit}");
        }
    }
}
