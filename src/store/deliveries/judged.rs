//! Which incidents a notification tells of: a field of it, written once.

use super::StoredDeliveries;
use crate::presence::Incident;
use crate::store::notification::with_incidents;
use crate::store::{Cell, ChangeSet, Delivery, EngineError, MAX_CHANGES, Result, Table};

impl StoredDeliveries {
    /// The incidents that a notification tells of, as they were judged, so that every attempt and every receiver is told
    /// the same; `None`: it was not judged, or is gone. With `incidents`, a notification that was not judged tells of
    /// these from now on.
    pub async fn judged(
        &self,
        delivery: &Delivery,
        incidents: Option<&[Incident]>,
    ) -> Result<Option<Vec<Incident>>> {
        let (partition, id) = (self.partition(delivery), delivery.notification());
        let cell = Cell { table: Table::Notifications, partition, name: id.to_owned() };
        for _ in 0..MAX_CHANGES {
            let Some(stored) = self.engine.read_cells(std::slice::from_ref(&cell)).await?.pop().flatten()
            else {
                return Ok(None);
            };
            let (known, judged) = with_incidents(&delivery.group.key, &stored, incidents)?;
            let Some(judged) = judged else { return Ok(known) };
            let set = ChangeSet::of(partition).has(Table::Notifications, id, Some(&stored));
            let set = set.put(Table::Notifications, id, Some(judged.as_bytes()));
            if self.documents.write(&[set]).await? == [true] {
                return Ok(known);
            }
        }
        Err(EngineError::contended(format_args!("the notification {id}")))
    }
}
