//! Passwords are looked at beside the threads that serve everything else, a few at a time: one takes up to
//! a second of a processor, and wrong ones cost an attacker nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::users::Users;

/// How many passwords are looked at at the same time.
const AT_ONCE: usize = 1;
/// How many more may wait for that; others are told to come again. A fleet that comes back after an outage
/// fits, and an attacker waits as long as everybody else.
const WAITING: usize = 1024;
/// How long one may wait: a client gives up by then.
const PATIENCE: Duration = Duration::from_secs(10);

/// The users, and how many of them are being looked at.
pub(super) struct Logins {
    users: Arc<Users>,
    waiting: Semaphore,
    looking: Arc<Semaphore>,
}

/// What came of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    Right,
    Wrong,
    /// It was not looked at: too many wait.
    Busy,
}

impl Logins {
    pub fn of(users: Users) -> Logins {
        Logins {
            users: Arc::new(users),
            waiting: Semaphore::new(WAITING + AT_ONCE),
            looking: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Whether there is a user of that name.
    pub fn know(&self, name: &str) -> bool {
        self.users.has(name)
    }

    /// Looks whether that is the password of that user. A caller that goes away frees its place; what is being
    /// looked at is brought to its end.
    pub async fn look(&self, name: &str, password: &[u8]) -> Login {
        let Ok(_place) = self.waiting.try_acquire() else { return Login::Busy };
        let turn = timeout(PATIENCE, self.looking.clone().acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Login::Busy };
        let (users, name, password) = (self.users.clone(), name.to_owned(), password.to_vec());
        let looked = tokio::task::spawn_blocking(move || {
            let known = users.knows(&name, &password);
            drop(turn);
            known
        });
        if looked.await.unwrap_or(false) { Login::Right } else { Login::Wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logins() -> Logins {
        let line = format!("gateway:$7$101$LSL2y570hL7qK8HZ${}==", "A".repeat(86));
        Logins::of(Users::parse(&line).unwrap())
    }

    /// A runtime with one thread for what takes long, and what keeps that thread until it is dropped.
    fn runtime() -> (tokio::runtime::Runtime, std::sync::mpsc::Sender<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let (busy, until) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || until.recv());
        (runtime, busy)
    }

    #[test]
    fn others_are_served_while_passwords_are_looked_at() {
        let (runtime, busy) = runtime();
        runtime.block_on(async {
            let logins = logins();
            let mut look = std::pin::pin!(logins.look("gateway", b"wrong"));
            assert!(futures_util::poll!(&mut look).is_pending(), "it was looked at where others are served");
            drop(busy);
            assert_eq!(look.await, Login::Wrong);
        });
    }

    #[test]
    fn what_comes_beyond_those_that_wait_is_told_to_come_again() {
        let (runtime, busy) = runtime();
        runtime.block_on(async {
            let logins = logins();
            let looks: Vec<_> = (0..WAITING + AT_ONCE).map(|_| Box::pin(logins.look("a", b"b"))).collect();
            let mut looks = futures_util::future::select_all(looks);
            assert!(futures_util::poll!(&mut looks).is_pending());
            assert_eq!(logins.look("gateway", b"secret").await, Login::Busy);
            drop((looks, busy));
            assert_eq!(logins.look("gateway", b"secret").await, Login::Wrong, "they went away");
        });
    }
}
