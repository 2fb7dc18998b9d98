//! A world for Rollcall to watch: a fleet over real MQTT, and sinks that print what they are told.

pub mod fleet;
pub mod mail_sink;
pub mod servers;
pub mod webhook_sink;
