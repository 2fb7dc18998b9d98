//! The budget for reading large payloads of a connection.
//!
//! Reading a payload costs a hundred times as much as receiving it. Without a limit, one device with large payloads
//! keeps a connection so busy that canaries come too late, and the fleet is not heard. So large payloads beyond this
//! budget are not read; they prove life anyway. Small payloads cost no more than their message, and are always read.

use parking_lot::Mutex;

use crate::clock::Timestamp;

/// Payloads up to this many bytes are always read.
const SMALL: usize = 1 << 10;
/// The bytes of larger payloads that are read in a second: twice what one device sends to the in-process broker at its
/// defaults of `max_rate` and `max_payload`.
const A_SECOND: usize = 32 << 20;

/// The current second, and the bytes that were read in it.
#[derive(Default)]
pub(super) struct ReadBudget(Mutex<(i64, usize)>);

impl ReadBudget {
    /// Returns whether a payload of this size may be read, and counts it.
    pub fn allows(&self, size: usize, now: Timestamp) -> bool {
        if size <= SMALL {
            return true;
        }
        let mut counted = self.0.lock();
        let second = now.as_millis() / 1000;
        if counted.0 != second {
            *counted = (second, 0);
        }
        counted.1 = counted.1.saturating_add(size);
        counted.1 <= A_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn large_payloads_are_read_up_to_a_bound_each_second_and_small_ones_always() {
        let (budget, now) = (ReadBudget::default(), Timestamp::from_millis(5000));
        let large = SMALL + 1;
        let read = (0..A_SECOND).take_while(|_| budget.allows(large, now)).count();
        assert_eq!(read, A_SECOND / large);
        assert!(!budget.allows(large, now) && budget.allows(SMALL, now));
        for other in [now + Duration::from_secs(1), now - Duration::from_secs(1)] {
            assert!(budget.allows(large, other), "a clock may go back");
        }
    }
}
