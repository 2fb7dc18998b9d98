//! The users that may connect, from a file in the format of Mosquitto's `password_file`, which `mosquitto_passwd`
//! writes: `name:$7$<iterations>$<salt>$<hash>` on each line, salt and hash in base64, the hash PBKDF2-HMAC-SHA512. The
//! older `$6$` (a salted hash that is fast to guess) and passwords in the clear are refused.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;

use data_encoding::BASE64;
use ring::pbkdf2::{self, PBKDF2_HMAC_SHA512};

/// The most iterations: more would make every login slow.
const MAX_ITERATIONS: u32 = 1_000_000;

/// The users of a file.
#[derive(Default)]
pub struct Users {
    by_name: HashMap<String, Password>,
    /// Chooses the user whose password replaces that of an unknown user in the check; the choice differs between
    /// processes.
    decoys: RandomState,
}

struct Password {
    iterations: NonZeroU32,
    salt: Vec<u8>,
    hash: Vec<u8>,
}

impl Users {
    /// Reads a file.
    ///
    /// # Errors
    /// The first line that cannot be read, with its number and without its password.
    pub fn parse(text: &str) -> Result<Users, String> {
        let mut users = Users::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, secret) =
                line.split_once(':').ok_or_else(|| format!("line {number}: there is no :"))?;
            let password = Password::parse(secret).ok_or_else(|| {
                format!("line {number}: the password of {name:?} is not in the form $7$…; write it with mosquitto_passwd")
            })?;
            users.by_name.insert(name.to_owned(), password);
        }
        if users.by_name.is_empty() {
            return Err("there is no user in it; add one with mosquitto_passwd".to_owned());
        }
        Ok(users)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Checks the password of a user. An unknown user takes as long as a known one: the password is compared with that
    /// of another user, which stays the same.
    ///
    /// The check is slow on purpose, so it must not run on a thread that serves other connections; see
    /// [`super::authentication`].
    pub fn verify(&self, name: &str, password: &[u8]) -> bool {
        let known = self.by_name.get(name);
        let compared = known.or_else(|| self.decoy(name));
        compared.is_some_and(|compared| compared.is(password)) && known.is_some()
    }

    fn decoy(&self, name: &str) -> Option<&Password> {
        let count = self.by_name.len().max(1) as u64;
        self.by_name.values().nth((self.decoys.hash_one(name) % count) as usize)
    }
}

impl Password {
    fn is(&self, password: &[u8]) -> bool {
        pbkdf2::verify(PBKDF2_HMAC_SHA512, self.iterations, &self.salt, password, &self.hash).is_ok()
    }

    fn parse(text: &str) -> Option<Password> {
        let mut parts = text.strip_prefix("$7$")?.split('$');
        let iterations: u32 = parts.next()?.parse().ok().filter(|number| *number <= MAX_ITERATIONS)?;
        let mut bytes = || BASE64.decode(parts.next()?.as_bytes()).ok().filter(|bytes| !bytes.is_empty());
        let (salt, hash) = (bytes()?, bytes()?);
        Some(Password { iterations: NonZeroU32::new(iterations)?, salt, hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mosquitto_passwd -b` for the password "secret" (version 2.0.11).
    const LINE: &str = "gateway:$7$101$LSL2y570hL7qK8HZ$0fCn+BAhwwEE8yQ/NjM6H4gJC/7a4ekLjsAJ/QceBzrZGVJ1p9IKzXDelUB+/ko3VGo8x/LreWjjDmoTifpqWg==";

    #[test]
    fn a_user_of_mosquitto_passwd_is_known_by_its_password_only() {
        let users = Users::parse(LINE).unwrap();
        assert!(users.verify("gateway", b"secret"));
        assert!(!users.verify("gateway", b"Secret"));
        assert!(!users.verify("gateway", b""));
        assert!(!users.verify("other", b"secret"));
    }

    #[test]
    fn an_unknown_name_is_compared_with_a_password_too_and_never_known_by_it() {
        let users = Users::parse(&format!("{LINE}\n{}", LINE.replace("gateway", "other"))).unwrap();
        for name in ["", "a", "b", "c", "gateways"] {
            let compared = users.decoy(name).expect("as long as for a known user");
            assert!(compared.is(b"secret") && !users.verify(name, b"secret"), "{name}");
            assert!(std::ptr::eq(compared, users.decoy(name).unwrap()), "always the same");
        }
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_without_its_password() {
        for text in
            ["", "# no user\n", "gateway", "gateway:hunter2", "a:$6$x$y", "a:$7$0$YQ==$YQ==", "a:$7$9$!$YQ=="]
        {
            let why = Users::parse(text).err().expect(text);
            assert!(!why.contains("hunter2"), "{why}");
        }
    }
}
