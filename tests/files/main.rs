//! What the repository ships beside the program, and what reads it: sources, configurations, rules and dashboards
//! of Prometheus, the stack, and every parser.

mod config;
mod dashboards;
mod fuzz;
mod house;
mod production;
mod reference;
mod rules;
mod stack;
#[path = "../support/mod.rs"]
mod support;
