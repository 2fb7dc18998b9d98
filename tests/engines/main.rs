//! Engines and the loops that work on one: the conformance suite, broken values, the walk, expiry,
//! several instances, and migration from one engine to another.

mod attempts_on_redis;
mod both_engines;
mod broken;
mod cells_alike;
mod conformance;
mod contention;
mod embedded;
mod endpoints;
mod expiry;
mod groups;
mod held_silences;
mod instances;
mod layout;
mod moving;
mod openings_alike;
mod reconnect;
mod returns_on_redis;
mod rhythms;
mod roster_alike;
mod servers;
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod timer_pages;
mod timers_meanwhile;
mod view;
mod walk;
