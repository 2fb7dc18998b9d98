//! The history of a unit as pictures: a strip of the last hour, a strip of days, and a plot of the hours offline on
//! each day.
//!
//! # Why no library
//! Ninety rectangles with fixed axes need no script: the server writes them, and they work without JavaScript, print
//! well and follow the colours of the page. A plot library would be half of the page's bytes, and nothing here is
//! zoomed or dragged.

use std::time::Duration;

use maud::{Markup, html};

use super::format;
use crate::http::timeline::{Day, Minute, MinuteState};

/// The width of a day, and the space for the words of the axes.
const WIDTH: u32 = 10;
const LEFT: u32 = 40;
const HEIGHT: u32 = 96;
const BELOW: u32 = 24;
const ABOVE: u32 = 8;

/// The hours that have a line.
const LINES: [u32; 3] = [0, 12, 24];

/// A bar for each minute of the last hour, with the same content in words.
pub(super) fn hour(minutes: &[Minute]) -> Markup {
    let count = |state: MinuteState| minutes.iter().filter(|minute| minute.was == state).count();
    let counts = [
        ("offline", count(MinuteState::Offline)),
        ("blind", count(MinuteState::Blind)),
        ("not known", count(MinuteState::Unknown)),
        ("quiet since the newest heartbeat", count(MinuteState::Quiet)),
    ];
    let counts: Vec<String> = counts
        .into_iter()
        .filter(|(_, minutes)| *minutes > 0)
        .map(|(what, minutes)| format!("{minutes} min {what}"))
        .collect();
    let all = if counts.is_empty() { "no outage".to_owned() } else { counts.join(", ") };
    html! {
        figure.hour {
            figcaption { "The last hour: " (all) }
            div.strip role="img" aria-label={ "The last hour, minute by minute: " (all) } {
                @for minute in minutes {
                    @let (class, what) = minute_in_words(minute.was);
                    i class=(class) title={ (clock_time(minute)) ": " (what) } {}
                }
            }
            div.ends aria-hidden="true" { span { "1 hour ago" } span { "now" } }
            p.quiet { "Single heartbeats are not stored: the strip has the newest one, outages and blind time." }
        }
    }
}

fn minute_in_words(state: MinuteState) -> (&'static str, &'static str) {
    match state {
        MinuteState::Heard => ("heard", "the newest heartbeat"),
        MinuteState::Offline => ("offline", "offline"),
        MinuteState::Blind => ("blind", "Rollcall was blind"),
        MinuteState::Quiet => ("quietly", "nothing came since the newest heartbeat"),
        MinuteState::Online => ("", "no outage"),
        MinuteState::Unknown => ("unread", "not known yet"),
    }
}

fn clock_time(minute: &Minute) -> String {
    let moment = minute.from.to_string();
    moment.get(11..16).map(|time| format!("{time} UTC")).unwrap_or(moment)
}

/// A bar for each day, with the same content in words.
pub(super) fn strip(days: &[Day]) -> Markup {
    let all = in_words(days);
    html! {
        div.strip role="img" aria-label=(all) {
            @for day in days {
                @match day.offline_seconds {
                    None => i.unread title={ (date(day)) ": not known" } {},
                    Some(seconds) if seconds > 0.0 => i.offline title={ (date(day)) ": offline for " (span(seconds)) } {},
                    Some(_) => i title={ (date(day)) ": not offline" } {},
                }
            }
        }
        div.ends aria-hidden="true" { span { "90 days ago" } span { "today" } }
        p.quiet { (all) }
    }
}

/// A plot of how many hours of each day the unit was offline; empty if it never was.
pub(super) fn plot(days: &[Day]) -> Markup {
    let offline = |day: &Day| day.offline_seconds.filter(|seconds| *seconds > 0.0);
    if days.iter().all(|day| offline(day).is_none()) {
        return html! {};
    }
    let width = LEFT + WIDTH * days.len() as u32;
    let height = ABOVE + HEIGHT + BELOW;
    let from_top = |hours: f64| f64::from(ABOVE + HEIGHT) - f64::from(HEIGHT) * hours.min(24.0) / 24.0;
    let bars = days.iter().enumerate().filter_map(|(at, day)| Some((at, day, offline(day)?)));
    // The first day, one in the middle and the last.
    let marks = [(0, "start"), (days.len() / 2, "middle"), (days.len().saturating_sub(1), "end")];
    html! {
        figure.plot.wide {
            figcaption { "Hours offline, by day (UTC)" }
            svg viewBox={ "0 0 " (width) " " (height) } role="img" aria-label={ "Hours offline by day: " (in_words(days)) } {
                @for hours in LINES {
                    @let y = from_top(f64::from(hours));
                    line x1=(LEFT) x2=(width) y1=(y) y2=(y) {}
                    text x=(LEFT - 8) y=(y + 4.0) text-anchor="end" { (hours) " h" }
                }
                @for (at, day, seconds) in bars {
                    // A minimum height keeps a short outage visible.
                    @let y = from_top((seconds / 3600.0).max(0.5));
                    rect x=(LEFT + WIDTH * at as u32 + 1) y=(format!("{y:.1}")) width=(WIDTH - 2)
                        height=(format!("{:.1}", from_top(0.0) - y)) { title { (date(day)) ": offline for " (span(seconds)) } }
                }
                @for (at, anchor) in marks {
                    @if let Some(day) = days.get(at) {
                        @let x = LEFT + WIDTH * at as u32 + match anchor { "start" => 0, "middle" => WIDTH / 2, _ => WIDTH };
                        text x=(x) y=(height - 6) text-anchor=(anchor) { (date(day)) }
                    }
                }
            }
        }
    }
}

fn in_words(days: &[Day]) -> String {
    let known: Vec<f64> = days.iter().filter_map(|day| day.offline_seconds).collect();
    let watched: f64 = days.iter().map(|day| day.watched_seconds).sum();
    let period = match known.len() {
        0 => return "nothing is known of it yet".to_owned(),
        1 => "only day that is known".to_owned(),
        count if count == days.len() => format!("last {count} days"),
        count => format!("{count} days that are known"),
    };
    let bad: Vec<f64> = known.iter().copied().filter(|seconds| *seconds > 0.0).collect();
    let sum: f64 = bad.iter().sum();
    let share = 100.0 * (watched - sum) / watched.max(1.0);
    // The share is rounded down, so that only a unit without any outage has 100 %.
    let share = (share.max(0.0) * 100.0).floor() / 100.0;
    match bad.len() {
        0 if known.len() == 1 => format!("not offline on the {period}"),
        0 => format!("never offline in the {period}"),
        1 if known.len() == 1 => {
            format!("offline on the {period}, for {}; online for {share} % of the time", span(sum))
        }
        1 => format!("offline on 1 of the {period}, for {}; online for {share} % of the time", span(sum)),
        count => {
            format!(
                "offline on {count} of the {period}, for {} in all; online for {share} % of the time",
                span(sum)
            )
        }
    }
}

fn date(day: &Day) -> String {
    let date = day.from.to_string();
    date.get(..10).unwrap_or(&date).to_owned()
}

fn span(seconds: f64) -> String {
    format::span(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn outages_are_drawn_to_scale_and_said_in_words() {
        let day = |at: u32, offline_seconds: Option<f64>| {
            let from = Timestamp::from_millis(i64::from(at) * 86_400_000);
            let watched_seconds = offline_seconds.map_or(0.0, |_| 86_400.0);
            Day { from, offline_seconds, watched_seconds }
        };
        let mut days: Vec<Day> = (0..90).map(|at| day(at, Some(0.0))).collect();
        assert_eq!(
            (in_words(&days).as_str(), plot(&days).into_string().as_str()),
            ("never offline in the last 90 days", "")
        );
        days[0] = day(0, None);
        days[10] = day(10, Some(43_200.0));
        days[11] = day(11, Some(86_400.0));
        days[12] = day(12, Some(1.0));
        let said =
            "offline on 3 of the 89 days that are known, for 1d 12h in all; online for 98.31 % of the time";
        assert_eq!(in_words(&days), said);
        // The fleet has been watched for a hundred seconds only, so the unit was not online on the 89 days before.
        let mut young: Vec<Day> = (0..90).map(|at| day(at, None)).collect();
        assert_eq!(in_words(&young), "nothing is known of it yet");
        young[89] = Day { watched_seconds: 100.0, ..day(89, Some(90.0)) };
        let said = "offline on the only day that is known, for 1m 30s; online for 10 % of the time";
        assert_eq!(in_words(&young), said);
        let drawn = plot(&days).into_string();
        for bar in
            [r#"y="56.0" width="8" height="48.0""#, r#"y="8.0" width="8" height="96.0""#, r#"height="2.0""#]
        {
            assert!(drawn.contains(bar), "{bar} in {drawn}");
        }
        assert_eq!(drawn.matches("<rect").count(), 3);
        let drawn = strip(&days).into_string();
        assert!(
            drawn.contains("1970-01-01: not known") && drawn.contains("1970-01-12: offline for 1d"),
            "{drawn}"
        );
    }
}
