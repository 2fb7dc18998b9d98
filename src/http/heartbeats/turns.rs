//! The batches that are being read. A slow client holds its turn for long, so no client may hold all turns.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The most batches that are read at a time, in all and of one client: each holds its answers in memory.
pub(super) const MOST: usize = 16;
pub(super) const MOST_OF_ONE: usize = 4;

/// The number of turns in use, by the name of the client's token.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<HashMap<String, usize>>>);

/// A turn; dropping it frees the turn.
pub(super) struct Turn {
    turns: Turns,
    name: String,
}

impl Turns {
    /// Takes a turn, if one is free for this client.
    pub fn take(&self, name: &str) -> Option<Turn> {
        let mut taken = self.0.lock();
        let of_one = taken.get(name).copied().unwrap_or(0);
        if of_one >= MOST_OF_ONE || taken.values().sum::<usize>() >= MOST {
            return None;
        }
        taken.insert(name.to_owned(), of_one + 1);
        Some(Turn { turns: self.clone(), name: name.to_owned() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.turns.0.lock();
        if let Some(count) = taken.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_never_has_all_turns() {
        let turns = Turns::default();
        let take = |name: &str| turns.take(name);
        let mut of_one: Vec<Turn> = (0..MOST_OF_ONE).filter_map(|_| take("slow")).collect();
        assert_eq!((of_one.len(), take("slow").is_none()), (MOST_OF_ONE, true));
        let others: Vec<Turn> = (0..MOST).filter_map(|n| take(&format!("other-{n}"))).collect();
        assert_eq!(others.len(), MOST - MOST_OF_ONE);
        of_one.pop();
        let again = take("late");
        assert!(again.is_some() && take("later").is_none(), "all turns are taken");
        drop((of_one, others, again));
        assert!(turns.0.lock().is_empty());
    }
}
