//! What thinks above a store: one place where stored state meets the rules, the mirror of the fleet in memory, and
//! which instance does what.
//!
//! | module | what it is for |
//! |---|---|
//! | [`roll`] | reads snapshots, lets `presence` decide and applies the changes |
//! | [`mirror`] | what this instance knows of its partitions, to be read without asking the store |
//! | [`walk`] | compares the mirror with the store, page by page |
//! | [`lease`], [`ownership`] | the lease of this instance, and the partitions that follow from those of all |
//! | [`census`] | how many units each kind has, and whether there is room for another one |
//! | [`examination`] | what is wrong with a store that answers |

use std::collections::HashMap;

use crate::presence::{Kind, KindRules};

mod canary_pace;
pub mod census;
pub mod declared;
pub mod examination;
pub mod lease;
pub mod mirror;
pub mod ownership;
pub mod roll;
pub mod walk;

pub use canary_pace::CanaryPace;
pub use census::Census;
pub use lease::Lease;
pub use mirror::Mirror;
pub use ownership::Ownership;
pub use roll::{HearingConfig, Roll};
pub use walk::Walk;

/// The rules of every configured kind.
pub type Rules = HashMap<Kind, KindRules>;
