//! A list of receivers as it is stored: their names, separated by commas.

/// Whether the list names this receiver.
pub(super) fn lists(receivers: &str, name: &str) -> bool {
    receivers.split(',').any(|one| one == name)
}

/// Whether receivers were notified of a silence. `notified` is empty if the receivers are not known, else a colon and
/// their names.
pub(super) fn is_told(notified: &str) -> bool {
    notified != ":"
}

/// The list with one more receiver at its end; `None`: the list names this receiver already.
pub(super) fn with(receivers: &str, name: &str) -> Option<String> {
    match receivers {
        "" => Some(name.to_owned()),
        _ if lists(receivers, name) => None,
        _ => Some(format!("{receivers},{name}")),
    }
}
