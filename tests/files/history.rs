//! The dashboard over history: every query runs on a real PostgreSQL with the schema of history.

use std::path::Path;

use rollcall::history::{Database, DatabaseAccess, prepare};
use serde_json::Value;

use crate::support::postgres::Postgres;

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_dashboard_over_history_runs() {
    let postgres = Postgres::start();
    // The dashboard names the schema.
    let access = DatabaseAccess { schema: "rollcall".to_owned(), ..postgres.access() };
    let mut database = Database::connect(&access).await.unwrap();
    prepare(&mut database, &access, None).await.unwrap();
    let client = postgres.client("public").await;
    // The time zone of a server is not always UTC, but days and months are.
    let rows = "SET TimeZone TO 'Asia/Kolkata'; CREATE TABLE rollcall.all_days PARTITION OF rollcall.daily DEFAULT; \
        CREATE TABLE rollcall.all_transitions PARTITION OF rollcall.transitions DEFAULT; \
        INSERT INTO rollcall.daily SELECT '2026-06-15', scope, name, 1, 86400, 0, 0, 0, 0, 0, 0 \
        FROM (VALUES ('fleet', ''), ('kind', 'detector')) x(scope, name); \
        INSERT INTO rollcall.transitions SELECT at, 'online', 'detector:a:' || at, 'detector', 'a', '{}', 'silence', \
        '2026-06-30 20:00Z', '2026-06-30 20:00Z', '2026-06-30 20:00Z', closed_by FROM (VALUES \
        ('2026-06-30 21:00Z'::timestamptz, 'return'), ('2026-07-30 21:00Z', 'removed')) x(at, closed_by)";
    client.batch_execute(rows).await.unwrap();
    let mut times = 0;
    for query in queries_of_the_dashboard() {
        let done = client.query(&query, &[]).await;
        for row in done.as_ref().unwrap_or_else(|error| panic!("{query}: {error}")) {
            let columns: Vec<&str> = row.columns().iter().map(|column| column.name()).collect();
            if columns.contains(&"time") {
                let at: jiff::Timestamp = row.get("time");
                assert_eq!(at.as_second() % 86_400, 0, "{query}: {at}");
                times += 1;
            }
        }
    }
    assert_eq!(times, 3);
    let of_months =
        queries_of_the_dashboard().into_iter().find(|query| query.contains("AS to_return")).unwrap();
    let of_months = format!("SELECT time::date::text, to_return::float8 FROM ({of_months}) x");
    client.batch_execute("SET TimeZone TO 'UTC'").await.unwrap();
    let row = client.query_one(&of_months, &[]).await.unwrap();
    // A unit that is removed does not return.
    assert_eq!((row.get::<_, &str>(0), row.get::<_, f64>(1)), ("2026-06-01", 1.0));
}

/// Every query of the dashboard, and of its variables.
pub fn queries_of_the_dashboard() -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/history/years.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let queries =
        panels.flat_map(|panel| panel["targets"].as_array().unwrap()).map(|target| &target["rawSql"]);
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let of_variables = variables.filter(|one| one["type"] == "query").map(|one| &one["query"]);
    let all: Vec<String> = queries.chain(of_variables).map(|query| chosen(query.as_str().unwrap())).collect();
    assert!(all.len() > 10, "{}", all.len());
    all
}

/// A query as Grafana sends it.
fn chosen(query: &str) -> String {
    let query = query.replace("$__timeFrom()", "'2026-01-01T00:00:00Z'::timestamptz");
    let query = query.replace("$__timeTo()", "'2026-11-01T00:00:00Z'::timestamptz").replace("$label", "site");
    assert!(!query.contains('$'), "an unknown variable: {query}");
    query
}
