//! History on a real PostgreSQL: what it holds equals what the engine holds, whatever fails meanwhile.

mod alike;
mod faults;
mod mails;
mod pages;
mod policy;
mod reports;
#[path = "../support/mod.rs"]
mod support;
mod tables;
mod world;
