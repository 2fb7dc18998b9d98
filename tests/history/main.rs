//! History on a real PostgreSQL: what it holds equals what the engine holds, whatever fails meanwhile.

mod alike;
mod faults;
#[path = "../service/browser/inspection.rs"]
#[allow(dead_code, reason = "few pages are rated")]
mod inspection;
mod kept;
mod lived;
mod mails;
mod pages;
mod policy;
mod reports;
#[path = "../support/mod.rs"]
mod support;
mod tables;
mod world;
