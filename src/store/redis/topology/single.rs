//! One server, which holds the whole fleet.

use std::path::Path;

use async_trait::async_trait;
use redis::{Client, RedisResult};

use super::address::HostPort;
use super::discovery::{Discovery, Primary};
use super::login::Login;
use crate::store::Result;

pub struct Single(pub Login);

#[async_trait]
impl Discovery for Single {
    async fn learn(&self, _: &[HostPort]) -> Result<Vec<Primary>> {
        let address = self.0.address();
        let socket = || address.socket.as_deref().unwrap_or(Path::new("")).display().to_string();
        let at = address.servers.first().cloned();
        let at = at.unwrap_or_else(|| HostPort { host: socket(), port: 0 });
        Ok(vec![Primary { at, slots: None, replicas: Vec::new(), lacks_replicas: false }])
    }

    fn client(&self, _: &HostPort) -> RedisResult<Client> {
        self.0.single()
    }

    fn is_fixed(&self) -> bool {
        true
    }
}
