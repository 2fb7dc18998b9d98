//! Faults around Rollcall and in it: each silence is one record, notified under one
//! id, and no unit that sent heartbeats is marked offline.
//!
//! `world` holds real processes and an oracle; every other file is a family of faults, and the name of every
//! test is its claim. `make soak` runs all of them at random.

/// Cases for a single instance on each engine.
macro_rules! on_both_engines {
    ($($case:ident)*) => { $(
        mod $case {
            use crate::world::Plan;

            #[tokio::test(flavor = "multi_thread")]
            async fn on_redis() {
                super::$case(Plan::new(1)).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn in_a_directory() {
                super::$case(Plan::embedded()).await;
            }
        }
    )* };
}

mod alone;
mod announced;
mod broker;
mod clocks;
mod engine;
mod evictions;
#[path = "../support/facts.rs"]
mod facts;
#[path = "../support/namespaces.rs"]
mod namespaces;
mod network;
mod pains;
mod poison;
mod processes;
mod routed;
mod servers;
mod shared;
mod timers;
mod world;
