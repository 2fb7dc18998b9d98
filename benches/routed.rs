//! A tenth of a large fleet falls silent at once, and passes a tree of routes, silences and inhibition rules, none of
//! which holds it back: the time until the last site is notified, in how many messages, and the memory for it.

use std::fmt::Write;
use std::hint::black_box;
use std::time::Duration;

use anyhow::ensure;
use rollcall::clock::{Clock, Stopwatch, Timestamp};
use rollcall::config;
use rollcall::presence::OfflineRecord;
use rollcall::routing::Routes;
use rollcall::simulate::webhook_sink::{Options, WebhookSink};
use serde_json::{Value, json};

use crate::harness::figures::{Goal, Report, TAKEN};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT};
use crate::harness::other_load::OtherLoad;
use crate::harness::process::usage;
use crate::harness::world::Rollcall;
use crate::harness::{World, say, thousands, until};
use crate::mass::wait_for;

const ROUTES: u32 = 50;
const SILENCES: u32 = 20;
const INHIBITIONS: u32 = 5;
const SITES: u32 = 10;
/// The time between the last preparation and the instant.
const SETTLE: Duration = Duration::from_secs(3);
const MAX_WAIT: Duration = Duration::from_secs(120);

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let (clock, due) = (Clock::system(), units / 10);
    let sink = WebhookSink::start(Options::default()).await?;
    let mut world = World::new()?;
    let engine = world.engine().await?;
    let now = clock.now();
    Fleet(due..units).fill_by_site(&engine, now, |_| now, SITES).await?;
    let rollcall = world.serve(&options(&sink)).await?;
    silence(&rollcall).await?;
    let title = format!(
        "{} due at one instant, {ROUTES} routes, {SILENCES} silences, {INHIBITIONS} inhibitions, {SITES} sites",
        thousands(due)
    );
    say(&title);
    let instant = clock.now() + SETTLE + Duration::from_micros(150 * u64::from(due));
    Fleet(0..due).fill_by_site(&engine, clock.now(), |_| instant - TIMEOUT, SITES).await?;
    let before = usage(rollcall.server.pid())?;
    wait_for(instant, &clock).await?;
    let others = OtherLoad::watch()?;
    let (mut read, mut told) = (0, 0);
    // A timeout is a figure, too.
    let _ = until("all are notified", MAX_WAIT, async || {
        let received = sink.received();
        told += received[read..].iter().map(|one| told_by(&one.json())).sum::<u64>();
        read = received.len();
        Ok(told >= u64::from(due))
    })
    .await;
    let notified = clock.now().since(instant).as_secs_f64();
    let (after, taken) = (usage(rollcall.server.pid())?, others.percent()?);
    let mut add = |what: &str, value, unit, goal| report.add(format!("{title}: {what}"), value, unit, goal);
    add("notified", notified, "s", Goal::AtMost(5.0));
    add("units in the notifications", told as f64, "", Goal::Exactly(due.into()));
    add("messages", read as f64, "", Goal::AtMost(20.0));
    add(
        "CPU of Rollcall for a unit",
        (after.cpu - before.cpu).as_secs_f64() * 1e6 / f64::from(due),
        "µs",
        Goal::None,
    );
    add("memory of Rollcall for it", after.rss.saturating_sub(before.rss) as f64 / 1e6, "MB", Goal::None);
    add(TAKEN, taken, "%", Goal::None);
    let matching = time_of_a_route(&options(&sink))?;
    report.add("a route that does not match, two matchers", matching, "µs", Goal::AtMost(1.0));
    Ok(())
}

/// How long a record takes for a route of these options (µs): only the root matches and takes the record.
fn time_of_a_route(options: &str) -> anyhow::Result<f64> {
    const RECORDS: u32 = 20_000;
    let routes = Routes::new(config::parse(options, None, [])?.alerting.route);
    let at = Timestamp::from_millis(1_772_366_400_000);
    let labels = [("site".to_owned(), "site-3".to_owned())].into();
    let record = OfflineRecord { labels, ..OfflineRecord::open("detector:7".parse()?, at, at, at) };
    let begin = Stopwatch::start();
    for _ in 0..RECORDS {
        ensure!(black_box(routes.of(black_box(&record))).len() == 1, "a record has one route");
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(RECORDS * (ROUTES - 1)))
}

/// How many units a webhook tells of.
fn told_by(body: &Value) -> u64 {
    let data = &body["data"];
    let listed = data["offline"].as_array().map_or(0, Vec::len) as u64;
    listed + data["truncated"].as_u64().unwrap_or(0)
}

/// Options in which all routes but the root match another site, and are tried one after the other.
fn options(sink: &WebhookSink) -> String {
    let mut text =
        format!("{KIND}\n[route]\nreceivers = [\"hook\"]\ngroup_by = [\"site\"]\ngroup_wait = \"0s\"\n");
    for number in 1..ROUTES {
        let matchers = format!(r#"'site=~"(north|south)-{number}"', 'kind="detector"'"#);
        let _ = writeln!(text, "[[route.routes]]\nmatchers = [{matchers}]\nreceivers = [\"hook\"]");
    }
    for number in 0..INHIBITIONS {
        let (source, target) = (format!(r#"'site="gateway-{number}"'"#), r#"'kind="detector"'"#);
        let equal = r#"equal = ["site"]"#;
        let _ = writeln!(
            text,
            "[[inhibit]]\nsource_matchers = [{source}]\ntarget_matchers = [{target}]\n{equal}"
        );
    }
    let _ = writeln!(text, "[[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"{}\"", sink.url());
    text
}

/// Creates silences that match other sites.
async fn silence(rollcall: &Rollcall) -> anyhow::Result<()> {
    let address = rollcall.page("/alertmanager/api/v2/silences");
    for number in 0..SILENCES {
        let silence = json!({
            "matchers": [{ "name": "site", "value": format!("(east|west)-{number}"), "isRegex": true }],
            "startsAt": "2020-01-01T00:00:00Z",
            "endsAt": "2099-01-01T00:00:00Z",
            "createdBy": "benchmark",
            "comment": "matches nothing",
        });
        let request = reqwest::Client::new().post(&address).header("content-type", "application/json");
        request.body(silence.to_string()).send().await?.error_for_status()?;
    }
    Ok(())
}
