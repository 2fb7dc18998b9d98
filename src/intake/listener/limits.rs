//! The rate at which one connection is read, and the share of an amount that the connections of one address may have.
//!
//! No message above a rate is refused. The connection is read more slowly, so that its own socket holds the device
//! back: a client of MQTT 3.1.1 takes every refusal of a message for a success.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::address::client_network;

/// An amount for each second, which may also be used at once. Zero means no limit.
#[derive(Debug)]
pub struct Rate {
    a_second: f64,
    /// The amount that may be taken now. Below zero the connection has to wait.
    left: f64,
    at: Instant,
}

impl Rate {
    pub fn new(a_second: u32, now: Instant) -> Rate {
        Rate { a_second: a_second.into(), left: a_second.into(), at: now }
    }

    pub fn take(&mut self, amount: usize, now: Instant) {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.a_second;
        self.left = (self.left + gained).min(self.a_second) - amount as f64;
        self.at = now;
    }

    /// When more may be taken; `None` means now.
    pub fn waits_until(&self, now: Instant) -> Option<Instant> {
        let is_over = self.a_second > 0.0 && self.left < 0.0;
        let until = is_over.then(|| self.at + Duration::from_secs_f64(-self.left / self.a_second));
        until.filter(|until| *until > now)
    }
}

/// An amount that addresses share: one address gets at most half of it, so it cannot keep out the devices of others.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    taken: Mutex<(usize, HashMap<IpAddr, usize>)>,
}

/// A part of the amount; dropping it gives it back.
#[derive(Debug)]
pub struct Share {
    of: Arc<Shares>,
    address: IpAddr,
    amount: usize,
}

impl Shares {
    pub fn new(most: usize) -> Arc<Shares> {
        Arc::new(Shares { most, taken: Mutex::default() })
    }

    /// Takes a part; `None` if this address, or all together, would have too much.
    pub fn take(self: &Arc<Shares>, address: IpAddr, amount: usize) -> Option<Share> {
        let address = client_network(address);
        let mut taken = self.taken.lock();
        let (all, by_address) = &mut *taken;
        let own = by_address.get(&address).copied().unwrap_or_default();
        if *all + amount > self.most || own + amount > self.most / 2 {
            return None;
        }
        *all += amount;
        by_address.insert(address, own + amount);
        Some(Share { of: self.clone(), address, amount })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        taken.0 -= self.amount;
        if let Entry::Occupied(mut own) = taken.1.entry(self.address) {
            *own.get_mut() -= self.amount;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn what_was_taken_too_much_is_waited_for_and_no_more_than_a_second_is_saved_up() {
        let now = monotonic();
        let mut rate = Rate::new(10, now);
        rate.take(10, now);
        assert_eq!(rate.waits_until(now), None);
        rate.take(5, now);
        assert_eq!(rate.waits_until(now), Some(now + Duration::from_millis(500)));
        assert_eq!(rate.waits_until(now + Duration::from_millis(500)), None);
        let later = now + Duration::from_secs(60);
        rate.take(10, later);
        assert_eq!(rate.waits_until(later), None);
        rate.take(1, later);
        assert!(rate.waits_until(later).is_some());
        let mut free = Rate::new(0, now);
        free.take(1_000_000, now);
        assert_eq!(free.waits_until(now), None);
    }

    #[test]
    fn one_address_never_has_more_than_half_and_what_is_given_back_is_there_again() {
        let shares = Shares::new(10);
        let v4 = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut held: Vec<Share> = (0..5).map(|_| shares.take(v4(1), 1).unwrap()).collect();
        assert!(shares.take(v4(1), 1).is_none());
        held.push(shares.take(v4(2), 5).unwrap());
        assert!(shares.take(v4(3), 1).is_none(), "there is no more");
        held.pop();
        assert!(shares.take(v4(2), 6).is_none() && shares.take(v4(3), 1).is_some());
        held.clear();
        assert_eq!(*shares.taken.lock(), (0, HashMap::new()), "addresses without any are forgotten");
        // One client may use all addresses of its network.
        let v6 = |low: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, low]);
        let _held = shares.take(v6(1), 5).unwrap();
        assert!(shares.take(v6(2), 1).is_none());
    }
}
