//! The configuration of the embedded engine.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The directory that holds the fleet; made where it is missing.
    pub path: PathBuf,
    /// The number of partitions of a new fleet; an existing fleet keeps its number.
    pub partitions: u16,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}
