//! What `rollcall check` finds out about client ids: whether anybody could take Rollcall's session over.

use std::net::IpAddr;

use super::{Finding, patiently};
use crate::address::BrokerAddress;
use crate::intake;

/// A warning, if so.
pub(super) async fn examine(config: &intake::Config) -> Option<Finding> {
    // Without names there is nothing to bind ids to, and on loopback no stranger comes. Within TLS a certificate may
    // be what Rollcall is known by, and the broker would see it here, too.
    let is_near = config.url.parse().is_ok_and(|address: BrokerAddress| is_loopback(&address.host));
    if config.credentials.is_none() && (is_near || config.tls.is_some()) {
        return None;
    }
    let is_open = patiently(intake::accepts_anonymous(config)).await.unwrap_or(false);
    is_open.then(|| {
        let text = format!(
            "{} lets a client without a name in, under a client id that begins with {}-: whoever reaches it can take \
             Rollcall's session over and be given what devices say; give every client a name (allow_anonymous false \
             in Mosquitto) and bind client ids to names, as config/mosquitto/production.conf does",
            config.url, config.client_id
        );
        Finding::warn("client ids", text)
    })
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
