//! The names of the fields of a heartbeat.

/// Names of the JSON fields that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The device's own time.
    pub ts: String,
    /// The silence that the unit wants Rollcall to allow.
    pub timeout: String,
    pub labels: String,
    /// A planned silence.
    pub sleep: String,
}

impl Default for Fields {
    fn default() -> Fields {
        let [ts, timeout, labels, sleep] = ["ts", "timeout", "labels", "sleep"].map(str::to_owned);
        Fields { ts, timeout, labels, sleep }
    }
}
