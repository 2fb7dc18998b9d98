//! A world beside another one, in which nothing fails: a measure of this machine.
//!
//! Detection resumes within ten seconds of the servers being back. A slow machine takes longer for everything, so
//! seconds would say more of the machine than of Rollcall. Here the same time counts in probes: units that die one
//! after the other beside the disturbed world, and are notified.

use std::cell::Cell;

use super::{Plan, World};

/// A probe lasts for at least four seconds: its heartbeats, its timeout, and the waits of its group. So two are less
/// than ten seconds, and the third one is as long as the probe with which the disturbed world shows that it detects.
const MAX_RUNS: usize = 3;

/// A world of one process with the embedded engine and broker, and no other units.
pub struct Undisturbed(Box<World>);

impl Undisturbed {
    pub async fn start(seed: u64) -> Undisturbed {
        let plan = Plan { units: 0, ..Plan::alone() };
        Undisturbed(Box::new(Box::pin(World::with_seed(plan, seed)).await))
    }

    /// Waits for a fact, which has to come true before [`MAX_RUNS`] probes are notified here. Returns how many were.
    pub async fn probes_during(&mut self, fact: impl Future<Output = ()>) -> usize {
        let notified = Cell::new(0);
        let probes = async {
            while notified.get() < MAX_RUNS {
                self.0.probe().await;
                notified.set(notified.get() + 1);
            }
        };
        tokio::select! {
            biased;
            () = fact => notified.get(),
            () = probes => panic!("detection has not resumed while {MAX_RUNS} units that died beside it were notified"),
        }
    }
}
