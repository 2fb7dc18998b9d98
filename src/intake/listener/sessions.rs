//! The sessions of all clients, by client id: takeover, expiry, and waiting last wills.
//!
//! A session belongs to a client id, and the id to the user that connected with it: a client that connects with the id
//! of another user is refused, and a client of the same user takes the session over.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::access_control::Peer;
use super::message::{Message, Wire};
use super::router::Router;
use super::session::{End, MAX_KEPT_AWAY, Session};
use crate::clock::monotonic;

/// The longest time that a session of a disconnected client is kept.
pub const MAX_EXPIRY: Duration = Duration::from_secs(86_400);

/// A message that is published when the client is gone.
#[derive(Debug)]
pub struct LastWill {
    pub peer: Peer,
    pub message: Message,
    pub qos: u8,
    pub retain: bool,
    pub delay: Duration,
    pub expiry: Option<Duration>,
    /// The client is connected again.
    pub is_former: bool,
}

pub struct Sessions {
    state: Mutex<KnownClients>,
    kept: Arc<AtomicUsize>,
    /// The most sessions of disconnected clients.
    max_away: usize,
}

#[derive(Default)]
struct KnownClients {
    clients: HashMap<Box<str>, Client>,
    /// The disconnected clients, by the end of their sessions.
    away: BTreeSet<(Instant, Box<str>)>,
}

struct Client {
    session: Arc<Session>,
    user: Option<String>,
    /// The number of the connection; 0 if the client is disconnected.
    connection: u64,
    /// When the session of a disconnected client ends.
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
        Sessions { state: Mutex::default(), kept, max_away }
    }

    /// Assigns the session of a client id to connection `number`; `None` if the id belongs to another user.
    pub fn join(
        &self,
        id: &str,
        user: Option<&str>,
        number: u64,
        (is_clean, wire): (bool, Wire),
        router: &Router,
    ) -> Option<Joined> {
        let mut state = self.state.lock();
        let known = match state.clients.get(id) {
            Some(client) if client.user.as_deref() != user => return None,
            _ => state.remove(id),
        };
        let took_over = known.as_ref().is_some_and(|client| client.connection != 0);
        let (mut will, mut session, mut is_present) = (None, None, false);
        if let Some(client) = known {
            if took_over {
                client.session.give_up(End::TakenOver);
            }
            if is_clean {
                will = client.end(router).map(former);
            } else {
                (session, is_present) = (Some(client.session), true);
            }
        }
        let session = session.unwrap_or_else(|| Arc::new(Session::new(id, number, self.kept.clone())));
        session.connect(number, wire);
        let (user, until) = (user.map(str::to_owned), monotonic());
        let client = Client { session: session.clone(), user, connection: number, until, will: None };
        state.clients.insert(id.into(), client);
        Some(Joined { session, is_present, took_over, will })
    }

    /// Notes the end of a connection; returns the wills that are due now.
    pub fn leave(
        &self,
        session: &Session,
        number: u64,
        expiry: Duration,
        will: Option<LastWill>,
        router: &Router,
    ) -> Vec<LastWill> {
        session.disconnected(number);
        let mut state = self.state.lock();
        let client =
            state.clients.get_mut(&session.id).filter(|client| client.session.number == session.number);
        let Some(client) = client else {
            // The session has ended, because its client connected again without it.
            return Vec::from_iter(will.map(former));
        };
        if client.connection != number {
            // Another connection continues the session, so a will with a delay is not published.
            return Vec::from_iter(will.filter(|will| will.delay.is_zero()).map(former));
        }
        if expiry.is_zero() {
            state.clients.remove(&session.id);
            end(session, router);
            return Vec::from_iter(will);
        }
        let now = monotonic();
        (client.connection, client.until) = (0, now + expiry.min(MAX_EXPIRY));
        let end = (client.until, session.id.clone());
        let mut due = Vec::from_iter(will);
        client.will =
            due.pop_if(|will| !will.delay.is_zero()).map(|will| (now + will.delay.min(expiry), will));
        state.away.insert(end);
        if state.away.len() > self.max_away
            && let Some((_, first)) = state.away.pop_first()
        {
            due.extend(state.clients.remove(&first).and_then(|client| client.end(router)));
        }
        due
    }

    /// If the disconnected clients together have too many bytes, empties the largest of their sessions, so that a
    /// client with few messages does not lose them to one with many. Returns the emptied sessions.
    pub fn trim(&self) -> Vec<Arc<Session>> {
        if self.kept.load(Ordering::Relaxed) <= MAX_KEPT_AWAY {
            return Vec::new();
        }
        let state = self.state.lock();
        let away = state.away.iter().filter_map(|(_, id)| Some(&state.clients.get(id)?.session));
        let mut kept: Vec<_> = away.map(|session| (session.bytes(), session)).collect();
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

    /// Ends expired sessions; returns the wills that are due.
    pub fn expire(&self, now: Instant, router: &Router) -> Vec<LastWill> {
        let mut state = self.state.lock();
        let due = |client: &mut Client| client.will.take_if(|(at, _)| *at <= now).map(|(_, will)| will);
        let mut wills: Vec<LastWill> = state.clients.values_mut().filter_map(due).collect();
        while state.away.first().is_some_and(|(until, _)| *until <= now)
            && let Some((_, id)) = state.away.pop_first()
        {
            wills.extend(state.clients.remove(&id).and_then(|client| client.end(router)));
        }
        wills
    }
}

impl KnownClients {
    fn remove(&mut self, id: &str) -> Option<Client> {
        let (id, client) = self.clients.remove_entry(id)?;
        self.away.remove(&(client.until, id));
        Some(client)
    }
}

impl Client {
    /// Ends the session; returns the will that waited for it.
    fn end(self, router: &Router) -> Option<LastWill> {
        end(&self.session, router);
        self.will.map(|(_, will)| will)
    }
}

fn former(will: LastWill) -> LastWill {
    LastWill { is_former: true, ..will }
}

fn end(session: &Session, router: &Router) {
    for filter in session.end() {
        router.unsubscribe(session, &filter);
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::Shares;
    use super::super::message::{Delivery, Kept};
    use super::*;

    fn join(sessions: &Sessions, id: &str, number: u64, is_clean: bool, router: &Router) -> Joined {
        let wire = Wire { max_packet: 1 << 24, receive_maximum: 20, ..Wire::default() };
        sessions.join(id, None, number, (is_clean, wire), router).unwrap()
    }

    #[test]
    fn of_clients_that_are_away_those_for_which_most_waits_lose_it_first() {
        let router = Router::default();
        let sessions = Sessions::new(10, router.kept.clone());
        let leaves = |id: &str, number: u64, megabytes: usize| {
            let session = join(&sessions, id, number, true, &router).session;
            for _ in 0..megabytes {
                let kept = Some(Kept::new(&router.kept, 1 << 20));
                let (topic, payload) = ("t".into(), vec![0; 1 << 20].into());
                let message = Arc::new(Message { topic, payload, kept, ..Message::default() });
                let numbers = Vec::new();
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

    #[test]
    fn the_session_that_ends_first_makes_room_and_none_outlives_its_time() {
        let (router, now) = (Router::default(), monotonic());
        let sessions = Sessions::new(2, router.kept.clone());
        for (number, id, seconds) in [(1, "a", 90), (2, "b", 30), (3, "c", 60)] {
            let session = join(&sessions, id, number, true, &router).session;
            sessions.leave(&session, number, Duration::from_secs(seconds), None, &router);
        }
        assert!(!join(&sessions, "b", 4, false, &router).is_present, "it was the first to end");
        sessions.expire(now + Duration::from_secs(75), &router);
        assert!(!join(&sessions, "c", 5, false, &router).is_present);
        assert!(join(&sessions, "a", 6, false, &router).is_present);
        assert!(sessions.state.lock().away.is_empty(), "none is away");
    }

    #[test]
    fn a_will_with_a_delay_is_published_when_its_session_has_ended_and_not_when_it_goes_on() {
        let router = Router::default();
        let sessions = Sessions::new(2, router.kept.clone());
        let will = || LastWill {
            peer: Peer { from: ([127, 0, 0, 1], 1).into(), id: "a".into(), user: None },
            message: Message::default(),
            qos: 0,
            retain: false,
            delay: Duration::from_secs(60),
            expiry: None,
            is_former: false,
        };
        let leaves = |session: &Session, number: u64| {
            sessions.leave(session, number, Duration::from_secs(600), Some(will()), &router)
        };
        let leave = |session: &Session, number: u64| leaves(session, number).len() == 1;
        let first = join(&sessions, "a", 1, true, &router).session;
        // The second connection takes over with the session, and the third without it.
        let second = join(&sessions, "a", 2, false, &router).session;
        assert!(!leave(&first, 1));
        let third = join(&sessions, "a", 3, true, &router).session;
        assert!(leaves(&second, 2).iter().all(|will| will.is_former) && leave(&second, 2));
        let shares = Shares::new(10);
        assert_eq!(second.subscribe("a", 10, || shares.take([127, 0, 0, 1].into(), 1)), None, "it has ended");
        // The will waits until the client connects again without its session.
        assert!(!leave(&third, 3));
        let fourth = join(&sessions, "a", 4, true, &router);
        assert!(fourth.will.is_some_and(|will| will.is_former), "its client is connected again");
        let ended = sessions.leave(&fourth.session, 4, Duration::ZERO, Some(will()), &router);
        assert!(!ended[0].is_former, "its client is gone");
    }
}
