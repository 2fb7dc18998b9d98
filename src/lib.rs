//! Rollcall notices when a device of a fleet goes silent, and tells exactly once.

pub mod address;
pub mod alerting;
pub mod backoff;
pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod expiry;
pub mod http;
pub mod intake;
pub mod presence;
pub mod service;
pub mod simulate;
pub mod telemetry;
