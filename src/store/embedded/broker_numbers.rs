//! The brokers that delivered heartbeats, by numbers of one byte: in memory, and beside last seen times on disk.
//!
//! A row on disk has the names of its numbers itself, so no other row has to be there to read it.

use parking_lot::RwLock;

use crate::presence::BrokerName;
use crate::store::Result;
use crate::store::json::to_json;

/// The number of a broker that is not known.
pub(super) const UNKNOWN: u8 = 0;

/// The names of brokers, in the order of their numbers from 1 on.
#[derive(Default)]
pub(super) struct BrokerNumbers(RwLock<Vec<BrokerName>>);

impl BrokerNumbers {
    /// The number of a broker; [`UNKNOWN`] if there are too many.
    pub fn number(&self, broker: Option<&BrokerName>) -> u8 {
        let Some(broker) = broker else { return UNKNOWN };
        let find = |known: &[BrokerName]| known.iter().position(|one| one == broker).map(|at| at as u8 + 1);
        let found = find(&self.0.read());
        found.unwrap_or_else(|| {
            let mut known = self.0.write();
            find(&known).unwrap_or_else(|| {
                if known.len() >= usize::from(u8::MAX) {
                    return UNKNOWN;
                }
                known.push(broker.clone());
                known.len() as u8
            })
        })
    }

    pub fn name(&self, number: u8) -> Option<BrokerName> {
        self.0.read().get(usize::from(number).checked_sub(1)?).cloned()
    }

    /// All names, for a row on disk.
    pub fn to_text(&self) -> Result<String> {
        to_json(&*self.0.read())
    }

    /// What the numbers of a row on disk with these names are here; `None` if the names cannot be read.
    pub fn of_row(&self, names: &str) -> Option<impl Fn(u8) -> u8 + use<>> {
        let names: Vec<BrokerName> = serde_json::from_str(names).ok()?;
        let numbers: Vec<u8> = names.iter().map(|name| self.number(Some(name))).collect();
        Some(move |number: u8| {
            let at = usize::from(number).checked_sub(1);
            at.and_then(|at| numbers.get(at).copied()).unwrap_or(UNKNOWN)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_on_disk_means_the_brokers_that_it_names_whatever_their_numbers_are_now() {
        let broker = |name: &str| name.parse::<BrokerName>().unwrap();
        let (before, now) = (BrokerNumbers::default(), BrokerNumbers::default());
        let numbers = ["eu", "us", "eu", "http"].map(|name| before.number(Some(&broker(name))));
        assert_eq!((numbers, before.number(None)), ([1, 2, 1, 3], UNKNOWN));
        now.number(Some(&broker("us")));
        let here = now.of_row(&before.to_text().unwrap()).unwrap();
        let names = [UNKNOWN, 1, 2, 3, 4].map(|number| now.name(here(number)));
        assert_eq!(names, [None, Some(broker("eu")), Some(broker("us")), Some(broker("http")), None]);
        assert!(now.of_row("garbage{").is_none());
        let many = BrokerNumbers::default();
        for n in 0..255 {
            assert_eq!(usize::from(many.number(Some(&broker(&n.to_string())))), n + 1);
        }
        assert_eq!(many.number(Some(&broker("one-too-many"))), UNKNOWN);
    }
}
