//! The name of a receiver as a part of the name of a table or an index.

use std::collections::HashSet;
use std::fmt::{self, Display};

use parking_lot::Mutex;

/// All names of receivers of this process.
static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);

/// Cheap to copy, so that tables are too. The text of each name is stored once, until the process ends: their number
/// is that of the receivers that are or were configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiverName(&'static str);

impl ReceiverName {
    /// Stands for any receiver in the content of a table that each receiver has.
    pub(super) const ANY: ReceiverName = ReceiverName("");

    /// For a name from the configuration or the engine. For a name from a client use [`ReceiverName::known`]: a
    /// client could send names until the memory is full.
    pub fn of(name: &str) -> ReceiverName {
        let mut names = NAMES.lock();
        let names = names.get_or_insert_default();
        if let Some(known) = names.get(name) {
            return ReceiverName(known);
        }
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        ReceiverName(kept)
    }

    /// The name, if the configuration or the engine has had it; `None` for other names.
    pub fn known(name: &str) -> Option<ReceiverName> {
        NAMES.lock().as_ref()?.get(name).map(|known| ReceiverName(known))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_only_clients_know_is_not_kept() {
        assert_eq!(ReceiverName::known("a receiver of nobody"), None);
        assert_eq!(ReceiverName::known("a receiver of nobody"), None);
        let own = ReceiverName::of("a receiver of the configuration");
        assert_eq!(ReceiverName::known("a receiver of the configuration"), Some(own));
    }
}
