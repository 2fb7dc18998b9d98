//! Mosquitto: its log of connections, where `log_dest topic` and `connection_messages` switch it on. Notices are on
//! `$SYS/broker/log/N`; a takeover is an error, on `$SYS/broker/log/E`.
//!
//! Versions up to 2.0 name the client alone, and version 2.1 also its address: `Client one [127.0.0.1:48134] disconnected`.
//!
//! A line names its client by an id that the client chose. So the words around the id are fixed at both ends of the
//! line, and a line in which an id could begin or end at two places says nothing. One line is the same in both versions: up
//! to 2.0 the client `one [127.0.0.1:48134]` may have left, in 2.1 the client `one`. So that line says nothing until
//! another one, which only one version writes, has shown the version of its log.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::Said;
use crate::presence::Cause;

pub(super) const TOPICS: [&str; 2] = ["$SYS/broker/log/N", "$SYS/broker/log/E"];

/// The longest line.
const MAX_LINE: usize = 1024;
/// The most logs whose versions are remembered; a full table is cleared.
const MAX_LOGS: usize = 1000;

const GONE: Said = Said::Gone(Cause::Disconnected);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogVersion {
    /// 2.0 and before.
    UpTo2_0,
    From2_1,
}

/// The versions of the brokers, by the topics of their logs.
#[derive(Default)]
pub(in crate::intake) struct Logs(Mutex<HashMap<String, LogVersion, FixedState>>);

impl Logs {
    /// What a line of the log on this topic says of which client.
    pub fn read<'a>(&self, topic: &str, line: &'a [u8]) -> Option<(&'a str, Said)> {
        let LogLine { said, up_to_2_0, from_2_1 } = read(line)?;
        let mut versions = self.0.lock();
        let id = match (up_to_2_0, from_2_1) {
            (Some(id), Some(other)) if id == other => id,
            (Some(id), Some(other)) => match versions.get(topic)? {
                LogVersion::UpTo2_0 => id,
                LogVersion::From2_1 => other,
            },
            (one, other) => {
                let version = if one.is_some() { LogVersion::UpTo2_0 } else { LogVersion::From2_1 };
                if versions.len() >= MAX_LOGS {
                    versions.clear();
                }
                *versions.entry_ref(topic).or_insert(version) = version;
                one.or(other)?
            }
        };
        Some((id, said))
    }
}

/// What a line says, and of which client, as each version would write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogLine<'a> {
    said: Said,
    up_to_2_0: Option<&'a str>,
    from_2_1: Option<&'a str>,
}

impl<'a> LogLine<'a> {
    fn of_both(said: Said, id: &'a str) -> LogLine<'a> {
        LogLine { said, up_to_2_0: Some(id), from_2_1: Some(id) }
    }

    fn up_to_2_0(said: Said, id: &'a str) -> LogLine<'a> {
        LogLine { from_2_1: None, ..LogLine::of_both(said, id) }
    }

    fn from_2_1(said: Said, id: &'a str) -> LogLine<'a> {
        LogLine { up_to_2_0: None, ..LogLine::of_both(said, id) }
    }
}

fn read(line: &[u8]) -> Option<LogLine<'_>> {
    // An id may be so long that the end of the line says something else than its beginning.
    let line = std::str::from_utf8(line).ok().filter(|line| line.len() < MAX_LINE)?.trim_end();
    if let Some(rest) = after(line, "New client connected from ") {
        return connected(rest);
    }
    if let Some(rest) = after(line, "Client ") {
        return ended(rest);
    }
    // An error of TLS, or of the system.
    if let Some(rest) = after(line, "Bad socket read/write on client ") {
        return Some(LogLine::of_both(GONE, only_before(rest, &[": "])?.0));
    }
    // A line of version 1.
    let id = after(line, "Socket error on client ")?.strip_suffix(", disconnecting.")?;
    Some(LogLine::up_to_2_0(GONE, id))
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

/// The client in `127.0.0.1:1883 as <id> (p2, c1, k60, u'user').` MQTT 3.1 and 3.1.1 are 1 and 2 up to version 2.0, and 3
/// and 4 from 2.1.
fn connected(rest: &str) -> Option<LogLine<'_>> {
    let (_, rest) = rest.split_once(" as ")?;
    let mut ends = rest.match_indices(" (p").filter_map(|(at, words)| {
        let protocol = rest[at + words.len()..].bytes().next().filter(u8::is_ascii_digit)?;
        rest[at + words.len() + 1..].starts_with(", c").then_some((at, protocol))
    });
    let (end, protocol) = ends.next()?;
    if ends.next().is_some() {
        return None;
    }
    let line = match protocol {
        b'1' | b'2' => LogLine::up_to_2_0,
        b'3' | b'4' => LogLine::from_2_1,
        _ => LogLine::of_both,
    };
    Some(line(Said::Here, &rest[..end]))
}

/// The client and the reason in `<id> closed its connection.` and its like.
fn ended(rest: &str) -> Option<LogLine<'_>> {
    for (words, said) in [
        (" closed its connection.", GONE),
        (" has exceeded timeout, disconnecting.", GONE),
        (" already connected, closing old connection.", Said::Nothing),
        (" been disconnected by administrative action.", GONE),
        (" disconnected, not authorised.", GONE),
    ] {
        if let Some(id) = rest.strip_suffix(words) {
            return Some(LogLine::up_to_2_0(said, id));
        }
    }
    if let Some(id) = rest.strip_suffix(" disconnected.") {
        let line = LogLine::up_to_2_0(Said::Left, id);
        return Some(LogLine { from_2_1: without_address(id), ..line });
    }
    let (id, reason) = only_before(rest.strip_suffix('.')?, &[" disconnected due to ", " disconnected: "])?;
    // Up to version 2.0, reasons after a colon are errors of the system or of the library, which begin with a capital.
    let is_of_2_1 = rest[id.len()..].starts_with(" disconnected: ")
        && reason.starts_with(|c: char| c.is_ascii_lowercase());
    let said = if reason == "session taken over" { Said::Nothing } else { GONE };
    match without_address(id).filter(|_| is_of_2_1) {
        Some(id) => Some(LogLine::from_2_1(said, id)),
        None => Some(LogLine::up_to_2_0(GONE, id)),
    }
}

/// The client in `<id> [<address>:<port>]`.
fn without_address(named: &str) -> Option<&str> {
    let (id, address) = named.strip_suffix(']')?.rsplit_once(" [")?;
    let port = address.rsplit_once(':')?.1;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port.then_some(id)
}

/// The text before these words and the text after them, if they stand there once.
fn only_before<'a>(text: &'a str, words: &[&str]) -> Option<(&'a str, &'a str)> {
    let mut found = words.iter().flat_map(|words| text.match_indices(words));
    let (end, words) = found.next()?;
    found.next().is_none().then(|| (&text[..end], &text[end + words.len()..]))
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
            ("1: New client connected from 127.0.0.1:47067 as five (p5, c1, k60).", "five", here),
            ("1: Client cut [127.0.0.1:50571] disconnected: connection closed by client.", "cut", gone),
            ("1: Client frozen [127.0.0.1:57866] disconnected: exceeded timeout.", "frozen", gone),
            ("1: Client x [127.0.0.1:5] disconnected: session taken over.", "x", Some(Said::Nothing)),
            ("1: Client x [127.0.0.1:5] disconnected: bad socket read/write: A TLS error.", "x", gone),
            ("1: Client x [127.0.0.1] disconnected.", "x [127.0.0.1]", Some(Said::Left)),
            // Ids that clients choose to be taken for another one.
            ("1: Client a disconnected. b disconnected.", "a disconnected. b", Some(Said::Left)),
            ("1: Client a: Client b disconnected.", "a: Client b", Some(Said::Left)),
            ("1: Client a disconnected due to x disconnected due to protocol error.", "", None),
            ("1: Bad socket read/write on client a: b: A TLS error occurred.", "", None),
            (
                "1: Client victim [127.0.0.1:5] disconnected: x closed its connection.",
                "victim [127.0.0.1:5] disconnected: x",
                gone,
            ),
            (
                "1: Client victim [127.0.0.1:5] disconnected: x disconnected.",
                "victim [127.0.0.1:5] disconnected: x",
                Some(Said::Left),
            ),
            (
                "1: Client victim [127.0.0.1:5] disconnected: Connection reset by peer.",
                "victim [127.0.0.1:5]",
                gone,
            ),
            (
                "1: Client victim [127.0.0.1:5] disconnected due to protocol error.",
                "victim [127.0.0.1:5]",
                gone,
            ),
            ("1: Client victim [::1:5] disconnected: x disconnected: Connection reset by peer.", "", None),
            ("1: Client victim [::1:5] disconnected: x disconnected due to protocol error.", "", None),
            ("1: Client a] disconnected: [::1:6] disconnected: exceeded timeout.", "", None),
            ("1: Client a] disconnected: protocol error.", "a]", gone),
            ("1: New client connected from 127.0.0.1:1 as a (p2, c1, k1) (p2, c1, k60).", "", None),
            ("1: New client connected from 127.0.0.1:1 as a (p2, c1, k1, u'(p2, c1').", "a", here),
            ("1: New client connected from 127.0.0.1:1 as a (p2, c1, k1, u' (p2, c1').", "", None),
            ("mosquitto version 2.0.11 terminating", "", None),
            ("", "", None),
        ];
        for (line, id, said) in cases {
            let log = Logs::default();
            assert_eq!(log.read("log/N", line.as_bytes()), said.map(|said| (id, said)), "{line}");
        }
        assert_eq!(read(&[b'x'; 2000]), None);
        let long = format!("1: Client victim disconnected.{}x closed its connection.", " ".repeat(1500));
        assert_eq!(read(long.as_bytes()), None, "the id of a client that means another one");
    }

    #[test]
    fn the_line_that_both_versions_write_is_read_as_the_version_writes_it_that_other_lines_show() {
        let ends = "1: Client one [127.0.0.1:5] disconnected.";
        let crafted = "1: Client a [::1:5] disconnected: b [::1:6] disconnected.";
        let connected = |protocol: u8| {
            format!("1: New client connected from 127.0.0.1:5 as one [127.0.0.1:5] (p{protocol}, c1, k60).")
        };
        let timeout = |client: &str| format!("1: Client {client} disconnected: exceeded timeout.");
        // A line, and the clients whose ends the two lines above are after it.
        for (line, clients) in [
            (String::new(), None),
            (connected(5), None),
            (connected(2), Some(["one [127.0.0.1:5]", "a [::1:5] disconnected: b [::1:6]"])),
            (
                "1: Client x closed its connection.".to_owned(),
                Some(["one [127.0.0.1:5]", "a [::1:5] disconnected: b [::1:6]"]),
            ),
            (connected(4), Some(["one", "a [::1:5] disconnected: b"])),
            (timeout("x [127.0.0.1:6]"), Some(["one", "a [::1:5] disconnected: b"])),
        ] {
            let log = Logs::default();
            log.read("log/N", line.as_bytes());
            for (nr, end) in [ends, crafted].into_iter().enumerate() {
                let expected = clients.map(|clients| (clients[nr], Said::Left));
                assert_eq!(log.read("log/N", end.as_bytes()), expected, "{line} {end}");
                assert_eq!(log.read("other/N", end.as_bytes()), None, "another broker");
            }
        }
    }
}
