//! The faults: whatever breaks around Rollcall, or in it, each silence is one record, told under one
//! id, and nobody is called offline who spoke.
//!
//! `world` holds real processes and an oracle; every other file is a family of faults, and every
//! test is named after what it claims. `make soak` walks over all of them at random.

/// Stamps cases in for a single instance on each engine.
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
mod broker;
mod clocks;
mod engine;
#[path = "../support/namespaces.rs"]
mod namespaces;
mod network;
mod pains;
mod poison;
mod processes;
mod shared;
mod world;
