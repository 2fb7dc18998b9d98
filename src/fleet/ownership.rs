//! The owner of each partition: the instance that sweeps it, delivers its notifications and shows its units.
//!
//! There is no leader. Each instance holds a lease in the engine and reads the leases of the others. From these alone
//! every instance computes the same owners.
//!
//! # Why views may differ
//! Some instances notice a join, a leave or a freeze a little before others, and an instance that cannot reach the
//! engine keeps its last view. Then a partition has two owners for a while, or none. Two owners do the same work, and
//! each step succeeds for one of them. A partition without an owner is covered by the others, because every instance
//! checks units that are long overdue.

use std::sync::Arc;

use tokio::sync::watch;

/// The view of one instance; copies share it.
#[derive(Clone, Debug)]
pub struct Ownership(watch::Receiver<Arc<View>>);

/// The instances and partitions as one instance knows them at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The name of this instance.
    pub instance: String,
    /// All instances with a lease, in order.
    pub instances: Vec<String>,
    /// How often this instance has taken its lease: more than once if the lease ended meanwhile, as while the process
    /// was frozen. Then others may have had its partitions, and have changed them without a note.
    pub terms: u64,
    /// The partitions of this instance, in order.
    pub partitions: Vec<u16>,
    /// `partitions` and, if this instance owns it, the number after the last partition: the outbox of hearing, whose
    /// events belong to no unit.
    pub outboxes: Vec<u16>,
}

impl View {
    /// The view of `instance` while `instances` have leases. If the list is empty, `instance` owns everything: an
    /// instance without a view of others assumes that it is alone.
    pub fn new(instance: &str, mut instances: Vec<String>, partitions: u16) -> View {
        instances.sort();
        let mine = |partition: &u16| owner(*partition, &instances).is_none_or(|owner| owner == instance);
        let outboxes: Vec<u16> = (0..=partitions).filter(mine).collect();
        let own = outboxes.iter().copied().filter(|partition| *partition < partitions).collect();
        View { instance: instance.to_owned(), instances, terms: 0, partitions: own, outboxes }
    }
}

impl Ownership {
    /// The ownership of a view that changes.
    pub fn follow(view: watch::Receiver<Arc<View>>) -> Ownership {
        Ownership(view)
    }

    /// The ownership of an instance without others.
    pub fn of_everything(partitions: u16) -> Ownership {
        Ownership::fixed(View::new("alone", Vec::new(), partitions))
    }

    /// An ownership that does not change.
    pub fn fixed(view: View) -> Ownership {
        Ownership(watch::channel(Arc::new(view)).1)
    }

    pub fn view(&self) -> Arc<View> {
        self.0.borrow().clone()
    }

    pub fn owns(&self, partition: u16) -> bool {
        self.0.borrow().partitions.binary_search(&partition).is_ok()
    }

    /// Waits until the view differs from the view at the last wait of this copy, or at its creation.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // No sender is left, so the view does not change any more.
            std::future::pending::<()>().await;
        }
    }
}

impl View {
    /// The partitions of this instance if only `others` of the other instances share them with it: all of its own, and
    /// those of the instances that are left out.
    pub fn among(&self, others: &[String], partitions: u16) -> Vec<u16> {
        let is_there = |name: &&String| **name == self.instance || others.contains(name);
        let there: Vec<String> = self.instances.iter().filter(is_there).cloned().collect();
        View::new(&self.instance, there, partitions).partitions
    }
}

/// The owner of a partition among `instances`; `None` if the list is empty. Instances of all versions must compute the
/// same owner.
///
/// Rendezvous hashing: each instance has a score for the partition, and the highest owns it. So when an instance
/// leaves, only its partitions move; when one joins, partitions move only to it.
pub fn owner(partition: u16, instances: &[String]) -> Option<&str> {
    instances.iter().map(String::as_str).max_by_key(|instance| (score(instance, partition), *instance))
}

/// FNV-1a over the name and the number, and the finish of SplitMix64, without which names that differ in their last
/// letter would have similar scores.
fn score(instance: &str, partition: u16) -> u64 {
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
    fn the_partitions_of_instances_that_are_left_out_go_to_one_of_the_others_each() {
        let names = named(&["a", "b", "c", "d"]);
        let views: Vec<View> = names.iter().map(|name| View::new(name, names.clone(), 64)).collect();
        // Those that are there; they share all partitions, and keep their own.
        for there in [&names[..], &names[..3], &names[1..3], &names[2..3]] {
            let mut shared = Vec::new();
            for view in views.iter().filter(|view| there.contains(&view.instance)) {
                let here = view.among(there, 64);
                assert!(
                    view.partitions.iter().all(|own| here.contains(own)),
                    "{} of {there:?}",
                    view.instance
                );
                shared.extend(here);
            }
            shared.sort_unstable();
            assert_eq!(shared, (0..64).collect::<Vec<u16>>(), "{there:?}");
        }
        assert_eq!(
            View::new("a", Vec::new(), 3).among(&[], 3),
            [0, 1, 2],
            "an instance without a view is alone"
        );
    }

    #[test]
    fn the_order_of_names_does_not_matter() {
        let one = View::new("a", named(&["a", "b", "c"]), 64);
        let other = View::new("b", named(&["c", "b", "a"]), 64);
        assert_eq!(one.instances, other.instances);
        assert!(one.outboxes.iter().all(|partition| !other.outboxes.contains(partition)));
    }

    #[test]
    fn the_owner_of_a_partition_stays_the_same_over_versions() {
        let names = named(&["rollcall-1", "rollcall-2", "rollcall-3"]);
        let owners: Vec<&str> = (0..8).map(|partition| &owner(partition, &names).unwrap()[9..]).collect();
        assert_eq!(owners, ["2", "3", "1", "3", "1", "2", "2", "2"]);
    }

    #[test]
    fn an_instance_that_is_alone_or_knows_no_other_owns_everything() {
        assert_eq!(View::new("a", named(&["a"]), 3).outboxes, [0, 1, 2, 3]);
        assert_eq!(View::new("a", named(&[]), 3).partitions, [0, 1, 2]);
        assert!(Ownership::of_everything(3).owns(2) && !Ownership::of_everything(3).owns(3));
    }
}
