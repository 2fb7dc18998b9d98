//! The configuration of the embedded engine.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// The directory that holds the fleet; created if it is missing.
    pub path: PathBuf,
    /// The number of partitions. `None`: the number of an existing fleet; a new fleet gets a default.
    pub partitions: Option<u16>,
}

/// The default number of partitions of a new fleet.
pub(super) const PARTITIONS: u16 = 16;

impl fmt::Display for EmbeddedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}
