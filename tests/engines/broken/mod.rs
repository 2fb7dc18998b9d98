//! Values that cannot be read, whoever wrote them: what does not need them goes on, and what is wrong is shown.
//! `docs/broken-values.md` says the same for people, and is compared with these tables.

mod busy;
mod fleet;
mod heard;
mod on_disk;
mod on_redis;
mod rights;
