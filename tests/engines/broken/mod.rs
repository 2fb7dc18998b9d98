//! Unreadable values: everything that does not need them goes on, and the fault is shown.
//! `docs/broken-values.md` says the same for operators, and is compared with these tables.

mod busy;
mod clocks;
mod fleet;
mod heard;
mod on_disk;
mod on_redis;
mod quarantined;
mod rights;
