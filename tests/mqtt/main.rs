//! Intake by MQTT, and the broker within the process, with real clients and real brokers.

#[cfg(feature = "broker")]
mod broker;
#[cfg(feature = "broker")]
mod edges;
mod far;
mod intake;
#[cfg(feature = "broker")]
mod killed;
#[cfg(feature = "broker")]
mod others;
mod rabbitmq;
#[cfg(feature = "broker")]
mod served;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
mod twins;
mod unheard;
#[cfg(feature = "broker")]
mod wire;
