//! What the time of the fleet was, by the clock of this machine.
//!
//! Where the clock of Redis is set, the time of the fleet leaps with it or goes on from where it was,
//! and records tell that time. Diaries tell this machine's. The engine writes down at each renewal
//! what its clock said and what the time of the fleet was; whoever knows that its clock is off by
//! whole hours knows by how much the two differ.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::OfflineRecord;
use tokio::task::JoinSet;

use super::now;

/// How often it is asked; instances renew less often.
const PERIOD: Duration = Duration::from_millis(50);
const HOUR: i64 = 3_600_000;
/// More than a time that goes on a little slower loses between two entries. Where the clock of Redis goes
/// back, the time of the fleet stands still from one renewal to the next.
const LEAP: i64 = 50;

/// From this moment on the fleet was ahead by so many milliseconds.
#[derive(Clone, Copy, Debug)]
struct Entry {
    from: i64,
    ahead: i64,
}

/// The calendar; kept until it goes.
pub struct Calendar {
    entries: Arc<Mutex<Vec<Entry>>>,
    _keeping: JoinSet<()>,
}

impl Calendar {
    /// Kept by asking the Redis on that port.
    pub fn keep(port: u16) -> Calendar {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let mut keeping = JoinSet::new();
        keeping.spawn(write(port, entries.clone()));
        Calendar { entries, _keeping: keeping }
    }

    /// By this machine's clock, when the time of the fleet leapt or stood still.
    pub fn leaps(&self) -> Vec<Timestamp> {
        leaps(&self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// By the clock of this machine from now on.
    pub fn translate(&self, records: &mut [OfflineRecord]) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for record in records {
            let moments = [&mut record.last_seen, &mut record.deadline, &mut record.detected_at];
            for moment in moments.into_iter().chain(&mut record.back_at).chain(&mut record.silent_from) {
                *moment = by_this_machine(*moment, &entries);
            }
        }
    }
}

fn leaps(entries: &[Entry]) -> Vec<Timestamp> {
    let leapt = entries.windows(2).filter(|two| (two[1].ahead - two[0].ahead).abs() > LEAP);
    leapt.map(|two| Timestamp::from_millis(two[1].from)).collect()
}

/// An instance that has not heard yet of a leap goes by the time before it: its moments lie before
/// everything that is told after the leap.
fn by_this_machine(moment: Timestamp, entries: &[Entry]) -> Timestamp {
    let moment = moment.as_millis();
    let entry = entries.iter().rfind(|entry| entry.from + entry.ahead <= moment);
    Timestamp::from_millis(moment - entry.map_or(0, |entry| entry.ahead))
}

async fn write(port: u16, entries: Arc<Mutex<Vec<Entry>>>) {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("it is an address");
    let mut read = redis::cmd("HMGET");
    read.arg("rollcall:{hearing}:clock").arg("server").arg("fleet");
    loop {
        tokio::time::sleep(PERIOD).await;
        let Ok(mut connection) = client.get_multiplexed_async_connection().await else { continue };
        while let Ok(answer) = read.query_async::<(Option<i64>, Option<i64>)>(&mut connection).await {
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
