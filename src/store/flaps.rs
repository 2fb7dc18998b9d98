//! The last transitions of units whose kinds have flap detection: [`Flaps`](crate::presence::Flaps) as text, and the
//! next look at each unit.

use async_trait::async_trait;

use super::Result;
use crate::clock::Timestamp;
use crate::presence::Unit;

/// A change of one unit, decided from what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlapChange {
    pub unit: Unit,
    /// The text from which it was decided; `None`: there was none.
    pub before: Option<String>,
    /// The new text, and when the unit is to be looked at; `None` forgets it.
    pub after: Option<(String, Timestamp)>,
}

/// The last transitions of units.
#[async_trait]
pub trait FlapStore: Send + Sync {
    /// The texts of these units, in order.
    async fn flaps(&self, units: &[Unit]) -> Result<Vec<Option<String>>>;

    /// Writes each change if the text is still that from which it was decided. Answers, in order, which are written.
    async fn change_flaps(&self, changes: &[FlapChange]) -> Result<Vec<bool>>;

    /// Up to `limit` units of these partitions that are to be looked at by now, and the texts of them.
    async fn due_flaps(
        &self,
        partitions: &[u16],
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Unit, Option<String>)>>;

    /// When the next unit of these partitions is to be looked at.
    async fn first_flaps(&self, partitions: &[u16]) -> Result<Option<Timestamp>>;

    /// All units of a partition with their texts, unordered.
    async fn flaps_in(&self, partition: u16) -> Result<Vec<(Unit, String)>>;
}
