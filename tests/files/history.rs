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
    for query in queries_of_the_dashboard() {
        let done = client.query(&query, &[]).await;
        assert!(done.is_ok(), "{query}: {done:?}");
    }
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
