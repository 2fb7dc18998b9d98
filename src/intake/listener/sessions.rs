//! The sessions of all clients, by client id: takeover, keeping, and last wills that wait.
//!
//! A session belongs to a client id, and the id to the user that connected with it: a client that connects with the id
//! of another user is refused, and one of the same user takes the session over.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::router::Router;
use super::session::{End, MAX_KEPT_AWAY, Message, Session, Wire};

/// How long a session is kept at most while its client is away.
pub const MAX_EXPIRY: Duration = Duration::from_secs(86_400);

/// A message that is published when the client is gone.
#[derive(Debug)]
pub struct LastWill {
    pub message: Message,
    pub qos: u8,
    pub retain: bool,
    pub delay: Duration,
    pub expiry: Option<Duration>,
    pub user: Option<String>,
    pub id: Box<str>,
}

#[derive(Default)]
pub struct Sessions {
    clients: Mutex<HashMap<Box<str>, Client>>,
    kept: Arc<AtomicUsize>,
    /// The most sessions whose client is away.
    max_away: usize,
}

struct Client {
    session: Arc<Session>,
    user: Option<String>,
    /// 0: the client is away.
    connection: u64,
    /// When the session ends, while the client is away.
    until: Instant,
    /// The will, and when it is published.
    will: Option<(Instant, LastWill)>,
}

/// An admitted client.
pub struct Joined {
    pub session: Arc<Session>,
    pub is_present: bool,
    /// Another connection had the session.
    pub took_over: bool,
    /// A will that waited for the end of the session.
    pub will: Option<LastWill>,
}

impl Sessions {
    pub fn new(max_away: usize, kept: Arc<AtomicUsize>) -> Sessions {
        Sessions { max_away, kept, ..Sessions::default() }
    }

    /// Gives connection `number` its session; `None`: the id belongs to another user.
    pub fn join(
        &self,
        id: &str,
        user: Option<&str>,
        number: u64,
        (is_clean, wire): (bool, Wire),
        router: &Router,
    ) -> Option<Joined> {
        let mut clients = self.lock();
        let known = match clients.get(id) {
            Some(client) if client.user.as_deref() != user => return None,
            _ => clients.remove(id),
        };
        let took_over = known.as_ref().is_some_and(|client| client.connection != 0);
        let (mut will, mut session, mut is_present) = (None, None, false);
        if let Some(client) = known {
            if took_over {
                client.session.give_up(End::TakenOver);
            }
            if is_clean {
                will = client.will.map(|(_, will)| will);
                end(&client.session, router);
            } else {
                (session, is_present) = (Some(client.session), true);
            }
        }
        let session = session.unwrap_or_else(|| Arc::new(Session::new(id, number, self.kept.clone())));
        session.connect(number, wire);
        let (user, until) = (user.map(str::to_owned), Instant::now());
        let client = Client { session: session.clone(), user, connection: number, until, will: None };
        clients.insert(id.into(), client);
        Some(Joined { session, is_present, took_over, will })
    }

    /// A connection has ended; answers with the will that is due now.
    pub fn leave(
        &self,
        session: &Session,
        number: u64,
        expiry: Duration,
        will: Option<LastWill>,
        router: &Router,
    ) -> Option<LastWill> {
        session.disconnected(number);
        let mut clients = self.lock();
        // Another connection has taken over: a will that was to wait for it is not published.
        let Some(client) = clients.get_mut(&session.id).filter(|client| client.connection == number) else {
            return will.filter(|will| will.delay.is_zero());
        };
        if expiry.is_zero() {
            clients.remove(&session.id);
            end(session, router);
            return will;
        }
        let now = Instant::now();
        (client.connection, client.until) = (0, now + expiry.min(MAX_EXPIRY));
        let due = match will {
            Some(will) if !will.delay.is_zero() => {
                client.will = Some((now + will.delay.min(expiry), will));
                None
            }
            will => will,
        };
        let away = clients.values().filter(|client| client.connection == 0);
        if away.clone().count() > self.max_away
            && let Some(first) = away.min_by_key(|client| client.until).map(|client| client.session.clone())
            && let Some(client) = clients.remove(&first.id)
        {
            end(&first, router);
            return due.or(client.will.map(|(_, will)| will));
        }
        due
    }

    /// The clients that are away and for which most waits lose it, where all together have too much: so none that keeps
    /// little loses it for those that keep much.
    pub fn trim(&self) -> Vec<Arc<Session>> {
        let clients = self.lock();
        let away = clients.values().filter(|client| client.connection == 0);
        let mut kept: Vec<_> = away.map(|client| (client.session.bytes(), &client.session)).collect();
        let mut all: usize = kept.iter().map(|(bytes, _)| bytes).sum();
        kept.sort_by_key(|(bytes, _)| *bytes);
        let mut forgotten = Vec::new();
        while all > MAX_KEPT_AWAY
            && let Some((bytes, session)) = kept.pop()
        {
            session.forget();
            forgotten.push(session.clone());
            all -= bytes;
        }
        forgotten
    }

    /// Ends sessions whose time is over; answers with the wills that are due.
    pub fn expire(&self, now: Instant, router: &Router) -> Vec<LastWill> {
        let mut clients = self.lock();
        let due = |client: &mut Client| client.will.take_if(|(at, _)| *at <= now).map(|(_, will)| will);
        let mut wills: Vec<LastWill> = clients.values_mut().filter_map(due).collect();
        for (_, client) in clients.extract_if(|_, client| client.connection == 0 && client.until <= now) {
            end(&client.session, router);
            wills.extend(client.will.map(|(_, will)| will));
        }
        wills
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(session: &Session, router: &Router) {
    for filter in session.end() {
        router.unsubscribe(session, &filter);
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::Delivery;
    use super::*;

    #[test]
    fn of_clients_that_are_away_those_for_which_most_waits_lose_it_first() {
        let router = Router::default();
        let sessions = Sessions::new(10, router.kept.clone());
        let leaves = |id: &str, number: u64, megabytes: usize| {
            let wire = Wire { max_packet: 1 << 24, receive_maximum: 20, ..Wire::default() };
            let session = sessions.join(id, None, number, (true, wire), &router).unwrap().session;
            for _ in 0..megabytes {
                let (topic, payload, properties) = ("t".into(), vec![0; 1 << 20].into(), [].into());
                let message = Message { topic, payload, properties, expires: None, from: 0, kept: None };
                let (message, numbers) = (Arc::new(message), Vec::new());
                assert!(session.deliver(Delivery { message, qos: 1, retain: false, numbers, kept: None }));
            }
            sessions.leave(&session, number, Duration::from_secs(60), None, &router);
            session
        };
        let kept = [("a", 6), ("b", 1), ("c", 7), ("d", 5)].map(|(id, size)| leaves(id, size as u64, size));
        let forgotten: Vec<String> = sessions.trim().iter().map(|session| session.id.to_string()).collect();
        assert_eq!(forgotten, ["c"]);
        assert!(kept[0].bytes() > 0 && kept[1].bytes() > 0 && kept[2].bytes() == 0);
        assert_eq!(sessions.trim().len(), 0);
    }
}
