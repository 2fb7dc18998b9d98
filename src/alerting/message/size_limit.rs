//! How many records of a message fit into the limit of a receiver; the others are counted.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::presence::OfflineRecord;
use crate::store::Delivery;

/// The most bytes of records in one body: ten thousand of usual size, so that a program misses none.
const MAX_BYTES: usize = 4 << 20;
/// A server that refuses a body of this size has another reason.
const MIN_BYTES: usize = 4 << 10;

/// The most bytes of records that a receiver takes, as far as this instance knows. It shrinks with each body that the
/// receiver refuses as too large, until the next start.
#[derive(Debug)]
pub struct SizeLimit(AtomicUsize);

impl Default for SizeLimit {
    fn default() -> SizeLimit {
        SizeLimit(AtomicUsize::new(MAX_BYTES))
    }
}

impl SizeLimit {
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes that a body of that length was refused as too large. Answers whether the next body can be shorter.
    pub fn refused(&self, length: usize) -> bool {
        self.0.fetch_min((length / 2).max(MIN_BYTES), Ordering::Relaxed);
        length > MIN_BYTES
    }
}

/// A body with all its records or, if it is longer than `most` bytes, with as many records as fit. Nearly every body
/// is written once: to measure a record takes as long as to write it.
pub fn bounded(most: usize, write: impl Fn(Option<usize>) -> String) -> String {
    let whole = write(None);
    if whole.len() <= most { whole } else { write(Some(most)) }
}

/// How many items from the first on fit into `room` (bytes), which shrinks by their length; `None`: all fit.
pub fn fitting<T: Serialize>(all: &[T], room: &mut Option<usize>) -> usize {
    let Some(room) = room else { return all.len() };
    let fits = |one: &T| {
        let mut length = Length(0);
        serde_json::to_writer(&mut length, one).expect("names and times are always JSON");
        let rest = room.checked_sub(length.0 + 1);
        *room = rest.unwrap_or(0);
        rest.is_some()
    };
    all.iter().map(fits).take_while(|fits| *fits).count()
}

/// The first records of a message, at most `most`, and how many are left out. Silences come before returns.
pub fn fitting_records(delivery: &Delivery, most: usize) -> (&[OfflineRecord], &[OfflineRecord], usize) {
    let (offline, online) = (&delivery.offline[..], &delivery.online[..]);
    let offline = &offline[..offline.len().min(most)];
    let online = &online[..online.len().min(most - offline.len())];
    let truncated = delivery.offline.len() + delivery.online.len() - offline.len() - online.len();
    (offline, online, truncated)
}

/// Counts the bytes that are written to it.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
