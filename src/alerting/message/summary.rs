//! A notification in words: its title, and sections of one line for each record. Mails and templates share them.
//!
//! A pure function of the delivery and the zone. The state comes first in the title, because a telephone shows only
//! the beginning.

use super::counts::{counts, line_of_rest, lines, number};
use super::data_loss;
use super::ended::EndedRecords;
use super::incident;
use super::links::Links;
use super::mass_notice::MassNotice;
use super::timer;
use super::zone::Zone;
use crate::alerting::group::{self, UnheardKind, lost};
use crate::alerting::text::{short, word};
use crate::clock::shown_span as span;
use crate::presence::{Cause, Closing, Interval, Labels, OfflineRecord};
use crate::store::{Delivery, MeantFor};

/// The most records that one section lists.
pub const MAX_LISTED: usize = 50;
/// Fewer lines for an incident when other silences share the message.
const MAX_FOLDED: usize = 10;
/// The longest title, in characters.
pub const MAX_TITLE: usize = 180;

/// One part of a message: records of one transition.
#[derive(Debug)]
pub struct Section {
    pub title: String,
    pub items: Vec<Item>,
    /// How many records are not listed.
    pub more: usize,
}

/// One record or one blind interval.
#[derive(Debug)]
pub struct Item {
    /// The unit and its labels.
    pub name: String,
    /// The times.
    pub what: String,
    /// The page of the unit.
    pub link: Option<String>,
}

/// The title of a message, without line breaks. A title that is too long is cut before its last part, which says what
/// is not over.
pub fn title(delivery: &Delivery, zone: &Zone) -> String {
    let reminder = if delivery.reminder { "REMINDER: " } else { "" };
    let title = incident::title(delivery).unwrap_or_else(|| title_of_all(delivery, zone));
    let end = end_of_title(delivery, zone);
    let room = MAX_TITLE.saturating_sub(end.chars().count());
    short(&format!("{}{end}", short(&format!("{reminder}{title}"), room)), MAX_TITLE)
}

/// `, 20 still offline (meant for hook, down since 10:02)`.
fn end_of_title(delivery: &Delivery, zone: &Zone) -> String {
    let still = match still_offline(delivery) {
        Some(count) => format!(", {} still offline", number(count)),
        None => String::new(),
    };
    let meant_for = match &delivery.meant_for {
        Some(MeantFor { receiver, since }) => {
            format!(" (meant for {receiver}, down since {})", zone.show(*since))
        }
        None => String::new(),
    };
    format!("{still}{meant_for}")
}

fn title_of_all(delivery: &Delivery, zone: &Zone) -> String {
    if let Some(title) = timer::title(delivery) {
        return title;
    }
    let (offline, online) = (&delivery.offline, &delivery.online);
    if let Some(notice) = MassNotice::of(delivery) {
        return notice.title(zone);
    }
    if let Some(lost) = lost(delivery) {
        return data_loss::title(lost);
    }
    if !delivery.blind.is_empty() {
        if let Some(lasting) = delivery.blind.iter().find(|interval| !interval.is_over()) {
            return format!("BLIND: {} has been heard since {}", nothing(delivery), zone.show(lasting.from));
        }
        let blind = delivery.blind.iter().map(Interval::length).sum();
        return format!("HEARING AGAIN: {} could be heard for {}", nothing(delivery), span(blind));
    }
    let shared = shared(&delivery.group.labels);
    let mut ended = EndedRecords::of(online);
    let (flapping, offline): (Vec<_>, Vec<_>) = offline.iter().partition(|record| record.is_flapping());
    // A unit that is offline and flaps no more is already among the offline units.
    let is_named = |one: &OfflineRecord| offline.iter().any(|record| record.id.unit == one.id.unit);
    ended.stable.retain(|one| !is_named(one));
    let (unusual, offline): (Vec<_>, Vec<_>) = offline.into_iter().partition(|record| record.is_unusual());
    let begun = [("FLAPPING", flapping), ("UNUSUAL", unusual), ("OFFLINE", offline.clone())].into_iter();
    let begun = begun.filter(|(_, records)| !records.is_empty());
    let parts: Vec<(&str, Vec<&OfflineRecord>)> = begun.chain(ended.into_parts()).collect();
    if let [(what, records)] = &parts[..] {
        return format!("{what}: {}{shared}", named(records));
    }
    let kind = one_kind(parts.iter().flat_map(|(_, records)| records).copied()).unwrap_or("several kinds");
    let counts: Vec<String> =
        parts.iter().map(|(what, records)| format!("{what} {}", number(records.len() as u64))).collect();
    format!("{}: {kind}{shared}", counts.join(", "))
}

/// The title of a message about one record.
pub fn title_of(record: &OfflineRecord) -> String {
    let what = match record.closed_by {
        None if record.is_flapping() => "FLAPPING",
        None if record.is_unusual() => "UNUSUAL",
        None => "OFFLINE",
        Some(Closing::Stable) => "STABLE",
        Some(Closing::StableOffline) => "STABLE, OFFLINE",
        Some(Closing::KindRemoved) => "NO LONGER WATCHED",
        Some(Closing::Removed) => "REMOVED",
        Some(Closing::Return | Closing::Policy) => "BACK",
    };
    short(&format!("{what}: {}", unit(record)), MAX_TITLE)
}

/// The times of a record.
pub fn text_of(record: &OfflineRecord, zone: &Zone) -> String {
    match record.closed_by {
        None => silence(record, zone),
        Some(_) => ending(record, zone),
    }
}

/// `nothing`, or `nothing of kind detector`: the subject of a blindness.
fn nothing(delivery: &Delivery) -> String {
    let of_kind = group::of_kind(delivery).map(|unheard| format!(" of kind {}", unheard.name()));
    format!("nothing{}", of_kind.unwrap_or_default())
}

/// `detector unit-7`, `3 detectors` or `3 units`.
fn named(records: &[&OfflineRecord]) -> String {
    match records {
        [record] => format!("{} {}", record.kind, word(record.unit.as_str())),
        many => match one_kind(many.iter().copied()) {
            Some(kind) if kind.ends_with('s') => format!("{} {kind}", number(many.len() as u64)),
            Some(kind) => format!("{} {kind}s", number(many.len() as u64)),
            None => format!("{} units", number(many.len() as u64)),
        },
    }
}

fn one_kind<'a>(records: impl IntoIterator<Item = &'a OfflineRecord>) -> Option<&'a str> {
    let mut kinds = records.into_iter().map(|record| record.kind.as_str());
    let first = kinds.next()?;
    kinds.all(|kind| kind == first).then_some(first)
}

/// ` (site=north)`: the labels of the group without kind and unit, which the title has anyway.
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

/// How many units of the group, of which receivers were notified before, are offline beside the units of the message.
fn others_offline(delivery: &Delivery) -> Option<u64> {
    let lasting = delivery.situation.lasting.filter(|_| !delivery.reminder && delivery.blind.is_empty())?;
    lasting.checked_sub(delivery.offline.len() as u64).filter(|others| *others > 0)
}

/// How many units are offline, if more than the message has. A digest counts only the units of its incident.
fn still_offline(delivery: &Delivery) -> Option<u64> {
    let situation = &delivery.situation;
    let of_incident = || {
        let over = situation.incident.as_ref().filter(|one| one.until.is_some() && one.still_offline > 0);
        over.filter(|_| situation.lasting.is_none()).map(|over| over.still_offline)
    };
    others_offline(delivery).and(situation.lasting).or_else(of_incident)
}

/// The lines before the sections: the count of merged notifications, the incident, the change since the previous
/// message, and the counts by label.
pub fn lead(delivery: &Delivery, zone: &Zone) -> Vec<String> {
    let incident = delivery.situation.incident.as_ref();
    let incident = incident.map(|incident| incident::line(incident, delivery, zone)).into_iter();
    let merged = delivery.situation.merged;
    let merged =
        merged.map(|count| format!("{} notifications in one: a rate limit merged them", number(count)));
    let merged = merged.into_iter();
    merged.chain(incident).chain(change(delivery, zone)).chain(lines(&counts(delivery))).collect()
}

/// `3 more, 2 back since 10:02 UTC; 9 997 still offline`; `None` if the message is the first of a storm.
fn change(delivery: &Delivery, zone: &Zone) -> Option<String> {
    let EndedRecords { back, unwatched, removed, .. } = EndedRecords::of(&delivery.online);
    let still = match (others_offline(delivery), delivery.online.len()) {
        (Some(_), _) => format!("{} still offline", number(delivery.situation.lasting?)),
        (None, 2..) if delivery.situation.lasting == Some(0) => match back.len() == delivery.online.len() {
            true => "all are back".to_owned(),
            false => "no unit is offline".to_owned(),
        },
        _ => return None,
    };
    let more = [
        (delivery.offline.len(), "more"),
        (back.len(), "back"),
        (unwatched.len(), "no longer watched"),
        (removed.len(), "removed"),
    ];
    let more = more.iter().filter(|(count, _)| *count > 0);
    let more: Vec<String> = more.map(|(count, what)| format!("{} {what}", number(*count as u64))).collect();
    let since =
        delivery.situation.since.map(|since| format!(" since {}", zone.show_near(since, delivery.sealed_at)));
    Some(format!("{}{}; {still}", more.join(", "), since.unwrap_or_default()))
}

/// The sections of a message; none is empty.
pub fn sections(delivery: &Delivery, zone: &Zone, links: &Links) -> Vec<Section> {
    let notice = MassNotice::of(delivery).map(|notice| ("Mass offline", notice.lines(zone)));
    let of_loss = || lost(delivery).map(|lost| ("Data lost", data_loss::lines(delivery, lost, zone)));
    if let Some((title, lines)) = notice.or_else(of_loss) {
        let items = lines.into_iter().map(|(name, what)| Item { name, what, link: None });
        return vec![Section { title: title.to_owned(), items: items.collect(), more: 0 }];
    }
    let timers = delivery.timers.iter().map(|one| Item {
        name: timer::name(one),
        what: timer::text_of(one, zone),
        link: None,
    });
    let blind = delivery.blind.iter().map(|interval| blindness(delivery, interval, zone));
    let of_record = |record: &OfflineRecord| Item {
        name: unit(record),
        what: text_of(record, zone),
        link: links.unit(record),
    };
    let EndedRecords { back, stable, unwatched, removed } = EndedRecords::of(&delivery.online);
    let meant_for = delivery.meant_for.iter().map(|MeantFor { receiver, since }| Item {
        name: format!("Meant for receiver {receiver}"),
        what: format!("which has been down since {}, and gets it when it is back", zone.show(*since)),
        link: None,
    });
    let incident = delivery.situation.incident.as_ref();
    let (by_cause, others) = match incident {
        Some(incident) => incident::covered(incident, &delivery.offline),
        None => (Vec::new(), delivery.offline.iter().collect()),
    };
    let (flapping, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|record| record.is_flapping());
    let (unusual, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|record| record.is_unusual());
    let cause =
        incident.map(|incident| format!("Offline at {}", incident::place(incident))).unwrap_or_default();
    let rest = if by_cause.is_empty() { "Offline" } else { "Others offline" };
    let folded = if others.is_empty() { MAX_LISTED } else { MAX_FOLDED };
    let sections = [
        section("Fallback", MAX_LISTED, meant_for),
        section("Timers", MAX_LISTED, timers),
        section("Blind", MAX_LISTED, blind),
        section(&cause, folded, by_cause.into_iter().map(of_record)),
        section("Flapping", MAX_LISTED, flapping.into_iter().map(of_record)),
        section("Unusual", MAX_LISTED, unusual.into_iter().map(of_record)),
        section(rest, MAX_LISTED, others.into_iter().map(of_record)),
        section("Back", MAX_LISTED, back.into_iter().map(of_record)),
        section("Stable", MAX_LISTED, stable.into_iter().map(of_record)),
        section("No longer watched", MAX_LISTED, unwatched.into_iter().map(of_record)),
        section("Removed", MAX_LISTED, removed.into_iter().map(of_record)),
    ];
    sections.into_iter().filter(|section| !section.items.is_empty()).collect()
}

/// The sections as text, one line for each item.
pub fn text(sections: &[Section]) -> String {
    let mut lines = Vec::new();
    for section in sections {
        if sections.len() > 1 {
            lines.push(format!("{}:", section.title));
        }
        lines.extend(section.items.iter().map(|item| format!("{}: {}", item.name, item.what)));
        if section.more > 0 {
            lines.push(line_of_rest(section.more));
        }
    }
    lines.join("\n")
}

fn blindness(delivery: &Delivery, interval: &Interval, zone: &Zone) -> Item {
    let of_kind = |unheard: UnheardKind| format!(" of kind {} ({})", unheard.name(), unheard.topics);
    let of_kind = group::of_kind(delivery).map(of_kind).unwrap_or_default();
    let from = zone.show(interval.from);
    if !interval.is_over() {
        let what = format!("since {from}; no unit{of_kind} is declared offline until Rollcall hears again");
        return Item { name: format!("No heartbeat{of_kind} is heard"), what, link: None };
    }
    let (to, length) = (zone.show(interval.to), span(interval.length()));
    let what = format!("from {from} to {to} ({length}); this time does not count as silence");
    Item { name: format!("No heartbeat{of_kind} could be heard"), what, link: None }
}

fn section(title: &str, most: usize, items: impl ExactSizeIterator<Item = Item>) -> Section {
    let count = items.len();
    Section {
        title: format!("{title} ({})", number(count as u64)),
        items: items.take(most).collect(),
        more: count.saturating_sub(most),
    }
}

/// `detector unit-7 (site=north)`.
fn unit(record: &OfflineRecord) -> String {
    let labels = list(&record.labels);
    let labels = if labels.is_empty() { labels } else { format!(" ({labels})") };
    format!("{} {}{labels}", record.kind, word(record.unit.as_str()))
}

fn silence(record: &OfflineRecord, zone: &Zone) -> String {
    let last_seen = zone.show(record.last_seen);
    let began = match record.cause {
        Cause::Flapping => {
            let since = zone.show(record.deadline);
            return format!(
                "flapping since {since}: it goes offline and comes back again and again; the next message follows \
                 when it is stable"
            );
        }
        Cause::Unusual => {
            let since = zone.show(record.deadline);
            return format!(
                "last seen {last_seen}, silent for longer than ever before since {since}; it is not offline yet"
            );
        }
        Cause::Silence => format!("last seen {last_seen}"),
        Cause::NeverSeen => format!("registered {last_seen}, never seen"),
        Cause::LastWill => format!("last will published, last seen {last_seen}"),
        Cause::NodeDeath => format!("declared dead, last seen {last_seen}"),
        Cause::Disconnected => format!("disconnected, last seen {last_seen}"),
    };
    let presumed = match record.silent_from {
        Some(from) => format!(", presumed silent since {}", zone.show(from)),
        None => String::new(),
    };
    format!("{began}{presumed}, offline since {}", zone.show(record.deadline))
}

fn ending(record: &OfflineRecord, zone: &Zone) -> String {
    let moment = record.back_at.unwrap_or(record.deadline);
    let at = zone.show(moment);
    let ended = match record.closed_by {
        None | Some(Closing::Return) => format!("back {at}"),
        Some(Closing::Stable) => return stable("online", record, zone),
        Some(Closing::StableOffline) => return stable("offline", record, zone),
        Some(Closing::Policy) => format!("allowed a longer silence {at}"),
        Some(Closing::Removed) => format!("removed {at}"),
        Some(Closing::KindRemoved) => format!("its kind is not configured any more, closed {at}"),
    };
    let since = zone.show(record.deadline);
    let was = match record.cause {
        Cause::Flapping => "flapping",
        Cause::Unusual => "unusual",
        _ => "offline",
    };
    format!("{ended}, was {was} since {since} ({})", span(moment.since(record.deadline)))
}

/// How a unit is after an episode of flapping.
fn stable(state: &str, record: &OfflineRecord, zone: &Zone) -> String {
    let [at, since] = [record.back_at.unwrap_or(record.deadline), record.deadline].map(|at| zone.show(at));
    format!("stable, {state} since {at}, was flapping since {since}")
}

#[cfg(test)]
mod tests;
