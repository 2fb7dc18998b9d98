//! How often a client may send a wrong token: after [`MAX_WRONG`] within a minute it has to wait for its end. Logins and
//! bearer tokens are counted apart; a known bearer token is never refused.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use std::sync::{Mutex, MutexGuard};

use super::proxies::client_network;
use crate::clock::Timestamp;

/// The wrong tokens of a client within a minute.
const MAX_WRONG: u32 = 5;
const MINUTE: Duration = Duration::from_secs(60);
/// The clients that are remembered. Only a wrong token adds one, and few logins are checked at a time.
const MAX_CLIENTS: usize = 10_000;

/// The wrong tokens of the last minute.
#[derive(Default)]
pub(super) struct LoginLimit {
    clients: Mutex<HashMap<IpAddr, WrongTokens>>,
}

struct WrongTokens {
    count: u32,
    end: Timestamp,
}

impl LoginLimit {
    /// Counts a login as a wrong one until [`LoginLimit::uncount`], so that logins at the same time count too.
    ///
    /// # Errors
    /// How long the client has to wait.
    pub fn count(&self, client: IpAddr, now: Timestamp) -> Result<(), Duration> {
        let mut clients = self.clients();
        // A clock that was set back must not make a client wait for longer than a minute.
        clients.retain(|_, wrong| wrong.end > now && wrong.end <= now + MINUTE);
        let client = client_network(client);
        if clients.len() >= MAX_CLIENTS && !clients.contains_key(&client) {
            return Err(MINUTE);
        }
        let wrong = clients.entry(client).or_insert(WrongTokens { count: 0, end: now + MINUTE });
        if wrong.count >= MAX_WRONG {
            return Err(wrong.end.since(now));
        }
        wrong.count += 1;
        Ok(())
    }

    /// Takes back the count of a login with a known token. Earlier wrong ones stay.
    pub fn uncount(&self, client: IpAddr) {
        if let Some(wrong) = self.clients().get_mut(&client_network(client)) {
            wrong.count = wrong.count.saturating_sub(1);
        }
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<IpAddr, WrongTokens>> {
        self.clients.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_waits_after_five_wrong_tokens_and_others_do_not() {
        let (limit, now) = (LoginLimit::default(), Timestamp::from_millis(1_772_366_400_000));
        let [one, same, other]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::ffff:1", "192.0.2.1"].map(|address| address.parse().unwrap());
        assert!(limit.count(one, now).is_ok());
        limit.uncount(one);
        for _ in 0..MAX_WRONG {
            assert!(limit.count(one, now).is_ok());
        }
        let later = now + Duration::from_secs(20);
        assert_eq!(limit.count(same, later), Err(Duration::from_secs(40)));
        assert!(limit.count(other, later).is_ok());
        assert!(limit.count(one, now + MINUTE).is_ok());
        let before = Timestamp::from_millis(now.as_millis() - 3_600_000);
        assert!(limit.count(other, before).is_ok(), "the clock was set back");
    }
}
