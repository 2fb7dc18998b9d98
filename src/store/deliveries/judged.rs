//! The incidents of which a notification tells: a field of the notification, written once.

use super::StoredDeliveries;
use crate::presence::Incident;
use crate::store::notification::with_incidents;
use crate::store::{Cell, ChangeSet, Delivery, EngineError, MAX_CHANGES, Result, Table};

impl StoredDeliveries {
    /// The incidents of which a notification tells, stored so that every attempt and every receiver is told of the
    /// same; `None`: they were not determined, or the notification is gone. If they were not determined, `incidents`
    /// become those of the notification.
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
