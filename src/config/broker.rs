//! Checks `[broker]`: the in-process broker.

use std::net::SocketAddr;
use std::path::Path;

use super::file::{self, Brokers, Mqtt};
use super::problem::Problems;
use super::secrets;
use crate::intake::listener::{Config, ListenerTls, NOT_BUILT_IN};
use crate::trust::ServerFiles;

/// The beginning of the client ids of Rollcall at the broker within its process: no other instance uses that broker, and
/// devices know which ids are Rollcall's.
pub(super) const WITHIN: &str = "rollcall";

/// Returns whether devices connect straight to Rollcall.
pub(super) fn is_configured(broker: &file::Broker) -> bool {
    let addresses =
        [&broker.listen, &broker.tls_listen, &broker.websocket_listen, &broker.websocket_tls_listen];
    addresses.iter().any(|address| !address.is_empty())
}

/// The broker, if it is configured.
pub(super) fn broker(
    broker: &file::Broker,
    mqtt: &Brokers,
    base: &Path,
    problems: &mut Problems,
) -> Option<Config> {
    if !is_configured(broker) {
        for (key, value) in [("password_file", &broker.password_file), ("rules_file", &broker.rules_file)] {
            if !value.is_empty() {
                let path = format!("broker.{key}");
                problems.error(path, "belongs to the broker within the process; set broker.listen");
            }
        }
        return None;
    }
    if cfg!(not(feature = "broker")) {
        problems.error("broker", NOT_BUILT_IN);
    }
    let elsewhere = mqtt.one().map(|mqtt| {
        [
            ("mqtt.url", mqtt.url != Mqtt::default().url),
            ("mqtt.username", !mqtt.username.is_empty()),
            ("mqtt.share", !mqtt.share.is_empty()),
        ]
    });
    for (option, _) in elsewhere.into_iter().flatten().filter(|(_, is_set)| *is_set) {
        let text = "belongs to a broker elsewhere, and broker.listen starts one within the process; leave one out, or \
                    write [[mqtt]] with a name to have both";
        problems.error(option, text);
    }
    let file = |name: &str| (!name.is_empty()).then(|| base.join(name));
    for (option, name) in
        [("broker.password_file", &broker.password_file), ("broker.key_file", &broker.key_file)]
    {
        if !name.is_empty() {
            secrets::check_mode(option, &base.join(name), problems);
        }
    }
    let config = Config {
        listen: address("broker.listen", &broker.listen, problems),
        websocket_listen: address("broker.websocket_listen", &broker.websocket_listen, problems),
        tls: tls(broker, base, problems),
        password_file: file(&broker.password_file),
        rules_file: file(&broker.rules_file),
        own_client_id: mqtt.one().map_or(WITHIN, |mqtt| mqtt.client_id.as_str()).to_owned(),
        max_connections: problems.number("broker.max_connections", broker.max_connections, 1, 1_000_000)
            as usize,
        max_packet: problems.number("broker.max_packet", broker.max_packet, 1024, 16 << 20) as usize,
        max_rate: broker.max_rate,
        max_bytes_per_second: broker.max_bytes_per_second,
    };
    if problems.errors.is_empty() {
        for text in config.problems() {
            let (path, text) = text.split_once(": ").unwrap_or(("broker", &text));
            problems.error(path, text);
        }
    }
    Some(config)
}

fn tls(broker: &file::Broker, base: &Path, problems: &mut Problems) -> Option<ListenerTls> {
    let listen = address("broker.tls_listen", &broker.tls_listen, problems);
    let websocket_listen = address("broker.websocket_tls_listen", &broker.websocket_tls_listen, problems);
    listen.or(websocket_listen)?;
    for (key, value) in [("cert_file", &broker.cert_file), ("key_file", &broker.key_file)] {
        if value.is_empty() {
            problems.error(format!("broker.{key}"), "broker.tls_listen needs one, in PEM");
        } else if !base.join(value).is_file() {
            problems
                .error(format!("broker.{key}"), format!("there is no file {}", base.join(value).display()));
        }
    }
    Some(ListenerTls {
        listen,
        websocket_listen,
        files: ServerFiles {
            cert: base.join(&broker.cert_file),
            key: base.join(&broker.key_file),
            client_ca: (!broker.client_ca_file.is_empty()).then(|| base.join(&broker.client_ca_file)),
        },
    })
}

fn address(option: &str, text: &str, problems: &mut Problems) -> Option<SocketAddr> {
    if text.is_empty() {
        return None;
    }
    let read = text.parse();
    if read.is_err() {
        problems.error(option, format!("{text:?} is not an address; write 127.0.0.1:1883"));
    }
    read.ok()
}
