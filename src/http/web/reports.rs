//! The page of reports: how much of a month, or of any days, units were online, from history. It prints well.

use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router, routing::get};
use jiff::civil::Date;
use maud::{Markup, html};
use serde::Deserialize;
use url::form_urlencoded;

use super::layout::Tab;
use super::{FailedPage, Web, WebState, format};
use crate::clock::Timestamp;
use crate::http::changes::Caller;
use crate::http::http_error::{HttpError, query};
use crate::reports::{self, AvailabilityReport, CalendarPeriod, Days, GroupBy, ReportRange};

/// The most rows of the page; CSV has all.
const MAX_ROWS: usize = 500;

/// How long the page waits for a report: less than the time limit of a request, so that it says why there is none.
const WAIT: Duration = Duration::from_secs(12);

/// The fields of the form; an empty field is not set.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ReportsQuery {
    /// Such as `2026-10`.
    month: String,
    from: String,
    /// The last day.
    to: String,
    group: String,
    /// In percent.
    target: String,
}

/// A report as the form selects it.
struct AskedReport {
    days: Days,
    group: GroupBy,
    target: Option<f64>,
}

pub(super) fn pages() -> Router<Web> {
    Router::new().route("/reports", get(page)).route("/reports.csv", get(csv))
}

async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let wanted: ReportsQuery = query(&uri)?;
    let asked = AskedReport::of(&wanted, web.clock.now())?;
    let (summary, made) = tokio::join!(web.summaries.recent(), web.report(&asked));
    let summary = summary?;
    let live = html! { h1 { "Reports" } };
    let rest = html! {
        (web.form(&wanted, &asked))
        @match made {
            Ok(made) => {
                div.report { (reports::body(&made.with_worst(MAX_ROWS))) }
                p.phone { "A wider screen and the CSV have more columns." }
                p.actions-of-report {
                    a href={ (web.base) "/reports.csv?" (encoded(&wanted)) } { "All rows as CSV" } " "
                    a href={ (web.base) "/policy" } { "Try another timeout" }
                }
            }
            Err(why) => p.banner role="status" { (format::text(why.detail())) }
        }
    };
    Ok(web.page("Reports", Some(Tab::Reports), &summary, &caller, live, rest))
}

async fn csv(State(web): WebState, uri: Uri) -> Result<Response, FailedPage> {
    let asked = AskedReport::of(&query(&uri)?, web.clock.now())?;
    let made = web.report(&asked).await?;
    let Days { from, until } = asked.days;
    let name = format!("attachment; filename=\"availability-{from}-{until}.csv\"");
    let headers = [(CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()), (CONTENT_DISPOSITION, name)];
    Ok((headers, reports::csv(&made)).into_response())
}

impl AskedReport {
    /// Without a month and days: the last complete month.
    fn of(wanted: &ReportsQuery, now: Timestamp) -> Result<AskedReport, HttpError> {
        let day = |text: &str| {
            text.parse::<Date>()
                .map_err(|_| HttpError::bad_request(format!("{text:?} is no day; write 2026-10-01")))
        };
        let days = match (wanted.month.as_str(), wanted.from.as_str(), wanted.to.as_str()) {
            ("", "", "") => ReportRange::Last(CalendarPeriod::Month).before(now),
            (month, "", "") => {
                let first = format!("{month}-01").parse();
                let wrong = |_| HttpError::bad_request(format!("{month:?} is no month; write 2026-10"));
                Days::of_month(first.map_err(wrong)?)
            }
            ("", from, to) if !from.is_empty() && !to.is_empty() => {
                let last = day(to)?;
                Days { from: day(from)?, until: last.tomorrow().unwrap_or(last) }
            }
            _ => return Err(HttpError::bad_request("write a month, or both from and to")),
        };
        if days.from >= days.until {
            return Err(HttpError::bad_request("from is not after to"));
        }
        let group = if wanted.group.is_empty() { "kind" } else { &wanted.group };
        let target = match wanted.target.as_str() {
            "" => None,
            text => {
                let percent = text.parse().ok().filter(|percent: &f64| *percent > 0.0 && *percent < 100.0);
                let wrong = || format!("{text:?} is no target; write a percentage below 100, such as 99.5");
                Some(percent.ok_or_else(|| HttpError::bad_request(wrong()))? / 100.0)
            }
        };
        Ok(AskedReport { days, group: GroupBy::from(group.to_owned()), target })
    }
}

/// The query of a form, without empty fields.
fn encoded(wanted: &ReportsQuery) -> String {
    let ReportsQuery { month, from, to, group, target } = wanted;
    let fields = [("month", month), ("from", from), ("to", to), ("group", group), ("target", target)];
    let set = fields.into_iter().filter(|(_, text)| !text.is_empty());
    form_urlencoded::Serializer::new(String::new()).extend_pairs(set).finish()
}

impl Web {
    async fn report(&self, asked: &AskedReport) -> Result<AvailabilityReport, HttpError> {
        let Some(history) = &self.history else {
            return Err(HttpError::not_found(
                "Reports are made from history, and there is none: set history.url to the address of a PostgreSQL.",
            ));
        };
        let late = |_| Err(anyhow::anyhow!("there is no report within {} s", WAIT.as_secs()));
        let made = tokio::time::timeout(WAIT, history.report(asked.days, &asked.group)).await;
        let made = made.unwrap_or_else(late);
        let made = made.map_err(|why| HttpError::unavailable(format!("History does not answer: {why}")))?;
        Ok(made.with_target(asked.target))
    }

    /// The form, filled with the shown report.
    fn form(&self, wanted: &ReportsQuery, asked: &AskedReport) -> Markup {
        let shown = asked.group.to_string();
        let of_units = ["kind", "unit", "fleet"].into_iter().map(str::to_owned);
        let mut groups: Vec<String> = of_units.chain(self.labels.iter().cloned()).collect();
        if !groups.contains(&shown) {
            groups.push(shown.clone());
        }
        let is_month = wanted.from.is_empty();
        let month = asked.days.from.strftime("%Y-%m").to_string();
        html! {
            form.report-form action={ (self.base) "/reports" } {
                label { "Month " input type="month" name="month" value=[is_month.then_some(month)]; }
                label { "or from " input type="date" name="from" value=(wanted.from); }
                label { "to " input type="date" name="to" value=(wanted.to); }
                label { "By "
                    select name="group" {
                        @for one in &groups { option value=(one) selected[*one == shown] { (format::text(one)) } }
                    }
                }
                label { "Target in % "
                    input type="number" name="target" min="0.001" max="99.999" step="0.001" value=(wanted.target);
                }
                button type="submit" { "Show" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_asks_for_a_month_or_for_days() {
        let now = crate::clock::parse_moment("2026-11-17T10:00:00Z").unwrap();
        let of = |text: &str| {
            let wanted =
                query(&format!("/reports?{text}").parse().unwrap()).map_err(|_| "query".to_owned())?;
            let asked = AskedReport::of(&wanted, now).map_err(|why| why.detail().to_owned())?;
            Ok(format!("{} {} {} {:?}", asked.days.from, asked.days.until, asked.group, asked.target))
        };
        for (text, asked) in [
            ("", Ok("2026-10-01 2026-11-01 kind None")),
            ("month=&from=&to=&group=&target=", Ok("2026-10-01 2026-11-01 kind None")),
            ("month=2026-02&group=site&target=99.5", Ok("2026-02-01 2026-03-01 site Some(0.995)")),
            ("from=2026-02-01&to=2026-02-01&group=fleet", Ok("2026-02-01 2026-02-02 fleet None")),
            ("month=2026-13", Err("\"2026-13\" is no month; write 2026-10")),
            ("from=2026-02-01", Err("write a month, or both from and to")),
            ("month=2026-02&from=2026-02-01&to=2026-02-02", Err("write a month, or both from and to")),
            ("from=2026-02-02&to=2026-01-01", Err("from is not after to")),
            ("from=x&to=2026-01-01", Err("\"x\" is no day; write 2026-10-01")),
            ("target=100", Err("\"100\" is no target; write a percentage below 100, such as 99.5")),
            ("colour=red", Err("query")),
        ] {
            let expected = asked.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(of(text), expected, "{text}");
        }
    }
}
