//! The configuration of the listener, also in a program without the listener.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::trust::ServerFiles;

/// The error of a configuration that needs the in-process broker, in a program without it.
pub const NOT_BUILT_IN: &str = "this rollcall is built without the in-process broker; build it with the feature `broker`, or \
                                set mqtt.url to a broker elsewhere";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The address of devices without TLS.
    pub listen: Option<SocketAddr>,
    /// The address of devices that use WebSockets without TLS.
    pub websocket_listen: Option<SocketAddr>,
    /// The addresses of devices that use TLS, and the certificate.
    pub tls: Option<ListenerTls>,
    /// The file of users, as `mosquitto_passwd` writes it.
    pub password_file: Option<PathBuf>,
    /// The file of rules, as Mosquitto's `acl_file`.
    pub rules_file: Option<PathBuf>,
    /// The prefix of Rollcall's own client ids, which no device may use.
    pub own_client_id: String,
    /// The most devices at a time; others are refused.
    pub max_connections: usize,
    /// The largest packet in bytes; a device that sends a larger one is disconnected.
    pub max_packet: usize,
    /// The most messages that are read from one connection in a second; a faster device is read more slowly. 0 means no
    /// limit.
    pub max_rate: u32,
    /// The most bytes that are read from one connection in a second; 0 means no limit.
    pub max_bytes_per_second: u32,
}

/// Settings of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    pub listen: Option<SocketAddr>,
    /// The address of devices that use WebSockets over TLS.
    pub websocket_listen: Option<SocketAddr>,
    pub files: ServerFiles,
}

impl Config {
    /// The addresses, each with its option and the scheme of its URLs.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, &'static str, SocketAddr)> {
        let tls = self.tls.as_ref();
        let all = [
            ("listen", "mqtt", self.listen),
            ("tls_listen", "mqtts", tls.and_then(|tls| tls.listen)),
            ("websocket_listen", "ws", self.websocket_listen),
            ("websocket_tls_listen", "wss", tls.and_then(|tls| tls.websocket_listen)),
        ];
        all.into_iter().filter_map(|(option, scheme, address)| Some((option, scheme, address?)))
    }

    /// The errors of this configuration, each in a sentence with advice.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let certified = self.tls.as_ref().is_some_and(|tls| tls.files.client_ca.is_some());
        let known = self.password_file.is_some();
        for (option, _, address) in self.addresses() {
            let is_tls = option.ends_with("tls_listen");
            let is_safe = known || is_tls && certified;
            if !address.ip().is_loopback() && !is_safe {
                problems.push(format!(
                    "broker.{option}: every client that reaches {address} can pretend to be a device; set \
                     broker.password_file{}, or listen on 127.0.0.1",
                    if is_tls { " or broker.client_ca_file" } else { "" }
                ));
            }
        }
        if self.addresses().next().is_none() {
            problems.push("broker: set broker.listen or broker.tls_listen".to_owned());
        }
        problems
    }
}
