//! Stands for the listener where the feature `broker` is off: no configuration with one is accepted, and it never runs.

use std::sync::Arc;

use anyhow::bail;

use super::{Config, NOT_BUILT_IN};
use crate::telemetry::Telemetry;

pub enum Listener {}

impl Listener {
    /// # Errors
    /// Always.
    pub async fn bind(_: &Config, _: Arc<Telemetry>) -> anyhow::Result<Listener> {
        bail!(NOT_BUILT_IN)
    }
}
