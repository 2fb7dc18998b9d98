//! Verifies passwords on threads of their own, a few at a time: one takes up to a second of a processor, and an
//! attacker can send wrong ones for free. As many passwords may wait as connections (see `server.rs`): a fleet that
//! returns after an outage fits, and an attacker waits as long as any other client.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::users::Users;

/// How many passwords are verified at the same time.
const AT_ONCE: usize = 1;
/// How long a password may wait: after that a client has given up.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The users, and a bound on the passwords that are verified at a time.
pub struct Authentication {
    users: Arc<Users>,
    verifying: Arc<Semaphore>,
    max_wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthOutcome {
    Accepted,
    Rejected,
    /// The password was not verified, because others took too long.
    Busy,
}

impl Authentication {
    pub fn of(users: Users) -> Authentication {
        let verifying = Arc::new(Semaphore::new(AT_ONCE));
        Authentication { users: Arc::new(users), verifying, max_wait: MAX_WAIT }
    }

    pub fn knows(&self, name: &str) -> bool {
        self.users.contains(name)
    }

    /// Checks the password of a user. Dropping the future frees its permit; a verification that has begun runs to its
    /// end.
    pub async fn verify(&self, name: &str, password: &[u8]) -> AuthOutcome {
        let permit = timeout(self.max_wait, self.verifying.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return AuthOutcome::Busy };
        let (users, name, password) = (self.users.clone(), name.to_owned(), password.to_vec());
        let verified = tokio::task::spawn_blocking(move || {
            let is_known = users.verify(&name, &password);
            drop(permit);
            is_known
        });
        if verified.await.unwrap_or(false) { AuthOutcome::Accepted } else { AuthOutcome::Rejected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authentication() -> Authentication {
        let line = format!("gateway:$7$101$LSL2y570hL7qK8HZ${}==", "A".repeat(86));
        Authentication::of(Users::parse(&line).unwrap())
    }

    /// A runtime with one thread for blocking work, and a sender that keeps that thread busy until it is dropped.
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
    fn other_connections_are_served_while_passwords_are_verified() {
        let (runtime, busy) = runtime();
        runtime.block_on(async {
            let authentication = authentication();
            let mut verified = std::pin::pin!(authentication.verify("gateway", b"wrong"));
            assert!(
                futures_util::poll!(&mut verified).is_pending(),
                "it blocks the thread of other connections"
            );
            drop(busy);
            assert_eq!(verified.await, AuthOutcome::Rejected);
        });
    }

    #[test]
    fn a_login_that_waits_too_long_for_others_is_refused_because_the_server_is_busy() {
        let (runtime, busy) = runtime();
        runtime.block_on(async {
            let authentication = Authentication { max_wait: Duration::ZERO, ..authentication() };
            let mut first = Box::pin(authentication.verify("a", b"b"));
            assert!(futures_util::poll!(&mut first).is_pending());
            assert_eq!(authentication.verify("gateway", b"secret").await, AuthOutcome::Busy);
            drop(busy);
            assert_eq!(first.await, AuthOutcome::Rejected);
            assert_eq!(authentication.verify("gateway", b"secret").await, AuthOutcome::Rejected);
        });
    }
}
