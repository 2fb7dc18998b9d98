//! Values that cannot be read, whoever wrote them: what does not need them goes on, and what is wrong is shown.
//! `docs/broken-values.md` says the same for people, and is compared with these tables.

#[path = "broken/busy.rs"]
mod busy;
#[path = "broken/fleet.rs"]
mod fleet;
#[path = "broken/heard.rs"]
mod heard;
#[path = "broken/on_disk.rs"]
mod on_disk;
#[path = "broken/on_redis.rs"]
mod on_redis;
#[path = "broken/rights.rs"]
mod rights;
