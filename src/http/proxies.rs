//! Proxies in front of the server. Proxies of trusted networks name the address of a client and, with single sign-on,
//! its user. The same headers are ignored if any other client sends them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;
pub use axum::http::HeaderName;
use ipnet::IpNet;

use super::Role;
use crate::routing::alert_silence::is_author;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address at the other end of the connection: that of the proxy, if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub IpAddr);

/// The proxies whose headers are trusted.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    pub networks: Vec<IpNet>,
    /// Users that a proxy has authenticated; `None` without single sign-on.
    pub users: Option<ProxyUsers>,
}

/// The users that a proxy authenticates.
#[derive(Clone, Debug)]
pub struct ProxyUsers {
    /// The header with the name of the user.
    pub header: HeaderName,
    pub role: Role,
    /// The roles of users whose role is not the default one.
    pub roles: HashMap<String, Role>,
}

impl Proxies {
    /// The address of the client as the last trusted proxy saw it.
    pub(super) fn client(&self, PeerAddress(peer): PeerAddress, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        let lines: Vec<&str> =
            headers.get_all(FORWARDED_FOR).iter().map(|line| line.to_str().unwrap_or_default()).collect();
        for hop in lines.iter().rev().flat_map(|line| line.rsplit(',')) {
            if !self.is_trusted(client) {
                break;
            }
            let Some(address) = address_of(hop.trim()) else { break };
            client = address.to_canonical();
        }
        client
    }

    /// The user that a trusted proxy names, and the role. A request with two user names has no user.
    pub(super) fn user(&self, PeerAddress(peer): PeerAddress, headers: &HeaderMap) -> Option<(String, Role)> {
        let users = self.users.as_ref().filter(|_| self.is_trusted(peer.to_canonical()))?;
        let mut named = headers.get_all(&users.header).iter();
        let (Some(user), None) = (named.next(), named.next()) else { return None };
        let user = std::str::from_utf8(user.as_bytes()).ok().filter(|user| is_author(user))?;
        Some((user.to_owned(), users.roles.get(user).copied().unwrap_or(users.role)))
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }
}

/// Parses an address with or without a port: proxies write both forms.
fn address_of(hop: &str) -> Option<IpAddr> {
    let bracketed = || hop.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    hop.parse().ok().or_else(|| hop.parse().ok().map(|hop: SocketAddr| hop.ip())).or_else(bracketed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, axum::http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn proxies() -> Proxies {
        let networks = ["10.0.0.0/8", "2001:db8::/32"].map(|one| one.parse().unwrap()).to_vec();
        let roles = HashMap::from([("ana".to_owned(), Role::Admin)]);
        let header = HeaderName::from_static("x-user");
        Proxies { networks, users: Some(ProxyUsers { header, role: Role::Viewer, roles }) }
    }

    #[test]
    fn a_client_is_the_last_address_that_no_trusted_proxy_has() {
        type Case<'a> = (&'a str, &'a [&'a str], &'a str);
        let cases: [Case<'_>; 9] = [
            ("192.0.2.1", &["198.51.100.7"], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
            ("::ffff:10.0.0.1", &["198.51.100.7:4711"], "198.51.100.7"),
            ("10.0.0.1", &["203.0.113.1, 198.51.100.7, 10.2.3.4"], "198.51.100.7"),
            ("10.0.0.1", &["203.0.113.1", "198.51.100.7,10.2.3.4"], "198.51.100.7"),
            ("2001:db8::1", &["[2001:4860::1]:443"], "2001:4860::1"),
            ("10.0.0.1", &["198.51.100.7, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["10.0.0.2, [10"], "10.0.0.1"),
        ];
        for (peer, lines, expected) in cases {
            let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
            let client = proxies().client(PeerAddress(peer.parse().unwrap()), &headers(&lines));
            assert_eq!(client, expected.parse::<IpAddr>().unwrap(), "{peer} {lines:?}");
        }
    }

    #[test]
    fn only_a_trusted_proxy_names_a_user_and_only_one() {
        let user = |peer: &str, lines: &[(&'static str, &str)]| {
            proxies().user(PeerAddress(peer.parse().unwrap()), &headers(lines))
        };
        assert_eq!(user("10.0.0.1", &[("x-user", "ana")]), Some(("ana".to_owned(), Role::Admin)));
        assert_eq!(user("10.0.0.1", &[("x-user", "désk")]), Some(("désk".to_owned(), Role::Viewer)));
        assert_eq!(user("192.0.2.1", &[("x-user", "ana")]), None);
        assert_eq!(user("10.0.0.1", &[("x-user", "ana"), ("x-user", "bob")]), None);
        for wrong in ["", " ", &"a".repeat(10_000)] {
            assert_eq!(user("10.0.0.1", &[("x-user", wrong)]), None, "{wrong:?}");
        }
        assert_eq!(
            Proxies::default().user(PeerAddress("10.0.0.1".parse().unwrap()), &headers(&[("x-user", "a")])),
            None
        );
    }
}
