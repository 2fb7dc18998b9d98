//! What the embedded engine needs to know.

use std::fmt;
use std::path::PathBuf;

/// What the embedded engine needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The directory that holds the fleet; made where it is missing.
    pub path: PathBuf,
    /// Over how many partitions a new fleet is spread; a fleet that exists keeps its number.
    pub partitions: u16,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}
