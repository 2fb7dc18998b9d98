//! Change-sets on keys that are no cells, for `write_cells.lua`.

use super::topology::ScriptCall;

/// What each change-set of a block expects or does on one key.
pub(super) struct Column<'a> {
    /// As the script has it, such as `lacks`.
    pub what: &'static str,
    pub key: &'a str,
    /// How many names of the key a change-set has.
    pub times: usize,
    /// The names of all change-sets, with their values or scores where and in the order in which the script has them.
    pub words: Vec<&'a [u8]>,
}

/// Adds `count` change-sets of one shape. The script answers for each whether it is written.
pub(super) fn add_block(call: &mut ScriptCall<'_>, count: usize, columns: &[Column<'_>]) {
    call.arg(count).arg(columns.len());
    for Column { what, key, times, .. } in columns {
        call.key(*key).arg(*what).arg(*times);
    }
    for word in columns.iter().flat_map(|column| &column.words) {
        call.arg(*word);
    }
}
