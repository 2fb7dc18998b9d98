//! The engine on Redis.

mod config;

pub use config::Config;
