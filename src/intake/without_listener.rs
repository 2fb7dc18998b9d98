//! Stands for the listener in a program without the feature `broker`: every configuration with a listener is refused,
//! so this code never runs.

use std::sync::Arc;

use anyhow::bail;
use tokio::task::JoinSet;

use super::engine_writer::EngineWriter;
pub use super::listener_config::{Config, ListenerTls, NOT_BUILT_IN};
use super::{ProvedTopics, value_buffer::ValueBuffer};
use crate::telemetry::Telemetry;
use crate::trust::ServerTls;

pub enum Listener {}

/// The type has no values, because no message of a device is acknowledged.
#[derive(Debug, PartialEq)]
pub(super) enum Receipt {}

impl Listener {
    /// # Errors
    /// Every call fails.
    pub async fn bind(_: &Config, _: Arc<Telemetry>) -> anyhow::Result<Listener> {
        bail!(NOT_BUILT_IN)
    }

    pub fn tls(&self) -> Option<Arc<ServerTls>> {
        match *self {}
    }

    pub(super) fn start(
        self,
        _: &super::Config,
        _: &ProvedTopics,
        _: Option<Arc<ValueBuffer>>,
        _: &EngineWriter,
        _: &mut JoinSet<()>,
    ) -> super::states::Publish {
        match self {}
    }
}

impl Receipt {
    pub fn acknowledge(&self) {
        match *self {}
    }
}
