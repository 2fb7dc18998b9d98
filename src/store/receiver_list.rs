//! A list of receivers as it is stored: their names, separated by commas.

/// Whether the list names this receiver.
pub(super) fn lists(receivers: &str, name: &str) -> bool {
    receivers.split(',').any(|one| one == name)
}

/// The list with one more receiver at its end; `None`: the list names this receiver already.
pub(super) fn with(receivers: &str, name: &str) -> Option<String> {
    match receivers {
        "" => Some(name.to_owned()),
        _ if lists(receivers, name) => None,
        _ => Some(format!("{receivers},{name}")),
    }
}
