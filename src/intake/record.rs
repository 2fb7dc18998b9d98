//! Records what has queued up, then acknowledges it.
//!
//! Whatever is in the queue is one batch: while it is being written the next one collects. When that
//! is more than a batch may hold, a second one goes under way at once, so that the engine need not
//! wait for us; otherwise it would only cut the next one short. Their heartbeats may be applied in
//! any order, since the newer wins; but what vouches for them, canaries and acknowledgements, waits
//! until its batch and all before it are applied. So a canary that is told here has everything that
//! came before it behind it.
//!
//! Canaries are told while the next batch is being written: those that wait are told together. Where the engine is
//! far away no batch waits until the one before is written either, for most of that time it is under way.
//!
//! # Why it keeps trying
//! A heartbeat that was not recorded is not lost as long as it is not acknowledged, and to pass it
//! over would let later canaries vouch for it. So a batch is tried until the engine takes it. The
//! one exception is a unit whose stored state cannot be read: it is found by halving the batch and
//! left out, loudly, because it would hold up all others for good.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::mqtt::{Ack, Link};
use super::prove::{Prover, Word};
use super::reader::Content;
use crate::backoff::Backoff;
use crate::clock::{Clock, Timestamp};
use crate::fleet::Roll;
use crate::presence::Heartbeat;
use crate::store::EngineError;
use crate::telemetry::{Loop, Telemetry};

/// How the engine is tried again.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2) };

/// Batches that are written at a time. With a third the engine has no more to do, and each is
/// smaller.
const UNDER_WAY: usize = 2;

/// The same where the engine is far away, evenly over a round trip.
const FAR_UNDER_WAY: u32 = 8;

/// Batches whose words wait to be told. When there are more, recording waits for them.
const UNTOLD: usize = 64;

/// What is asked for when heartbeats are recorded.
const BEATS: &str = "heartbeats";

/// A message that waits to be recorded.
#[derive(Debug, PartialEq)]
pub(super) struct QueuedMessage {
    pub content: Content,
    pub arrived: Timestamp,
    /// The number of the connection by which it arrived.
    pub connection: u64,
    /// The acknowledgement that the broker waits for, if it does.
    pub ack: Option<Ack>,
}

/// A batch, by what is in it; each in order of arrival.
#[derive(Default)]
struct Batch {
    beats: Vec<Heartbeat>,
    words: Vec<Word>,
    acks: Vec<Ack>,
    oldest: Option<Timestamp>,
}

impl Batch {
    fn of(messages: &mut Vec<QueuedMessage>) -> Batch {
        let oldest = messages.first().map(|message| message.arrived);
        let mut batch = Batch { oldest, ..Batch::default() };
        for QueuedMessage { content, arrived, connection, ack } in messages.drain(..) {
            match content {
                Content::Heartbeat(beat) => batch.beats.push(beat),
                Content::Canary(canary) => {
                    batch.words.push(Word::Canary { connection, sent_at: canary.sent_at() })
                }
                Content::Probe(number, sent_at) => batch.words.push(Word::Probe { number, sent_at }),
                Content::Gone(member) => batch.words.push(Word::Gone { member, at: arrived }),
                Content::Unsubscribed => batch.words.push(Word::Farewell { connection }),
                Content::Nothing => {}
            }
            batch.acks.extend(ack);
        }
        batch
    }
}

/// Asks the engine, until it answers.
#[derive(Clone)]
pub(super) struct Writer {
    pub roll: Arc<Roll>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    pub stop: CancellationToken,
}

/// Records batches.
pub(super) struct Recorder {
    pub writer: Writer,
    pub prover: Prover,
    pub link: watch::Receiver<Link>,
}

impl Recorder {
    /// Records until the queue is closed and empty, or until `stop` while the engine is away.
    pub async fn record(self, queue: mpsc::Receiver<QueuedMessage>, most: usize) {
        let Recorder { writer, prover, link } = self;
        let (vouched, words) = mpsc::channel(UNTOLD);
        let apply = apply_all(&writer, &link, queue, most, vouched);
        tokio::join!(apply, tell_all(&writer, &link, prover, words));
    }
}

/// Applies batches, in order, and hands on what follows from each.
async fn apply_all(
    writer: &Writer,
    link: &watch::Receiver<Link>,
    mut queue: mpsc::Receiver<QueuedMessage>,
    most: usize,
    vouched: mpsc::Sender<Vec<Word>>,
) {
    let mut messages = Vec::new();
    let mut under_way = FuturesOrdered::new();
    let (mut is_open, mut was_full) = (true, false);
    let mut next = Instant::now();
    loop {
        let distance = writer.roll.round_trip() / FAR_UNDER_WAY;
        let is_far = !distance.is_zero() && under_way.len() < FAR_UNDER_WAY as usize;
        let has_room = under_way.is_empty()
            || (was_full && under_way.len() < UNDER_WAY)
            || (is_far && next <= Instant::now());
        // None loses anything when another is first.
        tokio::select! {
            biased;
            Some(applied) = under_way.next() => {
                let Some(batch) = applied else { return };
                let words = vouch_for(writer, link, batch);
                if !words.is_empty() && vouched.send(words).await.is_err() {
                    return;
                }
            }
            count = queue.recv_many(&mut messages, most), if is_open && has_room => {
                is_open = count > 0;
                was_full = count == most;
                if is_open {
                    next = Instant::now() + distance;
                    under_way.push_back(apply(writer.clone(), Batch::of(&mut messages)));
                }
            }
            () = sleep_until(next), if is_open && is_far && !has_room => {}
            else => return,
        }
    }
}

/// What follows from a batch that is applied, as all before it are.
fn vouch_for(writer: &Writer, link: &watch::Receiver<Link>, batch: Batch) -> Vec<Word> {
    // Acknowledge after recording: a crash in between repeats the heartbeats, which is
    // harmless. And before the canaries are told, so that what they prove is acknowledged.
    link.borrow().acknowledge(&batch.acks);
    if let Some(oldest) = batch.oldest {
        writer.telemetry.heartbeat_lag(writer.clock.now().since(oldest));
    }
    batch.words
}

/// Tells what is handed on, in order, until there is no more, or Rollcall is stopping and the engine away.
async fn tell_all(
    writer: &Writer,
    link: &watch::Receiver<Link>,
    mut prover: Prover,
    mut untold: mpsc::Receiver<Vec<Word>>,
) {
    let mut words = Vec::new();
    while untold.recv_many(&mut words, UNTOLD).await > 0 {
        let words: Vec<Word> = words.drain(..).flatten().collect();
        if !prover.tell(writer, &words, link).await {
            return;
        }
    }
}

/// Gives the batch back when its heartbeats are applied; `None` if Rollcall is stopping and the
/// engine away.
async fn apply(writer: Writer, batch: Batch) -> Option<Batch> {
    writer.hear(&batch.beats).await.then_some(batch)
}

impl Writer {
    async fn hear(&self, beats: &[Heartbeat]) -> bool {
        let mut open: Vec<Range<usize>> = Vec::from_iter((!beats.is_empty()).then_some(0..beats.len()));
        let mut failures = 0;
        while let Some(range) = open.pop() {
            match self.roll.hear(&beats[range.clone()], self.clock.now()).await {
                Ok(()) => self.answered(BEATS, &mut failures),
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
                    if !self.wait(BEATS, failures, &error).await {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Asks until there is an answer; `None` if Rollcall is stopping and the engine away.
    /// `what` is asked for, for readiness.
    pub async fn insist<T, F>(&self, what: &'static str, ask: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = crate::store::Result<T>>,
    {
        let mut failures = 0;
        loop {
            match ask().await {
                Ok(answer) => {
                    self.answered(what, &mut failures);
                    return Some(answer);
                }
                Err(error) => {
                    failures += 1;
                    if !self.wait(what, failures, &error).await {
                        return None;
                    }
                }
            }
        }
    }

    fn answered(&self, what: &'static str, failures: &mut u32) {
        *failures = 0;
        self.telemetry.engine_answered(Loop::Intake, what);
    }

    /// Waits before the next attempt; `false` if Rollcall is stopping.
    async fn wait(&self, what: &'static str, failures: u32, error: &EngineError) -> bool {
        self.telemetry.engine_failed(Loop::Intake, what, error);
        let wait = BACKOFF.wait(failures, rand::random());
        self.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_some()
    }
}
