//! Probes: canaries on topics of the fleet, which prove that its filters are heard.
//!
//! A canary proves that its own topic is heard. The broker may still withhold the topics of the fleet: its rules may do
//! that although it granted the subscription, from the start or at any later moment. So the first connection of each
//! process publishes a probe on a topic of each filter, just before a canary, with a unit id that is reserved for it
//! (see [`super::topic`]). The probe comes back through the subscription, the queue and the batches of the fleet's
//! heartbeats, at any of the connections; that connection reports it to the engine with its next canary.
//!
//! # Which probes count
//! A probe is signed like a canary: a forged probe is refused and counted, and a repeated probe has an old time, which
//! changes nothing. A tag in the probe names its fleet, so that several fleets, and `rollcall check`, may use the same
//! topics.
//!
//! # In a shared subscription
//! The broker gives a probe to any member, and a foreign member does not return it. So an instance that receives the
//! probe of another instance informs that instance, and only the instance that published a probe reports it: see
//! [`super::probe_returns`].
//!
//! # Where the broker refuses a probe
//! Then only messages of units on its topics prove the filter. A unit is declared offline as soon as other units have
//! published after its deadline; this state is a warning. While all units are silent, the filter counts as not heard,
//! which is an error. See `mqtt::ProbeSchedule`.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::canary::{self, Canary, Key};
use super::probe_returns::ProbeReturns;
use super::topic::{Refusal, probe_topic};
use crate::clock::Timestamp;
use crate::fleet::BrokerPace;
use crate::fleet::Rules;
use crate::presence::{Filters, Hearing, Kind, KindRules, covers};
use crate::telemetry::Rejection;

/// How far the clock of another instance may be ahead.
const MAX_CLOCK_LEAD: Duration = Duration::from_secs(1);

const FORGED: &str = "a probe that Rollcall did not send proves nothing; no device is called rollcall-probe, and only \
                      the user of Rollcall should write there";

/// The probes of all filters.
#[derive(Default)]
pub(super) struct Probes {
    all: Vec<Probe>,
    by_topic: HashMap<String, usize>,
    /// The topic on which a member of a share learns that its probes came.
    answers: OnceLock<String>,
    /// The kinds that cannot be heard because their bridge is offline, although their topics are.
    held: Mutex<HashSet<Kind>>,
    /// When the newest canary was sent that came back over the broker; 0: none came.
    answered_at: AtomicI64,
}

/// The probe of a filter.
pub(super) struct Probe {
    pub topic: String,
    pub filter: String,
    /// The name of the filter among the proofs of hearing.
    pub proof: String,
    /// The kinds that the filter hears.
    pub kinds: Vec<KindRules>,
    status: Mutex<ProbeStatus>,
    /// For a member of a share: its probes, and which of them came back.
    returns: Mutex<ProbeReturns>,
    /// The status has a refusal; checked for each message.
    is_refused: AtomicBool,
}

/// The state of the publications of a probe.
#[derive(Clone, Default)]
pub(super) struct ProbeStatus {
    /// When the current connection published its first probe.
    pub since: Option<Timestamp>,
    /// The reason why the probe cannot be published; messages of units prove the filter meanwhile.
    pub refused: Option<String>,
    /// When a message of a unit last came on a topic of the filter; only noted while the filter needs this proof.
    pub unit_heard: Option<Timestamp>,
}

impl Probes {
    /// `proof_of` returns the name of a filter among the proofs of hearing.
    pub fn new(filters: &Filters, rules: &Rules, proof_of: impl Fn(&str) -> String) -> Probes {
        let mut kinds: Vec<_> = filters.iter().collect();
        kinds.sort_by(|one, other| one.0.cmp(other.0));
        let mut probes = Probes::default();
        for (kind, filters) in kinds {
            let Some(rules) = rules.get(kind) else { continue };
            for filter in filters {
                let topic = probe_topic(filter);
                let index = *probes.by_topic.entry(topic.clone()).or_insert(probes.all.len());
                if index == probes.all.len() {
                    let (filter, proof, kinds) = (filter.clone(), proof_of(filter), Vec::new());
                    let (status, returns, is_refused) = Default::default();
                    probes.all.push(Probe { topic, filter, proof, kinds, status, returns, is_refused });
                }
                probes.all[index].kinds.push(rules.clone());
            }
        }
        probes
    }

    pub fn all(&self) -> &[Probe] {
        &self.all
    }

    /// Notes whether the bridge of a kind is offline. Probes then prove nothing for the kind, so the time is blind for
    /// it.
    pub fn hold(&self, kind: &Kind, is_held: bool) {
        let mut held = self.held.lock();
        let _ = if is_held { held.insert(kind.clone()) } else { held.remove(kind) };
    }

    pub fn is_held(&self, kind: &Kind) -> bool {
        self.held.lock().contains(kind)
    }

    /// Notes that the engine has forgotten the members of the share: see [`ProbeReturns::members_forgotten`].
    pub fn members_forgotten(&self, until: Timestamp) {
        self.all.iter().for_each(|probe| probe.returns.lock().members_forgotten(until));
    }

    /// Notes that a canary came back over the broker.
    pub fn broker_answered(&self, sent_at: Timestamp) {
        self.answered_at.fetch_max(sent_at.as_millis(), Ordering::Relaxed);
    }

    /// When the newest canary was sent that came back over the broker.
    pub fn answered_at(&self) -> Option<Timestamp> {
        let at = self.answered_at.load(Ordering::Relaxed);
        (at > 0).then(|| Timestamp::from_millis(at))
    }

    /// Sets the topic on which other members of the share tell this process that its probes came.
    pub fn answered_by(&self, topic: String) {
        let _ = self.answers.set(topic);
    }

    /// The topic on which other members of the share report to this process that its probes came.
    pub fn answers_topic(&self) -> Option<&str> {
        self.answers.get().map(String::as_str)
    }

    /// Notes that a probe of this filter was sent. Only a member of a share stores pending probes.
    pub fn sent(&self, index: usize, at: Timestamp) {
        let probe = &self.all[index];
        probe.status.lock().since.get_or_insert(at);
        if self.answers.get().is_some() {
            probe.returns.lock().sent(at);
        }
    }

    /// Notes that a probe of this process came to an instance. Returns the probes that now prove its filter.
    pub fn came(&self, index: usize, sent_at: Timestamp) -> Vec<Timestamp> {
        if self.answers.get().is_none() {
            return vec![sent_at];
        }
        self.all[index].returns.lock().came(sent_at)
    }

    /// Notes a message of a unit on this topic: it proves the filters that cover the topic and whose probes are
    /// refused.
    pub fn unit_heard(&self, topic: &str, at: Timestamp) {
        let is_refused = |probe: &&Probe| probe.is_refused.load(Ordering::Relaxed);
        for probe in self.all.iter().filter(is_refused).filter(|probe| covers(&probe.filter, topic)) {
            let heard = &mut probe.status.lock().unit_heard;
            *heard = Some(at).max(*heard);
        }
    }

    /// The index of a probe on this topic, and when it was sent; `None` if the probe belongs to another fleet, or is no
    /// longer sent.
    pub fn read(
        &self,
        key: &Key,
        topic: &str,
        payload: &[u8],
        arrived: Timestamp,
    ) -> Result<Option<(usize, Timestamp)>, Refusal> {
        match Canary::read(key, topic, payload) {
            // An earlier process sent the probe, with a clock that was ahead.
            Some(probe) if probe.sent_at() > arrived + MAX_CLOCK_LEAD => Ok(None),
            Some(probe) => {
                let index = self.by_topic.get(topic);
                Ok(index.map(|index| (*index, probe.sent_at().min(arrived))))
            }
            None if canary::is_of_another_fleet(key, payload) => Ok(None),
            None => Err((Rejection::ForgedProbe, FORGED.to_owned())),
        }
    }
}

impl Probe {
    pub fn kinds(&self) -> Vec<&str> {
        self.kinds.iter().map(|rules| rules.kind.as_str()).collect()
    }

    pub fn period(&self, pace: &BrokerPace) -> Duration {
        self.kinds.iter().map(|rules| pace.probe_period(rules)).min().unwrap_or_default()
    }

    pub fn status(&self) -> ProbeStatus {
        self.status.lock().clone()
    }

    /// Forgets the pending probes, which may be lost with the connection.
    pub fn connection_lost(&self) {
        self.status.lock().since = None;
        self.returns.lock().forget();
    }

    /// Returns whether a probe from this member of a share is missing at `now`: see [`ProbeReturns::judge`].
    pub fn is_missing(&self, hearing: &Hearing, wait: Duration, now: Timestamp) -> bool {
        self.returns.lock().judge(hearing, wait, now)
    }

    /// Returns whether several probes of this filter are missing while others came.
    pub fn are_taken(&self) -> bool {
        self.returns.lock().are_taken()
    }

    /// Returns whether a probe came that was sent after a missing one.
    pub fn are_partial(&self) -> bool {
        self.returns.lock().are_partial()
    }

    /// Returns whether a member that the engine has forgotten may get the probes of this moment.
    pub fn may_be_forgotten(&self, at: Timestamp) -> bool {
        self.returns.lock().may_be_forgotten(at)
    }

    /// Notes that the broker accepted a probe, or the reason why it refused one.
    pub fn answered(&self, refused: Option<String>) {
        if refused.is_some() {
            self.returns.lock().forget();
        }
        let mut status = self.status.lock();
        if status.refused.is_some() && refused.is_none() {
            // Until now, messages of units proved the filter.
            *status = ProbeStatus::default();
        }
        self.is_refused.store(refused.is_some(), Ordering::Relaxed);
        status.refused = refused;
    }
}
