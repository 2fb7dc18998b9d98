//! A policy tried on history: what is read back is what was, and what is told is what receivers got.

use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::{Rules, Silences};
use rollcall::history::{Database, past_fleet};
use rollcall::presence::{Interval, Kind, KindRules, OfflineRecord, Policy, Registration};
use rollcall::routing::alert_silence::SilenceRequest;
use rollcall::routing::trial::{PastFleet, PolicyTrial, TrialRules};
use rollcall::routing::{Inhibition, Route, Routes, parse_label_matchers};
use rollcall::store::{Cell, Table};
use serde_json::{Value, json};
use tokio_postgres::types::ToSql;

use crate::lived::{Lived, SCHEMA};
use crate::support::postgres::Postgres;
use crate::world::{EngineType, PARTITIONS, SECOND, TIMEOUT, World, units, until, until_so};

/// The past up to a moment, once all of it is written.
async fn past(database: &Database, kind: &str, since: Duration, moment: Timestamp) -> PastFleet {
    let kind = kind.parse().unwrap();
    let read = async || past_fleet(database, &kind, (since, Some(moment)), moment).await.unwrap();
    until_so("the past is written", async || read().await.range.to == moment).await;
    read().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_reads_back_as_it_was_and_its_policy_decided_each_silence() {
    let mut world = World::new(EngineType::Embedded).await;
    let (all, begin) = (units(60), world.clock.now());
    world.roll.canary_returned(begin).await.unwrap();
    world.hear(&all).await;
    // Half of their silence is blind, and does not count; nor does the pause of one of them.
    let pause = Interval { from: begin + 10 * SECOND, to: begin + 30 * SECOND };
    let paused = Registration { pause: Some(pause), ..Registration::default() };
    world.roll.register(&all[59], &paused, begin + SECOND).await.unwrap();
    let silences = Silences::new(world.engine.clone());
    let wanted = SilenceRequest {
        matchers: parse_label_matchers("unit=~\"unit-000.\", kind=\"detector\"").unwrap(),
        starts_at: begin,
        ends_at: begin + 1000 * SECOND,
        author: "ana".to_owned(),
        comment: "works from here until there: done".to_owned(),
    };
    let id = silences.put(None, wanted, "ana", begin).await.unwrap();
    world.pass(TIMEOUT / 2).await;
    world.clock.advance(TIMEOUT);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.silence(&all).await;
    let ended = world.clock.now();
    silences.expire(id, "ana", ended).await.unwrap();
    world.hear(&all[..20]).await;
    world.pass(100 * SECOND).await;
    world.hear(&all[20..40]).await;
    world.write();
    world.until_alike().await;
    until(async || world.count("operations").await == 2 && world.count("pauses").await == 1).await;
    world.pass(200 * SECOND).await;
    let (database, now) = (Database::connect(&world.access).await.unwrap(), world.clock.now() - 100 * SECOND);
    let past = past(&database, "detector", now.since(begin), now).await;
    let closed = |record: &OfflineRecord| record.back_at.zip(record.closed_by);
    let mut read: Vec<OfflineRecord> = past
        .silences
        .iter()
        .map(|silence| {
            let (back_at, closed_by) = silence.closed.unzip();
            OfflineRecord { back_at, closed_by, ..past.open_record(silence) }
        })
        .collect();
    read.sort_by(|a, b| a.id.cmp(&b.id));
    let mut records = world.records().await;
    records.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(read, records);
    assert_eq!(read.iter().filter(|record| closed(record).is_some()).count(), 40);
    assert_eq!(past.ledger.intervals(), world.roll.hearing().ledger.intervals());
    let covers: Vec<_> = past.alert_silences.iter().map(|one| (one.starts_at, one.ends_at)).collect();
    assert_eq!(covers, [(begin, ended)]);
    let covered = past.silences.iter().map(|one| past.open_record(one));
    let covered = covered.filter(|record| past.alert_silences.covered_until(record, begin).is_some());
    assert_eq!((covered.count(), past.gaps.len()), (10, 0), "{:?}", past.gaps);
    let (routes, inhibition) = (Routes::new(Route::default()), Inhibition::default());
    let rules = |timeout| TrialRules {
        policy: Policy { timeout, grace: Duration::ZERO },
        settle: Duration::ZERO,
        routes: &routes,
        receivers: &[],
        inhibition: &inhibition,
        breaker: None,
        has_flapping: false,
        has_rate_limits: false,
    };
    assert!(past.silences.iter().all(|one| rules(TIMEOUT).has_decided(&past, one)));
    let tried = |timeout| past.silences.iter().filter_map(|one| rules(timeout).tried(&past, one)).count();
    assert_eq!((tried(TIMEOUT), tried(20 * TIMEOUT)), (60, 0));
    assert_eq!(tried(2 * TIMEOUT), 40, "the first twenty were back before");
    // Silences that were over before the range are not in it, nor are those of later.
    let late = past_fleet(&database, &past.kind, (SECOND, Some(now)), now).await.unwrap();
    assert_eq!(late.silences.len(), 20);
    let before = past_fleet(&database, &past.kind, (SECOND, Some(begin)), now).await.unwrap();
    assert!(before.silences.is_empty());
    // Silences that began in the range and were detected after it are, with what moved their deadlines then.
    let early = past_fleet(&database, &past.kind, (SECOND, Some(begin + SECOND)), now).await.unwrap();
    assert_eq!(early.silences.len(), 60);
    assert!(early.silences.iter().all(|one| rules(TIMEOUT).has_decided(&early, one)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_changes_while_the_database_is_away_outlives_a_restart() {
    let mut world = World::new(EngineType::Embedded).await;
    let begin = world.clock.now();
    world.write();
    until(async || world.count("policies").await == 1).await;
    world.postgres.kill();
    until(async || world.problem("history_down").is_some()).await;
    world.clock.advance(600 * SECOND);
    let (kind, changed): (Kind, _) = ("detector".parse().unwrap(), world.clock.now());
    let longer = Policy { timeout: 5 * TIMEOUT, grace: SECOND };
    let wanted = KindRules { policy: longer, ..KindRules::new(kind.clone()) };
    world.roll.replace_rules(&Rules::from_iter([(kind.clone(), wanted)]));
    until_so("the engine has the change", async || noted(&world).await == 2).await;
    // The instance starts again, with the file as it was before.
    world.end_writers().await;
    world.restart();
    world.clock.advance(600 * SECOND);
    let back = world.clock.now();
    world.write();
    until_so("the engine has the next change", async || noted(&world).await == 3).await;
    world.postgres.restart();
    until(async || world.count("policies").await == 3).await;
    let select = "SELECT since, timeout_ms FROM policies ORDER BY 1";
    let rows = world.postgres.rows(&world.access.schema, select).await;
    let policy = |row: &tokio_postgres::Row| {
        let timeout = Duration::from_millis(row.get::<_, i64>(1).unsigned_abs());
        (Timestamp::from_millis(row.get::<_, jiff::Timestamp>(0).as_millisecond()), timeout)
    };
    let expected = [(begin, TIMEOUT), (changed, 5 * TIMEOUT), (back, TIMEOUT)];
    assert_eq!(rows.iter().map(policy).collect::<Vec<_>>(), expected);
}

/// How many policies the engine keeps.
async fn noted(world: &World) -> usize {
    let cell = Cell { table: Table::Policies, partition: PARTITIONS, name: "fleet".to_owned() };
    let stored = world.engine.read_cells(&[cell]).await.unwrap().remove(0).unwrap_or_default();
    String::from_utf8(stored).unwrap().matches("detector").count()
}

/// A timeout of 100 s recorded silences of two minutes, and one of 500 s is in force since.
#[tokio::test(flavor = "multi_thread")]
async fn a_silence_that_only_the_timeout_of_its_time_recorded_is_none_of_a_longer_one() {
    let mut world = World::new(EngineType::Embedded).await;
    let (all, begin) = (units(20), world.clock.now());
    world.write();
    until(async || world.count("policies").await == 1).await;
    world.hear(&all).await;
    world.silence(&all).await;
    world.hear(&all[..15]).await;
    let kind: Kind = "detector".parse().unwrap();
    let longer = Policy { timeout: 5 * TIMEOUT, grace: SECOND };
    let wanted = KindRules { policy: longer, ..KindRules::new(kind.clone()) };
    let changed = world.clock.now();
    assert_eq!(world.roll.replace_rules(&Rules::from_iter([(kind.clone(), wanted)])), [kind]);
    until(async || world.count("policies").await == 2).await;
    world.pass(800 * SECOND).await;
    world.hear(&all[15..]).await;
    world.until_alike().await;
    world.pass(200 * SECOND).await;
    let (database, now) = (Database::connect(&world.access).await.unwrap(), world.clock.now() - 100 * SECOND);
    let past = past(&database, "detector", now.since(begin), now).await;
    let policies: Vec<_> = past.policies.iter().map(|one| (one.since, one.policy.timeout)).collect();
    assert_eq!(policies, [(begin, TIMEOUT), (changed, 5 * TIMEOUT)]);
    let (routes, inhibition) = (Routes::new(Route::default()), Inhibition::default());
    let rules = |policy| TrialRules {
        policy,
        settle: Duration::ZERO,
        routes: &routes,
        receivers: &[],
        inhibition: &inhibition,
        breaker: None,
        has_flapping: false,
        has_rate_limits: false,
    };
    let trial = PolicyTrial::of(&past, &rules(longer), &rules(longer), None, &|| false).unwrap();
    assert_eq!((trial.was.counts.silences, trial.would.counts.silences), (20, 5), "{:?}", trial.notes);
    assert_eq!(trial.rows()[0][1], format!("1m 40s + 0s, from {changed} 8m 20s + 1s"));
    // The same policy again is no change.
    world.end_writers().await;
    world.write();
    world.pass(100 * SECOND).await;
    world.until_alike().await;
    assert_eq!(world.count("policies").await, 2);
    // A time before history begins is said to be none of history.
    let (early, late) = (begin - 3600 * SECOND, begin - SECOND);
    let none = past_fleet(&database, &past.kind, (late.since(early), Some(late)), now).await.unwrap();
    assert_eq!(none.gaps.len(), 1);
    assert!(none.gaps[0].ends_with("after all of that time: nothing of it is on record"), "{:?}", none.gaps);
    let partly = past_fleet(&database, &past.kind, (now.since(early), Some(now)), now).await.unwrap();
    assert_eq!(partly.gaps, [format!("history begins at {begin}: silences before that are not on record")]);
}

/// One number of the database.
async fn number(postgres: &Postgres, select: &str, parameters: &[&(dyn ToSql + Sync)]) -> i64 {
    postgres.client(SCHEMA).await.query_one(select, parameters).await.unwrap().get(0)
}

/// A simulated fleet lives for a while; silences of one site are not told of.
#[tokio::test(flavor = "multi_thread")]
async fn a_trial_of_the_policy_of_now_says_what_the_service_sent_and_other_timeouts_are_tried() {
    let postgres = Postgres::start();
    let routes = "[route]\nreceivers = [\"hook\"]\ngroup_by = [\"unit\"]\ngroup_wait = \"0s\"\ngroup_interval = \"0s\"\n\
                  [breaker]\nenabled = false\n";
    let mut lived = Lived::start(&postgres, postgres.port(), routes).await;
    let silence =
        json!({ "matchers": ["site=\"site-01\""], "for": "1h", "author": "ana", "comment": "works" });
    lived.post("/api/v1/silences", &silence).await;
    lived
        .devices(|config| {
            (config.units, config.silence_chance) = (80, 0.02);
            // A unit is offline for long enough to be told of on a busy machine, too.
            config.silence_for = 4 * SECOND..8 * SECOND;
        })
        .await;
    let enough = async || lived.told().len() >= 120;
    until_so("some silences and returns are told of", enough).await;
    lived.fall_silent().await;
    let records = lived.records(60).await;
    until_so("each device is offline", async || {
        lived.json("/api/v1/records?open=true&limit=1000").await["records"].as_array().unwrap().len() == 80
    })
    .await;
    assert!(records.len() > 60);
    let moment = Clock::system().now() + 7 * SECOND;
    let ask = format!("kind=detector&since=1h&until={moment}&group_by=site");
    // The cursors pass a moment a minute later.
    let trial = async |more: &str| lived.text(&format!("/api/v1/policy/try?{ask}{more}")).await;
    until_so("history is written", async || {
        let (status, text) = trial("&timeout=2s").await;
        status == 200 && serde_json::from_str::<Value>(&text).unwrap()["until"] == json!(moment)
    })
    .await;
    let (_, text) = trial("&timeout=2s").await;
    let now: Value = serde_json::from_str(&text).unwrap();

    // Of the policy of now it says what was: records, and the messages that the webhook got.
    let recorded = number(&postgres, "SELECT count(*) FROM outages", &[]).await;
    let told = lived.told().len();
    assert_eq!(now["was"], now["would"]);
    assert_eq!(now["was"]["counts"]["silences"], recorded);
    assert_eq!(now["was"]["counts"]["units"], 80);
    assert_eq!(now["was"]["counts"]["messages"]["hook"], told, "{now:#}");
    assert_eq!(now["sent"]["hook"], told);
    assert_eq!(now["differences"], json!([]));
    let covered =
        number(&postgres, "SELECT count(*) FROM outages WHERE labels ->> 'site' = 'site-01'", &[]).await;
    assert!(covered > 0);
    assert_eq!(now["was"]["counts"]["told"], recorded - covered, "no silence of the site is told of");

    // Of another timeout it says what SQL says.
    let (_, longer) = trial("&timeout=6s").await;
    let longer: Value = serde_json::from_str(&longer).unwrap();
    let select = "SELECT count(*) FROM outages WHERE \
                  coalesce(back_at, $1) - last_seen > interval '6 s'";
    let at = jiff::Timestamp::from_millisecond(moment.as_millis()).unwrap();
    let expected = number(&postgres, select, &[&at]).await;
    assert_eq!(longer["would"]["counts"]["silences"], expected, "{longer:#}");
    assert!(expected < recorded && expected >= 80);
    let counts = longer["groups"].as_object().unwrap().values().map(|both| both[0].as_i64().unwrap());
    assert_eq!(counts.sum::<i64>(), recorded);
    let differences = longer["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 10);
    let seconds: Vec<f64> = differences.iter().map(|one| one["seconds"].as_f64().unwrap()).collect();
    assert!(seconds.is_sorted_by(|a, b| a >= b) && (3.9..=6.0).contains(&seconds[0]), "{seconds:?}");
    let (_, shorter) = trial("&timeout=2s&grace=0s").await;
    assert_eq!(shorter, text, "the same question has the same answer");

    // The command gives the same answer, and the page has it in words.
    let until = moment.to_string();
    let arguments = ["policy", "try", "--kind", "detector", "--since", "1h", "--until", &until];
    let tried = ["--timeout", "6s", "--group-by", "site"];
    let output = lived.command(&[&arguments[..], &tried, &["--json"]].concat()).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), longer);
    let output = lived.command(&[&arguments[..], &tried].concat()).await;
    let words = String::from_utf8(output.stdout).unwrap();
    let row = |what: &str, was: i64, would: i64| {
        let is_row = |line: &str| line.split_whitespace().eq(format!("{what} {was} {would}").split(' '));
        words.lines().any(is_row)
    };
    assert!(row("silences recorded", recorded, expected), "{words}");
    assert!(!words.contains("not tried") && words.contains("history begins at "), "{words}");
    let (status, page) = lived.text(&format!("/policy?{ask}&timeout=6s&grace=")).await;
    let cells = format!("silences recorded</th><td>{recorded}</td><td>{expected}</td>");
    assert!(status == 200 && page.contains(&cells) && !page.contains("=\"http"), "{page}");
    refusals(&lived, &postgres).await;
    lived.end().await;
}

/// One trial runs at a time, and a question that cannot be answered is refused with a sentence.
async fn refusals(lived: &Lived, postgres: &Postgres) {
    let client = postgres.client(SCHEMA).await;
    client.batch_execute("BEGIN; LOCK TABLE units IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let slow = "/api/v1/policy/try?kind=detector&timeout=7s&since=1h";
    let (first, second) = tokio::join!(lived.text(slow), async {
        let waiting =
            "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'units'::regclass AND NOT granted)";
        let waits = async || client.query_one(waiting, &[]).await.unwrap().get::<_, bool>(0);
        until_so("the trial reads the units", waits).await;
        lived.text("/api/v1/policy/try?kind=detector&timeout=8s&since=1h").await
    });
    assert!(second.0 == 503 && second.1.contains("one trial runs at a time"), "{second:?}");
    assert!(first.0 == 503 && first.1.contains("ask again with the same parameters"), "{first:?}");
    let (_, page) = lived.text("/policy?kind=detector&timeout=7s&grace=&since=1h").await;
    assert!(page.contains("The trial has run for ") && page.contains("Ask again for its answer"), "{page}");
    client.batch_execute("ROLLBACK").await.unwrap();
    until_so("the trial goes on", async || lived.text(slow).await.0 == 200).await;
    for (query, why) in [
        ("timeout=7s", "kind is missing"),
        ("kind=pump&timeout=7s", "there is no kind"),
        ("kind=detector&timeout=x", "timeout is no span of time"),
        ("kind=detector&timeout=1ms", "out of bounds"),
        ("kind=detector&since=500d", "since is longer than 0s"),
        ("kind=detector&since=0s", "since is longer than 0s"),
        ("kind=detector&until=today", "until is no moment"),
        ("kind=detector&colour=red", "there is no parameter"),
    ] {
        let (status, text) = lived.text(&format!("/api/v1/policy/try?{query}")).await;
        assert!(status == 400 && text.contains(why), "{query}: {text}");
    }
    let (_, page) = lived.text("/policy?kind=pump").await;
    assert!(page.contains("there is no kind"), "{page}");
    for (refused, why) in [
        (&["--kind", "pump"][..], "there is no kind pump"),
        (&["--kind", "detector", "--since", "0s"], "since is longer than 0s"),
    ] {
        let output = lived.command(&[&["policy", "try"], refused].concat()).await;
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    }
    let check = async || String::from_utf8(lived.command(&["check"]).await.stdout).unwrap();
    let found = check().await;
    assert!(found.contains("ok    history: "), "{found}");
    client.batch_execute("UPDATE meta SET fleet = 'another'").await.unwrap();
    let found = check().await;
    assert!(found.contains("FAIL  history: ") && found.contains("that of another fleet"), "{found}");
    let (_, page) = lived.text("/policy?kind=detector&timeout=x").await;
    assert!(page.contains("timeout is no span of time"), "{page}");
    let (_, page) = lived.text("/configuration?all=true").await;
    assert!(page.contains("/policy?kind=detector"), "{page}");
}
