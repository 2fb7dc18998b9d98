//! Reads announcements of the presence of units.

use super::{Content, Incoming, Reader};
use crate::clock::Timestamp;
use crate::intake::PayloadIssues;
use crate::intake::announcements::{Format, Meaning, PresenceRules, Said, SessionEnd, bridge, homeassistant};
use crate::intake::topic::{Feed, Origin, Refusal};
use crate::presence::{Announced, Announcement, Declared, Heartbeat, Labels, NameError, Unit};
use crate::telemetry::{AnnouncementOutcome, Rejection};

/// The meaning of a message for a unit.
struct Statement<'a> {
    unit: &'a Unit,
    presence: &'a PresenceRules,
    meaning: Meaning,
    /// The number of its session, if it has one.
    order: Option<i64>,
    /// Whether its topic is for announcements only.
    is_status: bool,
}

impl Reader {
    /// Reads messages whose topics do not name their units.
    pub(super) fn feeds(
        &self,
        topic: &str,
        message: &Incoming,
        (arrived, latest): (Timestamp, Timestamp),
    ) -> Vec<Content> {
        let mut all: Vec<Content> = Vec::new();
        // An invalid unit in one feed must not hide the meaning for other units.
        let take = |said: Result<Content, Refusal>, all: &mut Vec<Content>| match said {
            Ok(content) => all.push(content),
            Err((why, text)) => self.telemetry.message_rejected(topic, why, &text),
        };
        let mut issues = PayloadIssues::default();
        let most = match homeassistant::is_discovery(topic) {
            true => self.max_payload.max(homeassistant::MAX_DISCOVERY),
            false => self.max_payload,
        };
        let payload = self.readable(message.payload, most, arrived, &mut issues);
        for (issue, what) in issues.take() {
            self.telemetry.message_unread(topic, issue, &what);
        }
        for feed in self.topics.feeds(topic) {
            let (presence, rules) = (&feed.presence, &feed.rules);
            if presence.is_bridge(topic) {
                if let Some(is_online) = payload.and_then(bridge::is_online) {
                    self.probes.hold(&rules.kind, !is_online);
                    all.extend((!is_online).then(|| Content::BridgeLost(rules.kind.clone())));
                }
                continue;
            }
            match presence.format {
                Format::Mosquitto if !message.retain => {
                    let read = payload.and_then(|payload| self.recent.logs.read(topic, payload));
                    if let Some((client, said)) = read {
                        let said = Some(said);
                        let said = self.said(feed, client, said, Labels::new(), message, (arrived, latest));
                        take(said, &mut all);
                    }
                }
                Format::HomeAssistant => {
                    for (id, said, labels) in
                        self.recent.discovered(&rules.kind, topic, payload, message.retain)
                    {
                        take(self.said(feed, &id, said, labels, message, (arrived, latest)), &mut all);
                    }
                }
                _ => {}
            }
        }
        all
    }

    /// The meaning of a message for a unit that its topic does not name; `None` for a plain heartbeat.
    fn said(
        &self,
        Feed { presence, rules, .. }: &Feed,
        id: &str,
        said: Option<Said>,
        labels: Labels,
        message: &Incoming,
        moments: (Timestamp, Timestamp),
    ) -> Result<Content, Refusal> {
        let id = id.parse().map_err(|why: NameError| (Rejection::BadUnit, why.to_string()))?;
        let unit = Unit::new(rules.kind.clone(), id);
        let is_status = said.is_some();
        let meaning = presence.meaning_of(said, is_status, rules);
        let statement = Statement { unit: &unit, presence, meaning, order: None, is_status };
        if let Some(announced) = self.announced(&statement, message, moments)? {
            return Ok(announced);
        }
        let at = self.recent.after_announcement(moments.1);
        let declared = Declared { labels, ..Declared::default() };
        let not_before = message.sent_after;
        Ok(Content::Heartbeat(Heartbeat { not_before, declared, ..Heartbeat::of(unit, at) }))
    }

    /// Reads an announcement; `None`: the message is a heartbeat.
    pub(super) fn announced_by(
        &self,
        origin: &Origin,
        payload: Option<&[u8]>,
        message: &Incoming,
        moments: (Timestamp, Timestamp),
    ) -> Result<Option<Content>, Refusal> {
        let Some(presence) = &origin.presence else { return Ok(None) };
        let (meaning, order) = presence.meaning(payload, origin.is_status, &origin.rules, moments.0);
        let (unit, is_status) = (&origin.unit, origin.is_status);
        self.announced(&Statement { unit, presence, meaning, order, is_status }, message, moments)
    }

    fn announced(
        &self,
        statement: &Statement,
        message: &Incoming,
        (arrived, latest): (Timestamp, Timestamp),
    ) -> Result<Option<Content>, Refusal> {
        let Statement { unit, presence, meaning, order, is_status } = *statement;
        if is_status && self.topics.is_of_rollcall(unit, presence) {
            return Ok(Some(Content::Nothing));
        }
        match meaning {
            Meaning::Heartbeat if is_status => {
                if self.recent.born(unit, latest, order) {
                    return Ok(None);
                }
                self.telemetry.announcements(AnnouncementOutcome::Stale, 1);
                Ok(Some(Content::Nothing))
            }
            Meaning::Heartbeat => Ok(None),
            Meaning::Ends(says) | Meaning::Plans(says) => {
                let at = announced_at(message, arrived);
                let is_planned = matches!(meaning, Meaning::Plans(_));
                let end = self.recent.announced(unit, (at, latest), order, is_planned);
                let is_unknown =
                    end == SessionEnd::Unknown || order.is_none() && presence.format.has_numbers();
                let says = match says {
                    Announced::Gone { cause, .. } => presence.gone(cause, !is_unknown),
                    Announced::Away(_) => says,
                };
                let follows_birth = end == SessionEnd::Former;
                // Another instance may have been given the birth of a session that took this one over.
                let is_unsure = !is_status && self.probes.answers_topic().is_some();
                // Events of clients name the sessions that were taken over.
                let may_be_former = !presence.format.is_of_clients();
                let is_bridged = presence.bridge.is_some();
                let of_session = Announcement::of(unit.clone(), at, says);
                let announcement =
                    Announcement { follows_birth, may_be_former, is_bridged, is_unsure, ..of_session };
                Ok(Some(self.announcement(announcement, message.stood_still && !is_planned)))
            }
            Meaning::Nothing => Ok(Some(Content::Nothing)),
            Meaning::Unknown => {
                let text = "the payload is no word that announces the presence of a unit".to_owned();
                Err((Rejection::UnknownState, text))
            }
        }
    }

    /// An announcement, unless it says nothing: its session may have ended because the broker stood still, or the bridge by
    /// which its unit is heard says that it is offline.
    pub(super) fn announcement(&self, announcement: Announcement, may_be_by_standstill: bool) -> Content {
        if may_be_by_standstill || self.probes.is_held(&announcement.unit.kind) {
            self.telemetry.announcements(AnnouncementOutcome::Lost, 1);
            return Content::Nothing;
        }
        Content::Announcement(announcement.into())
    }
}

/// The moment of an announcement. A message that waited somewhere may be as old as the last canary.
pub(super) fn announced_at(message: &Incoming, arrived: Timestamp) -> Timestamp {
    let delayed = message.sent_before.and(message.sent_after);
    delayed.map_or(arrived, |at| at.min(arrived))
}
