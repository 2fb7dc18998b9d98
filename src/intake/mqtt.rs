//! The connection to the broker: kept, lost, made again.
//!
//! Each connection is a client of its own with a number. An acknowledgement carries the number of
//! the connection that its message came by and is dropped if that is no longer the current one: on
//! a new connection the same packet id means another message. The broker sends again what was not
//! acknowledged; a repeated heartbeat is harmless.
//!
//! # Why polling never waits
//! The client library does everything inside `poll`: it reads, acknowledges, and keeps the
//! connection alive. So nothing here awaits anything else while a connection stands, and a poll that
//! has begun is never given up for something else: it may be in the middle of a packet. Messages are
//! queued without waiting ([`super`] says what happens when there is no room), and before a
//! connection is made the queue has room for all that may come unacknowledged.
//!
//! # Why a broker is held back that sends more than it may
//! Mosquitto, up to 2.0.11 at least, sends as many messages as it may send at all for each that is
//! acknowledged, once it has a backlog. To end the connection would have it begin the backlog anew,
//! again and again, and Rollcall blind meanwhile. So what is beyond the receive maximum stays in the
//! connection, unread, until enough is acknowledged.
//!
//! # Why it watches for silence itself
//! The library pings after a time without *sending*. Canaries are sent at least every minute, so a broker
//! that went away without a word would never be pinged. Nothing received for two keep-alives, not
//! even the canary, is a dead connection. Members of a shared subscription are less patient:
//! `visit` says why.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rumqttc::{AsyncClient, ConnectionError, Event, EventLoop, Packet, Publish, QoS, SubAck};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::drops::Drops;
use super::reader::{Message, Reader, What};
use super::record::Item;
use crate::backoff::Backoff;
use crate::clock::Timestamp;
use crate::fleet::CanaryPace;
use crate::telemetry::{ConnectionLoss, Rejection};

mod asking;
mod canaries;
mod check;
mod given;
mod heap;
mod link;
mod nap;
mod session;
mod stranger;
mod visit;
mod words;

pub(super) use asking::Asking;
pub(super) use canaries::Canaries;
pub use check::{Deaf, probe};
pub(super) use given::Given;
pub(super) use heap::Heap;
pub(super) use link::{Ack, Link, Proof};
pub(super) use session::Session;
pub use stranger::lets_strangers_in;
use visit::{Stage, Visit};
use words::{describe, loss};

/// The largest packet that is received, and then rejected and counted. The broker is told and
/// drops what is larger, so that no device can make Rollcall hold more than a few times this.
pub(super) const LARGEST_PACKET: u32 = 16 << 20;

/// How the broker is tried again.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(15) };

/// A connection that stood for so long was a success: what ends it is another trouble than what came before,
/// and every second without one is blind.
const SUCCESS: Duration = Duration::from_secs(5);

/// How long the broker may take to see us off.
const FAREWELL: Duration = Duration::from_secs(1);

/// The connection, over all its losses.
pub(super) struct Connection {
    pub name: String,
    pub session: Session,
    pub reader: Reader,
    /// Follows what the broker throws away, on one of the connections if it is to.
    pub drops: Option<Drops>,
    /// `None` once Rollcall is stopping: nothing more is taken.
    pub queue: Option<Heap>,
    pub link: watch::Sender<Link>,
    /// What the recorder makes of this connection.
    pub proof: watch::Receiver<Proof>,
    pub canaries: Canaries,
    /// Proves that the filters of the fleet are heard, on one of the connections.
    pub asking: Option<Asking>,
    /// What may come again.
    pub given: Given,
    /// How often canaries go out, and which hole between them is blind time.
    pub pace: Arc<CanaryPace>,
    pub deaf_until: Timestamp,
    /// The number of the connection; one more each time. The first is a random one, so that a client
    /// which cannot read the last words of members cannot make one up.
    pub number: u64,
    /// Takes messages until then,
    pub stop: CancellationToken,
    /// and stands until everything is recorded.
    pub recorded: CancellationToken,
}

/// How a connection ended.
enum Ended {
    Lost(ConnectionLoss, String),
    Left,
}

/// Why a connection is to be ended though the client does not say so.
enum Enough {
    Recorded,
    Lost(ConnectionLoss, String),
}

/// How many failures in a row there are when a connection ends that stood for so long.
fn failures_after(before: u32, stood: Duration) -> u32 {
    if stood < SUCCESS { before + 1 } else { 1 }
}

/// How many packets that wait already are taken before anything else is seen to: what that costs is
/// felt if it is paid for each.
const BURST: u32 = 256;

impl Connection {
    /// Stays connected.
    pub async fn stay(mut self) {
        let broker = self.session.address.to_string();
        let telemetry = self.reader.telemetry.clone();
        let mut failures = 0;
        while self.has_room().await {
            let began = Instant::now();
            let ended = self.connect().await;
            self.hand_over();
            self.link.send_replace(Link::default());
            self.given.connection_lost();
            let Ended::Lost(loss, why) = ended else { return };
            self.asking.iter_mut().for_each(|asking| asking.connection_lost(loss));
            failures = failures_after(failures, began.elapsed());
            let wait = BACKOFF.wait(failures, rand::random());
            telemetry.mqtt_disconnected(&self.name, &broker, (loss, &why), wait);
            if self.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// The room for what may be unacknowledged: as many as the broker may send, and one that it may not.
    fn reserved(&self) -> usize {
        usize::from(self.session.window) + 1
    }

    /// Waits until all that a new connection may bring unacknowledged finds room. `false` if
    /// Rollcall is stopping.
    async fn has_room(&self) -> bool {
        let Some(queue) = &self.queue else { return false };
        let room = queue.has_room(self.reserved());
        self.stop.run_until_cancelled(room).await == Some(true)
    }

    async fn connect(&mut self) -> Ended {
        self.number += 1;
        self.canaries.connecting();
        let (client, mut events) = self.session.open(self.number);
        let mut visit = Visit::new(client, self.session.patience, Instant::now());
        let mut ticks = interval(self.period());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = match self.next(&mut visit, &mut events, &mut ticks).await {
                Ok(event) => event,
                Err(Enough::Lost(loss, why)) => return Ended::Lost(loss, why),
                Err(Enough::Recorded) if self.has_left() => return leave(visit.client, events).await,
                // The broker says so to the others: what it gave us since the last canary is lost.
                Err(Enough::Recorded) => return Ended::Left,
            };
            // Before anything is taken: a process that was frozen is late for what waits here.
            let now = Instant::now();
            if let Some(why) = visit.overdue(now) {
                return Ended::Lost(ConnectionLoss::Silent, why);
            }
            let packet = match event {
                Ok(Event::Incoming(packet)) => packet,
                Ok(_) => continue,
                Err(error) => return Ended::Lost(loss(&error), describe(&error)),
            };
            visit.came(now);
            let result = match &packet {
                Packet::Publish(publish) => self.take(&mut visit, publish),
                Packet::ConnAck(answer) => {
                    // Asked once; from now on it would only cost a checkpoint per packet.
                    events.options.clear_session_store();
                    if !answer.session_present {
                        self.given.session_began(self.reader.clock.now());
                    }
                    let theirs = answer.properties.as_ref().and_then(|said| said.server_keep_alive);
                    self.publish_link(&visit, theirs.map(u64::from).map(Duration::from_secs));
                    // Also when the session is an old one: the topics may be new.
                    self.session.subscribe(&visit.client, &self.session.first)
                }
                Packet::SubAck(answer) => {
                    self.granted(&mut visit, answer).map(|()| ticks.reset_immediately())
                }
                Packet::UnsubAck(_) if visit.stage == Stage::Leaving => {
                    visit.stage = Stage::Last(self.canaries.seq + 1);
                    ticks.reset_immediately();
                    Ok(())
                }
                _ => Ok(()),
            };
            if let Err(why) = result {
                let loss = if matches!(packet, Packet::SubAck(_)) {
                    ConnectionLoss::Refused
                } else {
                    ConnectionLoss::Broken
                };
                return Ended::Lost(loss, why);
            }
        }
    }

    /// Sees to everything else until the client has something to say.
    async fn next(
        &mut self,
        visit: &mut Visit,
        events: &mut EventLoop,
        ticks: &mut Interval,
    ) -> Result<Result<Event, ConnectionError>, Enough> {
        let (held, window) = (visit.held.clone(), usize::from(self.session.window));
        let mut poll = pin!(async {
            held.at_most(window).await;
            events.poll().await
        });
        if visit.is_in_burst(BURST) {
            if let Poll::Ready(event) = poll_fn(|cx| Poll::Ready(poll.as_mut().poll(cx))).await {
                return Ok(event);
            }
            self.hand_over();
            visit.nap.take();
        } else {
            self.hand_over();
        }
        let (stop, recorded) = (self.stop.clone(), self.recorded.clone());
        let (mut stopped, mut recorded) = (pin!(stop.cancelled()), pin!(recorded.cancelled()));
        loop {
            let check = visit.next_check();
            // Whatever is dropped here when another comes first has not begun to do anything, but
            // for the poll, which goes on.
            let (loss, seen_to) = tokio::select! {
                biased;
                () = &mut recorded => return Err(Enough::Recorded),
                () = &mut stopped, if !visit.is_stopping => (ConnectionLoss::Broken, self.stop_taking(visit)),
                () = sleep_until(check) => (ConnectionLoss::Silent, self.check(visit)),
                Ok(()) = self.proof.changed() => (ConnectionLoss::Broken, self.heed_proof(visit)),
                _ = ticks.tick(), if visit.sings() => (ConnectionLoss::Broken, self.sing(visit, ticks)),
                event = &mut poll => {
                    visit.nap.woke(Instant::now());
                    return Ok(event);
                }
            };
            seen_to.map_err(|why| Enough::Lost(loss, why))?;
        }
    }

    /// The time between two canaries.
    fn period(&self) -> Duration {
        self.pace.period(self.canaries.period)
    }

    /// How long canaries are withheld after a loss, for it to show as blind time.
    fn deafness(&self) -> Duration {
        self.pace.gap() + self.canaries.period
    }

    fn sing(&mut self, visit: &Visit, ticks: &mut Interval) -> Result<(), String> {
        let period = self.period();
        if ticks.period() != period {
            // A unit with a shorter timeout was met.
            *ticks = interval_at(Instant::now() + period, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            self.given.hole(self.pace.gap());
        }
        let now = self.reader.clock.now();
        // Before the canary: when that is told, what came of them is told with it.
        if let Some(asking) = self.asking.as_mut().filter(|_| visit.stage == Stage::Hearing) {
            asking.ask(&visit.client, now, &self.pace, period);
        }
        self.canaries.sing(&visit.client, now);
        self.drops.iter_mut().for_each(|drops| drops.settle(now));
        Ok(())
    }

    fn check(&mut self, visit: &mut Visit) -> Result<(), String> {
        let now = Instant::now();
        if visit.held.is_more_than(self.session.window.into()) {
            // It is held back, and not silent.
            visit.came(now);
        }
        if visit.has_left_too_slowly(now) {
            self.close(visit);
        }
        visit.overdue(now).map_or(Ok(()), Err)
    }

    /// Takes nothing more, or, as a member, asks to be given nothing more.
    fn stop_taking(&mut self, visit: &mut Visit) -> Result<(), String> {
        visit.is_stopping = true;
        if visit.stage == Stage::Hearing && self.session.share.is_some() {
            visit.leave(Instant::now());
            return self.session.unsubscribe(&visit.client);
        }
        self.close(visit);
        Ok(())
    }

    fn close(&mut self, visit: &mut Visit) {
        visit.stage = Stage::Closed;
        self.queue = None;
    }

    fn heed_proof(&mut self, visit: &mut Visit) -> Result<(), String> {
        let proof = self.proof.borrow_and_update().clone();
        if let Some(at) = proof.at {
            visit.proved(at);
            self.given.acknowledged(proof.canary, self.reader.clock.now());
        }
        if visit.stage == Stage::Proving && proof.attends == self.number {
            visit.enter(Instant::now());
            return self.session.subscribe(&visit.client, &self.session.shared);
        }
        Ok(())
    }

    /// Whether nothing is lost when this connection ends now.
    fn has_left(&self) -> bool {
        let proof = self.proof.borrow();
        self.session.share.is_none() || proof.left || proof.attends != self.number
    }

    fn granted(&mut self, visit: &mut Visit, answer: &SubAck) -> Result<(), String> {
        match visit.stage {
            Stage::Joining => {
                self.session.granted(answer, &self.session.first)?;
                if self.session.share.is_some() {
                    visit.stage = Stage::Proving;
                    return Ok(());
                }
            }
            Stage::Entering => {
                let granted = self.session.granted(answer, &self.session.shared);
                if granted.is_err() && session::all_refused(answer) {
                    // It was given nothing, so it leaves no trace.
                    self.enqueue(What::Farewell, self.reader.clock.now(), None)?;
                }
                granted?;
            }
            _ => return Ok(()),
        }
        visit.stage = Stage::Hearing;
        self.reader.telemetry.mqtt_connected(&self.name, &self.session.address.to_string());
        Ok(())
    }

    /// `theirs`: the keep-alive that the broker goes by, if it is not ours.
    fn publish_link(&self, visit: &Visit, theirs: Option<Duration>) {
        let keep_alive = self.session.keep_alive.max(theirs.unwrap_or_default());
        let release = self.session.release(keep_alive);
        let (client, held) = (Some(visit.client.clone()), visit.held.clone());
        self.link.send_replace(Link { number: self.number, release, client, held });
    }

    /// Reads a message and queues what it is.
    fn take(&mut self, visit: &mut Visit, publish: &Publish) -> Result<(), String> {
        if publish.topic.starts_with(b"$SYS/") {
            let now = self.reader.clock.now();
            self.drops.iter_mut().for_each(|drops| drops.told(&publish.payload, now));
            return Ok(());
        }
        let reserved = self.reserved();
        let Some(queue) = &self.queue else { return Ok(()) };
        let now = self.reader.clock.now();
        let (topic, payload) = (&publish.topic, &publish.payload);
        let ack =
            (publish.qos != QoS::AtMostOnce).then_some(Ack { connection: self.number, packet: publish.pkid });
        let is_new = match &ack {
            None => true,
            Some(ack) => self.given.is_new(ack.packet, publish.dup, topic, payload, now),
        };
        let (mut what, arrived) = if is_new {
            let under_way = self.given.under_way(now);
            self.reader.read(&Message { topic, payload, retain: publish.retain, under_way })
        } else {
            // Behind the first one in the queue, so that it is acknowledged after that is recorded.
            (What::Nothing, now)
        };
        let mut is_last = false;
        if matches!(what, What::Heartbeat(_)) && self.given.lacks_a_canary(now) {
            self.deaf_until = self.deaf_until.max(now);
        }
        if let What::Canary(canary) = &what {
            let returned = self.canaries.returned(canary);
            is_last = returned.vouches && matches!(visit.stage, Stage::Last(seq) if canary.seq >= seq);
            self.given.canary_returned(canary.sent_at(), now);
            if let Some(before) = returned.lost_after {
                self.deaf_until = self.deaf_until.max(before + self.deafness());
            }
            if !returned.vouches || canary.sent_at() <= self.deaf_until {
                what = What::Nothing;
            }
        }
        if ack.is_none() && what == What::Nothing {
            return Ok(());
        }
        if ack.is_none() && queue.room() <= reserved {
            self.deaf_until = arrived + self.deafness();
            let topic = String::from_utf8_lossy(&publish.topic);
            let text = "the queue is full; the time until it has room counts as blind";
            self.reader.telemetry.message_rejected(&topic, Rejection::Overflow, text);
            return Ok(());
        }
        let counts = what != What::Nothing;
        if ack.is_some() {
            visit.held.one_more();
        }
        self.enqueue(what, arrived, ack)?;
        if is_last && counts {
            self.enqueue(What::Farewell, arrived, None)?;
            self.close(visit);
        }
        Ok(())
    }

    fn enqueue(&mut self, what: What, arrived: Timestamp, ack: Option<Ack>) -> Result<(), String> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        let item = Item { what, arrived, connection: self.number, ack };
        let full = || "there is no room for what the broker sent".to_owned();
        queue.add(item).then_some(()).ok_or_else(full)
    }

    fn hand_over(&mut self) {
        self.queue.iter_mut().for_each(Heap::hand_over);
    }
}

/// Says good-bye, so that the broker need not find out.
async fn leave(client: AsyncClient, mut events: EventLoop) -> Ended {
    let _ = client.try_disconnect_with_timeout(FAREWELL);
    drop(client);
    let _ = timeout(2 * FAREWELL, async { while events.poll().await.is_ok() {} }).await;
    Ended::Left
}

#[cfg(test)]
mod tests;
