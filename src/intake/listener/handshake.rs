//! From an accepted socket to an admitted client.
//!
//! A client has to be admitted within [`WITHIN`]. Its first packet is a CONNECT of at most [`MAX_CONNECT`] bytes. A
//! refused client gets the reason in the format of its version. An unsupported version is refused with the code of MQTT
//! 3.1.1, and counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::access_control::{Peer, Refusal};
use super::bytes::{BAD_CLIENT_ID, PROTOCOL, UNSUPPORTED_VERSION, Version, Violation};
use super::codec::{self, Arrived, Connect};
use super::connection::{Connection, Stream, WINDOW, close, read, timer};
use super::encode;
use super::limits::{Rate, Share};
use super::message::Wire;
use super::properties::{
    ASSIGNED_ID, MAXIMUM_PACKET, RECEIVE_MAXIMUM, SERVER_KEEP_ALIVE, SESSION_EXPIRY, TOPIC_ALIAS_MAXIMUM,
};
use super::receive::MAX_ALIASES;
use super::sessions::{Joined, MAX_EXPIRY};
use super::shared::{Shared, seconds, will_of};
use crate::clock::monotonic;
use crate::telemetry::BrokerRefusal;

/// The largest CONNECT: names, password and will. The will stays in memory as long as the connection lasts.
const MAX_CONNECT: usize = 16 << 10;
/// How long an admission may take, without the check of the password.
pub const WITHIN: Duration = Duration::from_secs(10);
/// The longest keep-alive at MQTT 5; also the keep-alive of a client that requests none.
const MAX_KEEP_ALIVE: u16 = 3600;
/// The answer to a browser that requests a page.
const NO_PAGE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n\
                         devices speak MQTT here, and pages speak it at broker.websocket_listen\n";

/// The next number of a connection; 0 means no connection.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Serves a client from its first packet to its end.
pub async fn serve(shared: Arc<Shared>, stream: Box<dyn Stream>, from: SocketAddr, pending: Share) {
    let stop = shared.stop.clone();
    let begun = stop.run_until_cancelled(Box::pin(begin(&shared, stream, from, pending))).await;
    if let Some(Some((connection, place))) = begun {
        connection.run().await;
        drop(place);
    }
}

/// Admits a client; the connection counts until the permit is dropped.
async fn begin(
    shared: &Arc<Shared>,
    mut stream: Box<dyn Stream>,
    from: SocketAddr,
    pending: Share,
) -> Option<(Connection, OwnedSemaphorePermit)> {
    let (mut input, mut peer, mut answer) = (Vec::new(), Peer::unknown(from), Vec::new());
    let first = timeout(WITHIN, first_packet(&mut stream, &mut input)).await;
    let (version, Refusal { what, code, why }) = 'refused: {
        let length = match first {
            Ok(Ok(length)) => length,
            // The client left or sent nothing: a scanner, or a check of a load balancer.
            Ok(Err(None)) => return None,
            Ok(Err(Some(violation))) => break 'refused (None, violation.into()),
            Err(_) => {
                let violation = Violation { code: PROTOCOL, why: "no CONNECT within 10 s" };
                break 'refused (None, violation.into());
            }
        };
        let rest = input.split_off(length);
        let Ok(Arrived::Whole(frame)) = codec::frame(&input, length, None) else { return None };
        let connect = match frame.connect() {
            Ok(connect) => connect,
            Err((version, violation)) => break 'refused (version, violation.into()),
        };
        match admit(shared, &connect, &mut peer).await {
            Ok((joined, place)) => {
                drop(pending);
                return Some((connected(shared, (stream, rest), &connect, peer, joined).await, place));
            }
            Err(refusal) => (Some(connect.version), refusal),
        }
    };
    shared.access.refuse(what, &peer, &why);
    match version {
        Some(version) => encode::refused(&mut answer, version, code),
        None if input.starts_with(b"GET ") => answer.extend(NO_PAGE),
        None => return None,
    }
    close(&mut stream, &answer).await;
    None
}

/// Waits until the first packet has arrived; returns its length.
async fn first_packet(stream: &mut Box<dyn Stream>, input: &mut Vec<u8>) -> Result<usize, Option<Violation>> {
    loop {
        if input.first().is_some_and(|first| *first != 0x10) {
            return Err(Some(Violation { code: PROTOCOL, why: "something else than a CONNECT first" }));
        }
        if let Arrived::Whole(frame) = codec::frame(input, MAX_CONNECT, None)? {
            return Ok(frame.length);
        }
        match read(stream, input).await {
            Ok(0) | Err(_) => return Err(None),
            Ok(_) => {}
        }
    }
}

impl From<Violation> for Refusal {
    fn from(Violation { code, why }: Violation) -> Refusal {
        let is_version = code == UNSUPPORTED_VERSION;
        let what = if is_version { BrokerRefusal::Version } else { BrokerRefusal::Packet };
        Refusal { what, code, why: format!("it sent {why}") }
    }
}

/// The number, the way of writing and the session of a new connection.
type Entered = (u64, Wire, Joined);

/// Checks the login and the limits, and assigns the session to the client.
async fn admit(
    shared: &Arc<Shared>,
    connect: &Connect<'_>,
    peer: &mut Peer,
) -> Result<(Entered, OwnedSemaphorePermit), Refusal> {
    peer.id = match connect.id {
        "" => format!("client-{:016x}", rand::random::<u64>()).into(),
        id => id.into(),
    };
    let login = (connect.user, connect.password.unwrap_or_default());
    let (user, place) = shared.access.admit(&peer.id, login).await?;
    peer.user = user;
    let (number, version) = (NUMBERS.fetch_add(1, Ordering::Relaxed), connect.version);
    let wire = Wire {
        version,
        max_packet: connect.listed.max_packet.unwrap_or(u32::MAX) as usize,
        receive_maximum: connect.listed.receive_maximum.unwrap_or(u16::MAX),
    };
    let how = (connect.clean, wire);
    match shared.sessions.join(&peer.id, peer.user.as_deref(), number, how, &shared.router) {
        Some(joined) => Ok(((number, wire, joined), place)),
        None => {
            let why = "another user has this client id; give each device its own";
            Refusal::new(BrokerRefusal::ClientId, BAD_CLIENT_ID, why)
        }
    }
}

/// The connection of an admitted client, with its answer.
///
/// In one piece: it only builds the connection, part after part.
async fn connected(
    shared: &Arc<Shared>,
    (stream, input): (Box<dyn Stream>, Vec<u8>),
    connect: &Connect<'_>,
    peer: Peer,
    (number, wire, Joined { session, is_present, took_over, will }): Entered,
) -> Connection {
    if took_over {
        let why = "another connection had this client id and was closed; give each device its own";
        shared.access.refuse(BrokerRefusal::TakenOver, &peer, why);
    }
    if let Some(will) = will {
        shared.publish_will(will).await;
    }
    let is_five = connect.version == Version::Five;
    let at_four = if connect.clean { 0 } else { u32::MAX };
    let wanted = seconds(if is_five { connect.listed.session_expiry.unwrap_or(0) } else { at_four });
    // A client of MQTT 5 gets a keep-alive from the server, so that a dead connection is noticed.
    let asks_too_much = is_five && !(1..=MAX_KEEP_ALIVE).contains(&connect.keep_alive);
    let keep_alive = if asks_too_much { MAX_KEEP_ALIVE } else { connect.keep_alive };
    let (mut out, mut granted) = (Vec::new(), Vec::new());
    let mut grant = |id: u8, value: &[u8]| {
        granted.push(id);
        granted.extend(value);
    };
    grant(RECEIVE_MAXIMUM, &WINDOW.to_be_bytes());
    grant(MAXIMUM_PACKET, &u32::try_from(shared.config.max_packet).unwrap_or(u32::MAX).to_be_bytes());
    grant(TOPIC_ALIAS_MAXIMUM, &MAX_ALIASES.to_be_bytes());
    if wanted > MAX_EXPIRY {
        grant(SESSION_EXPIRY, &(MAX_EXPIRY.as_secs() as u32).to_be_bytes());
    }
    if asks_too_much {
        grant(SERVER_KEEP_ALIVE, &keep_alive.to_be_bytes());
    }
    if connect.id.is_empty() {
        grant(ASSIGNED_ID, &(peer.id.len() as u16).to_be_bytes());
        granted.extend(peer.id.as_bytes());
    }
    encode::connected(&mut out, connect.version, is_present, &granted);
    let now = monotonic();
    Connection {
        shared: shared.clone(),
        stream,
        input,
        out,
        number,
        wire,
        is_bridge: connect.is_bridge,
        will: connect.will.as_ref().map(|will| will_of(will, &peer, session.number)),
        session,
        peer,
        expiry: wanted.min(MAX_EXPIRY),
        silence: (keep_alive > 0).then(|| seconds(keep_alive.into()).mul_f64(1.5)),
        aliases: Default::default(),
        batch: Vec::new(),
        handing_over: None,
        messages: Rate::new(shared.config.max_rate, now),
        bytes: Rate::new(shared.config.max_bytes_per_second, now),
        large: None,
        heard: now,
        second_look: None,
        again: None,
        timer: timer(),
    }
}
