//! Connections to the web server.

use std::net::IpAddr;

use super::Telemetry;
use super::labels::CutReason;

impl Telemetry {
    /// Where operators reach the pages, without a slash at the end. Dashboards link to it.
    pub fn web_address(&self, url: &str) {
        self.series.web_info.reset();
        self.series.web_info.with_label_values(&[url]).set(1);
    }

    /// The web server closed a connection, or refused one.
    pub fn connection_cut(&self, why: CutReason, peer: IpAddr) {
        self.series.connections_cut.with_label_values(&[why.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit(why.as_str()) {
            tracing::warn!(%peer, suppressed, reason = why.as_str(), "connection to the web server closed: {}", why.text());
        }
    }
}
