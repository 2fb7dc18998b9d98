//! Which incidents a notification tells of: a field of its JSON, written once.

use redis::pipe;

use super::RedisEngine;
use super::steps::{MAX_ATTEMPTS, Steps};
use crate::presence::Incident;
use crate::store::notification::with_incidents;
use crate::store::{Delivery, Result};

/// See [`GroupStore::judged`](crate::store::GroupStore::judged).
pub(super) async fn judged(
    engine: &RedisEngine,
    delivery: &Delivery,
    incidents: Option<&[Incident]>,
) -> Result<Option<Vec<Incident>>> {
    let (group, id) = (&delivery.group.key, delivery.notification());
    let partition = engine.keys.partition_of_group(group);
    let key = engine.keys.in_partition(partition, "notifications");
    for _ in 0..MAX_ATTEMPTS {
        let mut read = pipe();
        read.hget(&key, id);
        let (stored,): (Option<Vec<u8>>,) = engine.topology.send("judged", &read).await?;
        let Some(stored) = stored else { return Ok(None) };
        let (known, judged) = with_incidents(group, &stored, incidents)?;
        let Some(judged) = judged else { return Ok(known) };
        let mut steps = Steps::default();
        steps.begin().expect_field(&key, id.as_bytes(), Some(&stored));
        steps.write("HSET", &key, &[id.as_bytes(), judged.as_bytes()]);
        if engine.write_alerting_step("judged", partition, steps).await? {
            return Ok(known);
        }
    }
    Ok(None)
}
