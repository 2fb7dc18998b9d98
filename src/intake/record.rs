//! Records what has queued up, then acknowledges it.
//!
//! Whatever is in the queue is one batch: while it is being written the next one collects. The
//! order of arrival is kept throughout, so a canary that is told here has everything before it
//! behind it.
//!
//! # Why it keeps trying
//! A heartbeat that was not recorded is not lost as long as it is not acknowledged, and to pass it
//! over would let later canaries vouch for it. So a batch is tried until the engine takes it. The
//! one exception is a unit whose stored state cannot be read: it is found by halving the batch and
//! left out, loudly, because it would hold up all others for good.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::canary;
use super::mqtt::{Ack, Link};
use super::reader::What;
use crate::backoff::Backoff;
use crate::clock::{Clock, Timestamp};
use crate::engine::{EngineError, Roll};
use crate::presence::Heartbeat;
use crate::telemetry::Telemetry;

/// How the engine is tried again.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2) };

/// A message on its way to being recorded.
pub(super) struct Item {
    pub what: What,
    pub arrived: Timestamp,
    /// What the broker waits for; `None` where it does not.
    pub ack: Option<Ack>,
}

/// A batch, by what is in it; each in order of arrival.
#[derive(Default)]
struct Batch {
    beats: Vec<Heartbeat>,
    canaries: Vec<Timestamp>,
    acks: Vec<Ack>,
    oldest: Option<Timestamp>,
}

impl Batch {
    fn refill(&mut self, items: &mut Vec<Item>) {
        self.beats.clear();
        self.canaries.clear();
        self.acks.clear();
        self.oldest = items.first().map(|item| item.arrived);
        for item in items.drain(..) {
            match item.what {
                What::Heartbeat(beat) => self.beats.push(beat),
                What::Canary(sent_at) => self.canaries.push(sent_at),
                What::Nothing => {}
            }
            self.acks.extend(item.ack);
        }
    }
}

/// Records batches.
pub(super) struct Recorder {
    roll: Arc<Roll>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    link: watch::Receiver<Link>,
    stop: CancellationToken,
    last_canary: Option<Timestamp>,
}

impl Recorder {
    pub fn new(
        roll: Arc<Roll>,
        clock: Clock,
        telemetry: Arc<Telemetry>,
        link: watch::Receiver<Link>,
        stop: CancellationToken,
    ) -> Recorder {
        Recorder { roll, clock, telemetry, link, stop, last_canary: None }
    }

    /// Records until the queue is closed and empty, or until `stop` while the engine is away.
    pub async fn record(mut self, mut queue: mpsc::Receiver<Item>, most: usize) {
        let mut items = Vec::new();
        let mut batch = Batch::default();
        while queue.recv_many(&mut items, most).await > 0 {
            batch.refill(&mut items);
            if !self.apply(&batch).await {
                return;
            }
            // Acknowledge after recording: a crash in between repeats the heartbeats, which is
            // harmless.
            self.link.borrow().acknowledge(&batch.acks);
            if let Some(oldest) = batch.oldest {
                self.telemetry.heartbeat_lag(self.clock.now().since(oldest));
            }
        }
    }

    /// Whether the batch was applied. If not, Rollcall is stopping and the engine away.
    async fn apply(&mut self, batch: &Batch) -> bool {
        self.hear(&batch.beats).await && self.tell(&batch.canaries).await
    }

    async fn hear(&self, beats: &[Heartbeat]) -> bool {
        let mut open: Vec<Range<usize>> = Vec::from_iter((!beats.is_empty()).then_some(0..beats.len()));
        let mut failures = 0;
        while let Some(range) = open.pop() {
            match self.roll.hear(&beats[range.clone()], self.clock.now()).await {
                Ok(()) => self.answered(&mut failures),
                Err(EngineError::Damaged(why)) if range.len() == 1 => {
                    let unit = &beats[range.start].unit;
                    tracing::error!(%unit, "heartbeat left out, what is stored of its unit cannot be read: {why}");
                }
                Err(EngineError::Damaged(_)) => {
                    let middle = range.start + range.len() / 2;
                    open.push(middle..range.end);
                    open.push(range.start..middle);
                }
                Err(error) => {
                    failures += 1;
                    open.push(range);
                    if !self.wait(failures, &error).await {
                        return false;
                    }
                }
            }
        }
        true
    }

    async fn tell(&mut self, canaries: &[Timestamp]) -> bool {
        for sent_at in canary::worth_telling(canaries, self.last_canary, self.roll.gap()) {
            let mut failures = 0;
            while let Err(error) = self.roll.canary_returned(sent_at).await {
                failures += 1;
                if !self.wait(failures, &error).await {
                    return false;
                }
            }
            self.answered(&mut failures);
            self.telemetry.canary_returned(self.clock.now().since(sent_at));
            self.last_canary = Some(sent_at);
        }
        true
    }

    fn answered(&self, failures: &mut u32) {
        if std::mem::take(failures) > 0 {
            self.telemetry.engine_up(None);
        }
    }

    /// Waits before the next attempt; `false` if Rollcall is stopping.
    async fn wait(&self, failures: u32, error: &EngineError) -> bool {
        self.telemetry.engine_up(Some(error));
        let wait = BACKOFF.wait(failures, rand::random());
        self.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_some()
    }
}
