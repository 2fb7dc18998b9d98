//! The rates of clients: requests in a second, wrong tokens in a minute, timers of a token.
//!
//! Each client has one moment. Each request, token or timer moves it forward by a fixed time; while it is too far
//! ahead, the client has to wait. So a client saves up unused time, up to a bound, and costs one entry, which is
//! forgotten when its moment has passed. Each instance counts on its own.
//!
//! A request may be admitted first and counted by its size: the part beyond the limit is a debt, and the next request
//! waits until it is paid. So a batch is never cut in two.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use crate::address::client_network;
use crate::clock::Timestamp;

/// The most clients in memory.
const MAX_CLIENTS: usize = 10_000;

/// The sender of a request, as precisely as limits distinguish senders.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum LimitedClient {
    /// A client with a token or a user, by that name.
    Named(String),
    Network(IpAddr),
}

impl LimitedClient {
    pub fn of(name: Option<&str>, address: IpAddr) -> LimitedClient {
        match name {
            Some(name) => LimitedClient::Named(name.to_owned()),
            None => LimitedClient::Network(client_network(address)),
        }
    }
}

/// How much a client may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestRate {
    /// The time that one request, token or timer costs.
    each: Duration,
    /// The time that a client can save up, and then use at once.
    saved: Duration,
}

impl RequestRate {
    /// Five wrong tokens at once, and one more every twelve seconds.
    pub const WRONG_TOKENS: RequestRate =
        RequestRate { each: Duration::from_secs(12), saved: Duration::from_secs(60) };

    /// A limit of `rate` requests in a second; a client can save up what it may send in the time `saved`. `None` (no
    /// limit) if `rate` is 0.
    pub fn per_second(rate: u32, saved: Duration) -> Option<RequestRate> {
        (rate > 0).then(|| RequestRate { each: Duration::from_secs(1) / rate, saved })
    }
}

/// A timestamp as a moment for a limit.
pub(super) fn moment(at: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(at.as_millis()).unwrap_or_default())
}

/// The moments of clients. Moments are durations since a fixed start, which is the same in all calls.
pub(super) struct RequestLimit {
    accounts: Mutex<HashMap<LimitedClient, Account>>,
    /// Refuses new clients while too many are in memory.
    refuses_further: bool,
}

#[derive(Clone, Copy)]
struct Account {
    /// The moment of the client.
    until: Duration,
    /// The time of the last call.
    at: Duration,
}

impl Account {
    fn at(self, now: Duration) -> Account {
        // A clock that was set back must not make a client wait for longer.
        let until = self.until.saturating_sub(self.at.saturating_sub(now));
        Account { until: until.max(now), at: now }
    }
}

impl RequestLimit {
    /// A limit that admits new clients when too many are in memory: something else bounds their number.
    pub fn open() -> RequestLimit {
        RequestLimit { accounts: Mutex::default(), refuses_further: false }
    }

    /// A limit that makes new clients wait when too many are in memory.
    pub fn closed() -> RequestLimit {
        RequestLimit { accounts: Mutex::default(), refuses_further: true }
    }

    /// Counts one request, if it is admitted.
    ///
    /// # Errors
    /// How long the client has to wait.
    pub fn count(&self, client: LimitedClient, rate: RequestRate, now: Duration) -> Result<(), Duration> {
        let mut accounts = self.accounts.lock();
        let account = self.admitted(&mut accounts, &client, rate, now)?;
        keep(&mut accounts, client, account, rate.each);
        Ok(())
    }

    /// Admits one more request of a client, without counting it.
    ///
    /// # Errors
    /// How long the client has to wait.
    pub fn admit(&self, client: &LimitedClient, rate: RequestRate, now: Duration) -> Result<(), Duration> {
        self.admitted(&mut self.accounts.lock(), client, rate, now).map(|_| ())
    }

    /// Counts `count` requests, tokens or timers of an admitted request.
    pub fn take(&self, client: LimitedClient, rate: RequestRate, now: Duration, count: usize) {
        let mut accounts = self.accounts.lock();
        let account = account_of(&mut accounts, &client, now);
        let time = rate.each.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        keep(&mut accounts, client, account, time);
    }

    /// Takes back the count of one request.
    pub fn give_back(&self, client: &LimitedClient, rate: RequestRate) {
        if let Some(account) = self.accounts.lock().get_mut(client) {
            account.until = account.until.saturating_sub(rate.each);
        }
    }

    fn admitted(
        &self,
        accounts: &mut HashMap<LimitedClient, Account>,
        client: &LimitedClient,
        rate: RequestRate,
        now: Duration,
    ) -> Result<Account, Duration> {
        if accounts.len() >= MAX_CLIENTS && !accounts.contains_key(client) {
            accounts.retain(|_, one| one.at(now).until > now);
            if self.refuses_further && accounts.len() >= MAX_CLIENTS {
                return Err(rate.saved);
            }
        }
        let account = account_of(accounts, client, now);
        match (account.until + rate.each).checked_sub(now + rate.saved) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => Ok(account),
        }
    }
}

fn account_of(
    accounts: &mut HashMap<LimitedClient, Account>,
    client: &LimitedClient,
    now: Duration,
) -> Account {
    let Some(account) = accounts.get_mut(client) else { return Account { until: now, at: now } };
    *account = account.at(now);
    *account
}

fn keep(
    accounts: &mut HashMap<LimitedClient, Account>,
    client: LimitedClient,
    account: Account,
    time: Duration,
) {
    if accounts.len() < MAX_CLIENTS || accounts.contains_key(&client) {
        let until = account.until.saturating_add(time);
        accounts.insert(client, Account { until, ..account });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_764_000_000);
    const TWO: Duration = Duration::from_secs(2);

    fn named(name: &str) -> LimitedClient {
        LimitedClient::of(Some(name), IpAddr::from([127, 0, 0, 1]))
    }

    fn network(address: &str) -> LimitedClient {
        LimitedClient::of(None, address.parse().unwrap())
    }

    fn rate(per_second: u32, saved: u64) -> RequestRate {
        RequestRate::per_second(per_second, Duration::from_secs(saved)).unwrap()
    }

    #[test]
    fn a_client_sends_as_many_at_once_as_two_seconds_have_and_others_are_unaffected() {
        let (limit, rate) = (RequestLimit::open(), rate(10, 2));
        for _ in 0..20 {
            assert_eq!(limit.count(named("ana"), rate, NOW), Ok(()));
        }
        assert_eq!(limit.count(named("ana"), rate, NOW), Err(Duration::from_millis(100)));
        assert_eq!(limit.count(network("127.0.0.1"), rate, NOW), Ok(()));
        let later = NOW + Duration::from_millis(100);
        assert_eq!(limit.count(named("ana"), rate, later), Ok(()), "a refused request is not counted");
        assert!(limit.count(named("ana"), rate, later).is_err());
        assert_eq!(RequestRate::per_second(0, TWO), None);
    }

    #[test]
    fn a_client_waits_after_five_wrong_tokens_and_a_known_one_is_none() {
        let (limit, rate) = (RequestLimit::closed(), RequestRate::WRONG_TOKENS);
        let (one, same, other) = (network("2001:db8::1"), network("2001:db8::ffff:1"), network("192.0.2.1"));
        assert!(limit.count(one.clone(), rate, NOW).is_ok());
        limit.give_back(&one, rate);
        for _ in 0..5 {
            assert!(limit.count(one.clone(), rate, NOW).is_ok());
        }
        assert_eq!(limit.count(same, rate, NOW + TWO), Err(Duration::from_secs(10)));
        assert!(limit.count(other, rate, NOW + TWO).is_ok());
        let before = NOW - Duration::from_secs(3600);
        assert_eq!(
            limit.count(one.clone(), rate, before),
            Err(Duration::from_secs(10)),
            "the clock was set back"
        );
        assert!(limit.count(one, rate, before + Duration::from_secs(10)).is_ok());
    }

    #[test]
    fn a_debt_is_paid_before_the_next_request() {
        let (limit, rate) = (RequestLimit::open(), rate(100, 10));
        let admit = |now| limit.admit(&named("a"), rate, now);
        assert_eq!(admit(NOW), Ok(()));
        limit.take(named("a"), rate, NOW, 999);
        assert_eq!(admit(NOW), Ok(()), "one is left of what it saved up");
        limit.take(named("a"), rate, NOW, 501);
        assert_eq!(admit(NOW), Err(Duration::from_millis(5010)));
        assert_eq!(limit.admit(&named("b"), rate, NOW), Ok(()));
        assert!(admit(NOW + Duration::from_secs(5)).is_err());
        assert_eq!(admit(NOW + Duration::from_secs(6)), Ok(()));
        // Even a day later the client has saved up no more than ten seconds of its rate.
        let later = NOW + Duration::from_secs(86_400);
        limit.take(named("a"), rate, later, 1000);
        assert_eq!(admit(later), Err(Duration::from_millis(10)));
        limit.take(named("a"), rate, later, usize::MAX);
        assert!(admit(later).is_err());
    }

    #[test]
    fn clients_that_are_quiet_are_forgotten_and_further_ones_wait_where_the_limit_is_closed() {
        for limit in [RequestLimit::open(), RequestLimit::closed()] {
            let (rate, is_closed) = (rate(10, 2), limit.refuses_further);
            let client = |number: u32| LimitedClient::of(None, IpAddr::from(number.to_be_bytes()));
            for number in 0..MAX_CLIENTS as u32 {
                assert_eq!(limit.count(client(number), rate, NOW), Ok(()));
            }
            for _ in 0..100 {
                assert_eq!(limit.count(client(u32::MAX), rate, NOW).is_err(), is_closed);
            }
            assert_eq!(limit.count(client(u32::MAX), rate, NOW + TWO), Ok(()));
            assert_eq!(limit.accounts.lock().len(), 1);
        }
    }
}
