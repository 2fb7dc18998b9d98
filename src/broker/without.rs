//! Stands for the broker where the feature `broker` is off: no configuration with one is accepted, and it never runs.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::bail;
use tokio_util::sync::CancellationToken;

use super::{Config, NOT_BUILT_IN};
use crate::telemetry::Telemetry;

pub(super) enum Server {}

impl Server {
    pub async fn bind(_: &Config, _: &str, _: Arc<Telemetry>) -> anyhow::Result<(Server, SocketAddr)> {
        bail!(NOT_BUILT_IN)
    }

    pub async fn serve(self, _: CancellationToken) -> anyhow::Result<()> {
        match self {}
    }
}
