//! A stored list of receivers: their names, separated by commas.

pub(super) fn lists(receivers: &str, name: &str) -> bool {
    receivers.split(',').any(|one| one == name)
}

/// The list with another receiver at its end; `None`: the list already names this receiver.
pub(super) fn with(receivers: &str, name: &str) -> Option<String> {
    match receivers {
        "" => Some(name.to_owned()),
        _ if lists(receivers, name) => None,
        _ => Some(format!("{receivers},{name}")),
    }
}
