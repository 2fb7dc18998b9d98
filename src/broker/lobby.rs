//! Connections that have not been let in yet.
//!
//! A stranger can open as many as it likes, and say nothing. So their number is bounded, and one address
//! has half of the places at the most: it cannot keep the devices of other addresses out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The most of them at a time; more are closed at once.
const MOST: usize = 1024;

#[derive(Default)]
pub(super) struct Lobby(Mutex<HashMap<IpAddr, usize>>);

/// A place in it, until it is dropped.
pub(super) struct Ticket(Arc<Lobby>, IpAddr);

impl Lobby {
    /// A place, if there is one left for that address.
    pub fn enter(self: &Arc<Lobby>, address: IpAddr) -> Option<Ticket> {
        let address = address.to_canonical();
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = places.values().sum();
        let own = places.entry(address).or_default();
        if all >= MOST || *own >= MOST / 2 {
            return None;
        }
        *own += 1;
        Some(Ticket(self.clone(), address))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut places = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = places.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                places.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_never_has_more_than_half_of_the_places() {
        let lobby = Arc::new(Lobby::default());
        let from = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut tickets: Vec<Ticket> = (0..MOST / 2).map_while(|_| lobby.enter(from(1))).collect();
        assert_eq!(tickets.len(), MOST / 2);
        assert!(lobby.enter(from(1)).is_none());
        tickets.extend((0..MOST / 2).map_while(|_| lobby.enter(from(2))));
        assert_eq!(tickets.len(), MOST);
        assert!(lobby.enter(from(3)).is_none(), "there are no more");
        tickets.pop();
        assert!(lobby.enter(from(3)).is_some());
        tickets.clear();
        assert!(lobby.0.lock().unwrap().is_empty(), "it forgets those that have left");
    }
}
