//! Records the messages that wait in the queue, then acknowledges them.
//!
//! All messages in the queue form one batch; the next one fills while it is written. If there are more than one batch
//! may hold, a second batch is sent at once, so that the engine need not wait for Rollcall; with fewer messages, a
//! second batch would only make the next one smaller. Heartbeats may be applied in any order, since the newer one wins.
//! Canaries and acknowledgements, which prove recording, wait until their batch and all earlier ones are applied. So
//! when a canary is reported, all messages before it are recorded.
//!
//! All waiting canaries are reported together, while the next batch is written. If the engine is far away, batches do
//! not wait for one another, because they spend most of that time in transit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;

use super::announcements::HeldAnnouncements;
use super::engine_writer::EngineWriter;
use super::hearing_reporter::{HearingEvent, HearingReporter};
use super::listener::Receipt;
use super::mqtt::{BrokerAck, Link};
use super::reader::Content;
use super::timers::{self, ReceivedCommand};
use crate::clock::{Timestamp, monotonic};
use crate::presence::{Announcement, Heartbeat};
use crate::telemetry::AnnouncementOutcome;

/// The most batches that are written at a time. A third batch would give the engine no more to do, and make each
/// smaller.
const CONCURRENT: usize = 2;

/// The most batches that are written at a time if the engine is far away, spread evenly over a round trip.
const FAR_CONCURRENT: u32 = 8;

/// The most batches whose events wait to be reported. At this number, recording waits for the reports.
const UNREPORTED: usize = 64;

/// A message that waits to be recorded.
#[derive(Debug, PartialEq)]
pub(super) struct QueuedMessage {
    pub content: Content,
    pub arrived: Timestamp,
    /// The number of the connection that brought it.
    pub connection: u64,
    /// The acknowledgement that the sender waits for, if any.
    pub ack: Option<Ack>,
}

/// The acknowledgement of a message, which is due when the message is recorded.
#[derive(Debug, PartialEq)]
pub(super) enum Ack {
    /// An acknowledgement to the broker that delivered the message.
    Broker(BrokerAck),
    /// An acknowledgement to the device that sent the message.
    #[cfg_attr(not(feature = "broker"), expect(dead_code, reason = "no device connects"))]
    Device(Receipt),
}

/// A batch; heartbeats, events and acknowledgements each in order of arrival.
#[derive(Default)]
struct Batch {
    heartbeats: Vec<Heartbeat>,
    events: Vec<HearingEvent>,
    timers: Vec<ReceivedCommand>,
    /// The messages to publish: topics and payloads.
    commands: Vec<(String, Vec<u8>)>,
    acks: Vec<Ack>,
    oldest: Option<Timestamp>,
}

impl Batch {
    fn of(messages: &mut Vec<QueuedMessage>) -> Batch {
        let oldest = messages.first().map(|message| message.arrived);
        let mut batch = Batch { oldest, ..Batch::default() };
        for QueuedMessage { content, arrived, connection, ack } in messages.drain(..) {
            batch.take(content, arrived, connection);
            batch.acks.extend(ack);
        }
        batch
    }

    fn take(&mut self, content: Content, arrived: Timestamp, connection: u64) {
        match content {
            Content::Heartbeat(heartbeat) => self.heartbeats.push(heartbeat),
            Content::Announcement(announcement) => {
                self.events.push(HearingEvent::Announced { connection, announcement, arrived })
            }
            Content::Canary(canary) => {
                self.events.push(HearingEvent::Canary { connection, sent_at: canary.sent_at() })
            }
            Content::Probes(index, sent) => {
                self.events.extend(sent.into_iter().map(|sent_at| HearingEvent::Probe { index, sent_at }));
            }
            Content::MemberLost(member) => self.events.push(HearingEvent::MemberLost { member, at: arrived }),
            Content::BridgeLost(kind) => self.events.push(HearingEvent::BridgeLost { kind }),
            Content::Unsubscribed => self.events.push(HearingEvent::Unsubscribed { connection }),
            Content::Timer(request) => self.timers.push(*request),
            Content::Command(topic, payload) => self.commands.push((topic, payload)),
            Content::Several(all) => {
                all.into_iter().for_each(|content| self.take(content, arrived, connection));
            }
            Content::OfAnother(..) | Content::Nothing => {}
        }
    }
}

pub(super) struct Recorder {
    pub writer: EngineWriter,
    pub reporter: HearingReporter,
    pub link: watch::Receiver<Link>,
    /// The engine works on a batch whose acknowledgements wait.
    pub is_applying: Arc<AtomicBool>,
}

impl Recorder {
    /// Records until the queue is closed and empty, or until `stop` if the engine is away.
    pub async fn record(self, queue: mpsc::Receiver<QueuedMessage>, most: usize) {
        let Recorder { writer, reporter, link, is_applying } = self;
        let (recorded, events) = mpsc::channel(UNREPORTED);
        let (proved, announced) = mpsc::channel(UNREPORTED);
        let apply = apply_all(&writer, &link, queue, (most, &is_applying), recorded);
        let report = report_all(&writer, &link, reporter, events, proved);
        tokio::join!(apply, report, announce_all(&writer, announced));
    }
}

/// Applies batches, in order, and passes on the events of each.
async fn apply_all(
    writer: &EngineWriter,
    link: &watch::Receiver<Link>,
    mut queue: mpsc::Receiver<QueuedMessage>,
    (most, is_applying): (usize, &AtomicBool),
    recorded: mpsc::Sender<Vec<HearingEvent>>,
) {
    let mut messages = Vec::new();
    let mut in_progress = FuturesOrdered::new();
    let (mut is_open, mut was_full) = (true, false);
    let mut next = monotonic();
    loop {
        is_applying.store(!in_progress.is_empty(), Ordering::Relaxed);
        let distance = writer.roll.round_trip() / FAR_CONCURRENT;
        let is_far = !distance.is_zero() && in_progress.len() < FAR_CONCURRENT as usize;
        let has_room = in_progress.is_empty()
            || (was_full && in_progress.len() < CONCURRENT)
            || (is_far && next <= monotonic());
        // Each future here is cancel-safe: dropping one when another is ready loses nothing.
        tokio::select! {
            biased;
            Some(applied) = in_progress.next() => {
                let Some(mut batch) = applied else { return };
                if !apply_timers(writer, link, &mut batch).await {
                    return;
                }
                let events = acknowledge(writer, link, batch);
                if !events.is_empty() && recorded.send(events).await.is_err() {
                    return;
                }
            }
            count = queue.recv_many(&mut messages, most), if is_open && has_room => {
                is_open = count > 0;
                was_full = count == most;
                if is_open {
                    next = monotonic() + distance;
                    in_progress.push_back(apply(writer.clone(), Batch::of(&mut messages)));
                }
            }
            () = sleep_until(next.into()), if is_open && is_far && !has_room => {}
            else => return,
        }
    }
}

/// Applies the requests about timers of a batch after all earlier batches, and answers them. Returns `false` if
/// Rollcall is stopping and the engine is away.
///
/// Heartbeats wait meanwhile: the order of requests about one timer matters, so only one batch of them is applied at a
/// time.
async fn apply_timers(writer: &EngineWriter, link: &watch::Receiver<Link>, batch: &mut Batch) -> bool {
    // The memory of the requests is freed when they are answered.
    let requests = std::mem::take(&mut batch.timers);
    if requests.is_empty() {
        return true;
    }
    let Some(answers) = timers::apply(writer, &writer.timers, &requests).await else { return false };
    for (request, answer) in requests.iter().zip(answers) {
        if let Some(to) = &request.reply_to {
            link.borrow().answer(to, answer.to_string().into_bytes());
        }
    }
    true
}

/// Acknowledges the messages of a batch after it and all earlier batches are applied; returns its events.
fn acknowledge(writer: &EngineWriter, link: &watch::Receiver<Link>, batch: Batch) -> Vec<HearingEvent> {
    // Acknowledge after recording: a crash in between repeats the heartbeats, which is harmless. Acknowledge before
    // reporting the canaries, so that all messages that they prove are acknowledged.
    let of_broker = |ack: Ack| match ack {
        Ack::Broker(ack) => Some(ack),
        Ack::Device(receipt) => {
            receipt.acknowledge();
            None
        }
    };
    let acks: Vec<BrokerAck> = batch.acks.into_iter().filter_map(of_broker).collect();
    link.borrow().acknowledge(&acks);
    batch.commands.into_iter().for_each(|(topic, payload)| link.borrow().command(topic, payload));
    if let Some(oldest) = batch.oldest {
        writer.telemetry.heartbeat_lag(writer.clock.now().since(oldest));
    }
    batch.events
}

/// Reports events in order until the channel is closed, or until Rollcall is stopping and the engine is away.
async fn report_all(
    writer: &EngineWriter,
    link: &watch::Receiver<Link>,
    mut reporter: HearingReporter,
    mut unreported: mpsc::Receiver<Vec<HearingEvent>>,
    proved: mpsc::Sender<Vec<Announcement>>,
) {
    let mut held = HeldAnnouncements::default();
    let mut events = Vec::new();
    while unreported.recv_many(&mut events, UNREPORTED).await > 0 {
        let events: Vec<HearingEvent> = events.drain(..).flatten().collect();
        if !reporter.report(writer, &events, link).await {
            return;
        }
        let of_now = held.proved(events, &writer.telemetry);
        if !of_now.is_empty()
            && let Err(error) = proved.try_send(of_now)
        {
            let left_out = error.into_inner().len();
            writer.telemetry.announcements(AnnouncementOutcome::Overflow, left_out as u64);
        }
    }
}

/// Applies announcements beside heartbeats, which do not wait for them.
async fn announce_all(writer: &EngineWriter, mut proved: mpsc::Receiver<Vec<Announcement>>) {
    while let Some(announcements) = proved.recv().await {
        if !writer.announce(&announcements).await {
            return;
        }
    }
}

/// Applies the heartbeats of a batch and returns the batch; `None` if Rollcall is stopping and the engine is away.
async fn apply(writer: EngineWriter, batch: Batch) -> Option<Batch> {
    writer.hear(&batch.heartbeats).await.then_some(batch)
}
