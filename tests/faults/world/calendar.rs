//! The time of the fleet, by the clock of this machine.
//!
//! When the clock of Redis is set, the time of the fleet jumps with it or goes on, and records have that time. Diaries
//! have this machine's time. At each renewal the engine stores its clock and the time of the fleet; as its clock is
//! off by whole hours, the difference of the two is known.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::OfflineRecord;
use tokio::task::JoinSet;

use super::now;
use super::oracle::RENEWAL;

/// How often the entries are read; instances renew less often.
const PERIOD: Duration = Duration::from_millis(50);
const HOUR: i64 = 3_600_000;
/// More milliseconds than a slower time loses between two entries. When the clock of Redis goes back, the time of the
/// fleet stands still from one renewal to the next.
const JUMP: i64 = 50;
pub const UNNOTICED: Duration = Duration::from_millis(JUMP as u64);
/// Moments at which the time of the fleet stood still are this far apart (ms): less than the oracle tolerates.
const STEP: usize = 100;

/// From `at` on, the fleet was ahead by this many milliseconds.
#[derive(Clone, Copy, Debug)]
struct Entry {
    from: i64,
    ahead: i64,
}

/// The calendar, updated until it is dropped.
pub struct Calendar {
    entries: Arc<Mutex<Vec<Entry>>>,
    _keeping: JoinSet<()>,
}

impl Calendar {
    /// Reads the servers on these ports. The newest answer counts: a primary that was replaced keeps its own for a
    /// while.
    pub fn keep(ports: Vec<u16>) -> Calendar {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let mut keeping = JoinSet::new();
        for port in ports {
            keeping.spawn(write(port, entries.clone()));
        }
        Calendar { entries, _keeping: keeping }
    }

    /// When the time of the fleet jumped or stood still, by this machine's clock.
    pub fn jumps(&self) -> Vec<Timestamp> {
        jumps(&self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where the difference changed, for a message of a failed test.
    pub fn story(&self) -> String {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        jumped(&entries)
            .map(|two| format!(" {}+{}..{}+{}", two[0].from, two[0].ahead, two[1].from, two[1].ahead))
            .collect()
    }

    /// The record by the clock of this machine. If its unit may have been last seen at several moments, there is a
    /// reading for each of them.
    pub fn readings(&self, record: &OfflineRecord) -> Vec<OfflineRecord> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reading = record.clone();
        let moments = [&mut reading.deadline, &mut reading.detected_at];
        for moment in moments.into_iter().chain(&mut reading.back_at).chain(&mut reading.silent_from) {
            *moment = by_this_machine(*moment, &entries);
        }
        let seen = all_by_this_machine(record.last_seen, &entries).into_iter();
        seen.map(|last_seen| OfflineRecord { last_seen, ..reading.clone() }).collect()
    }
}

fn jumps(entries: &[Entry]) -> Vec<Timestamp> {
    jumped(entries).map(|two| Timestamp::from_millis(two[1].from)).collect()
}

/// The entries on either side of a jump.
fn jumped(entries: &[Entry]) -> impl Iterator<Item = &[Entry]> {
    entries.windows(2).filter(|two| (two[1].ahead - two[0].ahead).abs() > JUMP)
}

/// An instance that does not know of a jump yet uses the time before it: its moments lie before
/// all moments after the jump.
fn by_this_machine(moment: Timestamp, entries: &[Entry]) -> Timestamp {
    let moment = moment.as_millis();
    let entry = entries.iter().rfind(|entry| entry.from + entry.ahead <= moment);
    Timestamp::from_millis(moment - entry.map_or(0, |entry| entry.ahead))
}

/// Moments by this machine that were that time of the fleet, the earliest first. While no server answers, the time of
/// the fleet stands still, and then goes on from the last renewal; instances learn of that one after the other. So the
/// moments between that renewal and the stop occur twice, and an instance that has learned of it writes one moment
/// until the time of the fleet has caught up: what it wrote then may be of any time between the two.
fn all_by_this_machine(moment: Timestamp, entries: &[Entry]) -> Vec<Timestamp> {
    let ms = moment.as_millis();
    let learned = RENEWAL.as_millis() as i64;
    let lasted = |two: &&[Entry]| (two[0].from..two[1].from + learned).contains(&(ms - two[0].ahead));
    let while_it_lasted = entries.windows(2).filter(lasted).map(|two| ms - two[0].ahead);
    let last = by_this_machine(moment, entries).as_millis();
    let (first, last) = while_it_lasted.fold((last, last), |(first, last), at| (first.min(at), last.max(at)));
    let between = (first..last).step_by(STEP);
    between.chain([last]).map(Timestamp::from_millis).collect()
}

async fn write(port: u16, entries: Arc<Mutex<Vec<Entry>>>) {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("it is an address");
    let mut read = redis::cmd("HMGET");
    read.arg("rollcall:{hearing}:clock").arg("server").arg("fleet");
    let read = &read;
    loop {
        tokio::time::sleep(PERIOD).await;
        let Ok(Ok(mut connection)) = in_time(client.get_multiplexed_async_connection()).await else {
            continue;
        };
        while let Ok(Ok(answer)) =
            in_time(read.query_async::<(Option<i64>, Option<i64>)>(&mut connection)).await
        {
            if let (Some(server), Some(fleet)) = answer {
                let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
                let hours = (server - now().as_millis() + HOUR / 2).div_euclid(HOUR);
                let from = server - hours * HOUR;
                if entries.last().is_none_or(|last| last.from < from) {
                    entries.push(Entry { from, ahead: fleet - from });
                }
            }
            tokio::time::sleep(PERIOD).await;
        }
    }
}

/// Bounds the wait for an answer: a frozen server does not answer.
async fn in_time<T>(answer: impl Future<Output = T>) -> Result<T, tokio::time::error::Elapsed> {
    tokio::time::timeout(Duration::from_secs(1), answer).await
}

#[test]
fn a_moment_that_was_there_twice_is_read_as_both_and_as_all_between() {
    let entries = [Entry { from: 0, ahead: 0 }, Entry { from: 3000, ahead: -1200 }];
    let read = |ms| {
        let all = all_by_this_machine(Timestamp::from_millis(ms), &entries).into_iter();
        all.map(Timestamp::as_millis).collect::<Vec<_>>()
    };
    assert_eq!(read(1000), [1000], "before the stop");
    let between = |from: i64, to: i64| (from..=to).step_by(STEP).collect::<Vec<_>>();
    assert_eq!(read(2500), between(2500, 3700), "the time stood still, and went on from there");
    assert_eq!(read(3100), between(3100, 4300), "written by an instance that did not know of it yet");
    assert_eq!(read(7000), [8200], "every instance knows of it");
}
