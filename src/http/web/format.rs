//! How pages write states, times and names.

use maud::{Markup, html};

use crate::clock::Timestamp;
pub(super) use crate::clock::shown_span as span;
use crate::presence::{Labels, Shown, State};
use crate::routing::{Part, Said};

/// The most characters of a name that stays in one line where the screen has room.
const SHORT: usize = 24;

/// A state by its sign and its word; the colour only repeats them.
pub(super) fn state(state: State) -> Markup {
    let (sign, _) = sign_and_word(state);
    html! {
        span class={ "state " (state.as_str()) } { span aria-hidden="true" { (sign) } " " (word(state)) }
    }
}

pub(super) fn word(state: State) -> &'static str {
    sign_and_word(state).1
}

fn sign_and_word(state: State) -> (&'static str, &'static str) {
    match state {
        State::Online => ("●", "online"),
        State::Late => ("◐", "late"),
        State::Offline => ("▲", "offline"),
        State::NeverSeen => ("○", "never seen"),
        State::Paused => ("‖", "paused"),
        State::Unknown => ("?", "unknown"),
    }
}

/// The meaning of a state, as the title of its count.
pub(super) fn meaning(state: State) -> &'static str {
    match state {
        State::Online => "within their timeout",
        State::Late => "past their timeout, within their grace",
        State::Offline => "silent past their deadline",
        State::NeverSeen => "registered, and not heard yet",
        State::Paused => "in a planned absence",
        State::Unknown => "deadline passed, but Rollcall has no proof of hearing up to it yet",
    }
}

/// How long ago a moment was that has passed, with the exact moment in its title; the script of the page counts on. It
/// is never to come: a unit may be heard while the page is written. See [`countdown`] for other moments.
pub(super) fn ago(moment: Option<Timestamp>, now: Timestamp) -> Markup {
    let Some(moment) = moment else { return html! { span.quiet { "never" } } };
    html! { time data-since=" ago" datetime=(moment) title=(moment) { (span(now.since(moment))) " ago" } }
}

/// For how long something lasts that began at this moment.
pub(super) fn lasting(since: Timestamp, now: Timestamp) -> Markup {
    html! { time data-since="" datetime=(since) title=(since) { (span(now.since(since))) } }
}

/// A moment to which the script of the page counts down, and how long ago it was once it has passed.
pub(super) fn countdown(moment: Timestamp, now: Timestamp) -> Markup {
    html! {
        @if moment > now {
            "in " time data-countdown datetime=(moment) title=(moment) { (span(moment.since(now))) }
        } @else {
            (ago(Some(moment), now))
        }
    }
}

/// A sentence whose moments are times: those to come count down.
pub(super) fn said(said: &Said, now: Timestamp) -> Markup {
    let another = |moment: Timestamp, before: &str| {
        html! { (before) " " time data-countdown datetime=(moment) title=(moment) { (span(moment.since(now))) } }
    };
    html! {
        @for part in said.parts() {
            @match part {
                Part::Text(written) => (text(written)),
                Part::At(moment) => (countdown(*moment, now)),
                Part::Ago(moment, _) => (ago(Some(*moment), now)),
                Part::Before(moment) => { "before " (ago(Some(*moment), now)) },
                Part::Since(moment) => { "since " (ago(Some(*moment), now)) },
                Part::Until(moment) if *moment <= now => { "until " (ago(Some(*moment), now)) },
                Part::Until(moment) | Part::For(moment, _) => (another(*moment, "for another")),
                Part::In(moment, _) => (another(*moment, "in")),
            }
        }
    }
}

/// A number with its thousands separated.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let groups = digits.as_bytes()[first..].chunks(3).filter_map(|group| std::str::from_utf8(group).ok());
    let first = Some(&digits[..first]).filter(|first| !first.is_empty());
    first.into_iter().chain(groups).collect::<Vec<&str>>().join("\u{202f}")
}

/// A text of a device.
pub(super) fn text(text: &str) -> String {
    Shown(text).to_string()
}

/// Whether this name stays in one line where the screen has room, whatever stands beside it. A link has the class
/// itself, and no [`name`] in it: no line would be drawn under that.
pub(super) fn is_short(name: &str) -> bool {
    text(name).chars().count() <= SHORT
}

/// The name of a kind, a unit or a receiver.
pub(super) fn name(name: &str) -> Markup {
    html! { span.short[is_short(name)] { (text(name)) } }
}

pub(super) fn labels(labels: &Labels) -> Markup {
    html! {
        @for (at, (name, value)) in labels.iter().enumerate() {
            @let label = format!("{name}={value}");
            @if at > 0 { " " }
            span.label.short[is_short(&label)] { (text(&label)) }
        }
    }
}

/// The receivers of notifications in a few words: those that were notified, and `when`; those for which a notification
/// waits; and those for which it was given up.
pub(super) fn told(
    [notified, waiting, given_up]: [&[String]; 3],
    when: Markup,
    names: impl Fn(&[String]) -> Markup,
) -> Markup {
    html! {
        @match (notified, waiting) {
            ([], []) => span.note { "nobody" },
            ([], waiting) => span.note { "not yet: waits for " (names(waiting)) },
            (notified, waiting) => {
                (names(notified)) (when)
                @if !waiting.is_empty() { span.note { ", not yet " (names(waiting)) } }
            }
        }
        @if !given_up.is_empty() { span.note { ", given up for " (names(given_up)) } }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_moment_that_has_passed_is_never_to_come() {
        let at = Timestamp::from_millis;
        for (moment, shown) in [(540_000, ">1m ago<"), (600_000, ">0s ago<"), (600_900, ">0s ago<")] {
            let markup = ago(Some(at(moment)), at(600_000)).into_string();
            assert!(markup.contains(shown) && markup.contains("data-since=\" ago\""), "{markup}");
        }
    }

    #[test]
    fn a_short_name_stays_in_one_line_as_it_is_shown() {
        for (name, expected) in [
            ("sim-000205", true),
            ("ü".repeat(SHORT).as_str(), true),
            ("u".repeat(SHORT + 1).as_str(), false),
            // Three characters that are written as 24.
            ("\u{202e}\u{202e}\u{202e}", true),
            ("\u{202e}\u{202e}\u{202e}a", false),
        ] {
            assert_eq!(is_short(name), expected, "{name:?}");
        }
    }

    #[test]
    fn receivers_are_those_that_were_notified_and_those_that_were_not() {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let note = |text: &str| format!("<span class=\"note\">{text}</span>");
        for (notified, waiting, given_up, shown) in [
            (&["a", "b"][..], &[][..], &[][..], "a, b at noon".to_owned()),
            (&["a"], &["b", "c"], &[], format!("a at noon{}", note(", not yet b, c"))),
            (&[], &["b"], &[], note("not yet: waits for b")),
            (&[], &[], &["c"], note("nobody") + &note(", given up for c")),
            (&["a"], &["b"], &["c"], format!("a at noon{}{}", note(", not yet b"), note(", given up for c"))),
        ] {
            let [notified, waiting, given_up] = [notified, waiting, given_up].map(all);
            let names = |names: &[String]| html! { (names.join(", ")) };
            let markup = told([&notified, &waiting, &given_up], html! { " at noon" }, names);
            assert_eq!(markup.into_string(), shown);
        }
    }

    #[test]
    fn moments_to_come_count_down_and_others_are_how_long_ago_they_were() {
        let at = Timestamp::from_millis;
        let written = |part: Part| said(&Said::from("a<b ").then(part), at(600_000)).into_string();
        let span = Duration::from_secs(60);
        for (part, shown) in [
            (Part::At(at(540_000)), "<time data-since=\" ago\" datetime=X title=X>1m ago</time>"),
            (Part::At(at(660_000)), "in <time data-countdown datetime=X title=X>1m</time>"),
            (Part::Ago(at(540_000), span), "<time data-since=\" ago\" datetime=X title=X>1m ago</time>"),
            (Part::Before(at(540_000)), "before <time data-since=\" ago\" datetime=X title=X>1m ago</time>"),
            (Part::Until(at(540_000)), "until <time data-since=\" ago\" datetime=X title=X>1m ago</time>"),
            (Part::Until(at(660_000)), "for another <time data-countdown datetime=X title=X>1m</time>"),
            (Part::For(at(660_000), span), "for another <time data-countdown datetime=X title=X>1m</time>"),
            (Part::In(at(660_000), span), "in <time data-countdown datetime=X title=X>1m</time>"),
        ] {
            let markup = written(part.clone());
            let moments = [at(540_000), at(660_000)].map(|moment| format!("\"{moment}\""));
            let markup = moments.iter().fold(markup, |text, moment| text.replace(moment, "X"));
            assert_eq!(markup, format!("a&lt;b {shown}"), "{part:?}");
        }
    }

    #[test]
    fn numbers_are_written_for_people() {
        let cases = [(0, "0"), (999, "999"), (1000, "1\u{202f}000"), (1_234_567, "1\u{202f}234\u{202f}567")];
        for (value, written) in cases {
            assert_eq!(number(value), written);
        }
    }
}
