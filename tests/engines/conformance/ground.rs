//! The ground of the suite: where an engine lives, and how it crashes.

use std::sync::Arc;

use rollcall::presence::Unit;
use rollcall::store::Engine;

/// A place for one case, removed on drop.
pub trait Ground: Sized {
    /// Whether the process that uses the engine ends with it.
    const IS_WITHIN: bool;

    /// Makes an empty fleet.
    async fn new() -> Self;

    /// Another engine on this ground, as a second instance has it.
    async fn engine(&self) -> Arc<dyn Engine>;

    /// Ends when everything recorded so far would survive a crash. An engine that writes behind
    /// needs some seconds.
    async fn settle(&self);

    /// Kills the engine and restarts it.
    async fn crash(&mut self);

    /// Lets the expiry key of a unit expire.
    async fn lapse(&self, unit: &Unit);

    /// Sets the expiry key of a unit to this moment (ms), as after a crash between two writes of an engine that cannot
    /// do both at once.
    async fn leave_key(&self, unit: &Unit, ms: i64);
}
