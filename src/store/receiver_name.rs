//! The name of a receiver as a part of the name of a table or an index.

use std::collections::HashSet;
use std::fmt::{self, Display};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Cheap to copy, so tables are. The text of each name is kept once, until the process ends: there are as many as
/// receivers that are or were configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiverName(&'static str);

impl ReceiverName {
    /// Of the content of a table that each receiver has.
    pub(super) const ANY: ReceiverName = ReceiverName("");

    pub fn of(name: &str) -> ReceiverName {
        static NAMES: OnceLock<Mutex<HashSet<&'static str>>> = OnceLock::new();
        let mut names = NAMES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return ReceiverName(known);
        }
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        ReceiverName(kept)
    }

    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl Display for ReceiverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
