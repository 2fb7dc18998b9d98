//! Reads the bodies of devices' HTTP requests as the payloads of MQTT messages are read.

use crate::clock::Timestamp;
use crate::presence::{Announcement, Heartbeat, Unit};
use crate::telemetry::Rejection;

/// Why a request of a device is rejected, and the text of it.
pub type Refused = (Rejection, String);

/// Reads the bodies of requests of devices.
pub trait BodyReader: Send + Sync {
    /// Reads the heartbeat of a unit that arrives at that moment. Any body proves life.
    ///
    /// # Errors
    /// The unit is of no configured kind, no unit of its kind has this id, or the heartbeat is too old.
    fn heartbeat(&self, unit: Unit, body: &[u8], arrived: Timestamp) -> Result<Heartbeat, Refused>;

    /// The announcement that a unit is gone, and the heartbeat that it is as well if the unit was never heard.
    ///
    /// # Errors
    /// The unit is of no configured kind, or no unit of its kind has this id.
    fn departure(&self, unit: Unit, at: Timestamp) -> Result<(Heartbeat, Announcement), Refused>;
}
