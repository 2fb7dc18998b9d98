//! Who is there, what the time is, and which part of the fleet is whose.
//!
//! There is no leader. Each instance keeps a lease in the engine and learns of the leases of the others.
//! From that alone every instance works out, alike, which instance sweeps, tells and shows which partition.
//!
//! # Why views may differ
//! An instance that joins, leaves or freezes is noticed by some a little before others, and one that
//! cannot reach the engine goes on believing what it believed. Then a partition has two owners for a
//! while, or none. Two do the same work twice, and every step is taken by one of them; a
//! partition without an owner is noticed by the others, because every instance checks what is long overdue.

use std::sync::Arc;

use tokio::sync::watch;

/// Which partitions are whose, as one instance sees it. Copies see the same.
#[derive(Clone, Debug)]
pub struct Ownership(watch::Receiver<Arc<View>>);

/// What an instance believes at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Its own name.
    pub instance: String,
    /// All instances that are there, in order.
    pub instances: Vec<String>,
    /// Its partitions, in order.
    pub partitions: Vec<u16>,
    /// Those and, if it is its, the one after the last, which stands for what belongs to no unit: news
    /// of hearing.
    pub outboxes: Vec<u16>,
}

impl View {
    /// What `instance` owns of so many partitions while these are there. Without any it owns
    /// everything: an instance that cannot know assumes that it is alone.
    pub fn new(instance: &str, mut instances: Vec<String>, partitions: u16) -> View {
        instances.sort();
        let mine = |partition: &u16| owner(*partition, &instances).is_none_or(|owner| owner == instance);
        let outboxes: Vec<u16> = (0..=partitions).filter(mine).collect();
        let own = outboxes.iter().copied().filter(|partition| *partition < partitions).collect();
        View { instance: instance.to_owned(), instances, partitions: own, outboxes }
    }
}

impl Ownership {
    /// What a view that changes says at any moment.
    pub fn follow(view: watch::Receiver<Arc<View>>) -> Ownership {
        Ownership(view)
    }

    /// That of an instance which is alone.
    pub fn of_everything(partitions: u16) -> Ownership {
        Ownership::fixed(View::new("alone", Vec::new(), partitions))
    }

    /// One that does not change.
    pub fn fixed(view: View) -> Ownership {
        Ownership(watch::channel(Arc::new(view)).1)
    }

    /// What is believed now.
    pub fn view(&self) -> Arc<View> {
        self.0.borrow().clone()
    }

    /// Whether that partition is this instance's.
    pub fn owns(&self, partition: u16) -> bool {
        self.0.borrow().partitions.binary_search(&partition).is_ok()
    }

    /// Ends when something else is believed than when this copy was made or last waited.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // No sender is left that could change it.
            std::future::pending::<()>().await;
        }
    }
}

/// Whose a partition is while these instances are there; `None` if there are none. Every instance, of
/// whatever version, has to answer alike.
///
/// Rendezvous hashing: each instance draws a number for the partition, and the highest has it. So when one
/// leaves, only its partitions move, and when one comes, only to it.
pub fn owner(partition: u16, instances: &[String]) -> Option<&str> {
    instances.iter().map(String::as_str).max_by_key(|instance| (drawn(instance, partition), *instance))
}

/// FNV-1a over the name and the number, and the finish of SplitMix64, without which names that differ
/// in their last letter would draw much alike.
fn drawn(instance: &str, partition: u16) -> u64 {
    let bytes = instance.bytes().chain(partition.to_be_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn partitions_are_spread_evenly() {
        let instances: Vec<String> = (1..=5).map(|number| format!("rollcall-{number}")).collect();
        for instance in &instances {
            let own = View::new(instance, instances.clone(), 1000).partitions.len();
            assert!((150..=250).contains(&own), "{instance} has {own} of 1000");
        }
    }

    #[test]
    fn when_one_of_five_leaves_only_its_partitions_move() {
        let five = named(&["a", "b", "c", "d", "e"]);
        let four = named(&["a", "b", "d", "e"]);
        for partition in 0..1024 {
            let before = owner(partition, &five).unwrap();
            let after = owner(partition, &four).unwrap();
            assert!(before == after || before == "c", "{partition} went from {before} to {after}");
        }
    }

    #[test]
    fn everybody_answers_alike_in_whatever_order_they_learned_the_names() {
        let one = View::new("a", named(&["a", "b", "c"]), 64);
        let other = View::new("b", named(&["c", "b", "a"]), 64);
        assert_eq!(one.instances, other.instances);
        assert!(one.outboxes.iter().all(|partition| !other.outboxes.contains(partition)));
    }

    #[test]
    fn whose_a_partition_is_stays_the_same_over_versions() {
        let names = named(&["rollcall-1", "rollcall-2", "rollcall-3"]);
        let owners: Vec<&str> = (0..8).map(|partition| &owner(partition, &names).unwrap()[9..]).collect();
        assert_eq!(owners, ["2", "3", "1", "3", "1", "2", "2", "2"]);
    }

    #[test]
    fn whoever_is_alone_or_knows_of_nobody_owns_everything() {
        assert_eq!(View::new("a", named(&["a"]), 3).outboxes, [0, 1, 2, 3]);
        assert_eq!(View::new("a", named(&[]), 3).partitions, [0, 1, 2]);
        assert!(Ownership::of_everything(3).owns(2) && !Ownership::of_everything(3).owns(3));
    }
}
