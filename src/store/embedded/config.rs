//! The configuration of the embedded engine.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// The directory that holds the fleet; created if it is missing.
    pub path: PathBuf,
    /// The number of partitions. `None`: the number that an existing fleet has; a new fleet gets a default.
    pub partitions: Option<u16>,
}

/// The number of partitions of a new fleet, unless the configuration says another.
pub(super) const PARTITIONS: u16 = 16;

impl fmt::Display for EmbeddedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}
