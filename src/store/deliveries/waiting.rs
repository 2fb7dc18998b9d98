//! Waiting notifications, for operators. Everything is read in bounded steps, for a command or a page.

use futures_util::future::try_join_all;

use super::{StoredDeliveries, waiting_delivery};
use crate::clock::Timestamp;
use crate::store::cells::CellCursor;
use crate::store::documents::TableValue;
use crate::store::lane::Lane;
use crate::store::{
    Backlog, Delivery, Index, ReceiverName, Result, Table, WaitingDelivery, WaitingPage, partition_of_group,
};

/// The approximate number of notifications of a page.
const OF_PAGE: usize = 200;
/// The most notifications of one lane on a page. Only the lane of a receiver that is down for days has more.
const OF_LANE: usize = 100;

impl StoredDeliveries {
    /// The backlog of each receiver that was ever configured, by its name; receivers without a backlog are left out.
    pub async fn kept(&self) -> Result<Vec<(String, Backlog)>> {
        let (partitions, names) = (self.all_partitions(), self.all_receivers().await?);
        let backlogs = try_join_all(names.iter().map(|name| self.backlog(&partitions, name))).await?;
        let mut kept: Vec<(String, Backlog)> = names.into_iter().zip(backlogs).collect();
        kept.retain(|(_, backlog)| *backlog != Backlog::default());
        Ok(kept)
    }

    /// A page of the notifications that wait for a receiver, in an order of the engine. Notifications that come or go
    /// meanwhile may be missing or listed twice. `after`: [`WaitingPage::next`] of the previous page.
    pub async fn waiting(&self, receiver: &str, after: Option<&str>) -> Result<WaitingPage> {
        let (mut partition, mut from) = position(after);
        let Some(of) = self.known_receiver(receiver).await? else { return Ok(WaitingPage::default()) };
        let rest: Vec<u16> = (partition..self.partitions()).collect();
        let sizes = self.engine.sizes(Index::Queue(of), &rest).await?;
        let mut page = WaitingPage::default();
        for (of_partition, size) in rest.into_iter().zip(sizes) {
            partition = of_partition;
            while size > 0 && page.waiting.len() < OF_PAGE {
                let lanes = self.engine.scan_cells(Table::Lanes(of), partition, from.take()).await?;
                page.waiting.extend(self.waiting_in(partition, receiver, lanes.cells).await?);
                from = lanes.next;
                if from.is_none() {
                    break;
                }
            }
            if page.waiting.len() >= OF_PAGE {
                let next = from.map(|CellCursor(cursor)| format!("{partition} {cursor}"));
                let is_last = partition + 1 >= self.partitions();
                page.next = next.or_else(|| (!is_last).then(|| format!("{} ", partition + 1)));
                break;
            }
        }
        Ok(page)
    }

    /// The notifications in some lanes.
    async fn waiting_in(
        &self,
        partition: u16,
        receiver: &str,
        lanes: Vec<(String, Vec<u8>)>,
    ) -> Result<Vec<WaitingDelivery>> {
        let queue = Index::Queue(ReceiverName::of(receiver));
        let lanes: Vec<(String, Lane)> =
            lanes.into_iter().filter_map(|(group, lane)| Some((group, Lane::decode(&lane).ok()?))).collect();
        let entries: Vec<(u16, &str)> = lanes.iter().map(|(group, _)| (partition, group.as_str())).collect();
        let due = self.engine.numbers(queue, &entries).await?;
        let of = |(group, lane): &'_ (String, Lane)| {
            let ids = lane.notifications.iter().take(OF_LANE).cloned();
            let group = group.clone();
            ids.map(move |id| (group.clone(), id)).collect::<Vec<_>>()
        };
        let ids: Vec<(String, String)> = lanes.iter().flat_map(of).collect();
        let mut bodies = Vec::with_capacity(ids.len());
        for step in ids.chunks(OF_PAGE) {
            let of: Vec<(&str, &str)> =
                step.iter().map(|(group, id)| (group.as_str(), id.as_str())).collect();
            bodies.extend(self.bodies(&of).await?);
        }
        let mut bodies = bodies.into_iter();
        let mut waiting = Vec::with_capacity(ids.len());
        for ((group, lane), due) in lanes.iter().zip(due) {
            for (at, id) in lane.notifications.iter().take(OF_LANE).enumerate() {
                let delivery = waiting_delivery(receiver, group, id, bodies.next().flatten());
                let next = (at == 0).then(|| Timestamp::from_millis(due.unwrap_or(0)));
                let attempt = if at == 0 { lane.attempts } else { 0 };
                waiting.push(WaitingDelivery { delivery: Delivery { attempt, ..delivery }, next });
            }
        }
        Ok(waiting)
    }

    /// For each of these groups, by key, whether a notification of it waits for the receiver.
    pub async fn have_waiting(&self, receiver: &str, groups: &[String]) -> Result<Vec<bool>> {
        let cell = |group: &String| Lane::cell(receiver, partition_of_group(group, self.partitions()), group);
        let lanes = self.engine.read_cells(&groups.iter().map(cell).collect::<Vec<_>>()).await?;
        Ok(lanes.iter().map(Option::is_some).collect())
    }
}

/// The begin of a page: the partition, and the cursor of the scan of its lanes.
fn position(after: Option<&str>) -> (u16, Option<CellCursor>) {
    let parsed = after.and_then(|after| after.split_once(' '));
    let parsed = parsed.and_then(|(partition, cursor)| Some((partition.parse().ok()?, cursor)));
    let cursor = |cursor: &str| (!cursor.is_empty()).then(|| CellCursor(cursor.to_owned()));
    parsed.map_or((0, None), |(partition, text)| (partition, cursor(text)))
}
