use serde_json::Value;

use super::*;
use crate::presence::{Closing, OfflineRecord};
use crate::simulate::webhook_sink::{Answer, Options, WebhookSink};

const SECOND: Duration = Duration::from_secs(1);
const RESEND: Duration = Duration::from_secs(60);
const START: Timestamp = Timestamp::from_millis(1_795_360_461_000);

async fn sink() -> WebhookSink {
    WebhookSink::start(Options::default()).await.unwrap()
}

fn channel(servers: &[&WebhookSink], max_alerts: usize, timeout: Duration) -> Alertmanager {
    let urls = servers.iter().map(|server| server.base()).collect();
    let config = AlertmanagerConfig { urls, resend: RESEND, max_alerts, ..AlertmanagerConfig::default() };
    Alertmanager::new("hook", &config, &MessageConfig::default(), timeout).unwrap()
}

fn silent(unit: &str, detected_at: Timestamp) -> OfflineRecord {
    let unit = format!("detector:{unit}").parse().unwrap();
    OfflineRecord::open(unit, detected_at - RESEND, detected_at, detected_at)
}

fn back(record: &OfflineRecord, at: Timestamp) -> OfflineRecord {
    OfflineRecord { back_at: Some(at), closed_by: Some(Closing::Return), ..record.clone() }
}

fn open(records: &[&OfflineRecord]) -> OpenRecords {
    OpenRecords { oldest: records.iter().map(|&record| record.clone()).collect(), count: records.len() }
}

fn delivery(offline: Vec<OfflineRecord>, online: Vec<OfflineRecord>) -> Delivery {
    Delivery { offline, online, ..test_delivery("hook", START) }
}

/// The alerts of each request, by unit or name, and their ends.
fn posted(sink: &WebhookSink) -> Vec<Vec<(String, Timestamp)>> {
    let alert = |alert: &Value| {
        let labels = &alert["labels"];
        let name = labels["unit"].as_str().or(labels["alertname"].as_str()).unwrap().to_owned();
        (name, serde_json::from_value(alert["endsAt"].clone()).unwrap())
    };
    let request = |body: Value| {
        let mut alerts: Vec<_> = body.as_array().unwrap().iter().map(alert).collect();
        alerts.sort();
        alerts
    };
    sink.received().iter().map(|received| request(received.json())).collect()
}

fn named(alerts: &[(&str, Timestamp)]) -> Vec<(String, Timestamp)> {
    alerts.iter().map(|&(name, at)| (name.to_owned(), at)).collect()
}

#[tokio::test]
async fn an_alert_that_is_not_open_any_more_is_ended_by_the_next_resend_and_then_forgotten() {
    let sink = sink().await;
    let channel = channel(&[&sink], 100, RESEND);
    let (a, b) = (silent("a", START), silent("b", START));
    let at = |round: u32| START + round * RESEND;
    channel.resend(Some(open(&[&a, &b])), &[], at(1)).await.unwrap();
    channel.resend(Some(open(&[&b])), &[], at(2)).await.unwrap();
    channel.resend(Some(open(&[&b])), &[], at(3)).await.unwrap();
    let expected =
        [named(&[("a", at(5)), ("b", at(5))]), named(&[("a", at(2)), ("b", at(6))]), named(&[("b", at(7))])];
    assert_eq!(posted(&sink), expected);
}

#[tokio::test]
async fn a_resend_that_read_a_record_before_its_return_does_not_revive_its_alert() {
    let sink = sink().await;
    let channel = channel(&[&sink], 100, RESEND);
    let a = silent("a", START);
    channel.send(&delivery(vec![a.clone()], vec![]), START).await.unwrap();
    let moment = START + SECOND;
    channel.send(&delivery(vec![], vec![back(&a, moment)]), moment).await.unwrap();
    channel.resend(Some(open(&[&a])), &[], moment).await.unwrap();
    assert_eq!(posted(&sink), [named(&[("a", START + 4 * RESEND)]), named(&[("a", moment)])]);
}

#[tokio::test]
async fn beyond_the_cap_the_oldest_stay_alerts_and_the_mass_alert_ends_with_the_storm() {
    let sink = sink().await;
    let channel = channel(&[&sink], 2, RESEND);
    let records: Vec<_> = (0..5).map(|at| silent(&at.to_string(), START + at * SECOND)).collect();
    let newest_first = records.iter().rev().cloned().collect();
    channel.send(&delivery(newest_first, vec![]), START).await.unwrap();
    let oldest = || vec![records[1].clone(), records[0].clone()];
    channel.resend(Some(OpenRecords { oldest: oldest(), count: 5 }), &[], START).await.unwrap();
    channel.resend(Some(OpenRecords { oldest: oldest(), count: 2 }), &[], START + RESEND).await.unwrap();
    let until = START + 4 * RESEND;
    let storm = named(&[("0", until), ("1", until), ("UnitsOffline", until)]);
    let until = until + RESEND;
    let after = named(&[("0", until), ("1", until), ("UnitsOffline", START + RESEND)]);
    assert_eq!(posted(&sink), [storm.clone(), storm, after]);
}

#[tokio::test]
async fn an_instance_that_does_not_resend_counts_only_what_it_has_sent_lately() {
    let sink = sink().await;
    let channel = channel(&[&sink], 2, RESEND);
    for round in 0..5 {
        let now = START + round * 2 * RESEND;
        let records = vec![silent("a", now), silent("b", now)];
        channel.send(&delivery(records, vec![]), now).await.unwrap();
    }
    assert!(posted(&sink).iter().all(|alerts| alerts.len() == 2), "{:?}", posted(&sink));
}

#[tokio::test]
async fn a_server_that_missed_the_end_of_an_alert_is_told_with_the_next_resend_and_the_other_is_not() {
    let (one, two) = (sink().await, sink().await);
    let channel = channel(&[&one, &two], 100, RESEND);
    let (a, b) = (silent("a", START), silent("b", START));
    let at = |round: u32| START + round * RESEND;
    channel.send(&delivery(vec![a.clone(), b.clone()], vec![]), START).await.unwrap();
    two.answer_with([Answer::Status(503)]);
    channel.send(&delivery(vec![], vec![back(&a, at(1))]), at(1)).await.unwrap();
    assert!(channel.unreached().unwrap().to_string().contains(&two.base()));
    channel.resend(Some(open(&[&b])), &[], at(2)).await.unwrap();
    assert_eq!(channel.unreached(), None);
    // The last alert, so that the next resend has no other.
    two.answer_with([Answer::Status(503), Answer::Status(503)]);
    channel.send(&delivery(vec![], vec![back(&b, at(3))]), at(3)).await.unwrap();
    for round in [3, 4, 5] {
        channel.resend(Some(open(&[])), &[], at(round)).await.unwrap();
    }
    let silences = named(&[("a", at(4)), ("b", at(4))]);
    let of_one = [silences.clone(), named(&[("a", at(1))]), named(&[("b", at(6))]), named(&[("b", at(3))])];
    assert_eq!(posted(&one), of_one);
    let end = || named(&[("b", at(3))]);
    let of_two =
        [silences, named(&[("a", at(1))]), named(&[("a", at(1)), ("b", at(6))]), end(), end(), end()];
    assert_eq!(posted(&two), of_two, "until it has taken it");
}

/// A channel, its two servers, and when the unit `a` was back: the second server did not take that.
async fn whose_second_server_missed_an_end() -> (Alertmanager, WebhookSink, WebhookSink, Timestamp) {
    let (one, two) = (sink().await, sink().await);
    let channel = channel(&[&one, &two], 100, RESEND);
    let a = silent("a", START);
    channel.send(&delivery(vec![a.clone()], vec![]), START).await.unwrap();
    two.answer_with([Answer::Status(503)]);
    let moment = START + SECOND;
    channel.send(&delivery(vec![], vec![back(&a, moment)]), moment).await.unwrap();
    (channel, one, two, moment)
}

#[tokio::test]
async fn the_end_of_an_alert_that_a_server_missed_does_not_end_the_next_silence_of_the_unit() {
    let (channel, one, two, moment) = whose_second_server_missed_an_end().await;
    let again = silent("a", moment + RESEND);
    channel.resend(Some(open(&[&again])), &[], moment + RESEND).await.unwrap();
    channel.resend(Some(open(&[&again])), &[], moment + 2 * RESEND).await.unwrap();
    let last = |sink: &WebhookSink| posted(sink).split_off(2);
    let expected = [5, 6].map(|rounds| named(&[("a", moment + rounds * RESEND)]));
    assert_eq!((last(&one), last(&two)), (expected.to_vec(), expected.to_vec()));
}

#[tokio::test]
async fn nothing_waits_for_a_server_that_does_not_answer_while_another_one_does() {
    let (sink, silent_one) = (sink().await, sink().await);
    silent_one.answer_with(vec![Answer::Hang; 4]);
    let mut channel = channel(&[&silent_one, &sink], 100, 60 * RESEND);
    channel.resend = SECOND / 10;
    let a = silent("a", START);
    let rounds = async {
        for _ in 0..3 {
            channel.resend(Some(open(&[&a])), &[], START).await.unwrap();
        }
    };
    tokio::time::timeout(RESEND, rounds).await.expect("none waits for an hour");
    channel.send(&delivery(vec![a.clone()], vec![]), START).await.unwrap();
    channel.send(&delivery(vec![], vec![back(&a, START)]), START).await.unwrap();
    assert_eq!((posted(&sink).len(), posted(&silent_one).len()), (5, 3), "notifications leave it out");
    assert!(channel.unreached().unwrap().to_string().contains(&silent_one.base()));
    silent_one.answer_with([]);
    silent_one.release();
    channel.resend(Some(open(&[])), &[], START).await.unwrap();
    assert_eq!(posted(&silent_one)[3..], [named(&[("a", START)])], "it is told what it has missed");
    assert_eq!(channel.unreached(), None);
    channel.send(&delivery(vec![a.clone()], vec![]), START).await.unwrap();
    assert_eq!(posted(&silent_one).len(), 5);
}

#[tokio::test]
async fn an_instance_that_does_not_resend_tells_a_server_of_the_ends_that_it_missed() {
    let (channel, one, two, moment) = whose_second_server_missed_an_end().await;
    assert!(channel.unreached().is_some());
    for _ in 0..2 {
        channel.resend_missed(moment).await.unwrap();
        assert_eq!(channel.unreached(), None);
    }
    let both = [named(&[("a", START + 4 * RESEND)]), named(&[("a", moment)])];
    assert_eq!(posted(&one), both);
    assert_eq!(posted(&two), [both.to_vec(), vec![both[1].clone()]].concat(), "once");
}

#[tokio::test]
async fn a_server_that_does_not_answer_takes_nothing_from_the_others() {
    let (sink, silent_one) = (sink().await, sink().await);
    silent_one.answer_with([Answer::Hang]);
    let channel = channel(&[&silent_one, &sink], 100, SECOND);
    channel.send(&delivery(vec![silent("a", START)], vec![]), START).await.unwrap();
    assert_eq!(posted(&sink).len(), 1);
    let unreached = channel.unreached().unwrap().to_string();
    assert!(unreached.contains(&silent_one.base()) && unreached.contains("no answer"), "{unreached}");
    sink.answer_with([Answer::Status(410), Answer::Status(410)]);
    silent_one.answer_with([Answer::RetryAfter(503, "7".to_owned())]);
    let failed = async || channel.send(&delivery(vec![silent("b", START)], vec![]), START).await.unwrap_err();
    failed().await;
    assert_eq!(posted(&silent_one).len(), 1, "it is left out as long as another one answers");
    let failure = failed().await;
    let asked = Some(7 * SECOND);
    assert!(
        matches!(&failure, Failure::Temporary { retry_after, .. } if *retry_after == asked),
        "{failure:?}"
    );
}

#[tokio::test]
async fn an_instance_that_does_not_resend_forgets_by_time_what_was_closed() {
    let sink = sink().await;
    let channel = channel(&[&sink], 100, RESEND);
    let mut kept = Vec::new();
    for round in 0..6 {
        let now = START + round * RESEND;
        let gone = silent(&format!("gone-{round}"), now);
        channel.send(&delivery(vec![], vec![back(&gone, now)]), now).await.unwrap();
        kept.push(channel.closed.lock().len());
    }
    assert_eq!(kept, [1, 2, 2, 2, 2, 2]);
    channel.resend_missed(START + 8 * RESEND).await.unwrap();
    assert_eq!(channel.closed.lock().len(), 0, "also while no unit is back");
}
