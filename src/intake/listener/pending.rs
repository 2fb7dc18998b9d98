//! Connections that are not authenticated yet.
//!
//! Any client can open many connections and send nothing. So their number is bounded, and one address
//! has half of them at most: it cannot keep out the devices of other addresses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The most of them at a time; more are closed at once.
const MAX_PENDING: usize = 1024;

#[derive(Default)]
pub struct PendingConnections(Mutex<HashMap<IpAddr, usize>>);

/// Counts one pending connection until it is dropped.
pub struct PendingPermit(Arc<PendingConnections>, IpAddr);

impl PendingConnections {
    /// `None`: there are too many, of that address or of all.
    pub fn acquire(self: &Arc<PendingConnections>, address: IpAddr) -> Option<PendingPermit> {
        let address = address.to_canonical();
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counts.values().sum();
        let own = counts.entry(address).or_default();
        if all >= MAX_PENDING || *own >= MAX_PENDING / 2 {
            return None;
        }
        *own += 1;
        Some(PendingPermit(self.clone(), address))
    }
}

impl Drop for PendingPermit {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_never_has_more_than_half_of_the_pending_connections() {
        let pending = Arc::new(PendingConnections::default());
        let from = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut permits: Vec<PendingPermit> =
            (0..MAX_PENDING / 2).map_while(|_| pending.acquire(from(1))).collect();
        assert_eq!(permits.len(), MAX_PENDING / 2);
        assert!(pending.acquire(from(1)).is_none());
        permits.extend((0..MAX_PENDING / 2).map_while(|_| pending.acquire(from(2))));
        assert_eq!(permits.len(), MAX_PENDING);
        assert!(pending.acquire(from(3)).is_none(), "there are no more");
        permits.pop();
        assert!(pending.acquire(from(3)).is_some());
        permits.clear();
        assert!(pending.0.lock().unwrap().is_empty(), "addresses without one are forgotten");
    }
}
