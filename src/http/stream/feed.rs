//! The transitions of the whole fleet, for all clients of this instance: its own, and those of the other instances,
//! which are requested only while a client follows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::PATH;
use crate::clock::monotonic;
use crate::fleet::Roll;
use crate::fleet::transitions::{Following, Newest};
use crate::http::PageSources;
use crate::http::peers::{PeerAnswers, Peers};
use crate::presence::{OfflineRecord, Transition};

/// The most transitions in memory for clients that reconnect.
const MAX_TRANSITIONS: usize = 4096;

/// The most transitions in one answer to another instance; in a larger storm, clients have to read again.
const MAX_TOLD: usize = 500;

/// How long the answers of other instances serve all clients.
const RECENT: Duration = Duration::from_millis(900);

/// How long the position of an instance that does not answer is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The transitions that clients follow. Cheap to share.
#[derive(Clone)]
pub(super) struct TransitionFeed {
    roll: Arc<Roll>,
    peers: Peers,
    merged: Arc<Mutex<Merged>>,
}

struct Merged {
    asked: Option<Instant>,
    /// The position in the transitions of this instance.
    own: u64,
    /// The positions in the transitions of the other instances, by their runs, and when each instance answered.
    others: BTreeMap<u64, (u64, Instant)>,
    /// The data of the newest events.
    newest: Newest<Arc<str>>,
}

/// The newest transitions of one instance, for another.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TransitionsPart {
    run: u64,
    end: u64,
    is_cut: bool,
    records: Vec<OfflineRecord>,
}

/// The data of an event.
#[derive(Serialize)]
struct TransitionEvent<'a> {
    transition: Transition,
    record: &'a OfflineRecord,
}

impl TransitionFeed {
    pub fn new(sources: &PageSources) -> TransitionFeed {
        let roll = sources.roll.clone();
        let own = roll.transitions().end();
        let merged =
            Merged { asked: None, own, others: BTreeMap::new(), newest: Newest::new(MAX_TRANSITIONS) };
        TransitionFeed { roll, peers: Peers::new(sources), merged: Arc::new(Mutex::new(merged)) }
    }

    /// A number of this process: positions are those of its feed.
    pub fn run(&self) -> u64 {
        self.roll.transitions().run()
    }

    /// The position after the newest transition.
    pub async fn end(&self) -> u64 {
        self.refreshed().await.newest.end()
    }

    /// Up to `limit` transitions from a position on.
    pub async fn after(&self, position: u64, limit: usize) -> Following<Arc<str>> {
        self.refreshed().await.newest.after(position, limit)
    }

    /// `known`: the positions that another instance has read, as `run.position`, separated by commas.
    pub fn part(&self, known: &str) -> TransitionsPart {
        let transitions = self.roll.transitions();
        let run = transitions.run();
        let position = known.split(',').find_map(|one| {
            let (of, position) = one.split_once('.')?;
            (of.parse() == Ok(run)).then_some(())?;
            position.parse().ok()
        });
        // The other instance does not follow this process yet.
        let Some(position) = position else {
            return TransitionsPart { run, end: transitions.end(), is_cut: true, records: Vec::new() };
        };
        let Following { items, end, is_cut } = transitions.after(position, MAX_TOLD);
        TransitionsPart { run, end, is_cut, records: items }
    }

    /// Hold the lock during the requests, so that clients that come meanwhile share the answer.
    async fn refreshed(&self) -> tokio::sync::MutexGuard<'_, Merged> {
        let mut merged = self.merged.lock().await;
        if merged.asked.is_some_and(|asked| monotonic().duration_since(asked) < RECENT) {
            return merged;
        }
        let known: Vec<String> =
            merged.others.iter().map(|(run, (position, _))| format!("{run}.{position}")).collect();
        let PeerAnswers { parts, .. } = self.peers.ask(&format!("{PATH}?after={}", known.join(","))).await;
        let Following { items, end, is_cut } = self.roll.transitions().after(merged.own, MAX_TRANSITIONS);
        merged.own = end;
        merged.add(is_cut, &items);
        let now = monotonic();
        parts.into_iter().for_each(|part| merged.take(part, now));
        merged.others.retain(|_, (_, answered)| now.duration_since(*answered) < REMEMBERED);
        merged.asked = Some(now);
        merged
    }
}

impl Merged {
    fn take(&mut self, part: TransitionsPart, now: Instant) {
        // Before the first answers no client can miss anything.
        let is_first = self.asked.is_none();
        self.others.insert(part.run, (part.end, now));
        self.add(part.is_cut && !is_first, &part.records);
    }

    fn add(&mut self, is_cut: bool, records: &[OfflineRecord]) {
        if is_cut {
            self.newest.forget();
        }
        for record in records {
            let event = TransitionEvent { transition: record.transition(), record };
            match serde_json::to_string(&event) {
                Ok(json) => self.newest.push(json.into()),
                Err(_) => self.newest.forget(),
            }
        }
    }
}
