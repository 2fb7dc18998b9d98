//! From an accepted socket to an admitted client.
//!
//! A client has to be admitted within [`WITHIN`], its first packet is a CONNECT of at most [`MAX_CONNECT`] bytes, and a
//! client that is not admitted is told why in the form of its version. A version that is not spoken here is refused
//! with the code of MQTT 3.1.1 for that, and counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::access_control::{AdmittedClient, ConnectRefusal};
use super::bytes::{BAD_CLIENT_ID, BAD_LOGIN, BUSY, PROTOCOL, UNSUPPORTED_VERSION, Version, Violation};
use super::codec::{self, Arrived, BadConnect, Connect};
use super::connection::{Connection, Stream, WINDOW, close, read, timer};
use super::encode::{self, Granted};
use super::limits::{Rate, Share};
use super::receive::MAX_ALIASES;
use super::session::Wire;
use super::sessions::{Joined, MAX_EXPIRY};
use super::shared::{Peer, Shared, will_of};
use crate::telemetry::BrokerRefusal;

/// The largest CONNECT: names, password and will. The will is kept as long as the connection lasts.
const MAX_CONNECT: usize = 16 << 10;
/// How long a client may take to be admitted, beside the check of its password.
pub const WITHIN: Duration = Duration::from_secs(10);
/// The longest keep-alive at MQTT 5; a client that asks for none gets it.
const MAX_KEEP_ALIVE: u16 = 3600;

/// Numbers of connections; 0 is none.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Serves a client from its first packet to its end.
pub async fn serve(shared: Arc<Shared>, stream: Box<dyn Stream>, from: SocketAddr, pending: Share) {
    let stop = shared.stop.clone();
    let begun = stop.run_until_cancelled(Box::pin(begin(&shared, stream, from, pending))).await;
    if let Some(Some((connection, client))) = begun {
        connection.run().await;
        drop(client);
    }
}

async fn begin(
    shared: &Arc<Shared>,
    mut stream: Box<dyn Stream>,
    from: SocketAddr,
    pending: Share,
) -> Option<(Connection, AdmittedClient)> {
    let mut input = Vec::new();
    let first = tokio::time::timeout(WITHIN, first_packet(&mut stream, &mut input)).await;
    let length = match first {
        Ok(Ok(length)) => length,
        Ok(Err(Some(violation))) => {
            refuse_packet(shared, from, &format!("it sent {}", violation.why));
            return None;
        }
        // It left, or it said nothing: a scanner, or a check of a load balancer.
        Ok(Err(None)) => return None,
        Err(_) => {
            refuse_packet(shared, from, "it sent no CONNECT within 10 s");
            return None;
        }
    };
    let rest = input.split_off(length);
    let Ok(Arrived::Whole(frame)) = codec::frame(&input, MAX_CONNECT, None) else { return None };
    let refusal = match frame.connect() {
        Ok(connect) => match admit(shared, &connect, from).await {
            Ok((peer, client)) => {
                drop(pending);
                let connected = joined(shared, stream, &connect, peer, rest).await?;
                return Some((connected, client));
            }
            Err(code) => (connect.version, code),
        },
        Err(bad) => refused(shared, from, bad)?,
    };
    let mut answer = Vec::new();
    encode::refused(&mut answer, refusal.0, refusal.1);
    close(&mut stream, &answer).await;
    None
}

/// The length of the first packet, when it has arrived.
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

fn refuse_packet(shared: &Shared, from: SocketAddr, why: &str) {
    shared.access.refuse(BrokerRefusal::Packet, from, "", why);
}

/// Counts and logs a CONNECT that is of no use; answers with the version and the code to reply with, if any.
fn refused(shared: &Shared, from: SocketAddr, bad: BadConnect) -> Option<(Version, u8)> {
    match bad {
        BadConnect::NotMqtt(why) => {
            refuse_packet(shared, from, why);
            None
        }
        BadConnect::Level(level) => {
            let why = format!("it speaks level {level} of MQTT; let it speak 3.1.1 (level 4) or 5");
            shared.access.refuse(BrokerRefusal::Version, from, "", &why);
            let version = if level > 5 && level < 0x80 { Version::Five } else { Version::Four };
            Some((version, UNSUPPORTED_VERSION))
        }
        BadConnect::Violation(version, Violation { code, why }) => {
            refuse_packet(shared, from, &format!("it sent {why}"));
            Some((version, code))
        }
    }
}

/// Checks the login and the limits; answers with the reason code of a refusal.
async fn admit(
    shared: &Arc<Shared>,
    connect: &Connect<'_>,
    from: SocketAddr,
) -> Result<(Peer, AdmittedClient), u8> {
    let assigned = format!("client-{:016x}", rand::random::<u64>());
    let id = if connect.id.is_empty() { &assigned } else { connect.id };
    let admitted = shared.access.admit(id, (connect.user, connect.password.unwrap_or_default()), from).await;
    match admitted {
        Ok(client) => Ok((Peer { from, id: id.into(), user: client.user.clone() }, client)),
        Err(ConnectRefusal::Login) => Err(BAD_LOGIN),
        Err(ConnectRefusal::ClientId) => Err(BAD_CLIENT_ID),
        Err(ConnectRefusal::Full) => Err(BUSY),
    }
}

/// Gives an admitted client its session, and answers.
///
/// In one piece: it only builds the connection, part after part.
async fn joined(
    shared: &Arc<Shared>,
    mut stream: Box<dyn Stream>,
    connect: &Connect<'_>,
    peer: Peer,
    input: Vec<u8>,
) -> Option<Connection> {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let wire = Wire {
        version: connect.version,
        max_packet: connect.max_packet as usize,
        receive_maximum: connect.receive_maximum,
    };
    let user = peer.user.as_deref();
    let joined = shared.sessions.join(&peer.id, user, number, (connect.clean, wire), &shared.router);
    let Some(Joined { session, is_present, took_over, will }) = joined else {
        let why = "another user has a session with this client id; give each device its own";
        shared.refuse(BrokerRefusal::ClientId, &peer, why);
        let mut answer = Vec::new();
        encode::refused(&mut answer, connect.version, BAD_CLIENT_ID);
        close(&mut stream, &answer).await;
        return None;
    };
    if took_over {
        let why = "another connection had this client id and was closed; give each device its own";
        shared.refuse(BrokerRefusal::TakenOver, &peer, why);
    }
    if let Some(will) = will {
        shared.publish_will(&peer, will).await;
    }
    let wanted = Duration::from_secs(connect.expiry.into());
    let is_five = connect.version == Version::Five;
    // A client of MQTT 5 learns that it is watched, so that a connection that is gone is noticed.
    let asks_too_much = is_five && !(1..=MAX_KEEP_ALIVE).contains(&connect.keep_alive);
    let keep_alive = if asks_too_much { MAX_KEEP_ALIVE } else { connect.keep_alive };
    let granted = Granted {
        expiry: (wanted > MAX_EXPIRY).then_some(MAX_EXPIRY.as_secs() as u32),
        keep_alive: asks_too_much.then_some(keep_alive),
        assigned_id: connect.id.is_empty().then_some(&peer.id),
        receive_maximum: WINDOW,
        max_packet: u32::try_from(shared.max_packet).unwrap_or(u32::MAX),
        alias_maximum: MAX_ALIASES,
    };
    let mut out = Vec::new();
    encode::connected(&mut out, connect.version, is_present, granted);
    let now = Instant::now();
    Some(Connection {
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
        silence: (keep_alive > 0).then(|| Duration::from_secs(keep_alive.into()).mul_f64(1.5)),
        aliases: Default::default(),
        batch: Vec::new(),
        handing_over: None,
        messages: Rate::new(shared.max_rate, now),
        bytes: Rate::new(shared.max_bytes_per_second, now),
        large: None,
        heard: now,
        again: None,
        timer: timer(),
    })
}
