//! The secrets of a receiver, and texts of other programs without them: a server may repeat what was sent to it.

use data_encoding::BASE64;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::Url;

/// A shorter secret is no secret, and would blacken half of an answer.
const SHORTEST: usize = 6;
/// A longer part of an address may be a secret.
const SECRETIVE_PART: usize = 16;
/// The first words of values of `Authorization`.
const SCHEMES: [&str; 4] = ["basic", "bearer", "digest", "token"];

/// Every spelling of every secret, the longest first.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// These texts and the words in them, such as the token after `Bearer`.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Secrets {
        let mut secrets = Secrets::default();
        for text in texts {
            let words: Vec<&str> = text.split_whitespace().collect();
            let is_scheme = |word: &str| SCHEMES.iter().any(|scheme| scheme.eq_ignore_ascii_case(word));
            for word in words.iter().filter(|word| !is_scheme(word)) {
                secrets.add(word);
                // The user and the password of `Basic`.
                let decoded =
                    BASE64.decode(word.as_bytes()).ok().and_then(|both| String::from_utf8(both).ok());
                if let Some((_, password)) = decoded.as_deref().and_then(|both| both.split_once(':')) {
                    secrets.add(password);
                }
            }
            if words.len() > 1 {
                secrets.add(&text);
            }
        }
        secrets
    }

    /// Also the password of an address, its user with the password, and long parts of its path and query.
    pub fn with_address(mut self, url: &Url) -> Secrets {
        let segments = url.path_segments().into_iter().flatten();
        let query = url.query().into_iter().flat_map(|query| query.split(['&', '=']));
        let parts = segments.chain(query).chain([url.username()]);
        for part in parts.filter(|part| part.len() >= SECRETIVE_PART).chain(url.password()) {
            self.add(part);
            self.add(&meant(part));
        }
        if let Some(password) = url.password() {
            self = self.with_login(&meant(url.username()), &meant(password));
        }
        self
    }

    /// Also a password, alone and as it is sent with its user: over HTTP (`Basic`) and SMTP (`PLAIN`).
    pub fn with_login(mut self, user: &str, password: &str) -> Secrets {
        self.add(password);
        for both in [format!("{user}:{password}"), format!("\0{user}\0{password}")] {
            self.add(&both);
        }
        self
    }

    fn add(&mut self, secret: &str) {
        if secret.len() < SHORTEST {
            return;
        }
        let json = serde_json::Value::from(secret).to_string();
        let json = json[1..json.len() - 1].to_owned();
        let spellings = [
            json.replace('/', "\\/"),
            json,
            utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string(),
            BASE64.encode(secret.as_bytes()),
            secret.to_owned(),
        ];
        self.0.extend(spellings);
        self.0.sort_unstable_by(|one, other| (other.len(), other).cmp(&(one.len(), one)));
        self.0.dedup();
    }

    /// The text with stars in the place of secrets.
    pub fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "***");
            }
        }
        text
    }
}

/// The part, percent-decoded.
fn meant(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_hidden_in_every_spelling_in_which_a_server_may_repeat_it() {
        let secrets = Secrets::new(["s3cr/t \"x\"".to_owned(), "Bearer t0ken-t0ken".to_owned()]);
        let secrets = secrets.with_login("ops", "pa$$word");
        for said in [
            "s3cr/t \"x\"",
            r#"s3cr\/t \"x\""#,
            "s3cr/t alone",
            "s3cr%2Ft",
            "t0ken-t0ken",
            &BASE64.encode(b"t0ken-t0ken"),
            "pa$$word",
            "pa%24%24word",
            &BASE64.encode(b"pa$$word"),
            &BASE64.encode(b"ops:pa$$word"),
            &BASE64.encode(b"\0ops\0pa$$word"),
        ] {
            let shown = secrets.hide(&format!("<{said}>"));
            assert!(shown.starts_with("<***"), "{said}: {shown}");
        }
        for kept in ["Bearer, 400 Bad Request", "ops", "s3cr"] {
            assert_eq!(secrets.hide(kept), kept);
        }
    }

    #[test]
    fn the_password_in_a_header_is_known() {
        let secrets = Secrets::new([format!("Basic {}", BASE64.encode(b"ops:pa$$word"))]);
        assert_eq!(secrets.hide("Basic pa$$word is wrong"), "Basic *** is wrong");
    }

    #[test]
    fn what_may_be_a_secret_of_an_address_is_known_as_it_is_written_and_as_it_is_meant() {
        let url = "https://user:s3cr%21t@example.org/hook/T0123456789abcdef?key=abc%2Bdefghijklmno&x=1";
        let secrets = Secrets::default().with_address(&url.parse().unwrap());
        for secret in [
            "s3cr%21t",
            "s3cr!t",
            "T0123456789abcdef",
            "abc%2Bdefghijklmno",
            "abc+defghijklmno",
            &BASE64.encode(b"user:s3cr!t"),
        ] {
            assert_eq!(secrets.hide(secret), "***");
        }
        assert_eq!(secrets.hide("hook user key x 1"), "hook user key x 1");
    }
}
