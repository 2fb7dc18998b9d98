//! How many requests a client may send: `http.requests_per_second`, and as many at once as two seconds have. A client
//! is a token or a user, and the network of its address where it is neither.
//!
//! Each client has a moment up to which its requests are accounted for. A request moves it on by the time of one
//! request; it is refused while the moment is too far ahead. So a client costs one entry, which is forgotten when its
//! moment has passed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::proxies::client_network;

/// The most clients that are remembered. Further clients are not limited; the limit of connections bounds them.
const MAX_CLIENTS: usize = 10_000;

/// How far a client may be ahead.
const MAX_BURST: Duration = Duration::from_secs(2);

/// The sender of a request, as far as the limit tells senders apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    /// The name of its token, or of the user.
    Named(String),
    Network(IpAddr),
}

impl Client {
    pub fn of(name: Option<&str>, address: IpAddr) -> Client {
        match name {
            Some(name) => Client::Named(name.to_owned()),
            None => Client::Network(client_network(address)),
        }
    }
}

/// The requests of the last moments.
pub(super) struct RequestLimit {
    /// The time of one request; zero: there is no limit.
    each: Duration,
    accounted: Mutex<HashMap<Client, Instant>>,
}

impl RequestLimit {
    /// `per_second`: zero for no limit.
    pub fn new(per_second: u32) -> RequestLimit {
        let each = if per_second == 0 { Duration::ZERO } else { Duration::from_secs(1) / per_second };
        RequestLimit { each, accounted: Mutex::default() }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// How long the client has to wait.
    pub fn count(&self, client: Client, now: Instant) -> Result<(), Duration> {
        if self.each.is_zero() {
            return Ok(());
        }
        let mut accounted = self.accounted.lock().expect("nothing panics under this lock");
        if accounted.len() >= MAX_CLIENTS {
            accounted.retain(|_, until| *until > now);
        }
        let until = accounted.get(&client).copied().unwrap_or(now).max(now) + self.each;
        let ahead = until.duration_since(now);
        if ahead > MAX_BURST {
            return Err(ahead - MAX_BURST);
        }
        if accounted.len() < MAX_CLIENTS || accounted.contains_key(&client) {
            accounted.insert(client, until);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_sends_as_many_at_once_as_two_seconds_have_and_others_are_unaffected() {
        let (limit, now) = (RequestLimit::new(10), Instant::now());
        let ana = || Client::of(Some("ana"), IpAddr::from([127, 0, 0, 1]));
        for _ in 0..20 {
            assert_eq!(limit.count(ana(), now), Ok(()));
        }
        assert_eq!(limit.count(ana(), now), Err(Duration::from_millis(100)));
        assert_eq!(limit.count(Client::of(None, IpAddr::from([127, 0, 0, 1])), now), Ok(()));
        let later = now + Duration::from_millis(100);
        assert_eq!(limit.count(ana(), later), Ok(()), "a refused request is not counted");
        assert!(limit.count(ana(), later).is_err());
        assert!((0..100).all(|_| RequestLimit::new(0).count(ana(), now).is_ok()));
    }

    #[test]
    fn clients_that_are_quiet_are_forgotten() {
        let (limit, now) = (RequestLimit::new(10), Instant::now());
        let client = |number: u32| Client::of(None, IpAddr::from(number.to_be_bytes()));
        for number in 0..MAX_CLIENTS as u32 {
            assert_eq!(limit.count(client(number), now), Ok(()));
        }
        for _ in 0..100 {
            assert_eq!(limit.count(client(u32::MAX), now), Ok(()), "one beyond them is not limited");
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(limit.count(client(u32::MAX), later), Ok(()));
        assert_eq!(limit.accounted.lock().unwrap().len(), 1);
    }
}
