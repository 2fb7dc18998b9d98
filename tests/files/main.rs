//! The files of the repository and their parsers: sources, configurations, rules and dashboards
//! of Prometheus, the stack, and the documentation.

mod addresses;
mod config;
mod dashboards;
mod docs;
mod fuzz;
mod history;
mod house;
mod kubernetes;
mod production;
mod reference;
mod rules;
mod servers;
mod stack;
#[path = "../support/mod.rs"]
mod support;
mod workflows;
