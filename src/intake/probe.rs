//! Probes: canaries on topics of the fleet, which prove that its filters are heard.
//!
//! A canary proves that its own topic is heard. The broker may withhold the topics of the fleet all the same: by
//! its rules, though it granted the subscription, from the start or from one moment to the next. So the first
//! connection of each process publishes a message of its own on a topic of each filter, just before a canary, as a
//! unit with an id that is reserved for that (see [`super::topic`]). It comes back through the subscription, the
//! queue and the batches of the fleet's heartbeats, at whichever connection the broker gives it to; that one tells
//! the engine with its next canary.
//!
//! # What is believed
//! A probe is signed as a canary is: a forged one is refused and counted, and one that is repeated has a time that
//! came before, which changes nothing. The fleet that it belongs to is named in it by a tag, so that several
//! Rollcalls, and `rollcall check`, may speak on the same topics.
//!
//! # Where the broker refuses a probe
//! Then only what units say proves their filter: whatever comes on one of its topics. A unit is declared offline as
//! soon as others have spoken after its time, which is a warning; while all of them are silent the filter counts as
//! not heard, and that is an error. See `mqtt::Asking`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::canary::{self, Canary, Key};
use super::topic::{Refusal, is_covered, probe_topic};
use crate::clock::Timestamp;
use crate::fleet::CanaryPace;
use crate::fleet::Rules;
use crate::presence::{Filters, KindRules};
use crate::telemetry::Rejection;

/// By how much the clock of another instance may be ahead.
const AHEAD: Duration = Duration::from_secs(1);

const FORGED: &str = "a probe that Rollcall did not send proves nothing; no device is called rollcall-probe, and only \
                      the user of Rollcall should write there";

/// The probes of all filters.
pub(super) struct Probes {
    all: Vec<Probe>,
    by_topic: HashMap<String, usize>,
}

/// The probe of a filter.
pub(super) struct Probe {
    /// What it is published to.
    pub topic: String,
    pub filter: String,
    /// The kinds that are heard by the filter.
    pub kinds: Vec<KindRules>,
    standing: Mutex<Standing>,
    /// As in its standing; asked with each message.
    is_refused: AtomicBool,
}

/// What is known of publishing it.
#[derive(Clone, Default)]
pub(super) struct Standing {
    /// The first one that went out by the connection that stands.
    pub since: Option<Timestamp>,
    /// Why it cannot be published; what units say proves the filter meanwhile.
    pub refused: Option<String>,
    /// When a unit spoke last on a topic of the filter, as long as that is of use.
    pub spoken: Option<Timestamp>,
}

impl Probes {
    /// Those of all these filters.
    pub fn new(filters: &Filters, rules: &Rules) -> Probes {
        let mut kinds: Vec<_> = filters.iter().collect();
        kinds.sort_by(|one, other| one.0.cmp(other.0));
        let mut probes = Probes { all: Vec::new(), by_topic: HashMap::new() };
        for (kind, filters) in kinds {
            let Some(rules) = rules.get(kind) else { continue };
            for filter in filters {
                let topic = probe_topic(filter);
                let number = *probes.by_topic.entry(topic.clone()).or_insert(probes.all.len());
                if number == probes.all.len() {
                    let (filter, kinds) = (filter.clone(), Vec::new());
                    let (standing, is_refused) = Default::default();
                    probes.all.push(Probe { topic, filter, kinds, standing, is_refused });
                }
                probes.all[number].kinds.push(rules.clone());
            }
        }
        probes
    }

    /// Each of them.
    pub fn all(&self) -> &[Probe] {
        &self.all
    }

    /// A unit spoke on this topic: proof for the filters that cover it and of which there is no other.
    pub fn spoken(&self, topic: &str, at: Timestamp) {
        let is_refused = |probe: &&Probe| probe.is_refused.load(Ordering::Relaxed);
        for probe in self.all.iter().filter(is_refused).filter(|probe| is_covered(&probe.filter, topic)) {
            let spoken = &mut probe.lock().spoken;
            *spoken = Some(at).max(*spoken);
        }
    }

    /// Which probe came by this topic, and when it was sent; nothing if it is another fleet's or one that is sent no
    /// more.
    pub fn read(
        &self,
        key: &Key,
        topic: &str,
        payload: &[u8],
        arrived: Timestamp,
    ) -> Result<Option<(usize, Timestamp)>, Refusal> {
        match Canary::read(key, topic, payload) {
            // One of an earlier process, by a clock that was ahead.
            Some(probe) if probe.sent_at() > arrived + AHEAD => Ok(None),
            Some(probe) => {
                let number = self.by_topic.get(topic);
                Ok(number.map(|number| (*number, probe.sent_at().min(arrived))))
            }
            None if canary::is_of_another_fleet(key, payload) => Ok(None),
            None => Err((Rejection::ForgedProbe, FORGED.to_owned())),
        }
    }
}

impl Probe {
    /// The names of its kinds.
    pub fn kinds(&self) -> Vec<&str> {
        self.kinds.iter().map(|rules| rules.kind.as_str()).collect()
    }

    /// How often it is sent.
    pub fn period(&self, pace: &CanaryPace) -> Duration {
        self.kinds.iter().map(|rules| pace.probe_period(rules)).min().unwrap_or_default()
    }

    /// What is known of publishing it.
    pub fn standing(&self) -> Standing {
        self.lock().clone()
    }

    /// One went out.
    pub fn sent(&self, at: Timestamp) {
        self.lock().since.get_or_insert(at);
    }

    /// What was sent may be lost with its connection.
    pub fn connection_lost(&self) {
        self.lock().since = None;
    }

    /// The broker took one, or did not.
    pub fn answered(&self, refused: Option<String>) {
        let mut standing = self.lock();
        if standing.refused.is_some() && refused.is_none() {
            // What units said proved it so far.
            *standing = Standing::default();
        }
        self.is_refused.store(refused.is_some(), Ordering::Relaxed);
        standing.refused = refused;
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
