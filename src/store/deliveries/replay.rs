//! Queues notifications once more for their receivers: those of a lane in one step.

use std::collections::BTreeMap;

use super::absence::MARKED;
use super::lane::{Lane, Owed, append};
use super::{ROUNDS, StoredDeliveries, contended};
use crate::clock::Timestamp;
use crate::presence::Receipt;
use crate::store::documents::Document;
use crate::store::json::to_json;
use crate::store::notification::Notification;
use crate::store::timers::receipt_change;
use crate::store::{Cell, ChangeSet, Delivery, EngineError, Index, ReceiverName, Result, Table, firing_of};

/// The most notifications of one step.
const STEP: usize = 100;

/// The deliveries of a lane, by their places.
type OfLane<'a> = BTreeMap<(&'a str, &'a str), Vec<usize>>;

impl StoredDeliveries {
    /// Queues a notification once more for its receiver, see [`StoredDeliveries::replay_all`].
    pub async fn replay(&self, delivery: &Delivery, now: Timestamp) -> Result<bool> {
        Ok(self.replay_all(std::slice::from_ref(delivery), now).await? == [true])
    }

    /// Queues notifications once more for their receivers, under their ids and in this order; their dead letters are
    /// removed, and the receivers are notified of the returns of their silences again. Their number changes little of
    /// how often the engine is asked. Answers in order; `false`: it waits already. After an error some may be queued.
    pub async fn replay_all(&self, deliveries: &[Delivery], now: Timestamp) -> Result<Vec<bool>> {
        let mut queued = vec![false; deliveries.len()];
        let mut lanes = OfLane::new();
        for (at, Delivery { receiver, group, .. }) in deliveries.iter().enumerate() {
            lanes.entry((receiver, &group.key)).or_default().push(at);
        }
        // Each step takes the next ones of each lane, so that those of a lane stay in order.
        while !lanes.is_empty() {
            let step: Vec<Vec<usize>> =
                lanes.values_mut().map(|places| places.drain(..places.len().min(STEP)).collect()).collect();
            lanes.retain(|_, places| !places.is_empty());
            self.queue_step(deliveries, step, &mut queued, now).await?;
        }
        Ok(queued)
    }

    async fn queue_step(
        &self,
        deliveries: &[Delivery],
        mut open: Vec<Vec<usize>>,
        queued: &mut [bool],
        now: Timestamp,
    ) -> Result<()> {
        for _ in 0..ROUNDS {
            if open.is_empty() {
                return Ok(());
            }
            let (mut sets, mut of_sets) = (Vec::new(), Vec::new());
            for (places, lane) in open.iter().zip(self.lanes_of(deliveries, &open).await?) {
                let waits = |id: &str| lane.value.as_ref().is_some_and(|lane| lane.has(id));
                let mut seen = Vec::new();
                let is_new = |at: &&usize| {
                    let id = deliveries[**at].notification();
                    let is_new = !waits(id) && !seen.contains(&id);
                    seen.push(id);
                    is_new
                };
                let places: Vec<usize> = places.iter().filter(is_new).copied().collect();
                if !places.is_empty() {
                    let of: Vec<&Delivery> = places.iter().map(|at| &deliveries[*at]).collect();
                    sets.push(self.queue_again(&of, &lane, now).await?);
                    of_sets.push(places);
                }
            }
            let written = self.documents.write(&sets).await?;
            open.clear();
            for (places, is_written) in of_sets.into_iter().zip(written) {
                if is_written {
                    places.into_iter().for_each(|at| queued[at] = true);
                } else {
                    open.push(places);
                }
            }
        }
        if open.is_empty() { Ok(()) } else { Err(contended("the lanes of notifications")) }
    }

    async fn lanes_of(&self, deliveries: &[Delivery], lanes: &[Vec<usize>]) -> Result<Vec<Document<Lane>>> {
        let cells = lanes.iter().map(|places| self.lane(&deliveries[places[0]])).collect();
        self.documents.read_cells(cells).await
    }

    /// The change-set that queues deliveries of one lane.
    async fn queue_again(
        &self,
        deliveries: &[&Delivery],
        lane: &Document<Lane>,
        now: Timestamp,
    ) -> Result<ChangeSet> {
        let Delivery { receiver, group, .. } = deliveries[0];
        let (of, partition) = (ReceiverName::of(receiver), self.partition(deliveries[0]));
        let cell = |table, name: &str| Cell { table, partition, name: name.to_owned() };
        let ids: Vec<&str> = deliveries.iter().map(|one| one.notification()).collect();
        let mut cells = vec![cell(Table::FallbackDone(of), &group.key)];
        for delivery in deliveries {
            cells.push(cell(Table::Notifications, delivery.notification()));
            cells.push(cell(Table::Owed, delivery.notification()));
            cells.extend(firing_of(delivery).map(|(id, _)| cell(Table::PastTimers, id.as_str())));
        }
        let mut stored = self.engine.read_cells(&cells).await?.into_iter();
        let mut next = || stored.next().flatten();
        let mut set = append(ChangeSet::of(partition), lane, receiver, &ids, (now, false))?;
        // It comes after the notifications of the lane, of which the mark says nothing any more.
        if let Some(mark) = next().filter(|mark| ids.iter().any(|id| id.as_bytes() == &mark[..])) {
            set = set.has(Table::FallbackDone(of), &group.key, Some(&mark));
            set = set.put(Table::FallbackDone(of), &group.key, None);
        }
        set = set.put(Table::Unnotified(of), MARKED, Some(MARKED.as_bytes()));
        for delivery in deliveries {
            let id = delivery.notification();
            let (body, owed) = (next(), next());
            let owed: Document<Owed> = self.documents.document(cell(Table::Owed, id), owed).await?;
            set = set.has(Table::Notifications, id, body.as_deref());
            set = if body.is_some() {
                let count = owed.value.map_or(1, |owed| owed.0);
                owed.change_in(set, Some(&Owed(count + 1)))?
            } else {
                let again = to_json(&Notification::again(delivery))?;
                owed.change_in(set, None)?.put(Table::Notifications, id, Some(again.as_bytes()))
            };
            set = set.put(Table::DeadLetters(of), id, None).enter(Index::Dead(of), id, None);
            // Its timer waits for the receiver again, if it is the notification of one.
            if let Some(timer) = firing_of(delivery)
                && let Some(change) = receipt_change(next().as_deref(), &timer, receiver, Receipt::Pending)
            {
                set = set.has(Table::PastTimers, timer.0.as_str(), Some(&change.before));
                set = set.put(Table::PastTimers, timer.0.as_str(), Some(&change.after));
            }
        }
        Ok::<_, EngineError>(set)
    }
}
