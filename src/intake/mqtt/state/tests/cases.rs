//! The table: claims about a connection, and what happens in each.

use rumqttc::PubAckReason;

use super::BEGIN;
use super::Input::{self, *};
use crate::telemetry::ConnectionLoss;

pub const PLAIN: &str = "";
pub const MEMBER: &str = "all";
/// A plain subscription that also publishes probes.
pub const PROBING: &str = "probing";

/// Inputs of one connection, and the actions that follow from each.
pub type Steps = &'static [(Input, &'static str)];

/// A claim, the share, how far an earlier process heard, how the case begins and how it goes on.
pub type Case = (&'static str, &'static str, Option<i64>, Steps, Steps);

/// A plain subscription that hears; its first canary came back.
pub const HEARS: Steps = &[
    (Connect, ""),
    (ConnAck(false), "accept for 30 s, subscribe"),
    (SubAck(&[1, 1]), "granted, connected, tick now"),
    (Tick, "send 1"),
    (Canary(1), "record canary 1"),
];

/// A member that attends.
pub const ATTENDS: Steps = &[
    (Connect, ""),
    (ConnAck(false), "accept for 30 s, subscribe"),
    (SubAck(&[1, 1]), "granted, tick now"),
    (Tick, "send 1"),
    (Canary(1), "record canary 1"),
    (Proof(1, false), ""),
    (Proof(1, true), "subscribe to the share"),
    (SubAck(&[1]), "granted, connected, tick now"),
];

/// A plain subscription that hears and has published a probe.
const PROBES: Steps = &[
    (Connect, ""),
    (ConnAck(false), "accept for 30 s, subscribe"),
    (SubAck(&[1, 1]), "granted, connected, tick now"),
    (Tick, "probe 0, send 1"),
    (Canary(1), "record canary 1"),
];

pub const CASES: &[Case] = &[
    (
        "messages are acknowledged from QoS 1 on",
        PLAIN,
        None,
        HEARS,
        &[
            (Beat(0, 0, false, "a"), "record beat"),
            (Beat(1, 1, false, "a"), "record beat ack 1"),
            (Beat(2, 2, false, "a"), "record beat ack 2"),
            (SysCount, "count"),
        ],
    ),
    (
        "a resumed session is subscribed again, for its topics may be new",
        PLAIN,
        Some(BEGIN),
        &[],
        &[(Connect, ""), (ConnAck(true), "accept for 30 s, subscribe")],
    ),
    (
        "a resumed session brings messages as old as the canaries beside them",
        PLAIN,
        Some(BEGIN),
        &[],
        &[
            (Seconds(100), ""),
            (Connect, ""),
            (ConnAck(true), "accept for 30 s, subscribe"),
            (Beat(1, 1, false, "a"), "record beat between 0 and 3 ack 1"),
            (EarlierCanary(90), ""),
            (Beat(1, 2, false, "b"), "record beat between 10 and 13 ack 2"),
            (SubAck(&[1, 1]), "granted, connected, tick now"),
            (Tick, "send 1"),
            // The first heartbeat came where no canary bounds its age: canaries up to then vouch for nothing.
            (Canary(1), ""),
            (Beat(1, 3, false, "c"), "record beat ack 3"),
            (Seconds(1), ""),
            (Tick, "send 2"),
            (Canary(2), "record canary 2"),
        ],
    ),
    (
        "a session that was taken over vouches for nothing that was sent before",
        PLAIN,
        None,
        HEARS,
        &[
            (Seconds(1), ""),
            (Tick, "send 2"),
            (Lost(ConnectionLoss::TakenOver), "end TakenOver"),
            (Connect, ""),
            (ConnAck(true), "accept for 30 s, subscribe"),
            (SubAck(&[1, 1]), "granted, connected, tick now"),
            (Tick, "send 3"),
            (Canary(2), ""),
            (Canary(3), "record canary 3"),
        ],
    ),
    (
        "a refused subscription ends the connection",
        PLAIN,
        None,
        &[],
        &[
            (Connect, ""),
            (ConnAck(false), "accept for 30 s, subscribe"),
            (SubAck(&[9, 1]), "refused, end Refused"),
        ],
    ),
    (
        "a subscription at a lower QoS is granted",
        PLAIN,
        None,
        &[],
        &[
            (Connect, ""),
            (ConnAck(false), "accept for 30 s, subscribe"),
            (SubAck(&[0, 1]), "granted, connected, tick now"),
        ],
    ),
    (
        "a redelivered message is acknowledged and not recorded again",
        PLAIN,
        None,
        HEARS,
        &[
            (Beat(1, 1, false, "a"), "record beat ack 1"),
            (Beat(2, 2, false, "a"), "record beat ack 2"),
            (Lost(ConnectionLoss::Broken), "end Broken"),
            (Connect, ""),
            (ConnAck(true), "accept for 30 s, subscribe"),
            (Beat(1, 1, true, "a"), "record nothing ack 1"),
            (Beat(2, 2, true, "a"), "record nothing ack 2"),
            // The packet id alone does not make it the same, and the flag alone does not either.
            (Beat(1, 1, true, "b"), "record beat ack 1"),
            (Beat(1, 3, true, "c"), "record beat ack 3"),
            // The broker keeps no message at QoS 0.
            (Beat(0, 0, true, "a"), "record beat"),
        ],
    ),
    (
        "a broker that sends more than it may, and then all of it again, has sent each message once",
        PLAIN,
        None,
        HEARS,
        &[
            (Beat(1, 1, false, "a"), "record beat ack 1"),
            (Beat(1, 2, false, "b"), "record beat ack 2"),
            (Beat(1, 3, false, "c"), "record beat ack 3"),
            (Beat(1, 4, false, "d"), "record beat ack 4"),
            (Lost(ConnectionLoss::Broken), "end Broken"),
            (Connect, ""),
            (ConnAck(true), "accept for 30 s, subscribe"),
            (Beat(1, 1, true, "a"), "record nothing ack 1"),
            (Beat(1, 4, true, "d"), "record nothing ack 4"),
        ],
    ),
    (
        "an acknowledgement that is lost with its connection settles nothing",
        PLAIN,
        None,
        HEARS,
        &[
            (Beat(1, 1, false, "a"), "record beat ack 1"),
            (Seconds(1), ""),
            (Tick, "send 2"),
            (Canary(2), "record canary 2"),
            (Proof(2, false), ""),
            (Lost(ConnectionLoss::Broken), "end Broken"),
            (Connect, ""),
            (ConnAck(true), "accept for 30 s, subscribe"),
            (SubAck(&[1, 1]), "granted, connected, tick now"),
            (Tick, "send 3"),
            (Canary(3), "record canary 3"),
            (Beat(1, 1, true, "a"), "record nothing ack 1"),
        ],
    ),
    (
        "a message is new once a canary has followed its acknowledgement",
        PLAIN,
        None,
        HEARS,
        &[
            (Beat(1, 1, false, "a"), "record beat ack 1"),
            (Seconds(1), ""),
            (Tick, "send 2"),
            (Canary(2), "record canary 2"),
            (Proof(2, false), ""),
            (Beat(1, 1, true, "a"), "record nothing ack 1"),
            (Seconds(1), ""),
            (Tick, "send 3"),
            (Canary(3), "record canary 3"),
            (Beat(1, 1, true, "a"), "record beat ack 1"),
        ],
    ),
    (
        "a new session delivers no message of an earlier one",
        PLAIN,
        None,
        HEARS,
        &[
            (Beat(1, 1, false, "a"), "record beat ack 1"),
            (Lost(ConnectionLoss::Broken), "end Broken"),
            (Connect, ""),
            (ConnAck(false), "accept for 30 s, subscribe"),
            (Beat(1, 1, true, "a"), "record beat ack 1"),
        ],
    ),
    (
        "the answer to a ping is a sign of life",
        PLAIN,
        None,
        &[],
        &[
            (Connect, ""),
            (ConnAck(false), "accept for 30 s, subscribe"),
            (SubAck(&[1, 1]), "granted, connected, tick now"),
            (Seconds(19), ""),
            (PingResp, ""),
            (Seconds(19), ""),
            (Timer(false), ""),
            (Seconds(1), ""),
            (Timer(false), "end Silent"),
        ],
    ),
    (
        "a broker that answers pings and not the subscription loses the connection after two keep-alives",
        PLAIN,
        None,
        &[],
        &[
            (Connect, ""),
            (ConnAck(false), "accept for 30 s, subscribe"),
            (Seconds(15), ""),
            (PingResp, ""),
            (Seconds(4), ""),
            (Timer(false), ""),
            (Timer(true), ""),
            (Seconds(10), ""),
            (PingResp, ""),
            (Seconds(9), ""),
            (Timer(false), ""),
            (Seconds(1), ""),
            (Timer(false), "end Silent"),
        ],
    ),
    (
        "a silent broker loses the connection after two keep-alives",
        PLAIN,
        None,
        HEARS,
        &[(Seconds(19), ""), (Timer(false), ""), (Seconds(1), ""), (Timer(false), "end Silent")],
    ),
    (
        "a broker that is held back is not silent",
        PLAIN,
        None,
        HEARS,
        &[(Seconds(20), ""), (Timer(true), ""), (Seconds(19), ""), (Timer(false), "")],
    ),
    (
        "a frozen process reads no packet that waited",
        PLAIN,
        None,
        HEARS,
        &[
            (Seconds(20), ""),
            (Beat(1, 1, false, "a"), "end Silent"),
            (Lost(ConnectionLoss::Broken), "end Silent"),
        ],
    ),
    (
        "canaries vouch for nothing after an overflow until the gap shows",
        PLAIN,
        None,
        HEARS,
        &[
            (BeatIntoRoom(8), "record beat"),
            (BeatIntoRoom(7), "overflow"),
            (Seconds(1), ""),
            (Tick, "send 2"),
            (Canary(2), ""),
            (Seconds(3), ""),
            (Tick, "send 3"),
            (Canary(3), ""),
            (Seconds(1), ""),
            (Tick, "send 4"),
            (Canary(4), "record canary 4"),
        ],
    ),
    (
        "canaries vouch for nothing after one of them was dropped until the gap shows",
        PLAIN,
        None,
        HEARS,
        &[
            (Tick, "send 2"),
            (Tick, "send 3"),
            (Seconds(4), ""),
            (Tick, "send 4"),
            (Canary(4), ""),
            (Seconds(1), ""),
            (Tick, "send 5"),
            (Canary(5), "record canary 5"),
            (Canary(5), ""),
        ],
    ),
    (
        "a plain subscription that stops takes no more messages",
        PLAIN,
        None,
        HEARS,
        &[(Stop, "stop taking"), (Beat(1, 1, false, "a"), ""), (Canary(1), "")],
    ),
    (
        "a member whose share is refused leaves no trace",
        MEMBER,
        None,
        &[],
        &[
            (Connect, ""),
            (ConnAck(false), "accept for 30 s, subscribe"),
            (SubAck(&[1, 1]), "granted, tick now"),
            (Tick, "send 1"),
            (Canary(1), "record canary 1"),
            (Proof(1, true), "subscribe to the share"),
            (SubAck(&[9]), "refused, record unsubscribed, end Refused"),
        ],
    ),
    (
        "a member that attends and receives nothing closes its connection",
        MEMBER,
        None,
        ATTENDS,
        &[(Seconds(2), ""), (Timer(false), ""), (Seconds(1), ""), (Timer(false), "end Silent")],
    ),
    (
        "a member whose canaries are not recorded closes its connection",
        MEMBER,
        None,
        ATTENDS,
        &[
            (Seconds(2), ""),
            (PingResp, ""),
            (Seconds(2), ""),
            (PingResp, ""),
            (Seconds(2), ""),
            (PingResp, ""),
            (Seconds(2), ""),
            (PingResp, ""),
            (Seconds(2), ""),
            (Timer(false), "end Silent"),
        ],
    ),
    (
        "a member leaves when all that it was given is recorded",
        MEMBER,
        None,
        ATTENDS,
        &[
            (Seconds(1), ""),
            (Tick, "send 2"),
            (Stop, "unsubscribe"),
            (UnsubAck, "tick now"),
            (Canary(2), "record canary 2"),
            (Beat(1, 1, false, "a"), "record beat ack 1"),
            (Tick, "send 3"),
            (Canary(3), "record canary 3, record unsubscribed, stop taking"),
            (Beat(1, 2, false, "b"), ""),
            // It stays connected until they are, and sends no more canaries.
            (Seconds(19), ""),
            (Timer(false), ""),
        ],
    ),
    (
        "a member that cannot leave in order stops all the same",
        MEMBER,
        None,
        ATTENDS,
        &[
            (Stop, "unsubscribe"),
            (Seconds(2), ""),
            (PingResp, ""),
            (Timer(false), ""),
            (Seconds(1), ""),
            (Timer(false), "stop taking"),
        ],
    ),
    (
        "a member that is not given its share yet stops at once",
        MEMBER,
        None,
        &[],
        &[(Connect, ""), (Stop, "stop taking")],
    ),
];

/// With probes.
pub const PROBING_CASES: &[Case] = &[
    (
        "a probe waits for its answer",
        PROBING,
        None,
        PROBES,
        &[
            (Seconds(100), ""),
            (Tick, "send 2"),
            (ProbeAnswer(PubAckReason::Success), "probe Accepted"),
            (Tick, "probe 0, send 3"),
        ],
    ),
    (
        "a refused probe is tried again after ten minutes",
        PROBING,
        None,
        PROBES,
        &[
            (ProbeAnswer(PubAckReason::NotAuthorized), "probe Refused(NotAuthorized)"),
            (Seconds(599), ""),
            (Tick, "send 2"),
            (Seconds(1), ""),
            (Tick, "probe 0, send 3"),
        ],
    ),
    (
        "a connection that ends for want of a right is the probe's",
        PROBING,
        None,
        PROBES,
        &[(Lost(ConnectionLoss::Refused), "end Refused, probe EndsConnection")],
    ),
    (
        "one broken connection is a coincidence",
        PROBING,
        None,
        PROBES,
        &[(Lost(ConnectionLoss::Broken), "end Broken")],
    ),
    (
        "a session that is taken over is not the probe's",
        PROBING,
        None,
        PROBES,
        &[(Lost(ConnectionLoss::TakenOver), "end TakenOver")],
    ),
    (
        "a connection that ends long after the probe is not the probe's",
        PROBING,
        None,
        PROBES,
        &[(Seconds(2), ""), (PingResp, ""), (Seconds(1), ""), (Lost(ConnectionLoss::Refused), "end Refused")],
    ),
];
