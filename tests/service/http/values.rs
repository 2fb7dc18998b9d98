//! Metrics of units, the page of one unit, and service discovery for Prometheus.

use rollcall::store::{DataStore, Roster};
use serde_json::json;

use super::world::{Fleet, MAX_WAIT, SECOND, assert_problem, assert_promtool_accepts, samples, the};

#[tokio::test]
async fn metrics_of_units_are_shown_and_removed_with_them() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["detector:1", r#"detector:"2""#, "detector:3"]).await;
    fleet.report("detector:1", "detector_battery_volts", "3.6").await;
    fleet.report("detector:1", "detector_firmware_info", "v1 \"a\"").await;
    fleet.report(r#"detector:"2""#, "detector_battery_volts", "-2").await;
    fleet.report("detector:3", "detector_battery_volts", "of another type once").await;
    let text = fleet.text("/metrics/units").await;
    assert_promtool_accepts(&text);
    let mut volts = samples(&text, "detector_battery_volts{");
    volts.sort();
    assert_eq!(
        volts,
        [
            r#"detector_battery_volts{kind="detector",unit="1"} 3.6"#,
            r#"detector_battery_volts{kind="detector",unit="\"2\""} -2"#,
        ]
    );
    let firmware = [r#"detector_firmware_info{kind="detector",unit="1",version="v1 \"a\""} 1"#];
    assert_eq!(samples(&text, "detector_firmware_info{"), firmware);

    let at = "2026-03-01T12:00:00.000Z";
    let expected = json!({
        "detector_battery_volts": { "value": 3.6, "at": at },
        "detector_firmware_info": { "value": "v1 \"a\"", "at": at },
    });
    assert_eq!(fleet.json("/api/v1/units/detector/1").await["values"], expected);

    fleet.roll.retire(&the("detector:1"), fleet.clock.now()).await.unwrap();
    let text = fleet.text("/metrics/units").await;
    assert_eq!(samples(&text, "detector_battery_volts{").len(), 1);
    assert_eq!(samples(&text, "detector_firmware_info{"), [""; 0]);
}

#[tokio::test]
async fn values_that_a_crash_left_without_a_unit_are_removed_when_they_are_read() {
    let mut fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["detector:1", "detector:gone"]).await;
    for unit in ["detector:1", "detector:gone"] {
        fleet.report(unit, "detector_battery_volts", "3.6").await;
    }
    // The state after a crash between the removal of the unit and the removal of its values.
    let url = format!("redis://127.0.0.1:{}/", fleet.redis.port());
    let mut other = redis::Client::open(url).unwrap().get_connection().unwrap();
    let pages: Vec<String> = redis::cmd("KEYS").arg("*:facts:*").query(&mut other).unwrap();
    for page in pages {
        redis::cmd("HDEL").arg(page).arg("detector:gone").exec(&mut other).unwrap();
    }
    fleet.mirror.keep(|_| false);
    fleet.mirror.keep(|_| true);
    fleet.hear(&["detector:1"]).await;
    let values = async || {
        let text = fleet.text("/metrics/units").await;
        assert_eq!(samples(&text, "detector_battery_volts{").len(), 1, "{text}");
        fleet.engine.values(&the("detector:gone"), &["detector_battery_volts"]).await.unwrap()
    };
    assert_ne!(values().await, [None], "before all units were read every unit may exist");
    fleet.fill();
    fleet.hear(&["detector:1"]).await;
    let gone = async { while values().await != [None] {} };
    tokio::time::timeout(MAX_WAIT, gone).await.expect("they go");
    fleet.redis.kill();
    let text = fleet.text("/metrics/units").await;
    assert_eq!(samples(&text, "rollcall_unit_up{").len(), 1, "presence is shown without the engine");
    assert_eq!(samples(&text, "rollcall_unit_values_read"), ["rollcall_unit_values_read 0"]);
}

#[tokio::test]
async fn a_unit_is_probed_by_name_whichever_instance_owns_it() {
    let fleet = Fleet::start().await;
    fleet.mirror.keep(|_| false);
    fleet.hear(&["detector:a 1"]).await;
    fleet.report("detector:a 1", "detector_battery_volts", "3.6").await;
    for unit in ["detector:a%201", "detector/a%201"] {
        let text = fleet.text(&format!("/probe?unit={unit}")).await;
        assert_promtool_accepts(&text);
        for line in [
            r#"rollcall_unit_up{kind="detector",unit="a 1"} 1"#,
            r#"rollcall_unit_last_seen_timestamp_seconds{kind="detector",unit="a 1"} 1772366400.000"#,
            r#"rollcall_unit_deadline_timestamp_seconds{kind="detector",unit="a 1"} 1772366520.000"#,
            r#"rollcall_unit_state{kind="detector",unit="a 1",state="online"} 1"#,
            r#"rollcall_unit_state{kind="detector",unit="a 1",state="offline"} 0"#,
            r#"detector_battery_volts{kind="detector",unit="a 1"} 3.6"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
    fleet.pass(121 * SECOND, &["detector:a 1"]).await;
    let text = fleet.text("/probe?unit=detector:a%201").await;
    assert!(text.contains(r#"rollcall_unit_up{kind="detector",unit="a 1"} 0"#), "{text}");
    for (query, status) in [("unit=detector:2", 404), ("unit=lamp:2", 404), ("unit=2", 400), ("", 400)] {
        assert_problem(fleet.get(&format!("/probe?{query}")).await, status).await;
    }
}

#[tokio::test]
async fn the_targets_are_every_instance_with_an_address_and_each_of_its_shards() {
    let fleet = Fleet::start().await;
    let roster: &dyn Roster = &*fleet.engine;
    roster.announce("one", "10.0.0.1:8080").await.unwrap();
    roster.announce("gone", "10.0.0.9:8080").await.unwrap();
    let path = "/api/v1/prometheus/targets";
    let expected = json!([{
        "targets": ["10.0.0.1:8080"],
        "labels": { "__metrics_path__": "/metrics", "rollcall_instance": "one" },
    }]);
    assert_eq!(fleet.json(path).await, expected);
    roster.announce("two", "10.0.0.2:8080").await.unwrap();
    let targets = fleet.json(&format!("{path}?shards=2")).await;
    let shards: Vec<String> = targets
        .as_array()
        .unwrap()
        .iter()
        .map(|group| {
            let label = |name: &str| group["labels"][name].as_str().unwrap().to_owned();
            let (page, shard, of) =
                (label("__metrics_path__"), label("__param_shard"), label("__param_shards"));
            assert_eq!(label("shard"), shard);
            format!("{} {page} {shard}/{of}", group["targets"][0].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        shards,
        [
            "10.0.0.1:8080 /metrics/units 0/2",
            "10.0.0.1:8080 /metrics/units 1/2",
            "10.0.0.2:8080 /metrics/units 0/2",
            "10.0.0.2:8080 /metrics/units 1/2",
        ]
    );
    for shards in ["0", "3", "x"] {
        assert_problem(fleet.get(&format!("{path}?shards={shards}")).await, 400).await;
    }
}
