//! Carries out the actions of a connection's state.

use rumqttc::{Publish, PublishOptions, QoS};

use super::link::Link;
use super::state::{Action, Requests};
use super::{Connection, ConnectionEnd, OpenConnection};
use crate::clock::monotonic;
use crate::telemetry::{ConnectionLoss, Rejection};

impl Connection {
    /// Carries out all actions; `message` is the message that caused them, if any.
    pub(super) fn act(
        &mut self,
        open: &mut OpenConnection,
        message: Option<&Publish>,
    ) -> Result<(), ConnectionEnd> {
        let mut actions = std::mem::take(&mut open.actions);
        let result = actions.drain(..).try_for_each(|action| self.carry_out(action, open, message));
        // Reuse the buffer, because each packet needs one.
        open.actions = actions;
        result
    }

    /// In one piece: one arm for each action.
    pub(super) fn carry_out(
        &mut self,
        action: Action,
        open: &mut OpenConnection,
        message: Option<&Publish>,
    ) -> Result<(), ConnectionEnd> {
        let broken = |why| ConnectionEnd::Lost(ConnectionLoss::Broken, why);
        let telemetry = &self.reader.telemetry;
        match action {
            Action::Accept { release } => {
                let (client, unacknowledged) = (Some(open.client.clone()), open.unacknowledged.clone());
                let (number, taken_since) = (self.state.number(), self.takeovers.since());
                self.accepted = Some(self.clock.now());
                let link = Link { number, release, taken_since, client, unacknowledged, ..Link::default() };
                self.link.send_replace(link);
            }
            Action::Subscribe(requests) => {
                let topics = match requests {
                    Requests::First => &self.session.first,
                    Requests::Share => &self.session.share_requests,
                };
                self.session.subscribe(&open.client, topics).map_err(broken)?;
            }
            Action::UnsubscribeShare => self.session.unsubscribe(&open.client).map_err(broken)?,
            Action::ReportGrants(grants) => grants.log(self.session.client_id()),
            Action::ReportConnected => {
                telemetry.mqtt_connected((&self.broker, &self.name), &self.session.address.to_string());
            }
            Action::Record(queued) => {
                if queued.ack.is_some() {
                    open.unacknowledged.add_one();
                }
                if !self.queue.as_mut().is_none_or(|queue| queue.add(queued)) {
                    return Err(broken("the queue has no room for the messages of the broker".to_owned()));
                }
            }
            Action::RejectOverflow => {
                let topic =
                    message.map(|message| String::from_utf8_lossy(&message.topic)).unwrap_or_default();
                let text = "the queue is full; the time until it has room counts as blind";
                telemetry.message_rejected(&topic, Rejection::Overflow, text);
            }
            Action::CountBrokerDrops => {
                if let (Some(drops), Some(message)) = (&mut self.drops, message) {
                    drops.counted(&message.payload, self.clock.now());
                }
            }
            Action::SendCanary(seq) => {
                if self.canaries.publish(&open.client, seq, self.clock.now()) {
                    self.state.canary_sent(seq, monotonic());
                }
            }
            Action::TickNow => open.ticks.reset_immediately(),
            Action::TickAfter(wait) => open.tick_after(wait, monotonic()),
            Action::PublishProbe(index) => {
                if let Some(probes) = &mut self.probes
                    && probes.publish(&open.client, index, self.clock.now())
                {
                    self.state.probe_published(index, monotonic());
                }
            }
            Action::TellOfProbe(topic, probe) => {
                let options = PublishOptions::new(QoS::AtLeastOnce);
                let _ = open.client.try_publish(topic, probe, options);
            }
            Action::ProbeAnswered(index, outcome) => {
                self.probes.iter().for_each(|probes| probes.answered(index, outcome));
            }
            Action::StopTaking => self.queue = None,
            Action::End(loss, why) => return Err(ConnectionEnd::Lost(loss, why)),
        }
        Ok(())
    }
}
