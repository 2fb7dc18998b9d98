//! For the demo and the tests: a fleet over real MQTT, sinks for webhooks and mails, and private servers.

pub mod fleet;
pub mod mail_sink;
pub mod servers;
pub mod webhook_sink;
