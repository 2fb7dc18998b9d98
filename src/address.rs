//! The address of an MQTT broker, as in a configuration or on a command line; and the address of a client.

use core::net::{IpAddr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

use url::{Host, Url};

/// The usual path of brokers for websockets.
const DEFAULT_PATH: &str = "/mqtt";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `mqtt://`: over TCP.
    Mqtt,
    /// `mqtts://`: over TLS.
    Mqtts,
    /// `ws://`: over websockets.
    Ws,
    /// `wss://`: over websockets over TLS.
    Wss,
}

impl Scheme {
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Mqtt => "mqtt",
            Scheme::Mqtts => "mqtts",
            Scheme::Ws => "ws",
            Scheme::Wss => "wss",
        }
    }

    /// Returns whether the connection uses TLS.
    pub fn is_secure(self) -> bool {
        matches!(self, Scheme::Mqtts | Scheme::Wss)
    }

    fn is_websocket(self) -> bool {
        matches!(self, Scheme::Ws | Scheme::Wss)
    }

    fn default_port(self) -> u16 {
        match self {
            Scheme::Mqtt => 1883,
            Scheme::Mqtts => 8883,
            Scheme::Ws => 80,
            Scheme::Wss => 443,
        }
    }
}

/// `mqtt://host:port`. The port is optional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerAddress {
    pub scheme: Scheme,
    /// A name or an IP address.
    pub host: String,
    pub port: u16,
    /// The path for websockets, with its `/`; empty without websockets.
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is not a URL with a host.
    #[error("a broker's address is written mqtt://host:port, mqtts://, ws://host:port/path or wss://")]
    Form,
    /// User name or password are inside the address, where logs would show them.
    #[error("a broker's address must not hold a user name or a password; they have options of their own")]
    Credentials,
}

impl FromStr for BrokerAddress {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<BrokerAddress, AddressError> {
        let url = Url::parse(text).map_err(|_| AddressError::Form)?;
        let all = [Scheme::Mqtt, Scheme::Mqtts, Scheme::Ws, Scheme::Wss];
        let scheme = all.into_iter().find(|scheme| scheme.as_str() == url.scheme());
        let scheme = scheme.ok_or(AddressError::Form)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressError::Credentials);
        }
        let has_path = !matches!(url.path(), "" | "/");
        if (has_path && !scheme.is_websocket()) || url.query().is_some() || url.fragment().is_some() {
            return Err(AddressError::Form);
        }
        let path = match (scheme.is_websocket(), has_path) {
            (false, _) => "",
            (true, false) => DEFAULT_PATH,
            (true, true) => url.path(),
        };
        let host = match url.host() {
            // The host without the brackets that a URL puts around an IPv6 address.
            Some(Host::Ipv6(address)) => address.to_string(),
            Some(host) => host.to_string(),
            None => return Err(AddressError::Form),
        };
        let port = url.port().unwrap_or(scheme.default_port());
        Ok(BrokerAddress { scheme, host, port, path: path.to_owned() })
    }
}

/// Writes the whole address, with the port.
impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, path) = (self.scheme.as_str(), &self.path);
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}{path}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}{path}", self.host, self.port),
        }
    }
}

/// Returns whether a host is this machine by its name or its address, which may have brackets. Names below `localhost` are
/// resolved by the system, so they may be any machine.
pub fn is_this_machine(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// The network that counts as one client: a machine may use any IPv6 address of its /64 network.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(four) => four.into(),
        IpAddr::V6(six) => Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_few_names() {
        for here in ["localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"] {
            assert!(is_this_machine(here), "{here}");
        }
        for other in [
            "",
            "localhost.",
            "a.localhost",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "::",
            "0.0.0.0",
            "[127",
        ] {
            assert!(!is_this_machine(other), "{other}");
        }
    }

    #[test]
    fn an_address_is_a_scheme_and_a_host_and_optionally_a_port_and_a_path() {
        for (text, shown) in [
            ("mqtt://127.0.0.1:1884", "mqtt://127.0.0.1:1884"),
            ("mqtt://broker.example", "mqtt://broker.example:1883"),
            ("mqtt://[::1]:1885/", "mqtt://[::1]:1885"),
            ("mqtts://broker.example", "mqtts://broker.example:8883"),
            ("ws://broker.example", "ws://broker.example:80/mqtt"),
            ("ws://broker.example:9001/", "ws://broker.example:9001/mqtt"),
            ("wss://broker.example/a/b", "wss://broker.example:443/a/b"),
        ] {
            assert_eq!(text.parse::<BrokerAddress>().unwrap().to_string(), shown);
        }
        for (text, why) in [
            ("", AddressError::Form),
            ("127.0.0.1:1883", AddressError::Form),
            ("http://x", AddressError::Form),
            ("mqtt://", AddressError::Form),
            ("mqtt://x/topic", AddressError::Form),
            ("mqtts://x/topic", AddressError::Form),
            ("wss://x/mqtt?a=b", AddressError::Form),
            ("mqtt://me:secret@x", AddressError::Credentials),
            ("wss://me@x", AddressError::Credentials),
        ] {
            assert_eq!(text.parse::<BrokerAddress>().unwrap_err(), why, "{text}");
        }
    }
}
