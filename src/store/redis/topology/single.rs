//! One server, which has everything.

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
        let at = self.0.address().servers.first().cloned();
        // A socket has no host.
        let at = at.unwrap_or(HostPort { host: String::new(), port: 0 });
        Ok(vec![Primary { at, slots: None, replicas: Vec::new() }])
    }

    fn client(&self, _: &HostPort) -> RedisResult<Client> {
        self.0.single()
    }

    fn is_fixed(&self) -> bool {
        true
    }
}
