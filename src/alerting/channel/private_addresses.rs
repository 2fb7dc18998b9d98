//! Addresses that belong to a private network or to this machine, and a lookup of names that leaves them out.
//!
//! The answer of the lookup is what the connection is opened to, so a name that is public when it is looked up here and
//! private a moment later gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::lookup_host;

/// The error of a name whose addresses are all private.
pub const DENIED: &str = "its address is private, and deny_private_addresses is set";

/// The addresses of a host; only the public ones if private ones are denied.
pub async fn addresses(host: &str, port: u16, denies_private: bool) -> std::io::Result<Vec<SocketAddr>> {
    match denies_private {
        true => public_addresses(host, port).await,
        false => Ok(lookup_host((host, port)).await?.collect()),
    }
}

/// The public addresses of a host. An error if it has none.
async fn public_addresses(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    let found = lookup_host((host, port)).await?;
    let public: Vec<SocketAddr> = found.filter(|address| !is_private(address.ip())).collect();
    if public.is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, DENIED));
    }
    Ok(public)
}

/// Whether an address is not one of the public internet.
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a, b & 0xc0) == (100, 64)
        || (a, b & 0xfe) == (198, 18)
        || (a, b, c) == (192, 0, 0)
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, ..] = address.segments();
    let within = |at: usize| {
        let mut octets = [0; 4];
        octets.copy_from_slice(&address.octets()[at..at + 4]);
        is_private_v4(Ipv4Addr::from(octets))
    };
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_private_v4(mapped);
    }
    match (a, b, c, d) {
        // NAT64 and 6to4 lead to the address of version 4 within.
        (0x64, 0xff9b, 0, 0) => within(12),
        (0x2002, ..) => within(2),
        // Only this eighth of the space is given out; Teredo and documentation are in it.
        (a, b, ..) => a & 0xe000 != 0x2000 || (a, b) == (0x2001, 0) || (a, b) == (0x2001, 0xdb8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_public_or_private_in_every_notation() {
        let private = [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "198.18.0.1",
            "192.0.0.8",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
            "2001::1",
            "2001:db8::1",
            "::127.0.0.1",
        ];
        for address in private {
            assert!(is_private(address.parse().unwrap()), "{address}");
        }
        let public =
            ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"];
        for address in public {
            assert!(!is_private(address.parse().unwrap()), "{address}");
        }
    }

    #[tokio::test]
    async fn a_name_of_this_machine_has_no_public_address() {
        let error = public_addresses("localhost", 80).await.unwrap_err();
        assert_eq!(error.to_string(), DENIED);
    }
}
