//! What the repository ships beside the program, and what reads it: sources, configurations, rules and dashboards
//! of Prometheus, the stack, the documentation, and every parser.

mod config;
mod dashboards;
mod docs;
mod fuzz;
mod house;
mod production;
mod reference;
mod rules;
mod stack;
#[path = "../support/mod.rs"]
mod support;
mod workflows;
