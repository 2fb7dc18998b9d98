//! The logic above a store: stored state meets the rules here. Also the mirror of the fleet in memory, and the
//! division of the fleet among instances.
//!
//! | module | purpose |
//! |---|---|
//! | [`roll`] | reads snapshots, lets `presence` decide and applies the changes |
//! | [`mirror`] | the units of this instance in memory, read without calls of the store |
//! | [`SharedRules`] | the rules of the configured kinds, which a reload replaces |
//! | [`walk`] | compares the mirror with the store, page by page |
//! | [`lease`], [`ownership`] | the lease of this instance, and the partitions that follow from all leases |
//! | [`BodyReader`] | what devices send over HTTP |
//! | `node_deaths` | the deaths of nodes, until every instance has marked the devices that it owns |
//! | [`Places`] | units that are heard at two places in turn |
//! | [`census`] | the number of units of each kind, and whether there is room for another one |
//! | [`PastCounts`] | the counts of the fleet over time, for the chart of the page |
//! | [`RhythmKeeper`] | the rhythms of units, stored over restarts |
//! | [`flapping`] | the last transitions of units whose kinds have flap detection |
//! | [`inhibitions`] | the units whose silence inhibits others |
//! | [`MassBreaker`] | the last trip of the mass-offline breaker |
//! | [`silences`] | the alert silences of operators, and their changes |
//! | [`coverage`] | how many units an alert silence covers |
//! | [`deliveries`] | waiting notifications, dead letters and the record of attempts, as operators see and change them |
//! | [`timers`] | timers as clients register, cancel and read them, and their limits |
//! | [`AvailabilityHistory`] | how units spent times that the store has no more |
//! | [`RemovedKinds`] | kinds that are no longer configured, and since when |
//! | [`renaming`] | gives the units of a kind other ids |
//! | [`receivers`] | the backlog of each receiver, and whether it takes notifications |
//! | [`operators`] | acknowledgements and pauses, with their audit |
//! | [`transitions`] | the newest transitions of this instance, for clients that follow the fleet |
//! | [`examination`] | the problems of a store that answers |

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::presence::{Kind, KindRules};

mod attempts;
mod availability;
mod beginning;
mod bodies;
mod canary_pace;
pub mod census;
mod collection;
pub mod coverage;
pub mod declared;
pub mod deliveries;
pub mod examination;
pub mod flapping;
pub mod inhibitions;
mod lasting_incident;
pub mod lease;
mod mass_breaker;
pub mod mirror;
mod newest;
mod node_deaths;
pub mod operators;
pub mod ownership;
mod past_counts;
mod past_pauses;
mod places;
pub mod receivers;
mod removed_kinds;
pub mod renaming;
mod rhythms;
pub mod roll;
mod shared_rules;
pub mod silences;
pub mod strangers;
pub mod timers;
pub mod transitions;
mod unusual;
pub mod walk;

pub use attempts::Attempts;
pub use availability::{AvailabilityHistory, PastTime};
pub use beginning::Beginning;
pub use bodies::{BodyReader, Refused};
pub use canary_pace::{BrokerPace, CanaryPace};
pub use census::Census;
pub use collection::{Changed, Collection, DocumentsByName};
pub use coverage::Coverage;
pub use deliveries::Deliveries;
pub use flapping::{FlapDetector, FlapRules, StoredFlaps};
pub use inhibitions::Inhibitions;
pub use lasting_incident::LastingIncident;
pub use lease::{Lease, is_renamed, renamed};
pub use mass_breaker::MassBreaker;
pub use mirror::Mirror;
pub use operators::{Operators, Subject};
pub use ownership::Ownership;
pub use past_counts::{CountRecorder, PastCounts, WorstOfMinute};
pub use past_pauses::{UnitPause, past_pauses};
pub use places::Places;
pub use receivers::{ReceiverHealths, Receivers};
pub use removed_kinds::RemovedKinds;
pub use rhythms::RhythmKeeper;
pub use roll::{BrokerHearing, HearingConfig, LastReturn, Registered, Roll, UnitChange};
pub use shared_rules::SharedRules;
pub use silences::{Silences, SilencesError};
pub use strangers::{StrangerReason, Strangers};
pub use timers::{TimerRules, Timers};
pub use transitions::Transitions;
pub use unusual::{NoticeStage, UnusualNotice, UnusualNotices};
pub use walk::Walk;

/// The rules of every configured kind.
pub type Rules = HashMap<Kind, KindRules, FixedState>;
