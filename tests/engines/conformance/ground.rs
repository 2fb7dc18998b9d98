//! What the suite needs of an engine beside the engine itself.

use std::sync::Arc;

use rollcall::presence::Unit;
use rollcall::store::Engine;

/// A place of its own for one case, which goes when the value goes.
pub trait Ground: Sized {
    /// Whether the process that uses the engine ends with it.
    const IS_WITHIN: bool;

    /// An empty fleet.
    async fn new() -> Self;

    /// One more way in, as another instance would have it.
    async fn engine(&self) -> Arc<dyn Engine>;

    /// Ends when all that was recorded up to now would outlive a crash. An engine that writes behind
    /// comes to that by itself, within seconds.
    async fn settle(&self);

    /// The engine is killed, without a word, and comes back.
    async fn crash(&mut self);

    /// The expiry key of a unit lapses.
    async fn lapse(&self, unit: &Unit);

    /// The expiry key of a unit stands, holding that moment (ms), as after a crash between two
    /// writes of an engine that cannot do both at once.
    async fn leave_key(&self, unit: &Unit, ms: i64);
}
