//! The end of an attempt: delivered, given up, or attempted again later.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::StoredDeliveries;
use super::lease::lanes_contended;
use crate::clock::Timestamp;
use crate::presence::{Receipt, TimerId};
use crate::store::attempts::attempts_made;
use crate::store::documents::Document;
use crate::store::json::to_json;
use crate::store::lane::{Lane, Owed};
use crate::store::timers::receipt_change;
use crate::store::{
    AttemptEnd, Cell, ChangeSet, DeadLetter, Delivery, EndedLease, Index, MAX_CHANGES, MAX_STEP,
    ReceiverName, Result, Table, firing_of,
};

/// The end of a delivery.
struct Ending<'a> {
    delivery: &'a Delivery,
    /// `None`: it was delivered.
    letter: Option<DeadLetter>,
    /// The timer and its moment, for a delivery to a receiver of the timer's class.
    timer: Option<(TimerId, Timestamp)>,
    receipt: Receipt,
    /// Whether its only attempt was marked before it began: the delivery has ended, and now its outcome is known.
    was_marked: bool,
}

impl<'a> Ending<'a> {
    /// `None`: another attempt follows.
    fn of(ended: &'a EndedLease, now: Timestamp) -> Option<Ending<'a>> {
        let delivery = ended.delivery.as_ref();
        let letter = match &ended.end {
            AttemptEnd::RetryAt(_) => return None,
            AttemptEnd::Delivered => None,
            AttemptEnd::DeadLetter(reason) => {
                Some(DeadLetter { delivery: delivery.clone(), at: now, reason: reason.clone() })
            }
        };
        // A notification of a timer has the timer, unless it could not be read.
        let is_lost = letter.is_some() || delivery.timers.is_empty();
        let receipt = if is_lost { Receipt::Dead } else { Receipt::Delivered };
        let was_marked = ended.attempt.is_some() && delivery.is_at_most_once();
        Some(Ending { delivery, letter, timer: firing_of(delivery), receipt, was_marked })
    }

    /// Whether nothing else was stored about the delivery when it was leased.
    fn is_alone(&self) -> bool {
        self.delivery.is_alone && self.timer.is_none()
    }

    /// The ending of a delivery before its only attempt; `None` for other deliveries.
    fn begun(delivery: &'a Delivery) -> Option<Ending<'a>> {
        let timer = Some(firing_of(delivery)?);
        Some(Ending { delivery, letter: None, timer, receipt: Receipt::Begun, was_marked: false })
    }
}

/// The stored cells that an ending changes.
struct EndingCells {
    lane: Document<Lane>,
    owed: Document<Owed>,
    timer: Option<Vec<u8>>,
}

impl StoredDeliveries {
    /// Records how attempts ended, together with the attempts themselves. Safe to repeat.
    ///
    /// A delivery that succeeded is never leased again; the next delivery of its group is due at `now`. A delivery
    /// that failed is not attempted before the moment of its end; nothing changes if another instance has leased it
    /// since. A delivery that is given up becomes a dead letter: its receiver is not notified of the returns of its
    /// silences.
    pub async fn end_attempts(&self, ended: &[EndedLease], now: Timestamp) -> Result<()> {
        for step in ended.chunks(MAX_STEP) {
            let attempts = self.attempts(step, now)?;
            self.end(step.iter().filter_map(|one| Ending::of(one, now)).collect(), attempts, now).await?;
            let later: Vec<&EndedLease> =
                step.iter().filter(|one| matches!(one.end, AttemptEnd::RetryAt(_))).collect();
            self.set_next_attempts(&later, false).await?;
        }
        Ok(())
    }

    /// Records that deliveries succeeded, without their attempts.
    pub async fn delivered(&self, deliveries: &[Delivery], now: Timestamp) -> Result<()> {
        let ended: Vec<EndedLease> =
            deliveries.iter().map(|delivery| unattempted(delivery, AttemptEnd::Delivered)).collect();
        self.end_attempts(&ended, now).await
    }

    /// Records that a delivery failed and that the next attempt is not before `at`, without the attempt.
    pub async fn retry_later(&self, delivery: &Delivery, at: Timestamp) -> Result<()> {
        self.end_attempts(&[unattempted(delivery, AttemptEnd::RetryAt(at))], at).await
    }

    /// Gives a delivery up and keeps it as a dead letter, without an attempt.
    pub async fn dead_letter(&self, delivery: &Delivery, reason: &str, now: Timestamp) -> Result<()> {
        self.end_attempts(&[unattempted(delivery, AttemptEnd::DeadLetter(reason.to_owned()))], now).await
    }

    /// Gives deliveries up that an operator discards. Answers how many were given up: only the first delivery of a
    /// lane can be.
    pub(super) async fn give_up(&self, letters: &[DeadLetter], now: Timestamp) -> Result<usize> {
        let endings = letters.iter().map(|letter| Ending {
            delivery: &letter.delivery,
            letter: Some(letter.clone()),
            timer: firing_of(&letter.delivery),
            receipt: Receipt::Dead,
            was_marked: false,
        });
        let ended = self.end(endings.collect(), Vec::new(), now).await?;
        Ok(ended.into_iter().filter(|is_ended| *is_ended).count())
    }

    /// Ends deliveries of timers that are delivered at most once, before their only attempt: none of them is ever
    /// leased again. Answers, in order, which the caller may attempt: those that no other instance has begun or
    /// leased since. [`StoredDeliveries::end_attempts`] writes the outcome.
    pub async fn begin_only_attempts(&self, deliveries: &[&Delivery], now: Timestamp) -> Result<Vec<bool>> {
        let begun = deliveries.iter().enumerate().filter_map(|(at, one)| Some((at, Ending::begun(one)?)));
        let (places, endings): (Vec<usize>, Vec<Ending<'_>>) = begun.unzip();
        let mut answers = vec![false; deliveries.len()];
        for (at, has_begun) in places.into_iter().zip(self.end(endings, Vec::new(), now).await?) {
            answers[at] = has_begun;
        }
        Ok(answers)
    }

    /// The change-sets that put these attempts on record.
    fn attempts(&self, ended: &[EndedLease], now: Timestamp) -> Result<Vec<ChangeSet>> {
        let mut of_partitions: BTreeMap<u16, Vec<&EndedLease>> = BTreeMap::new();
        for one in ended {
            of_partitions.entry(self.partition(&one.delivery)).or_default().push(one);
        }
        let sets = of_partitions.into_iter();
        let sets = sets.map(|(partition, ended)| attempts_made(partition, ended.into_iter(), now));
        sets.filter_map(Result::transpose).collect()
    }

    /// Writes endings and, before them in one call, the attempts. Answers, in order, which deliveries this call ended.
    async fn end(
        &self,
        endings: Vec<Ending<'_>>,
        mut attempts: Vec<ChangeSet>,
        now: Timestamp,
    ) -> Result<Vec<bool>> {
        let mut answers = vec![false; endings.len()];
        let mut open: Vec<usize> = (0..endings.len()).collect();
        for round in 0..MAX_CHANGES {
            if open.is_empty() && attempts.is_empty() {
                return Ok(answers);
            }
            let (mut sets, mut places) = (std::mem::take(&mut attempts), Vec::new());
            let of_attempts = sets.len();
            let mut add = |at: usize, known: &EndingCells| -> Result<()> {
                if let Some((set, is_ended)) = self.change(&endings[at], known, now)? {
                    sets.push(set);
                    places.push((at, is_ended));
                }
                Ok(())
            };
            // In a storm of units that are notified one by one, nothing is read.
            let (alone, others): (Vec<usize>, Vec<usize>) =
                open.iter().partition(|at| round == 0 && endings[**at].is_alone());
            for at in alone {
                add(at, &self.expected(endings[at].delivery)?)?;
            }
            let of: Vec<&Ending> = others.iter().map(|at| &endings[*at]).collect();
            for (at, known) in others.into_iter().zip(self.known(&of).await?) {
                add(at, &known)?;
            }
            let written = self.documents.write(&sets).await?;
            open.clear();
            for ((at, is_ended), is_written) in places.into_iter().zip(written.into_iter().skip(of_attempts))
            {
                if is_written { answers[at] = is_ended } else { open.push(at) }
            }
        }
        match open.first() {
            Some(at) => Err(lanes_contended(&endings[*at].delivery.receiver)),
            None => Ok(answers),
        }
    }

    /// The expected cells of a delivery that is alone.
    fn expected(&self, delivery: &Delivery) -> Result<EndingCells> {
        let Cell { table, partition, name } = self.lane(delivery);
        let of = |table| Cell { table, partition, name: delivery.notification().to_owned() };
        let notifications = vec![delivery.notification().to_owned()];
        let lane = Lane { attempts: delivery.attempt, is_leased: true, notifications };
        let lane = Document::absent(Cell { table, partition, name }).written(lane)?;
        Ok(EndingCells { lane, owed: Document::absent(of(Table::Owed)), timer: None })
    }

    async fn known(&self, endings: &[&Ending<'_>]) -> Result<Vec<EndingCells>> {
        if endings.is_empty() {
            return Ok(Vec::new());
        }
        let mut cells = Vec::with_capacity(2 * endings.len());
        for Ending { delivery, timer, .. } in endings {
            let lane = self.lane(delivery);
            let of = |table, name: &str| Cell { table, partition: lane.partition, name: name.to_owned() };
            cells.push(of(Table::Owed, delivery.notification()));
            cells.extend(timer.iter().map(|(id, _)| of(Table::PastTimers, id.as_str())));
            cells.push(lane);
        }
        let mut stored = self.engine.read_cells(&cells).await?.into_iter().zip(cells);
        let mut known = Vec::with_capacity(endings.len());
        let mut next = || stored.next().expect("each cell has an answer");
        for ending in endings {
            let (owed, owed_cell) = next();
            let timer = ending.timer.as_ref().and_then(|_| next().0);
            let (lane, lane_cell) = next();
            let owed = self.documents.document(owed_cell, owed).await?;
            known.push(EndingCells { lane: self.documents.document(lane_cell, lane).await?, owed, timer });
        }
        Ok(known)
    }

    /// The change-set, and whether it ends the delivery: only the first delivery of a lane is under way and can end.
    /// `None`: nothing changes.
    fn change(
        &self,
        ending: &Ending<'_>,
        known: &EndingCells,
        now: Timestamp,
    ) -> Result<Option<(ChangeSet, bool)>> {
        let Ending { delivery, letter, timer, receipt, was_marked } = ending;
        let (id, of) = (delivery.notification(), ReceiverName::of(&delivery.receiver));
        let is_only = *receipt == Receipt::Begun;
        let is_under_way =
            |lane: &&Lane| lane.first() == id && (!is_only || lane.attempts == delivery.attempt);
        let lane = known.lane.value.as_ref().filter(is_under_way);
        let mut set = ChangeSet::of(self.partition(delivery));
        if lane.is_none() && !was_marked {
            return Ok(None);
        }
        if let Some(lane) = lane {
            let after = lane.without_first();
            set = known.lane.change_in(set, after.as_ref())?;
            let next = after.map(|_| now.as_millis());
            set = set.enter(Index::Queue(of), &delivery.group.key, next);
            let left = known.owed.value.map_or(0, |owed| owed.0.saturating_sub(1));
            set = match left {
                0 => known.owed.expect_in(set).put(Table::Notifications, id, None),
                left => known.owed.change_in(set, Some(&Owed(left)))?,
            };
            if left == 0 && known.owed.value.is_some() {
                set = set.put(Table::Owed, id, None);
            }
        }
        let change = timer.as_ref().and_then(|timer| {
            let change = receipt_change(known.timer.as_deref(), timer, &delivery.receiver, *receipt)?;
            Some((timer.0.as_str(), change))
        });
        if let Some((timer, change)) = change {
            set = set.has(Table::PastTimers, timer, Some(&change.before));
            set = set.put(Table::PastTimers, timer, Some(&change.after));
            if is_only {
                set = set.enter(Index::OnlyAttempts, timer, Some(now.as_millis()));
            } else if !change.has_begun {
                set = set.enter(Index::OnlyAttempts, timer, None);
            }
        }
        if let Some(letter) = letter.as_ref().filter(|_| lane.is_some()) {
            set = set.put(Table::DeadLetters(of), id, Some(to_json(letter)?.as_bytes()));
            set = set.enter(Index::Dead(of), id, Some(now.as_millis()));
            for silence in delivery.silences_lost() {
                set = set.put(Table::Unnotified(of), &silence, Some(id.as_bytes()));
            }
        }
        Ok(Some((set, lane.is_some())))
    }

    /// Sets the next attempt of deliveries that are not over; no later delivery of their groups is leased before it.
    /// Answers, in order, which deliveries were still under way with their attempt. `is_leased`: they are under way
    /// until then.
    pub(super) async fn set_next_attempts(
        &self,
        ended: &[&EndedLease],
        is_leased: bool,
    ) -> Result<Vec<bool>> {
        let mut were_under_way = vec![false; ended.len()];
        let later = ended.iter().enumerate().filter_map(|(place, one)| match one.end {
            AttemptEnd::RetryAt(at) => Some((place, &*one.delivery, at)),
            AttemptEnd::Delivered | AttemptEnd::DeadLetter(_) => None,
        });
        let mut open: Vec<(usize, &Delivery, Timestamp)> = later.collect();
        for _ in 0..MAX_CHANGES {
            if open.is_empty() {
                return Ok(were_under_way);
            }
            let cells = open.iter().map(|(_, delivery, _)| self.lane(delivery)).collect();
            let lanes: Vec<Document<Lane>> = self.documents.read_cells(cells).await?;
            let (mut sets, mut places) = (Vec::new(), Vec::new());
            for ((place, delivery, at), lane) in open.iter().zip(lanes) {
                let of = (delivery.notification(), delivery.attempt);
                let is_under_way = |lane: &&Lane| (lane.first(), lane.attempts) == of;
                let Some(known) = lane.value.as_ref().filter(is_under_way) else { continue };
                let set = ChangeSet::of(self.partition(delivery));
                let set = lane.change_in(set, Some(&Lane { is_leased, ..known.clone() }))?;
                let queue = Index::Queue(ReceiverName::of(&delivery.receiver));
                sets.push(set.enter(queue, &delivery.group.key, Some(at.as_millis())));
                places.push((*place, *delivery, *at));
            }
            let written = self.documents.write(&sets).await?;
            open.clear();
            for (one, is_written) in places.into_iter().zip(written) {
                if is_written { were_under_way[one.0] = true } else { open.push(one) }
            }
        }
        match open.first() {
            Some((_, delivery, _)) => Err(lanes_contended(&delivery.receiver)),
            None => Ok(were_under_way),
        }
    }
}

fn unattempted(delivery: &Delivery, end: AttemptEnd) -> EndedLease {
    EndedLease { delivery: Arc::new(delivery.clone()), end, attempt: None }
}
