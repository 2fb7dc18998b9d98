//! What a mail says: subject, text, HTML and the ids by which mail programs make threads.
//!
//! A pure function of the delivery. The state comes first in the subject, because that is what a
//! telephone shows at night. A storm is one digest: each section lists a hundred records and then
//! says how many more there are.
//!
//! # Threads
//! A mail about one record has an id made from that record, so that the return of the unit can
//! point at the mail that told its silence without anything being remembered. A mail about several
//! has the id of its delivery and belongs to the thread of its group.
//!
//! The time of detection goes into the id of a record's mails: one silence may be told twice (its
//! timeout was extended, which closes the record, and then ran out again), and mail servers throw
//! away a second mail with the id of the first.

use std::time::Duration;

use hmac_sha256::Hash;

use super::group;
use super::text::{html, plain, short, word};
use crate::clock::Timestamp;
use crate::presence::{Cause, Closing, Interval, Labels, OfflineRecord};
use crate::store::Delivery;

/// The most records that one section lists.
const MOST_LISTED: usize = 100;
/// The most mails of single records that a mail about several points at.
const MOST_REFERENCES: usize = 20;
/// The longest subject, in characters.
const LONGEST_SUBJECT: usize = 180;

/// What a mail says. Nothing in it breaks a line that it should not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// One line.
    pub subject: String,
    /// The plain text.
    pub text: String,
    /// The same as HTML.
    pub html: String,
    /// In angle brackets.
    pub message_id: String,
    /// The mails before it in its thread, oldest first.
    pub references: Vec<String>,
    /// When its group was sealed.
    pub date: Timestamp,
    /// Keeps text and HTML apart; nothing that a device says can guess it before it is sent.
    pub boundary: String,
}

/// One part of a mail: records of one transition.
struct Section {
    title: String,
    /// A line for whose it is and a line for what happened.
    items: Vec<(String, String)>,
    /// How many more there are.
    more: usize,
}

impl Letter {
    /// The mail for a delivery, from somebody at `domain`.
    pub fn new(delivery: &Delivery, domain: &str) -> Letter {
        let ids = Ids { receiver: &delivery.receiver, domain };
        let subject = short(&subject(delivery), LONGEST_SUBJECT);
        let footer = format!("Notification {} for receiver {}.", plain(&delivery.id), delivery.receiver);
        let (text, html) = render(&subject, &sections(delivery), &footer);
        let (message_id, references) = ids.of(delivery);
        let boundary = hash(&["boundary", &delivery.id]);
        Letter { subject, text, html, message_id, references, date: delivery.sealed_at, boundary }
    }

    /// A mail that is plainly a test.
    pub fn test(receiver: &str, now: Timestamp, domain: &str) -> Letter {
        let subject = format!("TEST: Rollcall reaches receiver {receiver}");
        let (text, html) = render(&subject, &[], "This is a test of Rollcall; no unit is concerned.");
        let id = hash(&["test", receiver, &now.to_string()]);
        let message_id = format!("<{id}.test.rollcall@{domain}>");
        Letter { subject, text, html, message_id, references: Vec::new(), date: now, boundary: id }
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
        return format!("{what}: {}{shared}", whom(records));
    }
    let kind = one_kind(parts.iter().flat_map(|(_, records)| records).copied()).unwrap_or("several kinds");
    let counts: Vec<String> =
        parts.iter().map(|(what, records)| format!("{what} {}", records.len())).collect();
    format!("{}: {kind}{shared}", counts.join(", "))
}

/// What was not heard.
fn nothing(delivery: &Delivery) -> String {
    group::of_kind(delivery).map_or("nothing".to_owned(), |(kind, _)| format!("nothing of kind {kind}"))
}

/// The records whose units are back, and those that were closed because nothing watches their units.
fn ended(records: &[OfflineRecord]) -> (Vec<&OfflineRecord>, Vec<&OfflineRecord>) {
    records.iter().partition(|record| record.closed_by != Some(Closing::KindRemoved))
}

/// `detector unit-7`, `3 detectors` or `3 units`.
fn whom(records: &[&OfflineRecord]) -> String {
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

/// ` (site=north)`: the labels of the group without what the subject says anyway.
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
    let named = |(kind, topics)| format!(" of kind {kind} ({topics})");
    let of_kind = group::of_kind(delivery).map(named).unwrap_or_default();
    let blind = delivery.blind.iter().map(|interval| {
        if !interval.is_over() {
            let what =
                format!("since {}; no unit{of_kind} is declared offline until that is over", interval.from);
            return (format!("No heartbeat{of_kind} is heard"), what);
        }
        let what = format!("from {} to {} ({})", interval.from, interval.to, span(interval.length()));
        (
            format!("No heartbeat{of_kind} could be heard"),
            format!("{what}; this time counts as nobody's silence"),
        )
    });
    let offline = delivery.offline.iter().map(|record| (whose(record), silence(record)));
    let (back, unwatched) = ended(&delivery.online);
    let [back, unwatched] =
        [back, unwatched].map(|records| records.into_iter().map(|record| (whose(record), ending(record))));
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

fn whose(record: &OfflineRecord) -> String {
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

/// Text and HTML.
fn render(subject: &str, sections: &[Section], footer: &str) -> (String, String) {
    let mut text = format!("{subject}\n");
    let mut page = format!("<html><body style=\"font-family:sans-serif\"><h2>{}</h2>", html(subject));
    for section in sections {
        text += &format!("\n{}\n", section.title);
        page += &format!("<h3>{}</h3><ul>", html(&section.title));
        for (whose, what) in &section.items {
            text += &format!("- {whose}\n  {what}\n");
            page += &format!("<li><b>{}</b><br>{}</li>", html(whose), html(what));
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

/// Makes the ids of mails to one receiver. They are hashes, because the names in them are long and
/// may hold anything.
struct Ids<'a> {
    receiver: &'a str,
    domain: &'a str,
}

impl Ids<'_> {
    /// The id of a delivery's mail and the mails that it follows.
    fn of(&self, delivery: &Delivery) -> (String, Vec<String>) {
        match (delivery.offline.as_slice(), delivery.online.as_slice()) {
            ([record], []) => (self.record(record, "offline"), Vec::new()),
            ([], [record]) => (self.record(record, "online"), vec![self.record(record, "offline")]),
            (_, online) => {
                let told = online.iter().take(MOST_REFERENCES).map(|record| self.record(record, "offline"));
                let references = [self.make("group", &delivery.group.key)].into_iter().chain(told);
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
    let digest = Hash::hash(parts.join("\n").as_bytes());
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
