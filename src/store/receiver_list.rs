//! A list of receivers as it is stored: their names, separated by commas.

/// Whether the list names this receiver.
pub(super) fn lists(receivers: &str, name: &str) -> bool {
    receivers.split(',').any(|one| one == name)
}
