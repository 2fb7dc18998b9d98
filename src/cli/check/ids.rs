//! The finding about client ids: whether any client could take Rollcall's session over.

use std::net::IpAddr;

use super::{Finding, with_timeout};
use crate::address::BrokerAddress;
use crate::intake;

pub(super) async fn examine(config: &intake::Config) -> Option<Finding> {
    // Without user names the broker cannot bind ids to them, and on loopback only local programs connect. With TLS the
    // broker may authenticate a client by its certificate, and this check presents the same certificate.
    let is_near = config.url.parse().is_ok_and(|address: BrokerAddress| is_loopback(&address.host));
    if config.credentials.is_none() && (is_near || config.tls.is_some()) {
        return None;
    }
    let is_open = with_timeout(intake::accepts_anonymous(config)).await.unwrap_or(false);
    is_open.then(|| {
        let text = format!(
            "{} accepts a client without a user name and with a client id that begins with {}-: any client can take \
             Rollcall's session over and receive the messages of devices; give every client a user name \
             (allow_anonymous false in Mosquitto) and bind client ids to user names, as \
             config/mosquitto/production.conf does",
            config.url, config.client_id
        );
        Finding::warn("client ids", text)
    })
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
