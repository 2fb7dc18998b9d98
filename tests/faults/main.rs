//! The faults: whatever breaks around Rollcall, or in it, each silence is one record, told under one
//! id, and nobody is called offline who spoke.
//!
//! `world` holds real processes and an oracle; every other file is a family of faults, and every
//! test is named after what it claims. `make soak` walks over all of them at random.

mod broker;
mod clocks;
mod engine;
mod network;
mod pains;
mod processes;
mod shared;
mod world;
