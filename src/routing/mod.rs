//! Routes: which receivers are notified of a silence, in which group, and at what pace.
//!
//! # The design
//! The routes are a tree, as in Alertmanager. A silence enters at the root and goes down: of the routes below one, the
//! first that matches takes it, and the next ones are tried only if that route has `continue = true`. A route takes a
//! silence itself where none below it does. So a silence has one route or, with `continue`, several.
//!
//! A matcher compares a label of the silence with a text or an anchored regular expression: labels of the unit, and
//! `kind`, `unit`, `state` and `cause`. A missing label is empty. Expressions are compiled once, within a budget
//! (`compiled.rs`), and match in linear time.
//!
//! Each route has groups of its own: the key of a group begins with the id of its route, so two routes to one
//! receiver never share a notification. The id follows from the matchers of the route and of the routes above it, and
//! from its receivers: nothing else in the configuration changes it. The root has no id.
//!
//! Routes are evaluated once, when the first transition of a record joins. The record keeps its groups, and its
//! return joins them: even if the routes have changed, the receivers that were notified of the silence are notified
//! of its end.
//!
//! A route may be muted at some times. Its transitions join their groups then, and the groups are held:
//! [`Destinations::held_until`] is read before a group is sealed. Any other reason to hold groups belongs there.
//! Single silences are held by inhibition: see `inhibition.rs`.
//!
//! A group belongs to the route with its id or, after the receivers of that were changed, to the route with its matchers
//! that shares a receiver with it. A group of a route that is gone is sealed for the receivers in its id, as far as they
//! are configured, else for the receivers of the root; so is the group of a route without receivers, unless there is
//! another one. It is repeated and escalated as by the routes with the same receivers, if all these routes agree. Its
//! silences are held while the routes that they take now are muted. Blindness concerns no unit: it goes to the receivers of the root or, if the root has none, to the receivers
//! of all routes.

pub mod alert;
pub mod alert_silence;
mod alert_silences;
mod compiled;
mod destinations;
mod expression;
mod follow_ups;
mod id;
mod inhibition;
mod matcher;
mod mutes;
mod notice;
mod said;
mod syntax;
mod times;
pub mod told;
mod tree;
pub mod trial;

pub use alert_silence::{AlertSilence, SilenceId};
pub use alert_silences::AlertSilences;
pub use compiled::{MAX_KEPT, held};
pub use destinations::{
    DATA_LOST, Destination, Destinations, FLAPPING, MASS_OFFLINE, UNUSUAL_GROUP, is_blind, is_flapping,
    is_of_silences,
};
pub use follow_ups::{Escalation, FollowUps};
pub use id::is_of_root;
pub use inhibition::{InhibitRule, Inhibited, Inhibition, Inhibitors, Source, replaces};
pub use matcher::{Matcher, Operator};
pub use notice::{SealedNotice, SilenceNotice};
pub use said::{Part, Said};
pub use syntax::{SyntaxError, parse_all_label_matchers, parse_label_matchers, parse_matchers};
pub use times::{Minutes, MuteReason, Range, RouteTimes, TimeInterval, zone};
pub use tree::{EVERY_LABEL, MatchedRoute, Route, Routes, TriedRoute};
