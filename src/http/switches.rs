//! Switches that a simulated fleet puts on the page: the power of its sites.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Named switches, all on at first. Cheap to share.
#[derive(Clone, Debug)]
pub struct Switches {
    names: Arc<[String]>,
    off: Arc<[AtomicBool]>,
}

impl Switches {
    pub fn new(names: impl IntoIterator<Item = String>) -> Switches {
        let names: Arc<[String]> = names.into_iter().collect();
        let off = names.iter().map(|_| AtomicBool::new(false)).collect();
        Switches { names, off }
    }

    /// The switches in the order of their names; `true` means off.
    pub fn off(&self) -> Arc<[AtomicBool]> {
        self.off.clone()
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (&str, bool)> {
        self.names.iter().map(String::as_str).zip(self.off.iter().map(|off| off.load(Relaxed)))
    }

    /// Sets a switch; `false` if no switch has that name.
    pub(super) fn turn(&self, name: &str, off: bool) -> bool {
        let found = self.names.iter().position(|known| known == name);
        if let Some(found) = found {
            self.off[found].store(off, Relaxed);
        }
        found.is_some()
    }
}
