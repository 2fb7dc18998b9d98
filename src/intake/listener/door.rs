//! The entry of devices' messages into intake: the same reader and queue as for messages of an external broker.
//!
//! # How hearing is proved
//! A tick takes its turn on the thread that accepts and reads connections, and goes through the queue to the recorder,
//! like a message. A recorded tick proves that connections were accepted and read, and that every message before the
//! tick is recorded: the tick is reported as the canary of a connection that is never lost. So time is blind while no
//! connection can be accepted, or while the queue does not move: a tick that is recorded late proves nothing, because
//! held-back connections are not read meanwhile. Every topic arrives, so a tick proves every filter.
//!
//! # When Rollcall itself stood still
//! Then devices gave up, and their connections are found closed when it goes on: the same as with any other broker that
//! stood still. The wait between two ticks shows it, because it ends late.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::clock::{Clock, Timestamp, monotonic};
use crate::intake::canary::Canary;
use crate::intake::reader::{Content, Incoming, Reader};
use crate::intake::record::{Ack, QueuedMessage};
use crate::intake::standstill::Standstill;
use crate::intake::timers;
use crate::presence::covers;

use super::receipt::Receipt;

pub struct Door {
    pub reader: Reader,
    pub clock: Clock,
    /// The filters of the fleet; messages on other topics are for other clients.
    pub filters: Vec<String>,
    pub queue: mpsc::Sender<QueuedMessage>,
    /// The number of the listener among connections; it differs between processes.
    pub number: u64,
    /// Notified of each announcement: it waits for a tick that is sent after it.
    pub announced: Notify,
    /// Its signs are the beginning and the end of each wait for a tick.
    pub standstill: Mutex<Standstill>,
}

impl Door {
    /// Reads the meaning of a message for Rollcall.
    pub fn read(
        &self,
        topic: &str,
        payload: &[u8],
        reply_to: Option<(&str, &[u8])>,
        arrived: Timestamp,
    ) -> Content {
        let is_timer = self.reader.timers.is_some() && topic.starts_with(timers::PREFIX);
        if !is_timer && !self.filters.iter().any(|filter| covers(filter, topic)) {
            self.reader.telemetry.topic_of_no_kind(topic);
            return Content::Nothing;
        }
        let topic = topic.as_bytes();
        let stood_still = self.standstill.lock().is_recent(monotonic());
        let message = Incoming { topic, payload, reply_to, stood_still, ..Incoming::default() };
        let mut content = self.reader.read(&message, arrived);
        // The listener itself knows about takeovers: see [`Door::read_will`].
        content.change_announcements(&|announcement| announcement.may_be_former = false);
        content
    }

    /// Reads the will of a session. `is_former`: another session took it over, so the will announces nothing.
    pub fn read_will(&self, topic: &str, payload: &[u8], is_former: bool, arrived: Timestamp) -> Content {
        let mut content = self.read(topic, payload, None, arrived);
        content.change_announcements(&|announcement| announcement.follows_birth |= is_former);
        content
    }

    /// A message for the queue; `None` if it means nothing to Rollcall, and no client waits for its acknowledgement.
    pub fn queued(
        &self,
        content: Content,
        arrived: Timestamp,
        receipt: Option<Receipt>,
    ) -> Option<QueuedMessage> {
        if content.canary_after().is_some() {
            self.announced.notify_one();
        }
        let counts = receipt.is_some() || content != Content::Nothing;
        let ack = receipt.map(Ack::Device);
        counts.then(|| QueuedMessage { content, arrived, connection: self.number, ack })
    }

    /// Waits for an announcement, at most for a period. Answers whether one came.
    pub async fn wait_for_announcement(&self, period: Duration) -> bool {
        self.standstill.lock().sign(monotonic(), self.clock.now(), Some(period));
        let came = timeout(period, self.announced.notified()).await.is_ok();
        // Other waits, as for room in the queue, say nothing of the thread.
        self.standstill.lock().sign(monotonic(), self.clock.now(), None);
        came
    }

    /// Queues the tick that was sent at this moment; `false` if Rollcall is stopping.
    pub async fn tick(&self, sent_at: Timestamp) -> bool {
        self.standstill.lock().canary_returned(sent_at);
        let probes = &self.reader.probes;
        let contents = (0..probes.all().len()).map(|index| {
            probes.sent(index, sent_at);
            Content::Probes(index, vec![sent_at])
        });
        for content in contents.chain([Content::Canary(Canary::within(sent_at))]) {
            let message = QueuedMessage { content, arrived: sent_at, connection: self.number, ack: None };
            if self.queue.send(message).await.is_err() {
                return false;
            }
        }
        true
    }
}
