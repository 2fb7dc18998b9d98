//! History in PostgreSQL: how fast it is filled, how soon a storm is in it, what it costs detection, and how long a
//! report over a year and the trial of a policy take.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, ensure};
use rollcall::clock::{Clock, Stopwatch, Timestamp};
use rollcall::fleet::AvailabilityHistory;
use rollcall::history::{Database, DatabaseAccess, HistoryReader, backfill, past_fleet, prepare};
use rollcall::presence::{Closing, MassOfflineRule, OfflineRecord, Pace, Policy};
use rollcall::reports::{Days, GroupBy, day_of};
use rollcall::routing::trial::{PolicyTrial, TrialRules};
use rollcall::routing::{Inhibition, Route, Routes};

use crate::harness::figures::{Goal, Report, TAKEN};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT};
use crate::harness::other_load::OtherLoad;
use crate::harness::world::Rollcall;
use crate::harness::{World, quantile, records, thousands, until};
use crate::mass::wait_for;
use crate::support::postgres::Postgres;

const MAX_WAIT: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(86_400);
/// The default of `history.batch`.
const BATCH: usize = 5000;
/// The time between the last preparation and the instant.
const SETTLE: Duration = Duration::from_secs(5);
/// How many storms there are without history, and with it.
const TURNS: usize = 3;

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let others = OtherLoad::watch()?;
    let postgres = Postgres::start();
    filled(report, &postgres, units / 10).await?;
    year(report, &postgres, units / 10).await?;
    tried(report, &postgres, units / 10).await?;
    storm(report, &postgres, units / 10).await?;
    report.add(TAKEN, others.percent()?, "%", Goal::None);
    Ok(())
}

async fn made(postgres: &Postgres, schema: &str) -> anyhow::Result<(Database, DatabaseAccess)> {
    let access = DatabaseAccess { schema: schema.to_owned(), ..postgres.access() };
    let mut database = Database::connect(&access).await?;
    prepare(&mut database, &access, None).await?;
    Ok((database, access))
}

/// Closed records of a year, from a file.
async fn filled(report: &mut Report, postgres: &Postgres, units: u32) -> anyhow::Result<()> {
    let (mut database, _) = made(postgres, "filled").await?;
    let mut lines = String::new();
    let begin = Clock::system().now() - 365 * DAY;
    for number in 0..2 * units {
        let at = begin + Duration::from_secs(u64::from(number) * 150 % (360 * 86_400));
        let unit = format!("bench:unit-{:07}", number % units).parse()?;
        let open = OfflineRecord::open(unit, at, at + Duration::from_secs(60), at + Duration::from_secs(60));
        let back_at = Some(at + Duration::from_secs(600));
        let labels = [("site".to_owned(), format!("site-{}", number % 1000))].into_iter().collect();
        let closed = OfflineRecord { labels, back_at, closed_by: Some(Closing::Return), ..open };
        writeln!(lines, "{}", serde_json::to_string(&closed)?)?;
    }
    let watch = Stopwatch::start();
    let done = backfill(&mut database, lines.as_bytes(), BATCH).await?;
    let rate = done.rows as f64 / watch.elapsed().as_secs_f64();
    report.add("backfill of a file", rate, "rows/s", Goal::AtLeast(50_000.0));
    Ok(())
}

/// Reports over a year of a fleet with a thousand sites, in which each unit was offline four times.
async fn year(report: &mut Report, postgres: &Postgres, units: u32) -> anyhow::Result<()> {
    let (_, access) = made(postgres, "year").await?;
    let today = day_of(Clock::system().now());
    let days = Days { from: today.saturating_sub(jiff::Span::new().days(365)), until: today };
    let rows = format!(
        "CREATE TABLE transitions_all PARTITION OF transitions DEFAULT; CREATE TABLE daily_all PARTITION OF daily DEFAULT; \
         INSERT INTO units SELECT 'bench', 'unit-' || n, jsonb_build_object('site', n % 1000), '{from}', NULL, 0 \
         FROM generate_series(0, {last}) n; \
         INSERT INTO transitions SELECT o + m * '10 minutes'::interval, w, 'bench:unit-' || n || ':' || k, 'bench', \
         'unit-' || n, '{{}}', 'silence', o, o, o, c FROM generate_series(0, {last}) n, generate_series(0, 3) k, \
         LATERAL (SELECT '{from}'::timestamptz + (k * 90 + n % 80) * '1 day'::interval) x(o), \
         (VALUES (0, 'offline', NULL), (1, 'online', 'return')) y(m, w, c); \
         INSERT INTO daily SELECT '{from}'::date + d, s, name, {units}, 1, 1, 0, 0, 0, 1, 1 FROM generate_series(0, 364) d, \
         (SELECT 'fleet', '' UNION ALL SELECT 'kind', 'bench' UNION ALL SELECT 'label:site', n::text \
         FROM generate_series(0, 999) n) z(s, name); \
         INSERT INTO cursors VALUES ('daily', 16, '{until}'); ANALYZE",
        from = days.from,
        until = days.until,
        last = units - 1,
    );
    postgres.client("year").await.batch_execute(&rows).await?;
    let reader = HistoryReader::new(access, String::new());
    for (group, count) in [("site", 1000), ("kind", 1), ("unit", units as usize)] {
        let watch = Stopwatch::start();
        let made = reader.report(days, &GroupBy::from(group.to_owned())).await?;
        let took = watch.elapsed().as_secs_f64();
        ensure!(made.rows.len() == count && made.until == today, "{} rows by {group}", made.rows.len());
        let title = format!("report over 12 months of {} units, by {group}", thousands(units));
        report.add(title, took, "s", Goal::AtMost(2.0));
    }
    Ok(())
}

/// Another timeout on a month of a fleet with a thousand sites, in which each unit was offline four times, a site at a
/// time, and a storm of half of the fleet.
async fn tried(report: &mut Report, postgres: &Postgres, units: u32) -> anyhow::Result<()> {
    let (database, _) = made(postgres, "tried").await?;
    let now = Clock::system().now();
    let from = now - 30 * DAY;
    let rows = format!(
        "CREATE TABLE transitions_all PARTITION OF transitions DEFAULT; \
         INSERT INTO units SELECT 'bench', 'unit-' || n, jsonb_build_object('site', (n % 1000)::text), '{from}', NULL, 0 \
         FROM generate_series(0, {last}) n; \
         INSERT INTO transitions SELECT CASE w WHEN 'offline' THEN o ELSE o + back END, w, \
         'bench:unit-' || n || ':' || extract(epoch FROM o - interval '10 min')::bigint || '000', 'bench', 'unit-' || n, \
         jsonb_build_object('site', (n % 1000)::text), 'silence', o - interval '10 min', o, o, c \
         FROM generate_series(0, {last}) n, generate_series(0, 4) k, \
         LATERAL (SELECT date_trunc('second', '{from}'::timestamptz) + interval '1 min' + CASE WHEN k = 4 THEN interval '29 days' \
         ELSE (k * 7 * 86400 + n % 1000 * 500 + n % 7) * interval '1 s' END, \
         (5 + n % 50) * interval '1 min') x(o, back), \
         (VALUES ('offline', NULL), ('online', 'return')) y(w, c) WHERE k < 4 OR n % 2 = 0; \
         INSERT INTO cursors VALUES ('opened', 0, '{now}'), ('closed', 0, '{now}'); ANALYZE",
        last = units - 1,
    );
    postgres.client("tried").await.batch_execute(&rows).await?;
    let pace = Pace::new(Duration::from_secs(10), Duration::from_secs(300));
    let (receivers, group_by) = (vec!["mail".to_owned()], vec!["site".to_owned()]);
    let routes = Routes::new(Route { receivers: receivers.clone(), group_by, pace, ..Route::default() });
    let inhibition = Inhibition::default();
    let breaker = MassOfflineRule {
        share: 0.5,
        min_units: 50,
        window: Duration::from_secs(60),
        max_hold: Duration::from_secs(600),
    };
    let rules = |minutes: u64| TrialRules {
        policy: Policy { timeout: Duration::from_secs(minutes * 60), grace: Duration::ZERO },
        settle: Duration::ZERO,
        routes: &routes,
        receivers: &receivers,
        inhibition: &inhibition,
        breaker: Some(breaker),
        has_flapping: false,
        has_rate_limits: false,
    };
    let watch = Stopwatch::start();
    let past = past_fleet(&database, &"bench".parse()?, (30 * DAY, Some(now)), now).await?;
    let trial = PolicyTrial::of(&past, &rules(10), &rules(20), Some("site"), &|| false);
    let took = watch.elapsed().as_secs_f64();
    let trial = trial.context("the trial was given up")?;
    let (was, would) = (&trial.was.counts, &trial.would.counts);
    ensure!(
        was.silences == past.silences.len() && was.trips == 1 && would.silences < was.silences,
        "{was:?}"
    );
    let title = format!("a policy tried on 30 days of {} units", thousands(units));
    report.add(title, took, "s", Goal::AtMost(30.0));
    Ok(())
}

/// Storms without history, and with it, in turn.
async fn storm(report: &mut Report, postgres: &Postgres, due: u32) -> anyhow::Result<()> {
    let clock = Clock::system();
    let (mut with_history, mut ratios, mut in_database) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let plain = durable(&mut World::new()?, KIND, due, &clock).await?.recorded;
        let (mut world, schema) = (World::new()?, format!("storm_{turn}"));
        let url = postgres.url().replace("rollcall@", "rollcall:open%20sesame@");
        let with = format!("{KIND}\n[history]\nurl = \"{url}\"\nschema = \"{schema}\"\n");
        let Durable { recorded, ended, process: _process } = durable(&mut world, &with, due, &clock).await?;
        let client = postgres.client(&schema).await;
        until("the storm is in the database", MAX_WAIT, async || {
            let count = client.query_one("SELECT count(*) FROM transitions", &[]).await?;
            Ok(count.get::<_, i64>(0) >= i64::from(due))
        })
        .await?;
        with_history.push(recorded);
        ratios.push(recorded / plain);
        in_database.push(clock.now().since(ended).as_secs_f64());
    }
    let title = format!("{} due at one instant", thousands(due));
    let mut add = |what: &str, mut values: Vec<f64>, unit, goal| {
        report.add(format!("{title}: {what}"), quantile(&mut values, 0.5), unit, goal);
    };
    add("records durable, with history", with_history, "s", Goal::None);
    add("with history ÷ without, in the middle of pairs", ratios, "", Goal::AtMost(1.05));
    add("in PostgreSQL after the last record", in_database, "s", Goal::AtMost(10.0));
    Ok(())
}

/// The records of a storm.
struct Durable {
    /// How long they took, in seconds.
    recorded: f64,
    /// When the last one was written.
    ended: Timestamp,
    /// The process, which may still write history.
    process: Rollcall,
}

async fn durable(world: &mut World, options: &str, due: u32, clock: &Clock) -> anyhow::Result<Durable> {
    let process = world.serve(options).await?;
    let mut client = world.client().await?;
    let instant = clock.now() + SETTLE + Duration::from_micros(150 * u64::from(due));
    Fleet(0..due).fill(&world.engine().await?, clock.now(), |_| instant - TIMEOUT).await?;
    let before = records::count(&mut client).await?;
    wait_for(instant, clock).await?;
    let (_, after) = records::wait_for(&mut client, clock, instant, before, due.into(), MAX_WAIT).await?;
    Ok(Durable { recorded: after.as_secs_f64(), ended: clock.now(), process })
}
