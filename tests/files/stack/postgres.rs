//! The database of the stack: a real server runs its script, history goes into it, and Grafana may only read it.

use std::process::Command;

use rollcall::history::{Database, DatabaseAddress, prepare};

use super::{read, root, texts, yaml};
use crate::history::queries_of_the_dashboard;
use crate::support::postgres::{PASSWORD, Postgres, program};

#[tokio::test(flavor = "multi_thread")]
async fn history_is_written_by_its_owner_and_read_by_grafana() {
    let postgres = Postgres::start();
    let dir = tempfile::tempdir().unwrap();
    let mut script = read("config/postgres/init.sql");
    for role in ["history", "reader"] {
        let file = dir.path().join(format!("{role}.password"));
        std::fs::write(&file, format!("of {role}")).unwrap();
        script = script.replace(&format!("/run/{role}/{role}.password"), file.to_str().unwrap());
    }
    let file = dir.path().join("init.sql");
    std::fs::write(&file, &script).unwrap();
    let done = Command::new(program("psql"))
        .args(["--no-psqlrc", "--dbname", &postgres.url(), "--file", file.to_str().unwrap()])
        .env("PGPASSWORD", PASSWORD)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    let config: toml::Table = read("config/compose/rollcall.toml").parse().unwrap();
    let url = config["history"]["url"].as_str().unwrap();
    let here = format!("127.0.0.1:{}", postgres.port());
    let address = DatabaseAddress::parse(&url.replace("postgres:5432", &here)).unwrap();
    let password_file = Some(dir.path().join("history.password"));
    let schema = "rollcall".to_owned();
    let access = rollcall::history::DatabaseAccess { address, password_file, schema, ..postgres.access() };
    let mut database = Database::connect(&access).await.unwrap();
    prepare(&mut database, &access, None).await.unwrap();
    let month =
        "CREATE TABLE daily_2026_10 PARTITION OF daily FOR VALUES FROM ('2026-10-01') TO ('2026-11-01')";
    database.client().batch_execute(month).await.unwrap();

    let source = &yaml("config/grafana/provisioning/datasources/history.yml")["datasources"][0];
    assert_eq!((&source["url"], &source["jsonData"]["database"]), (&"postgres:5432".into(), &"fleet".into()));
    let user = source["user"].as_str().unwrap();
    let mut reading: tokio_postgres::Config = format!("postgres://{user}@{here}/fleet").parse().unwrap();
    let (client, connection) = reading.password("of reader").connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for query in queries_of_the_dashboard() {
        client.query(&query, &[]).await.unwrap_or_else(|why| panic!("{query}: {why:?}"));
    }
    client.query("SELECT * FROM rollcall.daily_2026_10", &[]).await.unwrap();
    let refused = client.execute("DELETE FROM rollcall.daily", &[]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE));
}

#[test]
fn passwords_of_the_database_are_files_and_are_mounted_where_they_are_read() {
    let compose = yaml("docker-compose.yml");
    let mounts = |name: &str| texts(&compose["services"][name]["volumes"]);
    for instance in ["rollcall-1", "rollcall-2"] {
        assert!(mounts(instance).contains(&"history-password:/etc/rollcall/history:ro"), "{instance}");
    }
    for of_database in [
        "postgres-password:/run/postgres:ro",
        "history-password:/run/history:ro",
        "reader-password:/run/reader:ro",
        "./config/postgres/init.sql:/docker-entrypoint-initdb.d/init.sql:ro",
    ] {
        assert!(mounts("postgres").contains(&of_database), "{of_database}");
    }
    assert!(mounts("grafana").contains(&"reader-password:/run/reader:ro"));
    let source = &yaml("config/grafana/provisioning/datasources/history.yml")["datasources"][0];
    assert_eq!(source["secureJsonData"]["password"], "$__file{/run/reader/reader.password}");
    let database = &compose["services"]["postgres"];
    assert_eq!(database["environment"]["POSTGRES_PASSWORD_FILE"], "/run/postgres/postgres.password");
    assert!(database["environment"]["POSTGRES_PASSWORD"].is_null() && database["ports"].is_null());
    assert!(root().join("dashboards/history/years.json").is_file(), "the mounted dashboards have it");
}
