//! Announcements that wait for the proof that the broker lives.
//!
//! A broker that ends publishes the wills of all devices before it closes their connections and that of Rollcall. So an
//! announcement waits until a canary comes back that was sent after it, over the same connection. If the connection
//! ends before, the announcement says nothing of its unit: deadlines find the unit if it is gone.
//!
//! A broker that ends also forwards the wills that it publishes over its bridge, until the bridge ends. So if a kind
//! has a bridge, its announcements wait a second longer, and become void when the bridge is announced as offline.
//!
//! A broker also publishes the will of a session before the birth of the next one that takes it over: the device
//! publishes that birth when it has the broker's answer, a round trip later. So unless the broker reports takeovers,
//! the canary is sent a moment later ([`TAKEOVER`](crate::presence::TAKEOVER)): the birth arrives before it, and makes
//! the announcement void.

use crate::clock::Timestamp;
use crate::intake::hearing_reporter::HearingEvent;
use crate::presence::Announcement;
use crate::telemetry::{AnnouncementOutcome, Telemetry};

/// The most waiting announcements; deadlines find the units of others.
const MAX_HELD: usize = 500_000;

#[derive(Default)]
pub(in crate::intake) struct HeldAnnouncements {
    /// Each with the connection that brought it, and its arrival.
    held: Vec<(u64, Timestamp, Announcement)>,
}

impl HeldAnnouncements {
    /// Takes the announcements of these events, in order. Returns the announcements that are proved now.
    pub fn proved(&mut self, events: Vec<HearingEvent>, telemetry: &Telemetry) -> Vec<Announcement> {
        let mut proved = Vec::new();
        let (mut lost, mut left_out) = (0, 0);
        for event in events {
            match event {
                HearingEvent::Announced { .. } if self.held.len() >= MAX_HELD => left_out += 1,
                HearingEvent::Announced { connection, announcement, arrived } => {
                    self.held.push((connection, arrived, *announcement));
                }
                HearingEvent::BridgeLost { kind } => {
                    let before = self.held.len();
                    self.held.retain(|(.., announcement)| announcement.unit.kind != kind);
                    lost += before - self.held.len();
                }
                event => {
                    let Some((of, sent_at)) = event.canary().filter(|_| !self.held.is_empty()) else {
                        continue;
                    };
                    let before = self.held.len();
                    self.held.retain(|(connection, ..)| *connection == of);
                    lost += before - self.held.len();
                    let is_proved = |one: &mut (u64, Timestamp, Announcement)| one.1 + one.2.wait() < sent_at;
                    proved.extend(self.held.extract_if(.., is_proved).map(|(.., one)| one));
                }
            }
        }
        telemetry.announcements(AnnouncementOutcome::Lost, lost as u64);
        telemetry.announcements(AnnouncementOutcome::Overflow, left_out);
        proved
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::presence::{Announced, Cause};

    #[test]
    fn an_announcement_waits_for_a_canary_that_was_sent_long_enough_after_it_over_the_same_connection() {
        let at = |ms: i64| Timestamp::from_millis(1_732_147_200_000 + ms);
        let announced_by = |connection, unit: &str, ms, may_be_former| HearingEvent::Announced {
            connection,
            announcement: Box::new(Announcement {
                may_be_former,
                ..Announcement::of(
                    unit.parse().unwrap(),
                    at(ms),
                    Announced::Gone { cause: Cause::LastWill, settle: Duration::ZERO },
                )
            }),
            arrived: at(ms),
        };
        let announced = |connection, unit: &str, ms| announced_by(connection, unit, ms, true);
        let canary = |connection, ms| HearingEvent::Canary { connection, sent_at: at(ms) };
        let telemetry = Telemetry::new(&Clock::by_hand(at(0)));
        let mut held = HeldAnnouncements::default();
        let mut proved = |events: &[HearingEvent]| -> Vec<String> {
            held.proved(events.to_vec(), &telemetry).iter().map(|one| one.unit.to_string()).collect()
        };
        let none: [&str; 0] = [];
        assert_eq!(proved(&[announced(1, "lamp:a", 5), canary(1, 6), announced(1, "lamp:b", 7)]), none);
        assert_eq!(proved(&[canary(1, 255)]), none);
        assert_eq!(proved(&[canary(1, 256)]), ["lamp:a"]);
        assert_eq!(proved(&[canary(1, 258), announced(1, "lamp:c", 259)]), ["lamp:b"]);
        // The connection ended.
        assert_eq!(proved(&[canary(2, 520), canary(2, 530)]), none);
        assert_eq!(proved(&[announced(2, "lamp:d", 531), canary(2, 782)]), ["lamp:d"]);
        // The broker reports takeovers.
        let known = announced_by(2, "lamp:e", 790, false);
        assert_eq!(proved(&[known, announced(2, "lamp:f", 790), canary(2, 790)]), none);
        assert_eq!(proved(&[canary(2, 791)]), ["lamp:e"]);
        // The bridge that forwards the lamps ends.
        let lost = || HearingEvent::BridgeLost { kind: "lamp".parse().unwrap() };
        assert_eq!(proved(&[announced(2, "lamp:g", 800), announced(2, "pump:h", 800), lost()]), none);
        assert_eq!(proved(&[canary(2, 1100)]), ["pump:h"]);
    }
}
