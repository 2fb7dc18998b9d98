//! Causes of failures in words for operators. Libraries name a cause for programmers: `KeyMismatch`, `Promised
//! boundary crossed`, `os error 111`. This module says in one place what each cause means, and what to do.

pub mod json;

use std::error::Error;
use std::io::{self, ErrorKind};

use crate::trust::{self, chain};

/// Prefixes of libraries that only say where an error arose.
const PLACES: [&str; 9] = [
    "client error (Connect)",
    "client error (SendRequest)",
    "tcp connect error",
    "error trying to connect",
    "network error",
    "Connection error",
    "connection error",
    "I/O",
    "Mqtt state",
];

/// The cause of a failure. `section` names the options of the connection, `peer` is the other side: see
/// [`trust::advice`].
pub fn why(section: &str, peer: &str, error: &(dyn Error + 'static)) -> String {
    if let Some(cause) = trust::cause(error) {
        return trust::advice(section, peer, cause);
    }
    // The innermost error is the most exact.
    match chain(error).filter_map(|one| of_io(one.downcast_ref()?)).last() {
        Some(known) => known,
        None => texts(error),
    }
}

/// The meaning of a system or network error; `None` where its own text is clear enough.
pub fn of_io(error: &io::Error) -> Option<String> {
    let text = error.to_string();
    if let Some(answer) = text.strip_prefix("failed to lookup address information: ") {
        return Some(match answer.starts_with("Temporary failure") {
            true => {
                "its name cannot be looked up now: the resolver of this machine does not answer".to_owned()
            }
            false => "its name has no address: check the name, and the resolver of this machine".to_owned(),
        });
    }
    let known = match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused: nothing listens there",
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => "the other side closed the connection",
        ErrorKind::TimedOut => "no answer in time",
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => {
            "no network leads there"
        }
        ErrorKind::AddrInUse => "the address is in use by another program",
        ErrorKind::AddrNotAvailable => "this machine does not have that address",
        ErrorKind::PermissionDenied if error.raw_os_error().is_some() => "this user may not do that",
        _ => return None,
    };
    Some(known.to_owned())
}

/// The texts of an error and its causes on one line, without the numbers of the system.
fn texts(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for one in chain(error) {
        let more = without_number(&one.to_string());
        // Some errors already end with their cause.
        match (text.is_empty(), text.contains(&more)) {
            (true, _) => text = more,
            (false, true) => {}
            (false, false) => text = format!("{text}: {more}"),
        }
    }
    let mut shown = text.as_str();
    while let Some(rest) = PLACES.iter().find_map(|place| shown.strip_prefix(place)?.strip_prefix(": ")) {
        shown = rest;
    }
    shown.to_owned()
}

/// A text without ` (os error 111)`.
pub fn without_number(text: &str) -> String {
    match text.split_once(" (os error ") {
        Some((before, after)) => {
            format!("{before}{}", after.split_once(')').map_or("", |(_, rest)| rest))
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, ToSocketAddrs};

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{place}: {inner}")]
    struct Outer {
        place: &'static str,
        #[source]
        inner: io::Error,
    }

    #[test]
    fn errors_of_the_network_are_said_in_words() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        let in_use = TcpListener::bind(address).unwrap_err();
        drop(free);
        let refused = TcpStream::connect(address).unwrap_err();
        let unknown = ("no-such-name.invalid", 1).to_socket_addrs().unwrap_err();
        let made = |kind: ErrorKind| io::Error::new(kind, "unexpected end of file");
        for (error, said) in [
            (refused, "connection refused: nothing listens there"),
            (in_use, "the address is in use by another program"),
            (unknown, "its name "),
            (made(ErrorKind::UnexpectedEof), "the other side closed the connection"),
            (io::Error::from_raw_os_error(113), "no network leads there"),
            (io::Error::from_raw_os_error(13), "this user may not do that"),
            (io::Error::from_raw_os_error(104), "the other side closed the connection"),
            (io::Error::other("Promised"), "Promised"),
            (io::Error::from_raw_os_error(24), "Too many open files"),
        ] {
            let error = Outer { place: "client error (Connect)", inner: error };
            let text = why("receiver", "server", &error);
            assert!(text.starts_with(said) && !text.contains("os error"), "{text}, not {said}");
        }
    }

    #[test]
    fn an_error_of_tls_is_found_within_others() {
        let tls = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let error = Outer { place: "tls", inner: io::Error::other(tls) };
        let text = why("receiver", "server", &error);
        assert_eq!(text, "it does not speak TLS on this port; check receiver.url");
    }
}
