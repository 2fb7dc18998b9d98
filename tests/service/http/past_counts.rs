//! The counts of the fleet over time: how they are taken and kept, and the chart.

use rollcall::fleet::ownership::View;
use rollcall::fleet::{CountRecorder, Ownership, WorstOfMinute};
use rollcall::store::{Cell, Cells, Layout, Table};
use serde_json::Value;

use super::world::{Fleet, SECOND, assert_problem};

/// The recorder of an instance that owns the partitions of this view.
fn recorder(fleet: &Fleet, view: View) -> CountRecorder {
    CountRecorder {
        mirror: fleet.mirror.clone(),
        roll: fleet.roll.clone(),
        ownership: Ownership::fixed(view),
        cells: fleet.engine.clone(),
        clock: fleet.clock.clone(),
        telemetry: fleet.telemetry.clone(),
    }
}

fn alone(fleet: &Fleet, name: &str) -> CountRecorder {
    recorder(fleet, View::new(name, vec![name.to_owned()], fleet.engine.partitions()))
}

/// The numbers of offline units that are known, oldest first.
fn known(counts: &Value) -> Vec<u64> {
    counts["points"].as_array().unwrap().iter().filter_map(|point| point["offline"].as_u64()).collect()
}

#[tokio::test]
async fn counts_are_kept_by_the_minute_and_by_the_hour_and_are_drawn() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    let recorder = alone(&fleet, "one");
    for (site, unit) in [("north", "detector:a"), ("<south>", "detector:b"), ("<south>", "meter:c")] {
        fleet.hear_at(site, unit).await;
    }
    assert!(fleet.text("/").await.contains("No counts yet"));
    recorder.count(fleet.clock.now(), &mut WorstOfMinute::default()).await.unwrap();
    fleet.pass(121 * SECOND, &["detector:a", "detector:b"]).await;
    recorder.count(fleet.clock.now(), &mut WorstOfMinute::default()).await.unwrap();
    // A second count of a minute, by an instance that has started again, adds no units.
    recorder.count(fleet.clock.now(), &mut WorstOfMinute::default()).await.unwrap();

    let hour = fleet.json("/api/v1/history/counts?range=1h").await;
    let points = hour["points"].as_array().unwrap();
    assert_eq!((points.len(), known(&hour)), (60, vec![0, 2]), "{hour}");
    assert_eq!((&points[57]["states"]["online"], &points[59]["states"]["online"]), (&3.into(), &1.into()));
    assert_eq!(
        (&points[59]["at"], &points[58]["states"]),
        (&"2026-03-01T12:02:00.000Z".into(), &Value::Null)
    );
    for (place, offline) in [("north", [0, 1]), ("%3Csouth%3E", [0, 1]), ("west", [0, 0])] {
        let of_place = fleet.json(&format!("/api/v1/history/counts?range=1h&label=site%3D{place}")).await;
        assert_eq!(known(&of_place), offline, "{of_place}");
    }
    let page = fleet.text("/?range=1h&label=site%3D%3Csouth%3E").await;
    assert!(
        page.contains("<svg") && page.contains("Units that are silent with site=&lt;south&gt;"),
        "{page}"
    );
    // Links keep the range and the filter.
    assert!(page.contains("label=site%3D%3Csouth%3E&amp;range=7d"), "{page}");

    // The hour is over: its worst minute stays, also for another instance that begins now.
    fleet.clock.advance(3600 * SECOND);
    fleet.hear(&["detector:a", "detector:b", "meter:c"]).await;
    let recorder = alone(&fleet, "two");
    recorder.count(fleet.clock.now(), &mut WorstOfMinute::default()).await.unwrap();
    recorder.keep(fleet.clock.now()).await.unwrap();
    let week = fleet.json("/api/v1/history/counts?range=7d").await;
    assert_eq!((known(&week), week["step_seconds"].as_u64()), (vec![2, 0], Some(3600)), "{week}");
    // A day later the minutes are gone, and the hours are there; after ninety days these are gone, too.
    for (days, asked, offline) in [(2, "range=90d", vec![2]), (91, "range=90d&label=site%3Dnorth", vec![])] {
        fleet.clock.advance(days * 86_400 * SECOND);
        recorder.keep(fleet.clock.now()).await.unwrap();
        let kept = fleet.engine.all_cells(Table::MinuteCounts, fleet.engine.partitions()).await.unwrap();
        assert!(kept.is_empty(), "{days}");
        let quarter = fleet.json(&format!("/api/v1/history/counts?{asked}")).await;
        assert_eq!((known(&quarter), quarter["points"].as_array().unwrap().len()), (offline, 90), "{days}");
    }
    assert!(fleet.engine.all_cells(Table::HourCounts, fleet.engine.partitions()).await.unwrap().is_empty());
    for wrong in ["range=2h", "label=floor%3D1", "label=site", "from=1"] {
        assert_problem(fleet.get(&format!("/api/v1/history/counts?{wrong}")).await, 400).await;
    }
    assert_eq!(fleet.get("/?range=2h").await.status(), 400);
}

#[tokio::test]
async fn a_minute_is_known_when_every_partition_was_counted_once() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    fleet.hear_at("north", "detector:a").await;
    let names = || vec!["one".to_owned(), "two".to_owned()];
    let partitions = fleet.engine.partitions();
    let counts = async || known(&fleet.json("/api/v1/history/counts?range=24h").await).len();
    recorder(&fleet, View::new("one", names(), partitions))
        .count(fleet.clock.now(), &mut WorstOfMinute::default())
        .await
        .unwrap();
    assert_eq!(counts().await, 0, "two has not counted");
    // Answers may be some seconds old, so another range is asked for.
    recorder(&fleet, View::new("two", names(), partitions))
        .count(fleet.clock.now(), &mut WorstOfMinute::default())
        .await
        .unwrap();
    assert_eq!(known(&fleet.json("/api/v1/history/counts?range=1h").await), [0]);
}

#[tokio::test]
async fn a_cell_of_counts_is_bounded_however_many_instances_and_places_there_are() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    let units: Vec<String> = (0..20).map(|number| format!("detector:{number}")).collect();
    for (number, unit) in units.iter().enumerate() {
        fleet.hear_at(&format!("{number} {}", "x".repeat(60)), unit).await;
    }
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    fleet.pass(121 * SECOND, &units).await;
    let now = fleet.clock.now();
    let size = async || {
        let name = (now.as_millis() / 3_600_000).to_string();
        let cell = Cell { table: Table::MinuteCounts, partition: fleet.engine.partitions(), name };
        fleet.engine.read_cells(&[cell]).await.unwrap()[0].as_ref().map_or(0, Vec::len)
    };
    let mut before = 0;
    for number in 0.. {
        alone(&fleet, &format!("instance-{number:04}"))
            .count(now, &mut WorstOfMinute::default())
            .await
            .unwrap();
        let after = size().await;
        assert!(after <= 40_000, "{after}");
        if after == before {
            assert!(after > 39_000 && number > 30, "{number} instances take {after}");
            break;
        }
        before = after;
    }
}

#[tokio::test]
async fn a_minute_that_is_written_when_its_hour_is_over_is_in_the_hour() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    fleet.hear_at("north", "detector:a").await;
    let (recorder, next_hour) = (alone(&fleet, "one"), fleet.clock.now() + 3600 * SECOND);
    recorder.count(fleet.clock.now(), &mut WorstOfMinute::default()).await.unwrap();
    recorder.keep(next_hour).await.unwrap();
    fleet.pass(121 * SECOND, &["detector:a"]).await;
    recorder.count(fleet.clock.now(), &mut WorstOfMinute::default()).await.unwrap();
    recorder.keep(next_hour + 3600 * SECOND).await.unwrap();
    // The minutes of this hour are not read any more.
    fleet.clock.advance(2 * 3600 * SECOND);
    let week = fleet.json("/api/v1/history/counts?range=7d").await;
    assert_eq!(known(&week), [1], "{week}");
}

#[tokio::test]
async fn an_outage_of_less_than_a_minute_is_in_the_chart() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    fleet.pass(10 * SECOND, &[]).await;
    let units = ["detector:a", "detector:b"];
    for unit in units {
        fleet.hear_at("north", unit).await;
    }
    let (recorder, mut minute) = (alone(&fleet, "one"), WorstOfMinute::default());
    fleet.pass(115 * SECOND, &[]).await;
    recorder.count(fleet.clock.now(), &mut minute).await.unwrap();
    // Both fall silent at 12:02:10 and are back ten seconds later.
    fleet.pass(10 * SECOND, &units).await;
    recorder.count(fleet.clock.now(), &mut minute).await.unwrap();
    fleet.hear(&units).await;
    for _ in 0..3 {
        fleet.pass(20 * SECOND, &[]).await;
        recorder.count(fleet.clock.now(), &mut minute).await.unwrap();
    }
    let hour = fleet.json("/api/v1/history/counts?range=1h").await;
    assert_eq!(known(&hour), [2, 0], "{hour}");
    let of_site = fleet.json("/api/v1/history/counts?range=1h&label=site%3Dnorth").await;
    assert_eq!(known(&of_site), [2, 0], "{of_site}");
}

#[tokio::test]
async fn an_outage_in_the_minute_of_a_restart_stays_in_the_chart() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    let units = ["detector:a", "detector:b"];
    for unit in units {
        fleet.hear_at("north", unit).await;
    }
    let (recorder, mut minute) = (alone(&fleet, "one"), WorstOfMinute::default());
    fleet.pass(121 * SECOND, &[]).await;
    recorder.count(fleet.clock.now(), &mut minute).await.unwrap();
    fleet.pass(5 * SECOND, &units).await;
    recorder.count(fleet.clock.now(), &mut minute).await.unwrap();
    // The instance stops, and starts again after both are back.
    recorder.finish(&mut minute).await.unwrap();
    fleet.hear(&units).await;
    fleet.pass(5 * SECOND, &[]).await;
    recorder.count(fleet.clock.now(), &mut WorstOfMinute::default()).await.unwrap();
    let hour = fleet.json("/api/v1/history/counts?range=1h").await;
    assert_eq!(known(&hour), [2], "{hour}");
}
