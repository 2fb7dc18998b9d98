//! Pagers are told that an operator takes care of a silence.
//!
//! The step that acknowledges a record writes it into the outbox once more. Its entry joins no group that it has not joined
//! before; here it becomes a notification of its own for each pager on its routes, behind those of its group. Queued again
//! after a crash, it has the same id.

use std::collections::HashSet;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use super::group::group_in;
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::routing::Routes;
use crate::store::{AlertStore, Delivery, Entry, OutboxEvent, Result};

/// The acknowledged records among these entries.
pub(super) fn acknowledged(entries: &[Entry]) -> Vec<OfflineRecord> {
    let record = |entry: &Entry| match &entry.event {
        OutboxEvent::Record(record) if record.closed_by.is_none() && record.is_acknowledged() => {
            Some(record.clone())
        }
        _ => None,
    };
    entries.iter().filter_map(record).collect()
}

/// Queues the acknowledgement of a record for the pagers that are notified of it. Answers whether there are any. Safe
/// to repeat.
pub(super) async fn queue(
    engine: &dyn AlertStore,
    routes: &Routes,
    pagers: &HashSet<String>,
    record: &OfflineRecord,
    now: Timestamp,
) -> Result<bool> {
    let Some(acknowledgement) = &record.acknowledged else { return Ok(false) };
    let mut any = false;
    for taken in routes.of(record) {
        let group = group_in(taken, record);
        let text = format!("{} {} {}", group.key, record.id, acknowledgement.at.as_millis());
        let id = HEXLOWER.encode(&digest(&SHA256, text.as_bytes()).as_ref()[..12]);
        for receiver in taken.route.receivers.iter().filter(|name| pagers.contains(*name)) {
            let delivery = Delivery {
                id: format!("ack_{id}.{receiver}"),
                receiver: receiver.clone(),
                group: group.clone(),
                sealed_at: acknowledgement.at,
                offline: vec![record.clone()],
                online: Vec::new(),
                blind: Vec::new(),
                timers: Vec::new(),
                reminder: false,
                situation: Default::default(),
                meant_for: None,
                attempt: 0,
            };
            engine.replay(&delivery, now).await?;
            any = true;
        }
    }
    Ok(any)
}
