//! An open record as an alert.

use std::time::Duration;

use serde::Serialize;

use super::Receiver;
use crate::clock::Timestamp;
use crate::pages;
use crate::presence::{Labels, OfflineRecord, Trip};
use crate::routing::SilenceId;
use crate::routing::alert::{ALERT_NAME, alert_labels, fingerprint};

/// The end of an alert, counted from the answer; a later answer with the alert moves it.
const ENDS_AFTER: Duration = Duration::from_secs(300);

/// An alert, as clients of Alertmanager read it.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownAlert {
    pub labels: Labels,
    annotations: Labels,
    pub receivers: Vec<Receiver>,
    starts_at: Timestamp,
    updated_at: Timestamp,
    ends_at: Timestamp,
    pub fingerprint: String,
    #[serde(rename = "generatorURL")]
    generator_url: String,
    status: AlertStatus,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct AlertStatus {
    state: &'static str,
    silenced_by: Vec<SilenceId>,
    /// Fingerprints of alerts.
    inhibited_by: Vec<String>,
    muted_by: [(); 0],
}

/// The silences and inhibitions that keep receivers from being notified.
#[derive(Clone, Default)]
pub(super) struct Suppressed {
    pub silenced_by: Vec<SilenceId>,
    /// Fingerprints of alerts.
    pub inhibited_by: Vec<String>,
}

impl ShownAlert {
    /// `base`: `http.external_url`. It never comes from a header of the request, because its sender chooses those.
    pub fn of(
        record: &OfflineRecord,
        receivers: Vec<Receiver>,
        suppressed: Suppressed,
        base: Option<&str>,
        now: Timestamp,
    ) -> ShownAlert {
        let OfflineRecord { kind, unit, deadline, last_seen, .. } = record;
        let annotations = [
            ("summary", format!("{kind}/{unit} is offline since {deadline}")),
            ("last_seen", last_seen.to_string()),
            ("record", record.id.to_string()),
        ];
        let mut annotations: Labels = annotations.map(|(name, value)| (name.to_owned(), value)).into();
        if let Some(acknowledged) = &record.acknowledged {
            annotations.insert("acknowledged_by".to_owned(), acknowledged.author.clone());
            annotations.insert("acknowledgement".to_owned(), acknowledged.comment.clone());
        }
        ShownAlert {
            annotations,
            starts_at: *deadline,
            updated_at: record.detected_at,
            generator_url: page(base, &pages::unit_of(record)),
            ..ShownAlert::new(alert_labels(record), receivers, suppressed, now)
        }
    }

    /// The alert of the mass-offline breaker.
    pub fn of_mass_offline(
        trip: &Trip,
        labels: Labels,
        receivers: Vec<Receiver>,
        base: Option<&str>,
        now: Timestamp,
    ) -> ShownAlert {
        let Trip { offline, units, since, until, .. } = trip;
        let summary = format!(
            "{offline} of {units} units fell silent since {since}; notifications of single units are held until {until} at \
             the latest"
        );
        ShownAlert {
            annotations: Labels::from([("summary".to_owned(), summary)]),
            starts_at: trip.at,
            updated_at: trip.at,
            generator_url: page(base, pages::INCIDENTS),
            ..ShownAlert::new(labels, receivers, Suppressed::default(), now)
        }
    }

    /// Adds the beginning of the unit's flapping episode: receivers were notified of the episode, and not of this
    /// record.
    pub fn with_episode(mut self, episode: Option<&OfflineRecord>) -> ShownAlert {
        let flapping = episode.map(|episode| ("flapping_since".to_owned(), episode.deadline.to_string()));
        self.annotations.extend(flapping);
        self
    }

    /// The alert about open records that an answer leaves out.
    pub fn of_cut_list(most: usize, base: Option<&str>, now: Timestamp) -> ShownAlert {
        let summary = format!("more than {most} units are offline; only the newest {most} are shown here");
        let labels = Labels::from([(ALERT_NAME.to_owned(), "RollcallMoreUnitsOffline".to_owned())]);
        ShownAlert {
            annotations: Labels::from([("summary".to_owned(), summary)]),
            generator_url: page(base, pages::INCIDENTS),
            ..ShownAlert::new(labels, Vec::new(), Suppressed::default(), now)
        }
    }

    fn new(labels: Labels, receivers: Vec<Receiver>, suppressed: Suppressed, now: Timestamp) -> ShownAlert {
        let Suppressed { silenced_by, inhibited_by } = suppressed;
        let state = if silenced_by.is_empty() && inhibited_by.is_empty() { "active" } else { "suppressed" };
        ShownAlert {
            fingerprint: fingerprint(&labels),
            labels,
            annotations: Labels::new(),
            receivers,
            starts_at: now,
            updated_at: now,
            ends_at: now + ENDS_AFTER,
            generator_url: String::new(),
            status: AlertStatus { state, silenced_by, inhibited_by, muted_by: [] },
        }
    }
}

/// The address of a page; empty without a base.
fn page(base: Option<&str>, path: &str) -> String {
    base.map(|base| format!("{base}{path}")).unwrap_or_default()
}
