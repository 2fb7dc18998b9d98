//! What pages and the API answer out of history, by a service over a PostgreSQL that has days of last year.

use std::sync::Arc;

use reqwest::{Client, Response};
use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::AvailabilityHistory;
use rollcall::history::{Database, DatabaseAccess, HistoryReader, fleet_digest, prepare};
use rollcall::presence::{Interval, TimeSpent};
use rollcall::reports::{AvailabilityScope, Days, GroupBy, day_of, midnight};
use rollcall::simulate::servers::free_port;
use serde_json::{Value, json};

use crate::inspection::inspect;
use crate::support::browser::Browser;
use crate::support::fleet::Service;
use crate::support::postgres::{PASSWORD, Postgres};
use crate::world::{DAY, until_so};

/// Ten days of two units, which are summed up to yesterday: on the third day one of them was offline for an hour.
async fn filled(postgres: &Postgres, schema: &str) -> Timestamp {
    let access = DatabaseAccess { schema: schema.to_owned(), ..postgres.access() };
    let mut database = Database::connect(&access).await.unwrap();
    prepare(&mut database, &access, None).await.unwrap();
    let today = midnight(day_of(Clock::system().now()));
    let first = today - 200 * DAY;
    let client = postgres.client(schema).await;
    let at = |moment: Timestamp| moment.to_string();
    let (known, outage, back) = (at(first), at(first + 2 * DAY), at(first + 2 * DAY + DAY / 24));
    let rows = format!(
        "INSERT INTO units VALUES ('detector', 'a', '{{\"site\": \"north\"}}', '{known}', '{}', 0), \
         ('detector', 'b', '{{\"site\": \"south\"}}', '{known}', '{}', 0); \
         CREATE TABLE transitions_all PARTITION OF transitions DEFAULT; CREATE TABLE daily_all PARTITION OF daily DEFAULT; \
         INSERT INTO transitions SELECT at, w, 'detector:a:1', 'detector', 'a', '{{}}', 'silence', '{outage}', \
         '{outage}', '{outage}', c FROM (VALUES ('{outage}'::timestamptz, 'offline', NULL), \
         ('{back}', 'online', 'return')) x(at, w, c); \
         INSERT INTO daily SELECT '{known}'::date + d, s, n, u, u * 86400 - o, o, 0, 0, 0, (o > 0)::int, o \
         FROM generate_series(0, 9) d, LATERAL (VALUES ('fleet', '', 2, d), ('kind', 'detector', 2, d), \
         ('label:site', 'north', 1, d), ('label:site', 'south', 1, 0)) x(s, n, u, day), \
         LATERAL (SELECT CASE WHEN day = 2 THEN 3600 ELSE 0 END) y(o); \
         INSERT INTO cursors VALUES ('daily', 4, '{}')",
        at(first + 10 * DAY),
        at(first + 10 * DAY),
        at(today)
    );
    client.batch_execute(&rows).await.unwrap();
    first
}

struct Served {
    service: Service,
    url: String,
    client: Client,
    _dir: tempfile::TempDir,
}

impl Served {
    async fn start(postgres: &Postgres) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let password = dir.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let (port, broker) = (free_port().unwrap(), free_port().unwrap());
        let service = Service::start(&format!(
            "[engine]\ntype = \"embedded\"\npath = {:?}\npartitions = 4\n[broker]\nlisten = \"127.0.0.1:{broker}\"\n\
             [http]\nlisten = \"127.0.0.1:{port}\"\ncount_by_labels = [\"site\"]\n\
             [history]\nurl = {:?}\npassword_file = {password:?}\nschema = \"pages\"\n\
             [[kind]]\nname = \"detector\"\n[[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"http://127.0.0.1:9/hook\"\n\
             [route]\nreceivers = [\"hook\"]\n",
            dir.path().join("engine"),
            postgres.url(),
        ));
        let client = Client::builder().no_proxy().build().unwrap();
        let served = Served { service, url: format!("http://127.0.0.1:{port}"), client, _dir: dir };
        let serves =
            async || served.try_get("/api/v1/summary").await.is_some_and(|answer| answer.status() == 200);
        until_so("it serves", serves).await;
        served
    }

    async fn try_get(&self, path: &str) -> Option<Response> {
        self.client.get(format!("{}{path}", self.url)).send().await.ok()
    }

    async fn text(&self, path: &str) -> String {
        self.try_get(path).await.unwrap().text().await.unwrap()
    }

    async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path).await).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn availability_and_reports_reach_as_far_back_as_history() {
    let mut postgres = Postgres::start();
    let first = filled(&postgres, "pages").await;
    let served = Served::start(&postgres).await;
    let (from, until) = (first, first + 10 * DAY);
    let of = async |query: &str, from: Timestamp, until: Timestamp| {
        served.json(&format!("/api/v1/availability?from={from}&until={until}&{query}")).await
    };
    let all = of("", from, until).await;
    let figures = |answer: &Value| {
        ["units", "outages", "offline_seconds", "online_seconds", "unknown_seconds"]
            .map(|name| answer[name].as_f64().unwrap())
    };
    assert_eq!(figures(&all), [2.0, 1.0, 3600.0, 20.0 * 86_400.0 - 3600.0, 0.0], "{all}");
    assert_eq!((&all["history_until"], &all["is_complete"]), (&json!(until.to_string()), &json!(true)));
    assert_eq!(figures(&of("kind=detector", from, until).await), figures(&all));
    // A unit, and parts of days, come from outages. Before and after its ten days it was not in the fleet.
    let (early, late) = (from - DAY, until + DAY);
    let unit = of("unit=detector/a", early, late).await;
    assert_eq!(figures(&unit), [1.0, 1.0, 3600.0, 10.0 * 86_400.0 - 3600.0, 0.0], "{unit}");
    let half = of("", from + 2 * DAY + DAY / 48, until - DAY / 2).await;
    let expected = [2.0, 0.0, 1800.0, 2.0 * (7.5 * 86_400.0 - 1800.0) - 1800.0, 0.0];
    assert_eq!(figures(&half), expected, "{half}");
    // The engine answers for today, of which nothing is known.
    let now = Clock::system().now();
    let to_now = of("kind=detector", from, now).await;
    assert_eq!(figures(&to_now)[1..4], figures(&all)[1..4], "{to_now}");

    let days = format!("from={}&to={}", day_of(from), day_of(until - DAY));
    let page = served.text(&format!("/reports?{days}&group=site&target=99.9")).await;
    for part in
        ["north", "<td class=\"missed\">99.583 %</td>", "<td class=\"met\">100.000 %</td>", "miss the target"]
    {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(!page.contains("=\"http"), "it loads nothing from elsewhere: {page}");
    let table = served.text(&format!("/reports.csv?{days}&group=unit")).await;
    assert!(table.contains("detector/a,1,99.583,1,3600,") && table.contains("\r\nall,2,"), "{table}");
    let unit = format!("{}/api/v1/units/detector/a", served.url);
    let registered = served.client.put(unit).header("content-type", "application/json");
    let registered = registered.body(r#"{"author": "ana"}"#).send().await.unwrap();
    assert_eq!(registered.status(), 204);
    // A unit that is not there is not one that was never online.
    for path in [
        "/api/v1/availability?unit=detector/nope",
        "/api/v1/units/detector/nope/rhythm",
        "/api/v1/units/nope/a/rhythm",
    ] {
        let answer = served.try_get(path).await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status == 404 && text.contains("there is no unit"), "{path}: {text}");
    }
    assert_eq!(served.try_get("/api/v1/units/detector/a/rhythm").await.unwrap().status(), 200);
    let page = served.text("/units/detector/a").await;
    assert!(page.contains("href=\"/policy?kind=detector\">Try another timeout"), "{page}");
    let (asks, missing) = ("/api/v1/units/detector/a/timeline", "older days may be missing");
    assert_eq!(served.json(asks).await["days_are_complete"], true);
    assert!(!page.contains(missing), "{page}");
    let wrong = served.text("/reports?month=2026-13").await;
    assert!(wrong.contains("is no month; write 2026-10"), "{wrong}");

    let client = postgres.client("pages").await;
    // Of today, history has what the engine lost, but no sums.
    for (begins, is_complete) in [("- interval '1 day'", false), ("+ interval '1 day'", true)] {
        client.batch_execute(&format!("UPDATE meta SET begins_at = now() {begins}")).await.unwrap();
        let recent = of("", (now - DAY / 144).max(midnight(day_of(now))), now).await;
        assert_eq!(
            (&recent["history_until"], &recent["is_complete"]),
            (&json!(null), &json!(is_complete)),
            "{recent}"
        );
    }
    // A kind and a label that are no longer configured.
    let rows = format!(
        "INSERT INTO units VALUES ('pump', 'p', '{{\"rack\": \"7\"}}', '{from}', '{until}', 0); \
         INSERT INTO daily SELECT '{from}'::date + d, s, n, 1, 86400, 0, 0, 0, 0, 0, 0 \
         FROM generate_series(0, 9) d, (VALUES ('kind', 'pump'), ('label:rack', '7')) x(s, n)"
    );
    client.batch_execute(&rows).await.unwrap();
    for query in ["kind=pump", "label=rack=7"] {
        let past = of(query, from, until).await;
        assert_eq!(figures(&past), [1.0, 0.0, 0.0, 10.0 * 86_400.0, 0.0], "{past}");
        assert_eq!(past["is_complete"], true, "{past}");
        let to_now = of(query, from, now).await;
        let summed = json!(midnight(day_of(now)).to_string());
        assert_eq!((&to_now["until"], &to_now["history_until"]), (&summed, &summed), "{to_now}");
        assert_eq!((figures(&to_now), &to_now["is_complete"]), (figures(&past), &json!(false)), "{to_now}");
    }
    for (query, why) in [("kind=nope", "there is no kind"), ("label=rack=8", "http.count_by_labels")] {
        let refused = of(query, from, until).await;
        let detail = refused["detail"].as_str().unwrap();
        assert!(refused["status"] == 400 && detail.contains(why), "{refused}");
    }

    postgres.kill();
    let away = served.text(&format!("/reports?{days}")).await;
    assert!(away.contains("History does not answer: "), "{away}");
    let away = of("", from, until).await;
    assert_eq!((&away["history_until"], &away["is_complete"]), (&json!(null), &json!(false)), "{away}");
    assert_eq!(served.json(asks).await["days_are_complete"], false);
    assert!(served.text("/units/detector/a").await.contains(missing));
    postgres.restart();
    assert_eq!(figures(&of("", from, until).await), figures(&all));
    // A database that hangs takes no page away.
    let client = postgres.client("pages").await;
    client.batch_execute("BEGIN; LOCK TABLE daily IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let (page, table) = (format!("/reports?{days}"), format!("/reports.csv?{days}"));
    let (hangs, page, table) = tokio::join!(of("", from, until), served.text(&page), served.text(&table));
    assert_eq!((&hangs["history_until"], &hangs["is_complete"]), (&json!(null), &json!(false)), "{hangs}");
    for text in [page, table] {
        assert!(text.contains("History does not answer: there is no report within 12 s"), "{text}");
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    served.service.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_no_unit_reads_no_outages_and_a_read_that_waits_or_is_too_large_holds_up_no_other() {
    let postgres = Postgres::start();
    let first = filled(&postgres, "pages").await;
    let client = postgres.client("pages").await;
    let label = "UPDATE units SET labels = labels || '{\"serial\": \"7\"}' WHERE unit = 'a'";
    client.batch_execute(label).await.unwrap();
    let access = DatabaseAccess { schema: "pages".to_owned(), ..postgres.access() };
    let reader = Arc::new(HistoryReader::new(access, fleet_digest("one")));
    let labelled =
        |name: &str, value: &str| AvailabilityScope::Label { name: name.to_owned(), value: value.to_owned() };
    let range = Interval { from: first + DAY / 2, to: first + 9 * DAY + DAY / 2 };
    let lock = "BEGIN; LOCK TABLE transitions IN ACCESS EXCLUSIVE MODE";
    client.batch_execute(lock).await.unwrap();
    // Neither a value without a unit, nor a label that has no sums, reads outages.
    for (name, value) in [("site", "nowhere"), ("serial", "8"), ("nosuch", "x")] {
        let spent = reader.time_spent(&labelled(name, value), range).await.unwrap();
        assert_eq!((spent.units, spent.spent, spent.until), (0, TimeSpent::default(), range.to), "{name}");
    }
    // Sums are read while another read waits.
    let waits = {
        let (reader, serial) = (reader.clone(), labelled("serial", "7"));
        tokio::spawn(async move { reader.time_spent(&serial, range).await.unwrap() })
    };
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    until_so("a read waits", async || postgres.rows("pages", waiting).await[0].get::<_, i64>(0) == 1).await;
    let days = Days { from: day_of(first), until: day_of(first + 10 * DAY) };
    let sums = reader.report(days, &GroupBy::Fleet).await.unwrap().total;
    assert_eq!((sums.units, sums.spent.outages), (2, 1));
    assert!(!waits.is_finished());
    client.batch_execute("ROLLBACK").await.unwrap();
    // Of a label without sums, the outages of its units alone.
    let spent = waits.await.unwrap();
    assert_eq!((spent.units, spent.spent.outages, spent.spent.offline), (1, 1, DAY / 24));
    let many = "INSERT INTO pauses SELECT 'detector', 'a', at, at + interval '1 ms' FROM (SELECT known_since \
                + n * interval '2 ms' + interval '1 day' AS at FROM units, generate_series(1, 1000001) n \
                WHERE unit = 'a') x";
    client.batch_execute(many).await.unwrap();
    let refused = reader.report(days, &GroupBy::Unit).await.unwrap_err().to_string();
    assert!(refused.starts_with("there are more than 1000000 outages or pauses in that time"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_wait_once_for_a_database_that_hangs_and_its_connection_answers_the_next_one() {
    let postgres = Postgres::start();
    let first = filled(&postgres, "pages").await;
    let client = postgres.client("pages").await;
    let access = DatabaseAccess { schema: "pages".to_owned(), ..postgres.access() };
    let reader = HistoryReader::new(access, fleet_digest("one"));
    let (from, until) = (first, first + 10 * DAY);
    let (fleet, unit) = (AvailabilityScope::Fleet, "detector:a".parse().unwrap());
    let days = Days { from: day_of(from), until: day_of(until) };
    let spent = async || reader.time_spent(&fleet, Interval { from, to: until }).await;
    let count = async |rows: &str| {
        let select = format!("SELECT count(*) FROM {rows}");
        postgres.rows("pages", &select).await[0].get::<_, i64>(0)
    };
    client.batch_execute("BEGIN; LOCK TABLE daily IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let late = spent().await.unwrap_err().to_string();
    assert!(late.contains("did not answer within 5 s"), "{late}");
    for _ in 0..10 {
        let of_unit = reader.days_of_unit(&unit, days).await.unwrap_err().to_string();
        assert!(of_unit.contains("did not answer a moment ago"), "{of_unit}");
        assert!(spent().await.is_err());
    }
    assert_eq!(count("pg_locks WHERE NOT granted").await, 1, "no other read has begun");
    client.batch_execute("ROLLBACK").await.unwrap();
    until_so("it answers again", async || spent().await.is_ok()).await;
    assert_eq!(count("pg_stat_activity WHERE application_name = 'rollcall'").await, 1);
}

/// Forty units of four sites, with sixty outages in the last weeks by a timeout of two days.
async fn with_outages(postgres: &Postgres) {
    let access = DatabaseAccess { schema: "pages".to_owned(), ..postgres.access() };
    let mut database = Database::connect(&access).await.unwrap();
    prepare(&mut database, &access, None).await.unwrap();
    let (now, today) = (Clock::system().now(), midnight(day_of(Clock::system().now())));
    let (from, known) = (today - 30 * DAY, today - 60 * DAY);
    let rows = format!(
        "CREATE TABLE transitions_all PARTITION OF transitions DEFAULT; CREATE TABLE daily_all PARTITION OF daily DEFAULT; \
         CREATE TABLE notifications_all PARTITION OF notifications DEFAULT; \
         INSERT INTO units SELECT 'detector', 'pump-' || n, jsonb_build_object('site', (ARRAY['north', 'south', 'east', \
         'west'])[n % 4 + 1]), '{known}', NULL, 0 FROM generate_series(1, 40) n; \
         INSERT INTO transitions SELECT CASE w WHEN 'offline' THEN o ELSE o + back END, w, 'detector:' || u.unit || ':' || \
         extract(epoch FROM o - interval '48 h')::bigint || '000', 'detector', u.unit, u.labels, 'silence', \
         o - interval '48 h', o, o, c FROM (SELECT unit, labels, n FROM units, generate_series(0, 1) n \
         WHERE right(unit, 1)::int > n * 4) u, LATERAL (SELECT '{from}'::timestamptz \
         + (n * 9 + right(unit, 1)::int) * interval '1 day' + length(unit) * interval '7 h', \
         (right(unit, 1)::int * 7 + n * 3 + 1) * interval '1 h') x(o, back), \
         (VALUES ('offline', NULL), ('online', 'return')) y(w, c); \
         INSERT INTO daily SELECT '{from}'::date + d, s, name, size, size * 86400 - lost, lost, 0, 0, 0, (lost > 0)::int, lost \
         FROM generate_series(0, 29) d, (VALUES ('fleet', '', 40), ('kind', 'detector', 40), ('label:site', 'north', 10), \
         ('label:site', 'south', 10), ('label:site', 'east', 10), ('label:site', 'west', 10)) z(s, name, size), \
         LATERAL (SELECT sum(d * ascii(site) % 7 * 600)::int \
         FROM (VALUES ('north'), ('south'), ('east'), ('west')) v(site) WHERE s IN ('fleet', 'kind') OR site = name) q(lost); \
         INSERT INTO cursors VALUES ('daily', 4, '{today}'), ('opened', 0, '{now}'), ('closed', 0, '{now}')"
    );
    postgres.client("pages").await.batch_execute(&rows).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_reports_and_of_trials_are_legible_on_every_screen() {
    let postgres = Postgres::start();
    with_outages(&postgres).await;
    let served = Served::start(&postgres).await;
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start(dir.path()).await;
    let today = day_of(Clock::system().now());
    let days = format!("from={}&to={}", day_of(midnight(today) - 30 * DAY), day_of(midnight(today) - DAY));
    let open = async |path: &str| browser.open(&format!("{}{path}", served.url)).await;
    open(&format!("/reports?{days}&group=site&target=99.8")).await;
    browser.shows("north").await;
    inspect(&browser, "report").await;
    open("/policy").await;
    browser.shows("What another timeout would have recorded").await;
    open("/policy?kind=detector&timeout=72h&since=30d&group_by=site").await;
    browser.shows("The largest differences").await;
    inspect(&browser, "policy-tried").await;
    // The form asks the same question again, without a script.
    browser.run("document.querySelector('[name=timeout]').value = '60h'", serde_json::json!([])).await;
    browser.click(".report-form button").await;
    browser.shows("2d 12h + 0s").await;
    open("/configuration?all=true").await;
    browser.click("a[href='/policy?kind=detector']").await;
    browser.shows("Try a policy").await;
    assert_eq!(browser.complaints().await, [] as [String; 0]);
    let requests = browser.requests().await;
    let elsewhere: Vec<&String> = requests.iter().filter(|url| !url.starts_with(&served.url)).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    served.service.end().await;
}
