//! The engine on Redis.
