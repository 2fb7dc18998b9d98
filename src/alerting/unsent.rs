//! Whether any notification can be sent.

use super::AlertingConfig;

/// Why no notification will be sent; `None`: routes name receivers.
pub fn without_receivers(config: &AlertingConfig) -> Option<&'static str> {
    match (config.route.named_receivers().is_empty(), config.receivers.is_empty()) {
        (false, _) => None,
        (true, true) => Some(
            "no receiver is configured: no notification will be sent; add a [[receiver]] and name it in route.receivers",
        ),
        (true, false) => {
            Some("no route names a receiver: no notification will be sent; name one in route.receivers")
        }
    }
}
