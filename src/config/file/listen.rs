//! The address of a listener.

use std::fmt;
use std::net::SocketAddr;

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};

/// Reads an address, with an error that shows one.
pub(super) fn address<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = SocketAddr;
        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("an IP address and a port in quotes, such as \"127.0.0.1:8080\"")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<SocketAddr, E> {
            text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
        }
    }
    from.deserialize_str(Text)
}
