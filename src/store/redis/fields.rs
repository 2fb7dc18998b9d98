//! Reads a hash that may be large, in steps, so that the server serves other commands in between.

use redis::pipe;

use super::topology::Topology;
use crate::store::Result;

/// A field and its value.
pub(super) type HashField = (Vec<u8>, Vec<u8>);

/// A scan of a hash. Fields that change meanwhile may be read twice or not at all.
pub(super) struct FieldScan<'a> {
    topology: &'a Topology,
    name: &'static str,
    key: String,
    step: usize,
    /// `None` after the last step.
    cursor: Option<u64>,
    waits: bool,
}

impl<'a> FieldScan<'a> {
    /// Scans a hash, about `step` fields at a time. `name` is for metrics and errors.
    pub fn of(topology: &'a Topology, name: &'static str, key: String, step: usize) -> FieldScan<'a> {
        FieldScan { topology, name, key, step, cursor: Some(0), waits: false }
    }

    /// Lets each step wait for the end of a storm: see [`Topology::browse`].
    pub fn in_background(self) -> FieldScan<'a> {
        FieldScan { waits: true, ..self }
    }

    /// Continues where another scan ended; `None`: starts at the beginning.
    pub fn from(self, cursor: Option<u64>) -> FieldScan<'a> {
        FieldScan { cursor: cursor.or(Some(0)), ..self }
    }

    /// Where the next step begins; `None` after the last step.
    pub fn cursor(&self) -> Option<u64> {
        self.cursor
    }

    /// The next fields, possibly none; a small hash comes in one step. `None` after the last step.
    pub async fn next(&mut self) -> Result<Option<Vec<HashField>>> {
        let Some(cursor) = self.cursor else { return Ok(None) };
        let mut read = pipe();
        read.cmd("HSCAN").arg(&self.key).arg(cursor).arg("COUNT").arg(self.step);
        type Answer = ((u64, Vec<HashField>),);
        let ((next, fields),): Answer = if self.waits {
            self.topology.browse(self.name, &read).await?
        } else {
            self.topology.send(self.name, &read).await?
        };
        self.cursor = Some(next).filter(|next| *next != 0);
        Ok(Some(fields))
    }
}
