//! The counts of the fleet over time as a chart: bars for the units that are not online, by state, a line for unusual
//! silences, a band for blind time and marks for incidents; and the numbers as a table.

use std::time::Duration;

use maud::{Markup, html};

use super::format;
use crate::clock::Timestamp;
use crate::http::past_counts::{CountPoint, CountsOverTime};
use crate::http::summary::States;
use crate::presence::{CountRange, IncidentMark, State};

/// The height of the highest bar in pixels, and the space above it for marks, and below it.
const HEIGHT: f64 = 140.0;
const ABOVE: f64 = 16.0;
const BELOW: f64 = 4.0;

/// The share of its width that a bar fills.
const FILLED: f64 = 0.94;

/// The states that are drawn, from the bottom up.
const SHOWN: [State; 3] = [State::Offline, State::Late, State::Unknown];

/// The most incidents that are listed, the newest.
const MAX_LISTED: usize = 5;

/// The counts of the shown states at a point; `None` if they are unknown.
fn heights(point: &CountPoint) -> Option<[u64; SHOWN.len()]> {
    match point.states {
        Some(states) => Some(SHOWN.map(|state| states.of(state))),
        None => point.offline.map(|offline| [offline, 0, 0]),
    }
}

/// The chart. `link`: the page with another range.
pub(super) fn chart(counts: &CountsOverTime, link: impl Fn(CountRange) -> String) -> Markup {
    let of =
        counts.label.as_deref().map(|label| format!(" with {}", format::text(label))).unwrap_or_default();
    html! {
        section.chart #chart aria-labelledby="chart-title" {
            div.filters {
                h2 #chart-title { "Units that are silent" (of) }
                span.ranges {
                    @for range in CountRange::ALL {
                        a href=(link(range)) aria-current=[(range == counts.range).then_some("true")] { (range.as_str()) } " "
                    }
                }
            }
            @if counts.points.iter().all(|point| heights(point).is_none()) {
                p.empty { "No counts yet. The first comes within a minute." }
            } @else {
                (drawing(counts))
                (legend(counts))
                (incidents(counts))
                (table(counts))
            }
        }
    }
}

/// The picture. Widths are shares of the screen, heights are pixels, and the words of the axes are text of the page: a
/// telephone shows the same, narrower.
fn drawing(counts: &CountsOverTime) -> Markup {
    let points = &counts.points;
    let bars = points.iter().filter_map(heights).map(|all| all.iter().sum::<u64>());
    let most = bars.chain(points.iter().filter_map(|point| point.unusual)).max().unwrap_or(0);
    let top = round_up(most);
    let scale = if top > 1 { vec![top, top / 2, 0] } else { vec![top, 0] };
    let y = |count: u64| ABOVE + HEIGHT - HEIGHT * count as f64 / top as f64;
    html! {
        div.drawing {
            div.scale aria-hidden="true" { @for count in &scale { span { (format::number(*count)) } } }
            svg height=(ABOVE + HEIGHT + BELOW) role="img" aria-label=(in_words(counts)) {
                @for count in &scale { line x2="100%" y1=(dec(y(*count))) y2=(dec(y(*count))) {} }
                @for (at, point) in points.iter().enumerate() { (bar(point, at, points.len(), y)) }
                @for one in &counts.incidents { (mark(one, counts)) }
            }
            div.ends aria-hidden="true" {
                @for at in [0, points.len() / 2] { span { @if let Some(point) = points.get(at) { (moment(point.at)) } } }
                span { "now" }
            }
        }
    }
}

/// The bar of one of so many points. `y`: the height at which a count is drawn.
fn bar(point: &CountPoint, at: usize, points: usize, y: impl Fn(u64) -> f64) -> Markup {
    let width = 100.0 / points as f64;
    let x = percent(width * at as f64);
    html! {
        @if point.blind_seconds > 0.0 {
            rect.blind x=(x) y=(ABOVE) width=(percent(width)) height=(HEIGHT) {
                title { (moment(point.at)) ": blind for " (format::span(Duration::from_secs_f64(point.blind_seconds.ceil()))) }
            }
        }
        @match heights(point) {
            None => rect.unread x=(x) y=(dec(ABOVE + HEIGHT - 4.0)) width=(percent(width)) height="4" {},
            Some(all) => @for (state, from, to) in stacked(all) {
                rect class=(state.as_str()) x=(x) y=(dec(y(to))) width=(percent(FILLED * width))
                    height=(dec((y(from) - y(to)).max(1.5))) {
                    title { (moment(point.at)) ": " (format::number(to - from)) " " (format::word(state)) }
                }
            },
        }
        @if let Some(unusual) = point.unusual.filter(|unusual| *unusual > 0) {
            rect.unusual x=(x) y=(dec(y(unusual) - 1.0)) width=(percent(width)) height="2" {
                title { (moment(point.at)) ": " (format::number(unusual)) " unusual" }
            }
        }
    }
}

/// The mark of an incident, at its place on the axis of time.
fn mark(mark: &IncidentMark, counts: &CountsOverTime) -> Markup {
    let whole = Duration::from_secs(counts.step_seconds).as_secs_f64() * counts.points.len() as f64;
    let x = percent(100.0 * mark.at.since(counts.from).as_secs_f64() / whole);
    html! {
        svg.mark x=(x) {
            line y1=(ABOVE) y2=(ABOVE + HEIGHT) {}
            path d={ "M-5 " (ABOVE - 10.0) "h10l-5 9z" } { title { (mark_in_words(mark)) ", " (moment(mark.at)) } }
        }
    }
}

/// The states of a point that have units, each with the bounds of its bar.
fn stacked(all: [u64; SHOWN.len()]) -> Vec<(State, u64, u64)> {
    let mut from = 0;
    let mut bars = Vec::new();
    for (state, count) in SHOWN.into_iter().zip(all) {
        if count > 0 {
            bars.push((state, from, from + count));
        }
        from += count;
    }
    bars
}

fn has_unusual(counts: &CountsOverTime) -> bool {
    counts.points.iter().any(|point| point.unusual.is_some_and(|unusual| unusual > 0))
}

fn legend(counts: &CountsOverTime) -> Markup {
    let step = format::span(Duration::from_secs(counts.step_seconds));
    let shown = if counts.label.is_some() { &SHOWN[..1] } else { &SHOWN[..] };
    html! {
        p.legend {
            @for state in shown { span { i class=(state.as_str()) {} (format::word(*state)) } }
            @if has_unusual(counts) { span { i.unusual {} "unusually silent" } }
            @if counts.points.iter().any(|point| point.blind_seconds > 0.0) { span { i.blind {} "blind" } }
            @if counts.points.iter().any(|point| heights(point).is_none()) { span { i.unread {} "not counted" } }
            span.note { @if counts.step_seconds > 60 { "the worst minute of each " (step) ", " } "times in UTC" }
        }
    }
}

fn incidents(counts: &CountsOverTime) -> Markup {
    let listed = counts.incidents.iter().rev().take(MAX_LISTED);
    html! {
        @if !counts.incidents.is_empty() {
            ol.incidents aria-label="Incidents" {
                @for mark in listed {
                    li { span aria-hidden="true" { "▼ " } (format::ago(Some(mark.at), counts.until)) ": " (mark_in_words(mark)) }
                }
            }
        }
    }
}

fn table(counts: &CountsOverTime) -> Markup {
    let has_states = counts.label.is_none();
    html! {
        details #chart-numbers {
            summary { "The numbers as a table" }
            div.table {
                table {
                    caption.hidden { (in_words(counts)) }
                    thead { tr {
                        th scope="col" { "From (UTC)" }
                        @if has_states { th.numbers scope="col" { "Online" } }
                        th.numbers scope="col" { "Offline" }
                        @if has_states { th.numbers.wide scope="col" { "Late" } th.numbers.wide scope="col" { "Unknown" } th.numbers.wide scope="col" { "Unusual" } }
                        th.numbers scope="col" { "Blind" }
                    } }
                    tbody { @for point in counts.points.iter().rev() { (row(point, has_states)) } }
                }
            }
        }
    }
}

fn row(point: &CountPoint, has_states: bool) -> Markup {
    let of = |count: fn(&States) -> u64| point.states.as_ref().map(count);
    let cell = |count: Option<u64>, is_wide: bool| html! { td.numbers.wide[is_wide] { @match count { Some(count) => (format::number(count)), None => "–" } } };
    html! {
        tr {
            th scope="row" { (moment(point.at)) }
            @if has_states { (cell(of(|states| states.online), false)) }
            (cell(point.offline, false))
            @if has_states { (cell(of(|states| states.late), true)) (cell(of(|states| states.unknown), true)) (cell(point.unusual, true)) }
            td.numbers { @if point.blind_seconds > 0.0 { (format::span(Duration::from_secs_f64(point.blind_seconds.ceil()))) } }
        }
    }
}

fn mark_in_words(mark: &IncidentMark) -> String {
    let place = if mark.place.is_empty() {
        "of the whole fleet".to_owned()
    } else {
        format!("with {}", format::text(&mark.place))
    };
    format!(
        "{} of {} units {place} fell silent together",
        format::number(mark.offline),
        format::number(mark.units)
    )
}

/// The chart in words, for screen readers.
fn in_words(counts: &CountsOverTime) -> String {
    let most = counts.points.iter().filter(|point| point.offline.is_some()).max_by_key(|point| point.offline);
    let blind: f64 = counts.points.iter().map(|point| point.blind_seconds).sum();
    let mut said = format!("Units that were offline in the last {}", counts.range.as_str());
    if let Some((point, offline)) = most.and_then(|point| Some((point, point.offline?))) {
        said += &format!(": {offline} at most ({})", moment(point.at));
    }
    if blind > 0.0 {
        said += &format!(", blind for {}", format::span(Duration::from_secs_f64(blind.ceil())));
    }
    match counts.incidents.len() {
        0 => said,
        1 => said + ", 1 incident",
        count => said + &format!(", {count} incidents"),
    }
}

/// The end of the axis: a round number above the largest count.
fn round_up(most: u64) -> u64 {
    let small = [1, 2, 4, 6, 8, 10].into_iter().find(|end| *end >= most);
    small.unwrap_or_else(|| {
        let power = 10_u64.pow(most.ilog10() - 1);
        let steps = [10, 12, 16, 20, 30, 40, 50, 60, 80, 100].into_iter().map(|step| step * power);
        steps.into_iter().find(|end| *end >= most).unwrap_or(most)
    })
}

/// A moment to the minute.
fn moment(at: Timestamp) -> String {
    let text = at.to_string();
    text.get(5..16).map(|text| text.replace('T', " ")).unwrap_or(text)
}

fn dec(number: f64) -> String {
    format!("{number:.1}")
}

fn percent(number: f64) -> String {
    format!("{number:.2}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_above_the_most() {
        for (most, end) in [
            (0, 1),
            (1, 1),
            (3, 4),
            (5, 6),
            (10, 10),
            (11, 12),
            (41, 50),
            (99, 100),
            (103, 120),
            (501, 600),
            (100_001, 120_000),
        ] {
            assert_eq!(round_up(most), end, "{most}");
        }
    }

    #[test]
    fn points_are_drawn_to_scale_and_said_in_words() {
        let minute = |at: i64| Timestamp::from_millis(60_000 * at);
        let point = |at: i64, states: Option<[u64; 6]>, blind_seconds: f64| CountPoint {
            at: minute(at),
            states: states.map(States::from),
            offline: states.map(|states| states[State::Offline as usize]),
            unusual: states.map(|_| 7),
            blind_seconds,
        };
        let mut points: Vec<CountPoint> =
            (0..58).map(|at| point(at, Some([100, 0, 0, 0, 0, 0]), 0.0)).collect();
        points.push(point(58, None, 30.0));
        points.push(point(59, Some([90, 4, 5, 0, 0, 1]), 0.0));
        let incident = IncidentMark { at: minute(57), place: "site=<b>".to_owned(), offline: 9, units: 10 };
        let mut counts = CountsOverTime {
            range: CountRange::Hour,
            from: minute(0),
            until: minute(60),
            step_seconds: 60,
            label: None,
            points,
            incidents: vec![incident],
        };
        assert_eq!(
            in_words(&counts),
            "Units that were offline in the last 1h: 5 at most (01-01 00:59), blind for 30s, 1 incident"
        );
        let drawn = chart(&counts, |range| format!("/?range={}", range.as_str())).into_string();
        for part in [
            r#"<div class="scale" aria-hidden="true"><span>10</span><span>5</span><span>0</span></div>"#,
            // The axis ends at 10, so 5 of 140 px are 70.
            r#"<rect class="offline" x="98.33%" y="86.0" width="1.57%" height="70.0">"#,
            r#"<rect class="late" x="98.33%" y="30.0" width="1.57%" height="56.0">"#,
            r#"<rect class="unknown" x="98.33%" y="16.0" width="1.57%" height="14.0">"#,
            r#"<rect class="unusual" x="98.33%" y="57.0" width="1.67%" height="2">"#,
            r#"<rect class="blind" x="96.67%""#,
            r#"<rect class="unread" x="96.67%""#,
            r#"<svg class="mark" x="95.00%">"#,
            "<span>01-01 00:00</span><span>01-01 00:30</span><span>now</span>",
            "9 of 10 units with site=&lt;b&gt; fell silent together",
            r#"href="/?range=90d""#,
            r#"<td class="numbers">–</td>"#,
        ] {
            assert!(drawn.contains(part), "{part} in {drawn}");
        }
        assert!(!drawn.contains("<b>"));
        counts.points.iter_mut().for_each(|point| (point.states, point.offline) = (None, None));
        assert!(chart(&counts, |_| String::new()).into_string().contains("No counts yet"));
    }
}
