//! The end of a delivery: delivered, or a dead letter.

use super::RedisEngine;
use crate::clock::Timestamp;
use crate::presence::{Receipt, TimerId};
use crate::store::timer_text::{letter_of_receipt, moment};
use crate::store::{ChangeSet, DeadLetter, Delivery, End, Ended, Result, firing_of};
use crate::store::{attempts::attempts_made, json::to_json};

/// How many deliveries one script ends: about a quarter of a millisecond.
pub(super) const FINISH_STEP: usize = 50;

pub(super) struct Ending<'a> {
    pub delivery: &'a Delivery,
    /// `None`: it was delivered.
    pub letter: Option<DeadLetter>,
    /// The only attempt at it was marked before it began: the delivery has ended, and its outcome is known now.
    pub was_marked: bool,
}

impl<'a> Ending<'a> {
    pub fn of(ended: &'a Ended, now: Timestamp) -> Ending<'a> {
        let delivery = ended.delivery.as_ref();
        let letter = match &ended.end {
            End::DeadLetter(reason) => {
                Some(DeadLetter { delivery: delivery.clone(), at: now, reason: reason.clone() })
            }
            _ => None,
        };
        let was_marked = ended.attempt.is_some() && delivery.is_at_most_once();
        Ending { delivery, letter, was_marked }
    }
}

impl RedisEngine {
    /// Ends those that are delivered or given up.
    pub(super) async fn finish(&self, ended: &[Ended], now: Timestamp) -> Result<()> {
        let ended = ended.iter().filter(|one| !matches!(one.end, End::RetryAt(_)));
        let queues = self.by_queue(ended, |one| one.delivery.as_ref());
        let steps = queues.iter().flat_map(|((partition, receiver), ended)| {
            let slot = self.keys.slot(*partition);
            ended.chunks(FINISH_STEP).map(move |step| {
                let finish = async move {
                    let endings: Vec<Ending> = step.iter().map(|one| Ending::of(one, now)).collect();
                    let endings: Vec<&Ending> = endings.iter().collect();
                    let on_record = attempts_made(*partition, step.iter().copied(), now)?;
                    self.finish_step(*partition, receiver, &endings, now, on_record.as_ref()).await
                };
                (slot, finish)
            })
        });
        self.topology.run_limited(steps.collect()).await?;
        Ok(())
    }

    /// Ends deliveries of one receiver. Answers how many ended: those that were the first of their lanes.
    pub(super) async fn finish_step(
        &self,
        partition: u16,
        receiver: &str,
        endings: &[&Ending<'_>],
        now: Timestamp,
        on_record: Option<&ChangeSet>,
    ) -> Result<usize> {
        let mut script = self.scripts.finish.prepare_invoke();
        for name in ["queue", "lanes"] {
            script.key(self.keys.of(partition, name, receiver));
        }
        for name in ["notifications", "owed"] {
            script.key(self.keys.in_partition(partition, name));
        }
        for name in ["dead", "dead_letters", "unnotified"] {
            script.key(self.keys.of(partition, name, receiver));
        }
        for name in ["timer_attempts", "past_timers"] {
            script.key(self.keys.in_partition(partition, name));
        }
        script.arg(now.as_millis()).arg(endings.len());
        for Ending { delivery, .. } in endings {
            script.arg(&delivery.group.key);
        }
        for Ending { delivery, .. } in endings {
            script.arg(delivery.notification());
        }
        let of_ends = of_ends(endings)?;
        script.arg(of_ends.len()).arg(of_ends);
        if let Some(set) = on_record {
            self.add_sets(&mut script, partition, &set.shape(), &[set]);
        }
        self.topology.run("finish", &script).await
    }
}

/// The arguments of `finish.lua` for timers and dead letters.
fn of_ends(endings: &[&Ending<'_>]) -> Result<Vec<String>> {
    let timers =
        (1..).zip(endings).filter_map(|(index, ending)| Some((index, ending, firing_of(ending.delivery)?)));
    let timers: Vec<(usize, &&Ending, (TimerId, Timestamp))> = timers.collect();
    let mut words = vec![timers.len().to_string()];
    for (index, Ending { delivery, letter, was_marked }, (id, due)) in &timers {
        // The notification of a timer has it; one without could not be read.
        let is_lost = letter.is_some() || delivery.timers.is_empty();
        let receipt = if is_lost { Receipt::Dead } else { Receipt::Delivered };
        words.extend([index.to_string(), id.to_string(), moment(*due)]);
        words.extend([letter_of_receipt(receipt).to_string(), u8::from(*was_marked).to_string()]);
    }
    for (index, Ending { delivery, letter, .. }) in (1_usize..).zip(endings) {
        if let Some(letter) = letter {
            let silences = delivery.silences_lost();
            words.extend([index.to_string(), to_json(letter)?, silences.len().to_string()]);
            words.extend(silences);
        }
    }
    Ok(words)
}
