//! Signatures of webhooks, as in the Standard Webhooks specification.
//!
//! A message has three headers: its id, the second at which it was sent, and `v1,` with the HMAC-SHA256 of
//! `id.second.body` in base64. Sender and receiver share the key, which is written `whsec_` and base64.
//!
//! # Why
//! The library of the specification brings ten crates for a task that `ring` does in one line. The tests compare the
//! results.

use data_encoding::BASE64;
use ring::hmac::{Context, HMAC_SHA256, Key};
use subtle::ConstantTimeEq;

use crate::clock::Timestamp;

/// The header with the id of a message.
pub const ID: &str = "webhook-id";
/// The header with the time of a message, in seconds since 1970.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// The header with the signatures of a message, separated by spaces.
pub const SIGNATURE: &str = "webhook-signature";

/// The prefix of the secret of a webhook.
const PREFIX: &str = "whsec_";
/// The prefix of a symmetric signature.
const VERSION: &str = "v1,";
/// A receiver refuses a message whose time differs from its own by more than this, in seconds.
const TOLERANCE: i64 = 300;
/// The most keys, because each adds a signature to every message.
const MAX_KEYS: usize = 4;

/// The keys that sender and receiver share: one key, or several during a change of keys.
#[derive(Clone)]
pub struct Secret(Vec<Key>);

impl Secret {
    /// Reads `whsec_` and a key in base64; several keys are separated by white space.
    ///
    /// # Errors
    /// The fault, without the text, which is a secret.
    pub fn parse(text: &str) -> Result<Secret, &'static str> {
        let keys = text.split_whitespace().map(|secret| match secret.strip_prefix(PREFIX) {
            None => Err("does not begin with whsec_"),
            Some("") => Err("is empty after whsec_"),
            Some(key) => {
                let key = BASE64.decode(key.as_bytes()).map_err(|_| "is not base64 after whsec_")?;
                Ok(Key::new(HMAC_SHA256, &key))
            }
        });
        match keys.collect::<Result<Vec<Key>, _>>()? {
            none if none.is_empty() => Err("is empty"),
            keys if keys.len() > MAX_KEYS => Err("has more than four keys"),
            keys => Ok(Secret(keys)),
        }
    }

    /// The signatures of a message sent at this second, one for each key.
    pub fn sign(&self, id: &str, seconds: i64, body: &[u8]) -> String {
        let head = format!("{id}.{seconds}.");
        let sign = |key| {
            let mut context = Context::with_key(key);
            context.update(head.as_bytes());
            context.update(body);
            format!("{VERSION}{}", BASE64.encode(context.sign().as_ref()))
        };
        self.0.iter().map(sign).collect::<Vec<String>>().join(" ")
    }

    /// Returns whether one of the signatures belongs to this message, and the message was sent at about `now`.
    pub fn verifies(&self, id: &str, seconds: &str, signatures: &str, body: &[u8], now: Timestamp) -> bool {
        let Ok(seconds) = seconds.parse::<i64>() else { return false };
        let expected = self.sign(id, seconds, body);
        let is_expected = |signature: &str| {
            expected.split(' ').any(|expected| signature.as_bytes().ct_eq(expected.as_bytes()).into())
        };
        let is_signed = signatures.split(' ').any(is_expected);
        is_signed && (now.as_millis() / 1000 - seconds).abs() <= TOLERANCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const BODY: &[u8] = b"{\"test\": 2432232314}";

    fn secret(text: &str) -> Secret {
        Secret::parse(text).unwrap_or_else(|why| panic!("{text} {why}"))
    }

    #[test]
    fn a_signature_is_that_of_the_library_of_the_specification() {
        let library = standardwebhooks::Webhook::new(SECRET).unwrap();
        for (id, seconds, body) in [("msg_1", 1_614_265_330, BODY), ("", 0, b""), ("é.", -7, b"{}")] {
            assert_eq!(secret(SECRET).sign(id, seconds, body), library.sign(id, seconds, body).unwrap());
        }
    }

    #[test]
    fn while_the_secret_is_changed_a_receiver_verifies_with_the_old_one_and_with_the_new_one() {
        let both = secret(&format!("{SECRET}\n whsec_c2VjcmV0\n"));
        let (seconds, signatures) = (1_614_265_330, both.sign("msg_1", 1_614_265_330, BODY));
        let now = Timestamp::from_millis(1000 * seconds);
        let verifies = |one: &Secret| one.verifies("msg_1", &seconds.to_string(), &signatures, BODY, now);
        assert!(verifies(&secret(SECRET)) && verifies(&secret("whsec_c2VjcmV0")) && verifies(&both));
        assert!(!verifies(&secret("whsec_b3RoZXI=")));
        assert!(both.verifies(
            "msg_1",
            "1614265330",
            &secret(SECRET).sign("msg_1", seconds, BODY),
            BODY,
            now
        ));
    }

    #[test]
    fn only_a_message_that_is_signed_and_fresh_is_verified() {
        let (secret, other) = (secret(SECRET), secret("whsec_c2VjcmV0"));
        let now = Timestamp::from_millis(1_614_265_330_000);
        let signed = |at: i64| secret.sign("msg_1", 1_614_265_330 + at, BODY);
        let cases = [
            ("1614265330", signed(0), true),
            ("1614265030", signed(-300), true),
            ("1614265029", signed(-301), false),
            ("1614265630", signed(300), true),
            ("1614265631", signed(301), false),
            ("1614265331", signed(0), false),
            ("soon", signed(0), false),
            ("1614265330", format!("v1a,x {} v1,", signed(0)), true),
            ("1614265330", other.sign("msg_1", 1_614_265_330, BODY), false),
            ("1614265330", signed(0)[..8].to_owned(), false),
            ("1614265330", String::new(), false),
        ];
        for (seconds, signatures, expected) in cases {
            let verified = secret.verifies("msg_1", seconds, &signatures, BODY, now);
            assert_eq!(verified, expected, "{seconds} {signatures}");
        }
        assert!(!secret.verifies("msg_2", "1614265330", &signed(0), BODY, now));
        assert!(!secret.verifies("msg_1", "1614265330", &signed(0), b"{}", now));
    }

    #[test]
    fn a_secret_is_read_and_no_error_shows_it() {
        for text in ["s3cret", "whsec_", "whsec_s3cret!", "whsec_c2VjcmV", "WHSEC_c2VjcmV0"] {
            assert!(Secret::parse(text).is_err_and(|why| !why.contains("s3cret")), "{text}");
        }
    }
}
