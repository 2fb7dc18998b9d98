//! The units below others by their ids: the devices of a node.

use hashbrown::HashSet;

use super::Mirror;
use super::view::Cursor;
use crate::presence::Unit;

impl Mirror {
    /// Reads the next rows, and returns the units among them that are not offline and whose ids begin with the id of
    /// one of these units and a dot, each with that unit; `None`: all rows are read. An id ends at its second dot.
    pub fn below(&self, cursor: &mut Cursor, above: &HashSet<Unit>) -> Option<Vec<(Unit, Unit)>> {
        let mut found = Vec::new();
        let is_read = self.read_rows(cursor, |rows| {
            for (_, rank, row) in rows.selected().filter(|(.., row)| !row.state.is_offline()) {
                let id = rows.table.id(row);
                let Some((end, _)) = id.match_indices('.').nth(1) else { continue };
                let named = |id: &str| Some(Unit::new(self.kinds[rank].clone(), id.parse().ok()?));
                let pair = named(&id[..end]).filter(|unit| above.contains(unit)).zip(named(id));
                found.extend(pair);
            }
        });
        is_read.then_some(found)
    }
}
