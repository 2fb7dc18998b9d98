//! The content of a mail: subject, text, HTML and the ids by which mail programs make threads.
//!
//! A pure function of the delivery. The state comes first in the subject, because a telephone shows
//! only the beginning. A storm is one digest: each section lists a hundred records and the number of the rest.
//!
//! # Threads
//! A mail about one record has an id made from that record, so that the mail about the return can
//! refer to the mail about the silence without stored state. A mail about several records
//! has the id of its delivery and belongs to the thread of its group.
//!
//! The time of detection is part of the id of a record's mails: one silence may be notified twice (its
//! timeout was extended, which closes the record, and then ran out again), and mail servers drop
//! a second mail with the id of the first.

use std::time::Duration;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use super::group;
use super::text::{html, plain, short, word};
use crate::clock::Timestamp;
use crate::presence::{Cause, Closing, Interval, Labels, OfflineRecord};
use crate::store::Delivery;

/// The most records that one section lists.
const MOST_LISTED: usize = 100;
/// The most mails of single records that a mail about several refers to.
const MOST_REFERENCES: usize = 20;
/// The longest subject, in characters.
const LONGEST_SUBJECT: usize = 180;

/// No field has line breaks, except between the lines of `text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailContent {
    pub subject: String,
    pub text: String,
    /// The text as HTML.
    pub html: String,
    /// In angle brackets.
    pub message_id: String,
    /// The mails before it in its thread, oldest first.
    pub references: Vec<String>,
    /// When its group was sealed.
    pub date: Timestamp,
    /// Separates text and HTML; a device cannot guess it before the mail is sent.
    pub boundary: String,
}

/// One part of a mail: records of one transition.
struct Section {
    title: String,
    /// For each record a line that names its unit, and a line with its times.
    items: Vec<(String, String)>,
    /// How many records are not listed.
    more: usize,
}

impl MailContent {
    /// The mail for a delivery; the sender's address is at `domain`.
    pub fn new(delivery: &Delivery, domain: &str) -> MailContent {
        let ids = MessageIds { receiver: &delivery.receiver, domain };
        let subject = short(&subject(delivery), LONGEST_SUBJECT);
        let footer = format!("Notification {} for receiver {}.", plain(&delivery.id), delivery.receiver);
        let (text, html) = render(&subject, &sections(delivery), &footer);
        let (message_id, references) = ids.of(delivery);
        let boundary = hash(&["boundary", &delivery.id]);
        MailContent { subject, text, html, message_id, references, date: delivery.sealed_at, boundary }
    }

    /// A mail that is plainly a test.
    pub fn test(receiver: &str, now: Timestamp, domain: &str) -> MailContent {
        let subject = format!("TEST: Rollcall reaches receiver {receiver}");
        let (text, html) = render(&subject, &[], "This is a test of Rollcall; no unit is concerned.");
        let id = hash(&["test", receiver, &now.to_string()]);
        let message_id = format!("<{id}.test.rollcall@{domain}>");
        MailContent { subject, text, html, message_id, references: Vec::new(), date: now, boundary: id }
    }
}

fn subject(delivery: &Delivery) -> String {
    let (offline, online) = (&delivery.offline, &delivery.online);
    if !delivery.blind.is_empty() {
        if let Some(lasting) = delivery.blind.iter().find(|interval| !interval.is_over()) {
            return format!("BLIND: {} has been heard since {}", nothing(delivery), lasting.from);
        }
        let blind = delivery.blind.iter().map(Interval::length).sum();
        return format!("HEARING AGAIN: {} could be heard for {}", nothing(delivery), span(blind));
    }
    let shared = shared(&delivery.group.labels);
    let (back, unwatched) = ended(online);
    let offline: Vec<&OfflineRecord> = offline.iter().collect();
    let parts = [("OFFLINE", offline), ("BACK", back), ("NO LONGER WATCHED", unwatched)];
    let parts: Vec<(&str, Vec<&OfflineRecord>)> =
        parts.into_iter().filter(|(_, records)| !records.is_empty()).collect();
    if let [(what, records)] = &parts[..] {
        return format!("{what}: {}{shared}", named(records));
    }
    let kind = one_kind(parts.iter().flat_map(|(_, records)| records).copied()).unwrap_or("several kinds");
    let counts: Vec<String> =
        parts.iter().map(|(what, records)| format!("{what} {}", records.len())).collect();
    format!("{}: {kind}{shared}", counts.join(", "))
}

/// `nothing`, or `nothing of kind detector`: the subject of a blindness.
fn nothing(delivery: &Delivery) -> String {
    group::of_kind(delivery).map_or("nothing".to_owned(), |(kind, _)| format!("nothing of kind {kind}"))
}

/// The records whose units are back, and those that were closed because their kind was removed.
fn ended(records: &[OfflineRecord]) -> (Vec<&OfflineRecord>, Vec<&OfflineRecord>) {
    records.iter().partition(|record| record.closed_by != Some(Closing::KindRemoved))
}

/// `detector unit-7`, `3 detectors` or `3 units`.
fn named(records: &[&OfflineRecord]) -> String {
    match records {
        [record] => format!("{} {}", record.kind, word(record.unit.as_str())),
        many => match one_kind(many.iter().copied()) {
            Some(kind) if kind.ends_with('s') => format!("{} {kind}", many.len()),
            Some(kind) => format!("{} {kind}s", many.len()),
            None => format!("{} units", many.len()),
        },
    }
}

fn one_kind<'a>(records: impl IntoIterator<Item = &'a OfflineRecord>) -> Option<&'a str> {
    let mut kinds = records.into_iter().map(|record| record.kind.as_str());
    let first = kinds.next()?;
    kinds.all(|kind| kind == first).then_some(first)
}

/// ` (site=north)`: the labels of the group without kind and unit, which the subject has anyway.
fn shared(labels: &Labels) -> String {
    let rest = labels.iter().filter(|(name, _)| !matches!(name.as_str(), "kind" | "unit"));
    match list(rest) {
        text if text.is_empty() => text,
        text => format!(" ({text})"),
    }
}

fn list<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let each: Vec<_> =
        labels.into_iter().map(|(name, value)| format!("{}={}", word(name), word(value))).collect();
    each.join(", ")
}

fn sections(delivery: &Delivery) -> Vec<Section> {
    let of_kind = |(kind, topics)| format!(" of kind {kind} ({topics})");
    let of_kind = group::of_kind(delivery).map(of_kind).unwrap_or_default();
    let blind = delivery.blind.iter().map(|interval| {
        if !interval.is_over() {
            let what =
                format!("since {}; no unit{of_kind} is declared offline until that is over", interval.from);
            return (format!("No heartbeat{of_kind} is heard"), what);
        }
        let what = format!("from {} to {} ({})", interval.from, interval.to, span(interval.length()));
        (
            format!("No heartbeat{of_kind} could be heard"),
            format!("{what}; this time counts as silence of no unit"),
        )
    });
    let offline = delivery.offline.iter().map(|record| (unit(record), silence(record)));
    let (back, unwatched) = ended(&delivery.online);
    let [back, unwatched] =
        [back, unwatched].map(|records| records.into_iter().map(|record| (unit(record), ending(record))));
    let sections = [
        section("Blind", blind),
        section("Offline", offline),
        section("Back", back),
        section("No longer watched", unwatched),
    ];
    sections.into_iter().filter(|section| !section.items.is_empty()).collect()
}

fn section(title: &str, items: impl ExactSizeIterator<Item = (String, String)>) -> Section {
    let count = items.len();
    Section {
        title: format!("{title} ({count})"),
        items: items.take(MOST_LISTED).collect(),
        more: count.saturating_sub(MOST_LISTED),
    }
}

fn unit(record: &OfflineRecord) -> String {
    let labels = list(&record.labels);
    let labels = if labels.is_empty() { labels } else { format!(" ({labels})") };
    format!("{} {}{labels}", record.kind, word(record.unit.as_str()))
}

fn silence(record: &OfflineRecord) -> String {
    let began = match record.cause {
        Cause::Silence => format!("last seen {}", record.last_seen),
        Cause::NeverSeen => format!("registered {}, never seen", record.last_seen),
    };
    let presumed = match record.silent_from {
        Some(from) => format!(", presumed silent since {from}"),
        None => String::new(),
    };
    format!("{began}{presumed}, offline since {}", record.deadline)
}

fn ending(record: &OfflineRecord) -> String {
    let at = record.back_at.unwrap_or(record.deadline);
    let ended = match record.closed_by {
        None | Some(Closing::Return) => format!("back {at}"),
        Some(Closing::Policy) => format!("allowed a longer silence {at}"),
        Some(Closing::Removed) => format!("removed {at}"),
        Some(Closing::KindRemoved) => format!("its kind is not configured any more, closed {at}"),
    };
    format!("{ended}, was offline since {} ({})", record.deadline, span(at.since(record.deadline)))
}

/// The two largest parts of a span: `2d 3h`, `5m 0s`, `12s`.
fn span(length: Duration) -> String {
    let seconds = length.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

/// The text and the HTML.
fn render(subject: &str, sections: &[Section], footer: &str) -> (String, String) {
    let mut text = format!("{subject}\n");
    let mut page = format!("<html><body style=\"font-family:sans-serif\"><h2>{}</h2>", html(subject));
    for section in sections {
        text += &format!("\n{}\n", section.title);
        page += &format!("<h3>{}</h3><ul>", html(&section.title));
        for (unit, what) in &section.items {
            text += &format!("- {unit}\n  {what}\n");
            page += &format!("<li><b>{}</b><br>{}</li>", html(unit), html(what));
        }
        if section.more > 0 {
            text += &format!("and {} more\n", section.more);
            page += &format!("<li>and {} more</li>", section.more);
        }
        page += "</ul>";
    }
    text += &format!("\n{footer}\n");
    page += &format!("<p style=\"color:#666\">{}</p></body></html>", html(footer));
    (text, page)
}

/// The message ids of one receiver's mails. They are hashes, because the names in them are long and
/// may hold anything.
struct MessageIds<'a> {
    receiver: &'a str,
    domain: &'a str,
}

impl MessageIds<'_> {
    /// The id of a delivery's mail and the mails that it follows.
    fn of(&self, delivery: &Delivery) -> (String, Vec<String>) {
        match (delivery.offline.as_slice(), delivery.online.as_slice()) {
            ([record], []) => (self.record(record, "offline"), Vec::new()),
            ([], [record]) => (self.record(record, "online"), vec![self.record(record, "offline")]),
            (_, online) => {
                let silences =
                    online.iter().take(MOST_REFERENCES).map(|record| self.record(record, "offline"));
                let references = [self.make("group", &delivery.group.key)].into_iter().chain(silences);
                (self.make("delivery", &delivery.id), references.collect())
            }
        }
    }

    fn record(&self, record: &OfflineRecord, transition: &str) -> String {
        self.make(transition, &format!("{} {}", record.detected_at.as_millis(), record.id))
    }

    fn make(&self, of: &str, name: &str) -> String {
        // The part before the first dot is the same for both transitions of a record.
        format!("<{}.{of}.rollcall@{}>", hash(&[self.receiver, name]), self.domain)
    }
}

fn hash(parts: &[&str]) -> String {
    let digest = digest(&SHA256, parts.join("\n").as_bytes());
    HEXLOWER.encode(&digest.as_ref()[..16])
}
