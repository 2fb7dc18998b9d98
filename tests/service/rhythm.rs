//! The rhythm of units from end to end: learned from what a broker delivers, shown, and kept over a restart.

use std::time::Duration;

use serde_json::Value;

use super::world::{World, units};

const KIND: &str = "[[kind]]\nname = \"detector\"\ntimeout = \"1h\"";
const EMBEDDED: &str = "engine.type = \"embedded\"\nengine.path = \"{dir}/fleet\"\n";

/// How often the units are heard.
const USUAL: Duration = Duration::from_millis(150);

async fn a_unit_that_is_silent_for_unusually_long_is_shown_and_its_rhythm_survives_a_restart(engine: &str) {
    let mut world = World::new(&format!("{engine}{KIND}"), &[]).await;
    let units = units(2);
    let rhythm = async |world: &World| world.json("/api/v1/units/detector/unit-000").await["rhythm"].clone();
    let mut every = tokio::time::interval(USUAL);
    world
        .eventually("the rhythm is known", async || {
            every.tick().await;
            world.beat(&units).await;
            !rhythm(&world).await["usual_seconds"].is_null()
        })
        .await;
    world
        .eventually("the unit is unusual", async || {
            world.beat(&units[1..]).await;
            let page = world.json("/api/v1/units?unusual=true").await;
            page["units"].as_array().is_some_and(|found| found.iter().any(|unit| unit["unit"] == "unit-000"))
        })
        .await;
    let sentence = world.json("/api/v1/units/detector/unit-000/timeline").await["sentence"].clone();
    assert!(sentence.as_str().unwrap().contains("as long as never before"), "{sentence}");
    assert!(world.records().await.is_empty());

    let before = rhythm(&world).await;
    world.stop().await;
    world.start().await;
    let learned =
        |rhythm: &Value| ["intervals", "usual_seconds", "longest_seconds"].map(|one| rhythm[one].clone());
    world
        .eventually("the rhythm is there again", async || learned(&rhythm(&world).await) == learned(&before))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rhythm_survives_a_restart_on_redis() {
    a_unit_that_is_silent_for_unusually_long_is_shown_and_its_rhythm_survives_a_restart("").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rhythm_survives_a_restart_of_the_embedded_engine() {
    a_unit_that_is_silent_for_unusually_long_is_shown_and_its_rhythm_survives_a_restart(EMBEDDED).await;
}
