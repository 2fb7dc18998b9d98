//! The state of the fleet in one line of words: how many units are silent and where, whether Rollcall hears, and the
//! last notifications.

use std::cmp::Reverse;
use std::time::Duration;

use maud::{Markup, html};

use super::format;
use crate::clock::Timestamp;
use crate::http::notices::NoticeCounts;
use crate::http::summary::{LabelSummary, SummaryContent};

/// The labels whose values are places.
const PLACES: [&str; 5] = ["site", "location", "place", "building", "room"];

/// The content of the line.
pub(super) struct FleetState<'a> {
    /// The path that links begin with.
    pub base: &'a str,
    pub content: &'a SummaryContent,
    /// The moment up to which Rollcall has heard.
    pub heard: Option<Timestamp>,
    pub now: Timestamp,
    /// `None` if the engine did not answer in time.
    pub notices: Option<NoticeCounts>,
}

impl FleetState<'_> {
    pub fn markup(&self) -> Markup {
        html! { p.lead #state { (self.silent()) "; " (self.hearing()) "; " (self.notified()) "." } }
    }

    fn silent(&self) -> Markup {
        let (units, offline, late) =
            (self.content.units, self.content.states.offline, self.content.states.late);
        html! {
            @match (units, offline) {
                (0, _) if self.content.archived > 0 => "Only archived units are known",
                (0, _) => "No unit is known",
                (1, 0) => "The only unit is not silent",
                (_, 0) => { "None of " (format::number(units)) " units is silent" }
                (1, _) => { a href={ (self.base) "/?state=offline" } { "The only unit" } " is silent" }
                _ => {
                    a href={ (self.base) "/?state=offline" } { (format::number(offline)) " of " (format::number(units)) " units" }
                    @if offline == 1 { " is silent" } @else { " are silent" }
                }
            }
            @if let Some(worst) = self.worst() { (self.place(worst, offline)) }
            @if late > 0 {
                ", " a href={ (self.base) "/?state=late" } { (format::number(late)) } @if late == 1 { " is late" } @else { " are late" }
            }
        }
    }

    /// The label value that most silent units share, if the fleet has other values.
    fn worst(&self) -> Option<&LabelSummary> {
        let labels = &self.content.labels;
        let has_others =
            |one: &LabelSummary| labels.iter().filter(|other| other.label == one.label).count() > 1;
        let shared = labels.iter().filter(|one| 2 * one.states.offline > self.content.states.offline);
        shared
            .filter(|one| has_others(one))
            .max_by_key(|one| (one.states.offline, Reverse(one.states.total())))
    }

    fn place(&self, worst: &LabelSummary, offline: u64) -> Markup {
        let LabelSummary { label, value, states } = worst;
        let link = format!("{}/?{}", self.base, super::label_query(label, value));
        html! {
            @match (offline, states.offline) {
                (1, _) => ", ",
                (_, count) if count == offline => ", all of them ",
                (_, count) => { ", " (format::number(count)) " of them " }
            }
            @if PLACES.contains(&label.as_str()) { "at " } @else { "with " (format::text(label)) " " }
            a href=(link) { (format::text(value)) }
        }
    }

    fn hearing(&self) -> Markup {
        let blind = self.content.hearing.blind;
        html! {
            @if blind { strong { "Rollcall is blind" } } @else { "Rollcall hears" }
            @match self.heard {
                Some(heard) => {
                    ", last proof "
                    time datetime=(heard) title=(heard) { (exact(self.now.since(heard))) " ago" }
                }
                None => ", without a proof yet",
            }
        }
    }

    fn notified(&self) -> Markup {
        let deliveries = format!("{}/deliveries", self.base);
        let Some(NoticeCounts { lately, is_cut, waiting, dead_letters }) = self.notices else {
            return html! { "notifications are not counted now, because the engine does not answer" };
        };
        html! {
            a href=(deliveries) {
                @match (lately, is_cut) {
                    (0, false) => "no notification",
                    (1, false) => "1 notification",
                    (_, false) => { (format::number(lately as u64)) " notifications" },
                    (_, true) => { (format::number(lately as u64)) " or more notifications" },
                }
            }
            " in the last hour, "
            @match waiting {
                0 => "none waiting",
                1 => a href={ (deliveries) "?state=waiting" } { "1 group waiting" },
                _ => a href={ (deliveries) "?state=waiting" } { (format::number(waiting)) " groups waiting" },
            }
            @if dead_letters > 0 {
                ", " a href={ (deliveries) "?state=dead" } { (format::number(dead_letters)) " given up" }
            }
        }
    }
}

/// A short span to a tenth of a second.
fn exact(span: Duration) -> String {
    if span < Duration::from_secs(10) { format!("{:.1} s", span.as_secs_f64()) } else { format::span(span) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::summary::{HearingSummary, States};

    fn content(units: u64, offline: u64, sites: &[(&str, u64)]) -> SummaryContent {
        let states =
            |total: u64, offline: u64| States { online: total - offline, offline, ..States::default() };
        let site = |(value, offline): &(&str, u64)| LabelSummary {
            label: "site".to_owned(),
            value: (*value).to_owned(),
            states: states(100, *offline),
        };
        SummaryContent {
            units,
            states: states(units, offline),
            archived: 0,
            unusual: 0,
            kinds: Vec::new(),
            labels: sites.iter().map(site).collect(),
            hearing: HearingSummary { blind: false, settling_until: None, brokers: Vec::new() },
            breaker_tripped: Some(false),
            problems: Vec::new(),
            notes: Vec::new(),
            instances: Vec::new(),
            incomplete: Vec::new(),
        }
    }

    /// The text of the line, without its links.
    fn said(content: &SummaryContent, heard: Option<i64>, notices: Option<NoticeCounts>) -> String {
        let heard = heard.map(Timestamp::from_millis);
        let state = FleetState { base: "", content, heard, now: Timestamp::from_millis(600_000), notices };
        let markup = state.markup().into_string();
        let mut text = String::new();
        let mut is_tag = false;
        for letter in markup.chars() {
            match letter {
                '<' => is_tag = true,
                '>' => is_tag = false,
                _ if !is_tag => text.push(letter),
                _ => {}
            }
        }
        text
    }

    #[test]
    fn the_state_of_a_fleet_is_said_in_one_line() {
        let none = Some(NoticeCounts::default());
        let heard = Some(599_700);
        let rest = "; Rollcall hears, last proof 0.3 s ago; no notification in the last hour, none waiting.";
        const SITES: &[(&str, u64)] = &[("site-02", 3), ("site-01", 1), ("site-03", 0)];
        /// Units, offline, sites, the line up to the hearing.
        type Case = (u64, u64, &'static [(&'static str, u64)], &'static str);
        let cases: [Case; 8] = [
            (0, 0, &[], "No unit is known"),
            (1, 0, &[], "The only unit is not silent"),
            (1, 1, &[], "The only unit is silent"),
            (500, 0, &[("site-01", 0)], "None of 500 units is silent"),
            (500, 4, SITES, "4 of 500 units are silent, 3 of them at site-02"),
            (500, 1, &[("a<b", 1), ("b", 0)], "1 of 500 units is silent, at a&lt;b"),
            (500, 2, &[("a", 2), ("b", 0)], "2 of 500 units are silent, all of them at a"),
            // No site has most of the silent units, and a fleet of one site has no other value.
            (500, 4, &[("a", 2), ("b", 2)], "4 of 500 units are silent"),
        ];
        for (units, offline, sites, line) in cases {
            assert_eq!(said(&content(units, offline, sites), heard, none), format!("{line}{rest}"));
        }
        assert_eq!(
            said(&content(500, 2, &[("a", 2)]), heard, none),
            format!("2 of 500 units are silent{rest}")
        );

        let archived = SummaryContent { archived: 3, ..content(0, 0, &[]) };
        assert_eq!(said(&archived, heard, none), format!("Only archived units are known{rest}"));

        let mut blind = content(2, 1, &[]);
        (blind.states.late, blind.hearing.blind) = (1, true);
        let many = NoticeCounts { lately: 100, is_cut: true, waiting: 3, dead_letters: 1 };
        assert_eq!(
            said(&blind, Some(0), Some(many)),
            "1 of 2 units is silent, 1 is late; Rollcall is blind, last proof 10m ago; 100 or more \
             notifications in the last hour, 3 groups waiting, 1 given up."
        );
        // The list has each of the three, whatever it waits for.
        let state =
            FleetState { base: "", content: &blind, heard: None, now: Timestamp::ZERO, notices: Some(many) };
        let markup = state.markup().into_string();
        assert!(markup.contains("\"/deliveries?state=waiting\">3 groups waiting"), "{markup}");
        assert_eq!(
            said(&blind, None, None),
            "1 of 2 units is silent, 1 is late; Rollcall is blind, without a proof yet; notifications are not \
             counted now, because the engine does not answer."
        );
    }
}
