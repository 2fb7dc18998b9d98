//! Units that have been offline for long are archived, on both engines, and are back when they are heard.

use serde_json::Value;

use crate::world::{World, units};

const OPTIONS: &str = "http.count_by_labels = [\"site\"]
    [[kind]]
    name = \"detector\"
    timeout = \"1s\"
    archive_after = \"2s\"
    [[kind]]
    name = \"meter\"
    topics = [\"meters/{unit}/heartbeat\"]
    timeout = \"1s\"";

async fn units_leave_lists_and_counts_and_come_back(world: &World) {
    world.beat(&units(1)).await;
    world.beat_to("meters", &["kept".to_owned()]).await;
    let listed = async |query: &str| {
        let page = world.json(&format!("/api/v1/units{query}")).await;
        let names =
            page["units"].as_array().unwrap().iter().map(|one| one["unit"].as_str().unwrap().to_owned());
        names.collect::<Vec<String>>()
    };
    world.eventually("both are offline", async || listed("?state=offline").await.len() == 2).await;
    world.eventually("one is archived", async || listed("").await == ["kept"]).await;
    assert_eq!(listed("?archived=true").await, ["unit-000"]);
    let summary = world.json("/api/v1/summary").await;
    let counts = [&summary["units"], &summary["states"]["offline"], &summary["archived"]];
    assert_eq!(counts, [&Value::from(1), &1.into(), &1.into()]);
    let unit = world.json("/api/v1/units/detector/unit-000").await;
    assert_eq!((&unit["state"], &unit["archived"]), (&"offline".into(), &true.into()));
    assert!(world.text_of("/metrics").await.contains("rollcall_archived_units{kind=\"detector\"} 1\n"));
    let series = world.text_of("/metrics/units").await;
    assert!(series.contains("unit=\"kept\"") && !series.contains("unit=\"unit-000\""), "{series}");
    let page = world.text_of("/").await;
    assert!(page.contains("1 archived") && !page.contains("unit-000"), "{page}");
    let records = world.json("/api/v1/records?open=true").await;
    assert_eq!(records["records"].as_array().unwrap().len(), 2, "its record stays: {records}");
    assert!(world.text_of("/incidents").await.contains("kept"));
    assert!(!world.text_of("/incidents").await.contains("unit-000"));

    world.beat(&units(1)).await;
    world.eventually("it is back", async || listed("").await.contains(&"unit-000".to_owned())).await;
    world
        .eventually("its record is closed", async || {
            let records = world.json("/api/v1/records?kind=detector").await;
            records["records"].as_array().unwrap().iter().any(|one| one["closed_by"] == "return")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_are_offline_for_long_are_archived_on_redis() {
    units_leave_lists_and_counts_and_come_back(&World::new(OPTIONS, &[]).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_are_offline_for_long_are_archived_in_a_directory() {
    let options = format!("engine.type = \"embedded\"\nengine.path = \"{{dir}}/fleet\"\n{OPTIONS}");
    units_leave_lists_and_counts_and_come_back(&World::new(&options, &[]).await).await;
}
