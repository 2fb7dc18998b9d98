//! Queues notifications again for their receivers: all of a lane in one step.

use std::collections::BTreeMap;

use super::StoredDeliveries;
use super::absence::MARKED;
use crate::clock::Timestamp;
use crate::presence::Receipt;
use crate::store::documents::Document;
use crate::store::json::to_json;
use crate::store::lane::{Lane, Owed, append};
use crate::store::notification::Notification;
use crate::store::timers::receipt_change;
use crate::store::{
    Cell, ChangeSet, Delivery, EngineError, Index, MAX_CHANGES, ReceiverName, Result, Table, firing_of,
};

/// The most notifications of one step.
const STEP: usize = 100;

/// The deliveries of each lane, by their positions.
type OfLane<'a> = BTreeMap<(&'a str, &'a str), Vec<usize>>;

impl StoredDeliveries {
    /// Queues a notification again for its receiver, see [`StoredDeliveries::replay_all`].
    pub async fn replay(&self, delivery: &Delivery, now: Timestamp) -> Result<bool> {
        Ok(self.replay_all(std::slice::from_ref(delivery), now).await? == [true])
    }

    /// Queues notifications again for their receivers, under their ids and in this order. Their dead letters are
    /// removed, and the receivers are again notified of the returns of their silences. More notifications cost hardly
    /// more calls to the engine. Answers in order; `false`: it already waits. After an error some may be queued.
    pub async fn replay_all(&self, deliveries: &[Delivery], now: Timestamp) -> Result<Vec<bool>> {
        let mut queued = vec![false; deliveries.len()];
        let mut lanes = OfLane::new();
        for (at, Delivery { receiver, group, .. }) in deliveries.iter().enumerate() {
            lanes.entry((receiver, &group.key)).or_default().push(at);
        }
        // Each step takes the next deliveries of some lanes, so that the deliveries of a lane stay in order.
        while !lanes.is_empty() {
            let (mut step, mut room) = (Vec::new(), STEP);
            for places in lanes.values_mut() {
                let taken: Vec<usize> = places.drain(..places.len().min(room)).collect();
                room -= taken.len();
                if !taken.is_empty() {
                    step.push(taken);
                }
            }
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
        for _ in 0..MAX_CHANGES {
            if open.is_empty() {
                return Ok(());
            }
            let (mut sets, mut of_sets) = (Vec::new(), Vec::new());
            for known in self.known_lanes(deliveries, &open).await? {
                let new = known.new_ones(deliveries);
                if !new.is_empty() {
                    sets.push(self.queue_again(deliveries, &known, &new, now)?);
                    of_sets.push(new.iter().map(|one| one.place).collect::<Vec<usize>>());
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
        if open.is_empty() { Ok(()) } else { Err(EngineError::contended("the lanes of notifications")) }
    }

    /// The stored state of the deliveries of these lanes.
    async fn known_lanes(&self, deliveries: &[Delivery], lanes: &[Vec<usize>]) -> Result<Vec<KnownLane>> {
        let mut cells = Vec::new();
        for places in lanes {
            let lane = self.lane(&deliveries[places[0]]);
            let of = |table, name: &str| Cell { table, partition: lane.partition, name: name.to_owned() };
            let receiver = ReceiverName::of(&deliveries[places[0]].receiver);
            cells.push(of(Table::FallbackDone(receiver), &lane.name));
            for delivery in places.iter().map(|at| &deliveries[*at]) {
                cells.push(of(Table::Notifications, delivery.notification()));
                cells.push(of(Table::Owed, delivery.notification()));
                cells.extend(firing_of(delivery).map(|(id, _)| of(Table::PastTimers, id.as_str())));
            }
            cells.push(lane);
        }
        let mut stored = self.engine.read_cells(&cells).await?.into_iter().zip(cells);
        let mut next = || stored.next().expect("each cell has an answer");
        let mut known = Vec::with_capacity(lanes.len());
        for places in lanes {
            let mark = next().0;
            let mut of_lane = Vec::with_capacity(places.len());
            for &place in places {
                let body = next().0;
                let (owed, cell) = next();
                let timer = firing_of(&deliveries[place]).and_then(|_| next().0);
                let owed = self.documents.document(cell, owed).await?;
                of_lane.push(KnownDelivery { place, body, owed, timer });
            }
            let (lane, cell) = next();
            known.push(KnownLane { lane: self.documents.document(cell, lane).await?, mark, of_lane });
        }
        Ok(known)
    }

    /// The change-set that queues deliveries of one lane.
    fn queue_again(
        &self,
        deliveries: &[Delivery],
        known: &KnownLane,
        new: &[&KnownDelivery],
        now: Timestamp,
    ) -> Result<ChangeSet> {
        let first = &deliveries[new[0].place];
        let Delivery { receiver, group, .. } = first;
        let of = ReceiverName::of(receiver);
        let ids: Vec<&str> = new.iter().map(|one| deliveries[one.place].notification()).collect();
        let set = ChangeSet::of(self.partition(first));
        let mut set = append(set, &known.lane, receiver, &ids, (now, false))?;
        // The delivery comes after the notifications of the lane, so the mark does not cover it any more.
        if let Some(mark) = known.mark.as_ref().filter(|mark| ids.iter().any(|id| id.as_bytes() == &mark[..]))
        {
            set = set.has(Table::FallbackDone(of), &group.key, Some(mark));
            set = set.put(Table::FallbackDone(of), &group.key, None);
        }
        set = set.put(Table::Unnotified(of), MARKED, Some(MARKED.as_bytes()));
        for KnownDelivery { place, body, owed, timer } in new {
            let delivery = &deliveries[*place];
            let id = delivery.notification();
            set = set.has(Table::Notifications, id, body.as_deref());
            set = if body.is_some() {
                let count = owed.value.map_or(1, |owed| owed.0);
                owed.change_in(set, Some(&Owed(count + 1)))?
            } else {
                let again = to_json(&Notification::again(delivery))?;
                owed.change_in(set, None)?.put(Table::Notifications, id, Some(again.as_bytes()))
            };
            set = set.put(Table::DeadLetters(of), id, None).enter(Index::Dead(of), id, None);
            // If the notification is of a timer, the timer waits for the receiver again.
            if let Some(of_timer) = firing_of(delivery)
                && let Some(change) = receipt_change(timer.as_deref(), &of_timer, receiver, Receipt::Pending)
            {
                set = set.has(Table::PastTimers, of_timer.0.as_str(), Some(&change.before));
                set = set.put(Table::PastTimers, of_timer.0.as_str(), Some(&change.after));
            }
        }
        Ok(set)
    }
}

/// The stored state of some deliveries of a lane.
struct KnownLane {
    lane: Document<Lane>,
    /// The last notification that the fallback got too.
    mark: Option<Vec<u8>>,
    of_lane: Vec<KnownDelivery>,
}

struct KnownDelivery {
    /// Its position among all deliveries.
    place: usize,
    body: Option<Vec<u8>>,
    owed: Document<Owed>,
    timer: Option<Vec<u8>>,
}

impl KnownLane {
    /// The deliveries that do not wait yet.
    fn new_ones(&self, deliveries: &[Delivery]) -> Vec<&KnownDelivery> {
        let mut seen = Vec::new();
        let is_new = |one: &&KnownDelivery| {
            let id = deliveries[one.place].notification();
            let waits = self.lane.value.as_ref().is_some_and(|lane| lane.has(id)) || seen.contains(&id);
            seen.push(id);
            !waits
        };
        self.of_lane.iter().filter(is_new).collect()
    }
}
