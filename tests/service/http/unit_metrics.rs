//! The page of single units: its selection, its formats and its limits.

use std::io::Read;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use rollcall::fleet::mirror::RecordedHeartbeat;
use rollcall::http::UnitMetrics;
use rollcall::presence::Registration;

use super::world::{Fleet, MAX_WAIT, SECOND, assert_problem, assert_promtool_accepts, samples, the};

#[tokio::test]
async fn each_unit_has_two_series_with_the_samples_of_a_family_together() {
    let fleet = Fleet::start().await;
    let odd = r#"meter:say "hé" \ \n"#;
    fleet.hear(&["detector:1", odd]).await;
    fleet.roll.register(&the("meter:new"), &Registration::default(), fleet.clock.now()).await.unwrap();
    fleet.pass(121 * SECOND, &["detector:1"]).await;
    let response = fleet.get("/metrics/units").await;
    assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    let text = response.text().await.unwrap();
    assert_promtool_accepts(&text);
    let mut lines: Vec<&str> = text.lines().filter(|line| line.contains("rollcall_unit_up")).collect();
    lines.extend(text.lines().filter(|line| line.contains("rollcall_unit_last_seen")));
    lines[2..5].sort();
    lines[7..].sort();
    assert_eq!(
        lines,
        [
            "# HELP rollcall_unit_up 1 if the unit is present, 0 if it is offline or was never heard.",
            "# TYPE rollcall_unit_up gauge",
            r#"rollcall_unit_up{kind="detector",unit="1"} 0"#,
            r#"rollcall_unit_up{kind="meter",unit="new"} 0"#,
            r#"rollcall_unit_up{kind="meter",unit="say \"hé\" \\ \\n"} 1"#,
            "# HELP rollcall_unit_last_seen_timestamp_seconds When the unit was last heard.",
            "# TYPE rollcall_unit_last_seen_timestamp_seconds gauge",
            r#"rollcall_unit_last_seen_timestamp_seconds{kind="detector",unit="1"} 1772366400.000"#,
            r#"rollcall_unit_last_seen_timestamp_seconds{kind="meter",unit="say \"hé\" \\ \\n"} 1772366400.000"#,
        ]
    );
    for (line, count) in [("rollcall_unit_metrics_truncated 0", 1), ("rollcall_unit_values_read 1", 1)] {
        assert_eq!(text.lines().filter(|other| *other == line).count(), count, "{line}");
    }
}

/// These labels serve tables of single units, and counts of any selection of them.
#[tokio::test]
async fn a_unit_shows_its_values_of_the_labels_that_are_counted_by() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1"]).await;
    fleet.hear_at("north", "meter:1").await;
    fleet.hear_at("a \"b\" \\", "meter:2").await;
    let text = fleet.text("/metrics/units").await;
    assert_promtool_accepts(&text);
    let mut shown = samples(&text, "rollcall_unit_info");
    shown.sort();
    assert_eq!(
        shown,
        [
            r#"rollcall_unit_info{kind="meter",unit="1",site="north"} 1"#,
            r#"rollcall_unit_info{kind="meter",unit="2",site="a \"b\" \\"} 1"#,
        ]
    );
    let text = fleet.text("/metrics/units?label=site=north").await;
    assert_eq!(samples(&text, "rollcall_unit_info").len(), 1);
}

#[tokio::test]
async fn a_removed_unit_leaves_the_metrics_at_once() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1", "detector:2"]).await;
    fleet.roll.retire(&the("detector:1"), fleet.clock.now()).await.unwrap();
    fleet.hear(&["detector:1"]).await;
    let text = fleet.text("/metrics/units").await;
    assert_eq!(samples(&text, "rollcall_unit_up"), [r#"rollcall_unit_up{kind="detector",unit="2"} 1"#]);
}

#[tokio::test]
async fn the_mode_chooses_all_units_those_that_are_offline_or_none() {
    let fleet = Fleet::start_with(Vec::new(), UnitMetrics::Off).await;
    fleet.hear(&["detector:1", "meter:1", "meter:2"]).await;
    fleet.pass(121 * SECOND, &["detector:1"]).await;
    for (query, expected) in [("", 0), ("?mode=off", 0), ("?mode=offline", 1), ("?mode=all", 3)] {
        let text = fleet.text(&format!("/metrics/units{query}")).await;
        for family in ["rollcall_unit_up{", "rollcall_unit_last_seen_timestamp_seconds{"] {
            assert_eq!(samples(&text, family).len(), expected, "{query} {family}");
        }
    }
    for query in ["?mode=some", "?mod=all"] {
        let problem = assert_problem(fleet.get(&format!("/metrics/units{query}")).await, 400).await;
        assert!(problem["detail"].as_str().unwrap().contains("mod"), "{problem}");
    }
}

#[tokio::test]
async fn a_large_fleet_is_listed_completely_also_compressed() {
    let fleet = Fleet::start().await;
    for number in 0..30_000 {
        fleet
            .mirror
            .seen(&[RecordedHeartbeat::of(&the(&format!("meter:sensor-{number}")), fleet.clock.now())]);
    }
    let plain = fleet.text("/metrics/units").await;
    for family in ["rollcall_unit_up{", "rollcall_unit_last_seen_timestamp_seconds{"] {
        let mut all = samples(&plain, family);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 30_000);
    }
    let url = format!("{}/metrics/units", fleet.url);
    let response = fleet.client.get(url).header(ACCEPT_ENCODING, "gzip").send().await.unwrap();
    assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
    let compressed = response.bytes().await.unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(&compressed[..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, plain);
}

/// A fleet whose list is larger than the buffers of a socket, so that a client that does not read blocks
/// the writing.
async fn large() -> Fleet {
    let fleet = Fleet::start().await;
    for number in 0..200_000 {
        fleet.mirror.seen(&[RecordedHeartbeat::of(&the(&format!("meter:{number:0100}")), fleet.clock.now())]);
    }
    fleet
}

#[tokio::test]
async fn a_shard_is_written_for_one_client_at_a_time_and_no_longer_when_it_is_gone() {
    let fleet = large().await;
    let first = fleet.get("/metrics/units?shard=0&shards=2").await;
    let other = fleet.get("/metrics/units?shard=1&shards=2").await;
    assert_eq!([first.status().as_u16(), other.status().as_u16()], [200, 200], "each shard for one");
    // A client in between is refused after a while, or answered when the shard is free.
    assert_problem(fleet.get("/metrics/units?shard=0&shards=2").await, 503).await;
    let waiting = fleet.get("/metrics/units?shard=0&shards=2");
    let (waited, ()) = tokio::join!(waiting, async { drop(first) });
    assert_eq!(waited.status(), 200);
    drop(other);
    let freed = async { while fleet.get("/metrics/units?shard=1&shards=2").await.status() != 200 {} };
    tokio::time::timeout(MAX_WAIT, freed).await.expect("its place becomes free");
}

#[tokio::test]
async fn a_stop_cuts_a_list_off_so_that_the_client_sees_an_error() {
    let fleet = large().await;
    let mut reader = fleet.get("/metrics/units").await;
    assert!(!reader.chunk().await.unwrap().unwrap().is_empty());
    fleet.stop.cancel();
    let rest = async {
        while reader.chunk().await?.is_some() {}
        reqwest::Result::Ok(())
    };
    let rest = tokio::time::timeout(MAX_WAIT, rest).await.expect("the list ends");
    assert!(rest.is_err(), "it ended as if it were whole");
    tokio::time::timeout(MAX_WAIT, fleet.server).await.expect("the server ends").unwrap().unwrap();
}

#[tokio::test]
async fn each_unit_is_in_one_shard() {
    let fleet = Fleet::start().await;
    let units: Vec<String> = (0..50).map(|number| format!("meter:{number}")).collect();
    fleet.hear(&units.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut all = Vec::new();
    for shard in 0..2 {
        let text = fleet.text(&format!("/metrics/units?shard={shard}&shards=2")).await;
        let up = samples(&text, "rollcall_unit_up{");
        assert!(up.len() > 10, "shard {shard} has {}", up.len());
        assert_eq!(samples(&text, "rollcall_unit_last_seen_timestamp_seconds{").len(), up.len());
        all.extend(up.into_iter().map(str::to_owned));
    }
    let text = fleet.text("/metrics/units").await;
    let mut whole = samples(&text, "rollcall_unit_up{");
    whole.sort();
    all.sort();
    assert_eq!(all, whole);
}

#[tokio::test]
async fn units_are_chosen_by_kind_and_by_a_label_that_they_are_counted_by() {
    let fleet = Fleet::start().await;
    fleet.hear_at("north", "detector:1").await;
    fleet.hear_at("south", "detector:2").await;
    fleet.hear_at("north", "meter:1").await;
    fleet.hear(&["meter:2"]).await;
    for unit in ["detector:1", "detector:2"] {
        fleet.report(unit, "detector_battery_volts", "3.6").await;
    }
    for (query, up, volts) in [
        ("", 4, 2),
        ("?kind=meter", 2, 0),
        ("?kind=detector&label=site=south", 1, 1),
        ("?label=site=north", 2, 1),
        ("?label=site=nowhere", 0, 0),
        ("?label=site%3Dnorth&mode=offline", 0, 0),
        ("?mode=off", 0, 0),
    ] {
        let text = fleet.text(&format!("/metrics/units{query}")).await;
        assert_eq!(samples(&text, "rollcall_unit_up{").len(), up, "{query}");
        assert_eq!(samples(&text, "detector_battery_volts{").len(), volts, "{query}");
    }
    for (query, word) in [
        ("kind=lamp", "lamp"),
        ("label=site", "name=value"),
        ("label=floor=3", "http.count_by_labels"),
        ("shard=2&shards=2", "from 0"),
        ("shard=0&shards=3", "engine.partitions"),
        ("shard=0", "belong together"),
    ] {
        let problem = assert_problem(fleet.get(&format!("/metrics/units?{query}")).await, 400).await;
        assert!(problem["detail"].as_str().unwrap().contains(word), "{query}: {problem}");
    }
}

#[tokio::test]
async fn units_beyond_the_limit_are_left_out_and_counted() {
    let fleet = Fleet::start_configured(|config| config.unit_metrics_limit = 3).await;
    fleet.hear(&["detector:1", "detector:2", "meter:1", "meter:2", "meter:3"]).await;
    for (query, shown, left_out) in [("", 3, 2), ("?kind=meter", 3, 0), ("?kind=detector", 2, 0)] {
        let text = fleet.text(&format!("/metrics/units{query}")).await;
        for family in ["rollcall_unit_up{", "rollcall_unit_last_seen_timestamp_seconds{"] {
            assert_eq!(samples(&text, family).len(), shown, "{query} {family}");
        }
        let line = format!("rollcall_unit_metrics_truncated {left_out}");
        assert_eq!(samples(&text, "rollcall_unit_metrics_truncated"), [line], "{query}");
    }
}

#[tokio::test]
async fn a_client_that_accepts_openmetrics_gets_it() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1"]).await;
    fleet.report("detector:1", "detector_alarms_total", "7").await;
    fleet.report("detector:1", "detector_firmware_info", "v1").await;
    fleet.report("detector:1", "detector_battery_volts", "3.6").await;
    for page in ["/metrics/units", "/probe?unit=detector:1"] {
        let request = fleet.client.get(format!("{}{page}", fleet.url));
        let response = request.header(ACCEPT, "application/openmetrics-text").send().await.unwrap();
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert_eq!(response.headers()[CONTENT_TYPE], content_type);
        let text = response.text().await.unwrap();
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        for line in [
            "# TYPE detector_alarms counter",
            r#"detector_alarms_total{kind="detector",unit="1"} 7"#,
            "# TYPE detector_firmware info",
            r#"detector_firmware_info{kind="detector",unit="1",version="v1"} 1"#,
            "# UNIT detector_battery_volts volts",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
