//! The fields of a hash that may be large: some at a time, and the server serves others meanwhile.

use redis::pipe;

use super::topology::Topology;
use crate::store::Result;

/// A field and what it holds.
pub(super) type Field = (Vec<u8>, Vec<u8>);

/// What is left to read of a hash. What changes meanwhile may be read twice or not at all.
pub(super) struct Fields<'a> {
    topology: &'a Topology,
    name: &'static str,
    key: String,
    step: usize,
    /// `None` after the last.
    cursor: Option<u64>,
    waits: bool,
}

impl<'a> Fields<'a> {
    /// All of a hash, about `step` at a time. `name` is what that does, for metrics and errors.
    pub fn of(topology: &'a Topology, name: &'static str, key: String, step: usize) -> Fields<'a> {
        Fields { topology, name, key, step, cursor: Some(0), waits: false }
    }

    /// The same, where each step waits for a storm to end: see [`Topology::browse`].
    pub fn browsing(self) -> Fields<'a> {
        Fields { waits: true, ..self }
    }

    /// The next ones, which may be none; a small hash is answered whole. `None`: that were all.
    pub async fn next(&mut self) -> Result<Option<Vec<Field>>> {
        let Some(cursor) = self.cursor else { return Ok(None) };
        let mut look = pipe();
        look.cmd("HSCAN").arg(&self.key).arg(cursor).arg("COUNT").arg(self.step);
        type Answer = ((u64, Vec<Field>),);
        let ((next, found),): Answer = if self.waits {
            self.topology.browse(self.name, &look).await?
        } else {
            self.topology.send(self.name, &look).await?
        };
        self.cursor = Some(next).filter(|next| *next != 0);
        Ok(Some(found))
    }
}
