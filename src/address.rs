//! Where an MQTT broker listens, from the address in a configuration or on a command line.

use std::fmt;
use std::str::FromStr;

use url::{Host, Url};

/// The port of MQTT without TLS.
const USUAL_PORT: u16 = 1883;

/// Where an MQTT broker listens: `mqtt://host:port`. The port may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerAddress {
    /// A name or an IP address.
    pub host: String,
    /// Usually 1883.
    pub port: u16,
}

/// Why an address is not one that Rollcall can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not a URL with a host.
    #[error("a broker's address is written mqtt://host:port")]
    Form,
    /// A scheme that is planned.
    #[error("{0}:// is not supported yet; use mqtt:// within a network that you trust")]
    NotYet(String),
    /// Name or password inside the address, where logs would show them.
    #[error("a broker's address holds no name and no password; they have options of their own")]
    Credentials,
}

impl FromStr for BrokerAddress {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<BrokerAddress, AddressError> {
        let url = Url::parse(text).map_err(|_| AddressError::Form)?;
        match url.scheme() {
            "mqtt" => {}
            "mqtts" | "ws" | "wss" => return Err(AddressError::NotYet(url.scheme().to_owned())),
            _ => return Err(AddressError::Form),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressError::Credentials);
        }
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(AddressError::Form);
        }
        let host = match url.host() {
            // Without the brackets that a URL puts around it.
            Some(Host::Ipv6(address)) => address.to_string(),
            Some(host) => host.to_string(),
            None => return Err(AddressError::Form),
        };
        Ok(BrokerAddress { host, port: url.port().unwrap_or(USUAL_PORT) })
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_perhaps_a_port() {
        for (text, shown) in [
            ("mqtt://127.0.0.1:1884", "127.0.0.1:1884"),
            ("mqtt://broker.example", "broker.example:1883"),
            ("mqtt://[::1]:1885/", "[::1]:1885"),
        ] {
            assert_eq!(text.parse::<BrokerAddress>().unwrap().to_string(), shown);
        }
        for (text, why) in [
            ("", AddressError::Form),
            ("127.0.0.1:1883", AddressError::Form),
            ("http://x", AddressError::Form),
            ("mqtt://", AddressError::Form),
            ("mqtt://x/topic", AddressError::Form),
            ("mqtts://x", AddressError::NotYet("mqtts".to_owned())),
            ("wss://x/mqtt", AddressError::NotYet("wss".to_owned())),
            ("mqtt://me:secret@x", AddressError::Credentials),
        ] {
            assert_eq!(text.parse::<BrokerAddress>().unwrap_err(), why, "{text}");
        }
    }
}
