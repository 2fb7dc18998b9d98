//! Code that several groups of tests share. Each group is one program, and includes this folder once.

#![allow(dead_code, unused_imports, unused_macros, reason = "no group needs all of it")]

pub mod browser;
pub mod certificates;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod connect;
pub mod distance;
pub mod facts;
pub mod fleet;
pub mod http;
pub mod metrics;
pub mod namespaces;
pub mod node;
pub mod parts;
pub mod postgres;
pub mod prometheus;
pub mod redis;
pub mod sentinel;
pub mod watched;
