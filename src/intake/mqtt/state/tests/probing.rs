//! The table of a connection that publishes probes.

use rumqttc::PubAckReason;

use super::Input::*;
use super::cases::{Case, Steps};
use crate::telemetry::ConnectionLoss;

/// A plain subscription that also publishes probes.
pub const PROBING: &str = "probing";

/// A plain subscription that hears and has published a probe.
const PROBES: Steps = &[
    (Connect, ""),
    (ConnAck(false), "accept for 30 s, subscribe"),
    (SubAck(&[1, 1]), "granted, connected, tick now"),
    (Tick, "probe 0, send 1"),
    (Canary(1), "record canary 1"),
];

/// Cases of connections with probes.
pub const PROBING_CASES: &[Case] = &[
    (
        "a probe does not wait for the answer of the one before",
        PROBING,
        None,
        PROBES,
        &[
            (Seconds(100), ""),
            (Tick, "probe 0, send 2"),
            (Tick, "send 3"),
            (ProbeAnswer(PubAckReason::Success), "probe Accepted"),
            (Seconds(100), ""),
            (Tick, "probe 0, send 4"),
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
