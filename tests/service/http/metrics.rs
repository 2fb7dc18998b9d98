//! The page of aggregates.

use reqwest::header::CONTENT_TYPE;
use rollcall::telemetry::EngineWarning;

use super::world::{Fleet, SECOND, assert_promtool_accepts, samples};

#[tokio::test]
async fn promtool_accepts_the_metrics_and_they_start_at_zero() {
    let fleet = Fleet::start().await;
    let response = fleet.get("/metrics").await;
    assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    let text = response.text().await.unwrap();
    assert_promtool_accepts(&text);
    for kind in ["detector", "meter"] {
        for state in ["online", "late", "offline", "never_seen", "paused", "unknown"] {
            let line = format!("rollcall_units{{kind=\"{kind}\",state=\"{state}\"}} 0");
            assert!(text.lines().any(|other| other == line), "{line}");
        }
    }
    for seconds in [60, 300, 900, 3600, 21_600, 86_400, 172_800, 604_800] {
        let line = format!("rollcall_unit_silence_seconds_bucket{{le=\"{seconds}\"}} 0");
        assert!(text.lines().any(|other| other == line), "{line}");
    }
    for ailment in EngineWarning::ALL {
        let line = format!("rollcall_engine_warning{{name=\"{}\"}} 0", ailment.as_str());
        assert!(text.lines().any(|other| other == line), "{line}");
    }
    assert!(text.lines().filter(|line| !line.starts_with('#')).count() < 500);
}

#[tokio::test]
async fn metrics_count_units_as_they_are_at_the_moment() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1", "detector:2", "meter:1"]).await;
    fleet.pass(110 * SECOND, &[]).await;
    fleet.hear(&["detector:2"]).await;
    let text = fleet.text("/metrics").await;
    for line in [
        "rollcall_units{kind=\"detector\",state=\"online\"} 1",
        "rollcall_units{kind=\"detector\",state=\"late\"} 1",
        "rollcall_units{kind=\"meter\",state=\"online\"} 1",
        "rollcall_unit_silence_seconds_bucket{le=\"60\"} 1",
        "rollcall_unit_silence_seconds_bucket{le=\"300\"} 3",
        "rollcall_unit_silence_seconds_bucket{le=\"+Inf\"} 3",
        "rollcall_unit_silence_seconds_sum 220",
        "rollcall_unit_silence_seconds_count 3",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn units_are_counted_by_label_at_the_moment_and_values_that_are_gone_leave() {
    let fleet = Fleet::start().await;
    fleet.hear(&["meter:2"]).await;
    fleet.hear_at("north", "meter:1").await;
    let by_site = |value: &str, state: &str, count: u64| {
        format!("rollcall_units_by_label{{label=\"site\",state=\"{state}\",value=\"{value}\"}} {count}\n")
    };
    let text = fleet.text("/metrics").await;
    assert!(text.contains(&by_site("north", "online", 1)), "{text}");
    assert!(text.contains(&by_site("north", "offline", 0)));
    fleet.hear_at("south", "meter:1").await;
    let text = fleet.text("/metrics").await;
    assert!(text.contains(&by_site("south", "online", 1)) && !text.contains("north"), "{text}");
}

#[tokio::test]
async fn the_oldest_outage_is_that_of_the_unit_that_was_heard_least_lately() {
    let fleet = Fleet::start().await;
    let oldest =
        |text: &str| samples(text, "rollcall_oldest_outage_timestamp_seconds{kind=\"detector\"}").concat();
    assert_eq!(oldest(&fleet.text("/metrics").await), "");
    fleet.hear(&["detector:1"]).await;
    fleet.clock.advance(SECOND);
    fleet.hear(&["detector:2"]).await;
    fleet.pass(130 * SECOND, &["detector:1", "detector:2"]).await;
    assert!(oldest(&fleet.text("/metrics").await).ends_with("} 1772366400"));
    fleet.hear(&["detector:1"]).await;
    assert!(oldest(&fleet.text("/metrics").await).ends_with("} 1772366401"));
    fleet.hear(&["detector:2"]).await;
    assert_eq!(oldest(&fleet.text("/metrics").await), "", "none is offline");
}

#[tokio::test]
async fn an_instance_that_owns_nothing_shows_nothing_and_that_does_not_age() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["meter:1"]).await;
    fleet.clock.advance(5 * SECOND);
    let page = fleet.text("/metrics").await;
    assert!(page.contains("rollcall_mirror_age_seconds 5\n"), "{page}");
    assert!(page.contains("rollcall_units{kind=\"meter\",state=\"online\"} 1\n"), "{page}");
    fleet.mirror.keep(|_| false);
    let page = fleet.text("/metrics").await;
    assert!(!page.contains("rollcall_mirror_age_seconds"), "{page}");
    assert!(page.contains("rollcall_units{kind=\"meter\",state=\"online\"} 0\n"), "{page}");
}
