//! The uploads of inventories: how many at once, and how slow.
//!
//! A slow upload holds no turn to import, because its body goes to a file first. Each token has one upload at a time,
//! and all together have a few. A body that falls behind the least speed is refused, so that its place is free again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::clock::monotonic;

/// The most inventories that arrive at once. Each may take the largest size on disk.
const MAX_AT_ONCE: usize = 4;
/// The least average speed of a body, in bytes a second.
const LEAST_SPEED: u64 = 16 * 1024;
/// How long a body may stay behind the least speed: for connections that begin slowly or pause.
const SLACK: Duration = Duration::from_secs(30);

/// The uploads under way, by the names of their tokens. Cheap to share.
#[derive(Clone, Default)]
pub(super) struct Uploads(Arc<Mutex<HashSet<String>>>);

impl Uploads {
    /// Begins an upload; `None` if this token already has one, or if there are too many. The upload ends when the
    /// returned value is dropped.
    pub fn begin(&self, token: &str) -> Option<Upload> {
        let mut all = self.0.lock();
        let has_place = all.len() < MAX_AT_ONCE && all.insert(token.to_owned());
        has_place.then(|| Upload { uploads: self.clone(), token: token.to_owned() })
    }
}

pub(super) struct Upload {
    uploads: Uploads,
    token: String,
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.uploads.0.lock().remove(&self.token);
    }
}

/// The least speed of a body.
pub(super) struct UploadPace {
    begun: Instant,
}

impl UploadPace {
    pub const TOO_SLOW: &str = "the inventory arrives too slowly; send at least 16 KiB a second";

    pub fn begin() -> UploadPace {
        UploadPace { begun: monotonic() }
    }

    /// The deadline of the next part, after this many bytes.
    pub fn deadline(&self, received: u64) -> Instant {
        self.begun + SLACK + Duration::from_secs(received / LEAST_SPEED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_sends_one_inventory_at_a_time_and_all_tokens_a_few() {
        let uploads = Uploads::default();
        let one = uploads.begin("one").unwrap();
        assert!(uploads.begin("one").is_none());
        let others: Vec<Upload> = (1..MAX_AT_ONCE).map(|n| uploads.begin(&n.to_string()).unwrap()).collect();
        assert!(uploads.begin("two").is_none());
        drop(one);
        assert!(uploads.begin("two").is_some());
        assert_eq!(others.len(), MAX_AT_ONCE - 1);
    }

    #[test]
    fn a_body_earns_time_by_what_it_brings() {
        let pace = UploadPace::begin();
        assert_eq!(pace.deadline(0), pace.begun + SLACK);
        assert_eq!(pace.deadline(10 * LEAST_SPEED), pace.begun + SLACK + Duration::from_secs(10));
    }
}
