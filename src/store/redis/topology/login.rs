//! Opens clients to the servers of an address. All servers of a fleet share a login and TLS settings; the sentinels
//! have a login of their own.

use std::path::Path;

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisResult, TlsCertificates,
};

use super::address::RedisAddress;
use crate::store::redis::config::{RESPONSE, RedisConfig};
use crate::store::{EngineError, Result};

#[derive(Clone)]
pub struct Login {
    address: RedisAddress,
    /// The login and TLS of every server; the host is replaced.
    servers: ConnectionInfo,
    sentinels: ConnectionInfo,
}

impl Login {
    /// # Errors
    /// `Refused` if the address is not valid or a certificate cannot be used.
    pub fn new(config: &RedisConfig) -> Result<Login> {
        let refused = |why: &dyn std::fmt::Display| EngineError::Refused(format!("engine.url {why}"));
        let address = RedisAddress::parse(&config.url).map_err(|error| refused(&error))?;
        let password = config.password.as_deref().or(address.password.as_deref());
        let servers = login(address.user.as_deref(), password).set_db(address.database);
        let sentinels = login(config.sentinel_username.as_deref(), config.sentinel_password.as_deref());
        let with_tls = |login| {
            template(&address, config, login).map_err(|error| {
                EngineError::Refused(format!("redis at {address} cannot be reached with TLS: {error}"))
            })
        };
        Ok(Login { servers: with_tls(servers)?, sentinels: with_tls(sentinels)?, address })
    }

    pub fn address(&self) -> &RedisAddress {
        &self.address
    }

    /// A client for a server that holds a part of the fleet. An IPv6 address has no brackets.
    pub fn client(&self, host: &str, port: u16) -> RedisResult<Client> {
        Client::open(at(&self.servers, host, port))
    }

    /// A client for the only server: the first of the address, or its socket.
    pub fn single(&self) -> RedisResult<Client> {
        match (&self.address.socket, self.address.servers.first()) {
            (None, Some(server)) => self.client(&server.host, server.port),
            (socket, _) => {
                let path = socket.as_deref().unwrap_or(Path::new("")).to_owned();
                Client::open(self.servers.clone().set_addr(ConnectionAddr::Unix(path)))
            }
        }
    }

    pub fn sentinel(&self, host: &str, port: u16) -> RedisResult<Client> {
        Client::open(at(&self.sentinels, host, port))
    }
}

fn login(user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

/// A connection without a host. The library reads the certificates once, here, and all clients share them.
fn template(
    address: &RedisAddress,
    config: &RedisConfig,
    login: RedisConnectionInfo,
) -> RedisResult<ConnectionInfo> {
    let plain = ConnectionAddr::Tcp(String::new(), 0);
    let info = plain.into_connection_info()?.set_redis_settings(login).set_tcp_settings(tcp());
    if !address.has_tls {
        return Ok(info);
    }
    let no_host = ConnectionAddr::TcpTls { host: String::new(), port: 0, insecure: false, tls_params: None };
    let (root_cert, client) = (config.tls.ca.clone(), config.tls.client.clone());
    let client_tls = client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    let client = Client::build_with_tls(info.set_addr(no_host), TlsCertificates { client_tls, root_cert })?;
    Ok(client.get_connection_info().clone())
}

/// The connection of a template, to this host.
fn at(template: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let address = match template.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    template.clone().set_addr(address)
}

/// Data that the server does not acknowledge within the response timeout is dropped: a heartbeat that TCP sends again
/// after an outage of the network would overwrite newer heartbeats of other instances.
fn tcp() -> TcpSettings {
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(RESPONSE);
    tcp
}

#[cfg(test)]
mod tests;
