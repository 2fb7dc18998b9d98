//! The end of a delivery: delivered, or a dead letter.

use std::time::Duration;

use redis::ScriptInvocation;

use super::RedisEngine;
use crate::clock::Timestamp;
use crate::presence::{Receipt, TimerId};
use crate::store::timer_text::{letter_of_receipt, moment};
use crate::store::{DeadLetter, Delivery, End, Ended, MAX_ATTEMPT_BYTES, Result, firing_of};
use crate::store::{attempts::texts, json::to_json};

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

/// Attempts that one step puts on record.
pub(super) struct OnRecord {
    pub now: Timestamp,
    pub keep: Duration,
    pub texts: Vec<String>,
}

impl OnRecord {
    pub const NOTHING: OnRecord = OnRecord { now: Timestamp::ZERO, keep: Duration::ZERO, texts: Vec::new() };

    /// Adds the arguments of `attempts.lua`.
    pub fn add_to(&self, script: &mut ScriptInvocation<'_>) {
        script.arg(self.now.as_millis()).arg(self.keep.as_millis() as u64).arg(MAX_ATTEMPT_BYTES);
        script.arg(self.texts.len()).arg(self.texts.as_slice());
    }
}

impl RedisEngine {
    /// Ends those that are delivered or given up.
    pub(super) async fn finish(&self, ended: &[Ended], keep: Duration, now: Timestamp) -> Result<()> {
        let ended = ended.iter().filter(|one| !matches!(one.end, End::RetryAt(_)));
        let queues = self.by_queue(ended, |one| one.delivery.as_ref());
        let steps = queues.iter().flat_map(|((partition, receiver), ended)| {
            let slot = self.keys.slot(*partition);
            ended.chunks(FINISH_STEP).map(move |step| {
                let finish = async move {
                    let endings: Vec<Ending> = step.iter().map(|one| Ending::of(one, now)).collect();
                    let endings: Vec<&Ending> = endings.iter().collect();
                    let on_record = OnRecord { now, keep, texts: texts(step.iter().copied()) };
                    self.finish_step(*partition, receiver, &endings, now, &on_record).await
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
        on_record: &OnRecord,
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
        for name in ["attempts", "timer_attempts", "past_timers"] {
            script.key(self.keys.in_partition(partition, name));
        }
        script.arg(now.as_millis()).arg(endings.len());
        for Ending { delivery, .. } in endings {
            script.arg(&delivery.group.key);
        }
        for Ending { delivery, .. } in endings {
            script.arg(delivery.notification());
        }
        on_record.add_to(&mut script);
        let timers = (1..)
            .zip(endings)
            .filter_map(|(index, ending)| Some((index, ending, firing_of(ending.delivery)?)));
        let timers: Vec<(usize, &&Ending, (TimerId, Timestamp))> = timers.collect();
        script.arg(timers.len());
        for (index, Ending { delivery, letter, was_marked }, (id, due)) in &timers {
            // The notification of a timer has it; one without could not be read.
            let is_lost = letter.is_some() || delivery.timers.is_empty();
            let receipt = if is_lost { Receipt::Dead } else { Receipt::Delivered };
            script.arg(*index).arg(id.as_str()).arg(moment(*due));
            script.arg(letter_of_receipt(receipt).to_string()).arg(u8::from(*was_marked));
        }
        for (index, Ending { delivery, letter, .. }) in (1..).zip(endings) {
            if let Some(letter) = letter {
                let silences = delivery.silences_lost();
                script.arg(index).arg(to_json(letter)?).arg(silences.len()).arg(silences);
            }
        }
        self.topology.run("finish", &script).await
    }
}
