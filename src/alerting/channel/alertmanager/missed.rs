//! Ends of alerts that a server did not take while another one did.
//!
//! The ends follow with the next alerts for that server. An end is stored for as long as the alert may last there;
//! after that the server has ended the alert by itself. Ends beyond the bound are dropped, and their alerts expire at
//! the server.

use std::collections::BTreeMap;

use super::PostedAlert;
use crate::clock::Timestamp;
use crate::presence::Labels;

/// The most ends that are stored for a server.
const MAX_ENDS: usize = 10_000;

/// The ends that each server has missed, by the labels of the alerts.
pub(super) struct Missed(Vec<BTreeMap<Labels, EndedAlert>>);

/// An alert that ended, and until when its server may show it.
#[derive(Clone)]
struct EndedAlert {
    alert: PostedAlert,
    until: Timestamp,
}

impl Missed {
    pub(super) fn new(servers: usize) -> Missed {
        Missed(vec![BTreeMap::new(); servers])
    }

    /// For each server the ends that it has missed, to be posted with these alerts. If both name an alert, these
    /// alerts are newer.
    pub(super) fn beside(&mut self, alerts: &[PostedAlert], now: Timestamp) -> Vec<Vec<PostedAlert>> {
        for server in 0..self.0.len() {
            self.0[server].retain(|_, end| end.until > now);
            self.taken(server, alerts);
        }
        self.0.iter().map(|missed| missed.values().map(|end| end.alert.clone()).collect()).collect()
    }

    /// Forgets the missed ends of these alerts: the server with that number has taken the alerts, or is about to get
    /// newer states of them.
    pub(super) fn taken(&mut self, server: usize, alerts: &[PostedAlert]) {
        let missed = &mut self.0[server];
        if !missed.is_empty() {
            for alert in alerts {
                missed.remove(&alert.labels);
            }
        }
    }

    /// Notes the ends among these alerts that the server with that number did not take.
    pub(super) fn refused(&mut self, server: usize, alerts: &[PostedAlert], until: Timestamp) {
        let missed = &mut self.0[server];
        let room = MAX_ENDS.saturating_sub(missed.len());
        let ends = alerts.iter().filter(|alert| alert.is_over).take(room);
        missed.extend(ends.map(|alert| (alert.labels.clone(), EndedAlert { alert: alert.clone(), until })));
    }
}
