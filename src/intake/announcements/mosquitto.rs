//! Mosquitto: its log of connections, where `log_dest topic` and `connection_messages` switch it on. Notices are on
//! `$SYS/broker/log/N`; a takeover is an error, on `$SYS/broker/log/E`.
//!
//! Version 2.0 names the client alone, and version 2.1 also its address: `Client one [127.0.0.1:48134] disconnected`.
//!
//! A line contains an id that the client chose. So fixed words must surround the id, at both ends of the line, and a
//! line in which the id could begin or end at two places is ignored.

use super::Said;
use crate::presence::Cause;

pub(super) const TOPICS: [&str; 2] = ["$SYS/broker/log/N", "$SYS/broker/log/E"];

/// The longest line.
const MAX_LINE: usize = 1024;

/// The client and the meaning of a line.
pub(in crate::intake) fn read(line: &[u8]) -> Option<(&str, Said)> {
    // A long id may cut off the end of the line, and so change its meaning.
    let line = std::str::from_utf8(line).ok().filter(|line| line.len() < MAX_LINE)?.trim_end();
    if let Some(rest) = after(line, "New client connected from ") {
        return Some((connected(rest)?, Said::Here));
    }
    if let Some(rest) = after(line, "Client ") {
        return ended(rest);
    }
    let gone = Said::Gone(Cause::Disconnected);
    // An error of TLS, or of the operating system.
    if let Some(rest) = after(line, "Bad socket read/write on client ") {
        return Some((only_before(rest, &[": "])?, gone));
    }
    // A line of version 1.
    let id = after(line, "Socket error on client ")?.strip_suffix(", disconnecting.")?;
    Some((id, gone))
}

/// The rest of a line that begins with these words, after the time if there is one.
fn after<'a>(line: &'a str, words: &str) -> Option<&'a str> {
    if let Some(rest) = line.strip_prefix(words) {
        return Some(rest);
    }
    let (time, rest) = line.split_once(": ")?;
    let is_time = time.len() <= 64 && time.starts_with(|c: char| c.is_ascii_digit());
    rest.strip_prefix(words).filter(|_| is_time)
}

/// The client in `127.0.0.1:1883 as <id> (p2, c1, k60, u'user').`
fn connected(rest: &str) -> Option<&str> {
    let (_, rest) = rest.split_once(" as ")?;
    let mut ends = rest.match_indices(" (p").filter(|(at, words)| {
        let rest = &rest[at + words.len()..];
        rest.starts_with(|c: char| c.is_ascii_digit()) && rest[1..].starts_with(", c")
    });
    let (end, _) = ends.next()?;
    ends.next().is_none().then_some(&rest[..end])
}

/// The client and the reason in lines such as `<id> closed its connection.`
fn ended(rest: &str) -> Option<(&str, Said)> {
    let gone = Said::Gone(Cause::Disconnected);
    if let Some((named, reason)) = rest.rsplit_once("] disconnected") {
        return with_address(named, reason);
    }
    for (words, said) in [
        (" disconnected.", Said::Left),
        (" closed its connection.", gone),
        (" has exceeded timeout, disconnecting.", gone),
        (" already connected, closing old connection.", Said::Nothing),
        (" been disconnected by administrative action.", gone),
        (" disconnected, not authorised.", gone),
    ] {
        if let Some(id) = rest.strip_suffix(words) {
            return Some((id, said));
        }
    }
    let id = only_before(rest, &[" disconnected due to ", " disconnected: "])?;
    rest.ends_with('.').then_some((id, gone))
}

/// The client and the reason of version 2.1: `<id> [<address>:<port>`, and the text after `] disconnected`.
fn with_address<'a>(named: &'a str, reason: &str) -> Option<(&'a str, Said)> {
    let (id, address) = named.rsplit_once(" [")?;
    let port = address.rsplit_once(':')?.1;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let said = match reason {
        "." => Said::Left,
        ": session taken over." => Said::Nothing,
        _ if reason.starts_with(": ") => Said::Gone(Cause::Disconnected),
        _ => return None,
    };
    is_port.then_some((id, said))
}

/// The text before these words, if they occur once.
fn only_before<'a>(text: &'a str, words: &[&str]) -> Option<&'a str> {
    let mut found = words.iter().flat_map(|words| text.match_indices(words).map(|(at, _)| at));
    let end = found.next()?;
    found.next().is_none().then_some(&text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_says_that_a_client_came_or_ended() {
        let (here, gone) = (Some(Said::Here), Some(Said::Gone(Cause::Disconnected)));
        // Lines of Mosquitto 2.0.11.
        let cases = [
            ("1795915471: New connection from 127.0.0.1:48134 on port 21883.", "", None),
            ("1795915471: New client connected from 127.0.0.1:48134 as one (p2, c1, k60).", "one", here),
            (
                "1795915472: New client connected from 127.0.0.1:48180 as four x (p5, c1, k60, u'us').",
                "four x",
                here,
            ),
            ("New client connected from 127.0.0.1:48180 as a (p2, c1, k60).", "a", here),
            ("2026-11-29T01:30:00: New client connected from ::1:5 as a (p2, c1, k60).", "a", here),
            ("1795915471: Client one disconnected.", "one", Some(Said::Left)),
            ("1795915471: Client two closed its connection.", "two", gone),
            ("1795915481: Client frozen has exceeded timeout, disconnecting.", "frozen", gone),
            (
                "1795915472: Client three already connected, closing old connection.",
                "three",
                Some(Said::Nothing),
            ),
            ("1795915472: Client x disconnected due to protocol error.", "x", gone),
            ("1795915472: Client x disconnected: Connection reset by peer.", "x", gone),
            ("1: Bad socket read/write on client x: A TLS error occurred.", "x", gone),
            ("1: Client x negotiated TLSv1.3 cipher TLS_AES_256_GCM_SHA384", "", None),
            ("1: Client connection from 192.0.2.1 denied: max_connections exceeded.", "", None),
            // Lines of version 1 and of version 2.1.
            ("1515309375: Socket error on client x, disconnecting.", "x", gone),
            ("1795933561: New client connected from 127.0.0.1:47067 as one (p4, c1, k60).", "one", here),
            ("1795933561: Client one [127.0.0.1:47067] disconnected.", "one", Some(Said::Left)),
            ("1795933564: Client four x [::1:54379] disconnected.", "four x", Some(Said::Left)),
            ("1: Client cut [127.0.0.1:50571] disconnected: connection closed by client.", "cut", gone),
            ("1: Client frozen [127.0.0.1:57866] disconnected: exceeded timeout.", "frozen", gone),
            ("1: Client x [127.0.0.1:5] disconnected: session taken over.", "x", Some(Said::Nothing)),
            ("1: Client x [127.0.0.1:5] disconnected: bad socket read/write: A TLS error.", "x", gone),
            ("1: Client x [127.0.0.1] disconnected.", "", None),
            // Ids that clients choose to pass for another client.
            ("1: Client a disconnected. b disconnected.", "a disconnected. b", Some(Said::Left)),
            ("1: Client a: Client b disconnected.", "a: Client b", Some(Said::Left)),
            ("1: Client a disconnected due to x disconnected due to protocol error.", "", None),
            ("1: Bad socket read/write on client a: b: A TLS error occurred.", "", None),
            (
                "1: Client a [::1:5] disconnected: b [::1:6] disconnected.",
                "a [::1:5] disconnected: b",
                Some(Said::Left),
            ),
            ("1: Client a] disconnected: [::1:6] disconnected: exceeded timeout.", "a] disconnected:", gone),
            ("1: Client a] disconnected: protocol error.", "", None),
            ("1: New client connected from 127.0.0.1:1 as a (p2, c1, k1) (p2, c1, k60).", "", None),
            ("1: New client connected from 127.0.0.1:1 as a (p2, c1, k1, u'(p2, c1').", "a", here),
            ("1: New client connected from 127.0.0.1:1 as a (p2, c1, k1, u' (p2, c1').", "", None),
            ("mosquitto version 2.0.11 terminating", "", None),
            ("", "", None),
        ];
        for (line, id, said) in cases {
            assert_eq!(read(line.as_bytes()), said.map(|said| (id, said)), "{line}");
        }
        assert_eq!(read(&[b'x'; 2000]), None);
        let long = format!("1: Client victim disconnected.{}x closed its connection.", " ".repeat(1500));
        assert_eq!(read(long.as_bytes()), None, "the id of a client that means another one");
    }
}
