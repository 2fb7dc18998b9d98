//! The policies of the units of a partition, each stored once, with the number of its units.
//!
//! A fleet has a handful. But a device may declare another timeout with each heartbeat, so the number of a policy
//! that no unit has any more is used again.

use std::collections::HashMap;

use crate::presence::Policy;

/// Policies, by number.
#[derive(Default)]
pub(super) struct Policies {
    kept: Vec<(Policy, u32)>,
    numbers: HashMap<(std::time::Duration, std::time::Duration), u32>,
    free: Vec<u32>,
}

impl Policies {
    /// The number of a policy, for one more unit.
    pub fn acquire(&mut self, policy: Policy) -> u32 {
        if let Some(&number) = self.numbers.get(&key(&policy)) {
            self.kept[number as usize].1 += 1;
            return number;
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.kept[number as usize] = (policy, 1);
                number
            }
            None => {
                self.kept.push((policy, 1));
                (self.kept.len() - 1) as u32
            }
        };
        self.numbers.insert(key(&policy), number);
        number
    }

    pub fn get(&self, number: u32) -> Policy {
        self.kept[number as usize].0
    }

    /// Notes that one unit less has that policy.
    pub fn release(&mut self, number: u32) {
        let (policy, units) = &mut self.kept[number as usize];
        *units -= 1;
        if *units == 0 {
            self.numbers.remove(&key(policy));
            self.free.push(number);
        }
    }
}

fn key(policy: &Policy) -> (std::time::Duration, std::time::Duration) {
    (policy.timeout, policy.grace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_device_that_declares_another_timeout_each_time_uses_one_number() {
        let mut policies = Policies::default();
        let policy = |s| Policy { timeout: Duration::from_secs(s), grace: Duration::ZERO };
        let mut number = policies.acquire(policy(1));
        for seconds in 2..10_000 {
            let next = policies.acquire(policy(seconds));
            policies.release(number);
            assert_eq!(policies.get(next), policy(seconds));
            number = next;
        }
        assert!(policies.kept.len() <= 2 && policies.numbers.len() == 1);
    }
}
