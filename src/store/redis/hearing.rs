//! How far Rollcall has heard and by whom, and the ledger of blind intervals.
//!
//! # How a server that lost its data is noticed
//! It was emptied while it ran, or started with nothing. Beside how far was heard stands the id of the fleet,
//! and an instance remembers both. In the step that writes that a canary has come the ids are compared: another one, or
//! none, is a loss, and the first instance that notices tells the operators, in the same step in which the new id
//! is written. What it remembers is not forgotten because the server has nothing to say any more: only a
//! server that answers with something replaces it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::{Pipeline, ScriptInvocation, Value, pipe};

use super::keys::Keys;
use super::topology::Topology;
use super::units::milliseconds;
use super::{RedisEngine, found_fleet};
use crate::clock::Timestamp;
use crate::presence::{FilterProofs, Hearing, Interval, Kind, Ledger, Probed};
use crate::store::hearing::USEFUL;
use crate::store::{Advance, EngineError, Gap, HearingStore, Member, Result, Subscription};
use crate::telemetry::Stored;

/// Added to the score of an interval in which another client may have been given heartbeats.
pub(super) const TAKEN: f64 = 0.5;

#[async_trait]
impl HearingStore for RedisEngine {
    async fn hearing(&self) -> Result<Hearing> {
        let mut short = pipe();
        self.ask_how_far(&mut short);
        let said = self.topology.send("hearing", &short).await?;
        self.hearing_by(said).await
    }

    async fn advance(&self, ear: &Subscription, sent_at: Timestamp, gap: Gap) -> Result<Advance> {
        let answer = self.topology.run("advance", &self.advancing(ear, sent_at, gap)).await?;
        self.advanced(answer, ear, sent_at, gap).await
    }

    async fn advance_and_hear(
        &self,
        ear: &Subscription,
        sent_at: Timestamp,
        gap: Gap,
    ) -> Result<(Advance, Hearing)> {
        let script = self.advancing(ear, sent_at, gap);
        let mut how_far = pipe();
        self.ask_how_far(&mut how_far);
        let (answer, said): (Vec<String>, Said) =
            self.topology.run_and_send("advance", &script, &how_far).await?;
        let is_another = matches!(answer.as_slice(), [word] if word == ANOTHER);
        let advance = self.advanced(answer, ear, sent_at, gap).await?;
        let hearing = if is_another { self.hearing().await } else { self.hearing_by(said).await };
        Ok((advance, hearing?))
    }

    async fn prove(&self, probed: &[Probed]) -> Result<()> {
        let mut script = self.scripts.prove.prepare_invoke();
        script.key(self.keys.filters()).key(self.keys.heard());
        let kinds: BTreeSet<&Kind> = probed.iter().map(|one| &one.kind).collect();
        let numbers: BTreeMap<&Kind, usize> = kinds.into_iter().zip(3..).collect();
        for kind in numbers.keys() {
            script.key(self.keys.blind_of(kind));
        }
        for Probed { kind, filter, sent_at, gap } in probed {
            script.arg(numbers[kind]).arg(kind.as_str()).arg(filter);
            script.arg(sent_at.as_millis()).arg(gap.as_millis() as u64).arg((*sent_at - USEFUL).as_millis());
        }
        self.topology.run("prove", &script).await
    }

    async fn heard_by(&self, client_id: &str) -> Result<Option<Timestamp>> {
        let mut one = pipe();
        one.get(self.keys.session(client_id));
        // What is no moment is not known: the time of that session is blind.
        let (heard,): (Option<Vec<u8>>,) = self.topology.send("heard_by", &one).await?;
        Ok(heard.as_deref().and_then(milliseconds).map(Timestamp::from_millis))
    }

    async fn attend(&self, member: &Member, now: Timestamp, release: Duration) -> Result<()> {
        let mut script = self.scripts.attend.prepare_invoke();
        script.key(self.keys.members()).key(self.keys.floors());
        script.arg(&member.share).arg(&member.client_id).arg(member.connection);
        script.arg(now.as_millis()).arg(release.as_millis() as u64);
        self.topology.run("attend", &script).await
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn fleet_id(&self) -> String {
        self.memory().fleet.clone()
    }

    async fn leave(&self, member: &Member) -> Result<()> {
        self.depart(member, "leave", String::new()).await.map(|_| ())
    }

    async fn gone(&self, member: &Member, at: Timestamp) -> Result<bool> {
        self.depart(member, "gone", at.as_millis().to_string()).await
    }
}

/// What `advance.lua` answers where the fleet is another one than was known.
const ANOTHER: &str = "another";

/// What an instance knew last of the fleet.
pub(super) struct Memory {
    fleet: String,
    /// Up to when was heard.
    heard: Option<Timestamp>,
}

impl Memory {
    /// As it is when an instance begins. A fleet that was there before ids stood beside how far was heard gets
    /// its own there.
    pub async fn begin(topology: &Topology, keys: &Keys, fleet: &str) -> Result<Memory> {
        let mut pipe = pipe();
        pipe.atomic().hset_nx(keys.heard(), "fleet", fleet).ignore();
        pipe.hmget(keys.heard(), &["fleet", "at"]);
        let ((fleet, heard),): ((String, Option<Vec<u8>>),) = topology.send("meta", &pipe).await?;
        let heard = heard.as_deref().and_then(milliseconds).map(Timestamp::from_millis);
        Ok(Memory { fleet, heard })
    }
}

/// Up to when was heard (ms), the versions of the ledger and of those of kinds, and the fleet.
const VERSIONS: &[&str] = &["at", "ledger", "kinds", "fleet"];
type Versions = (Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

/// What the server says of hearing: how far was heard (ms), the versions of the ledger and of those of kinds, and the fleet;
/// up to when filters were heard; its clock (s, µs).
pub(super) type Said = (Versions, Vec<(Vec<u8>, Vec<u8>)>, (i64, i64));

/// What is known of the ledger: its versions, and what it says.
pub(super) type Known = ((i64, i64), Hearing);

impl RedisEngine {
    /// Asks how far Rollcall has heard; what it says is for [`RedisEngine::hearing_by`].
    pub(super) fn ask_how_far(&self, pipe: &mut Pipeline) {
        pipe.hmget(self.keys.heard(), VERSIONS).hgetall(self.keys.filters()).cmd("TIME");
    }

    fn advancing(&self, ear: &Subscription, sent_at: Timestamp, gap: Gap) -> ScriptInvocation<'_> {
        let (fleet, known) = {
            let memory = self.memory();
            (memory.fleet.clone(), memory.heard)
        };
        let mut script = self.scripts.advance.prepare_invoke();
        script.key(self.keys.heard()).key(self.keys.blind());
        script.key(self.keys.outbox(self.keys.partitions()));
        script.key(self.keys.members()).key(self.keys.floors()).key(self.keys.plain());
        script.arg(sent_at.as_millis()).arg(gap.blind.as_millis() as u64).arg(gap.tell.as_millis() as u64);
        script.arg((sent_at - USEFUL).as_millis());
        script.arg(known.map(|heard| heard.as_millis().to_string()).unwrap_or_default());
        script.arg(fleet);
        match ear {
            Subscription::Plain => {}
            Subscription::Kept { client_id, connection, was_cut, span } => {
                script.key(self.keys.session(client_id));
                script.arg("").arg(client_id).arg(connection).arg(span.as_millis().max(1) as u64);
                script.arg(u8::from(*was_cut));
            }
            Subscription::Member(member) => {
                script.arg(&member.share).arg(&member.client_id).arg(member.connection);
            }
        }
        script
    }

    /// What the answer to [`RedisEngine::advancing`] says. Where the fleet is another one, that is noticed first.
    async fn advanced(
        &self,
        mut answer: Vec<String>,
        ear: &Subscription,
        sent_at: Timestamp,
        gap: Gap,
    ) -> Result<Advance> {
        let mut loss = None;
        if matches!(answer.as_slice(), [word] if word == ANOTHER) {
            loss = self.notice_loss(sent_at).await?;
            answer = self.topology.run("advance", &self.advancing(ear, sent_at, gap)).await?;
        }
        match answer.as_slice() {
            [word] if word == ANOTHER => Err(EngineError::Unavailable(
                "the server lost its data again while that was noticed".to_owned(),
            )),
            [_] => Ok(Advance::NotAttending),
            [from, to] => parse_interval(&format!("{from} {to}")).map(|blind| Advance::Heard(Some(blind))),
            _ => Ok(Advance::Heard(loss)),
        }
    }

    /// What follows from that.
    pub(super) async fn hearing_by(&self, said: Said) -> Result<Hearing> {
        let ((heard, version, of_kinds, fleet), filters, (seconds, micros)) = said;
        let server = Timestamp::from_millis(seconds * 1000 + micros / 1000);
        let leapt = self.server_clock().read(Instant::now(), server);
        let mut known = self.ledger.lock().await;
        let number =
            |field, value: &Option<Vec<u8>>| self.hearing_number(field, value.as_deref()).unwrap_or(0);
        let proved = self.parse_filters(filters);
        if (number("ledger", &version), number("kinds", &of_kinds)) != known.0 {
            *known = self.read_ledger(&proved).await?;
        } else {
            known.1.heard = self.hearing_number("at", heard.as_deref()).map(Timestamp::from_millis);
        }
        // An answer from before a loss that was noticed meanwhile says nothing of the fleet that began then.
        let mut memory = self.memory();
        if known.1.heard.is_some() && fleet.is_none_or(|fleet| fleet == memory.fleet.as_bytes()) {
            memory.heard = known.1.heard;
        }
        drop(memory);
        // Keys are gone that held what was heard: see `leap`.
        let vouched = known.1.heard.filter(|_| !leapt);
        let filters = Arc::new(FilterProofs { proved, blind: known.1.filters.blind.clone() });
        Ok(Hearing { heard: vouched, filters, ..known.1.clone() })
    }

    /// Compares the fleet with the one that was known. Answers with the blind interval, if its loss is told with
    /// this.
    async fn notice_loss(&self, now: Timestamp) -> Result<Option<Interval>> {
        let (before, heard) = {
            let memory = self.memory();
            (memory.fleet.clone(), memory.heard)
        };
        let until = heard.map_or(now, |heard| now.max(heard + Duration::from_millis(1)));
        let mut script = self.scripts.notice_loss.prepare_invoke();
        script.key(self.keys.heard()).key(self.keys.blind());
        script.key(self.keys.outbox(self.keys.partitions()));
        script.arg(&before).arg(format!("{:016x}", rand::random::<u64>()));
        script.arg(heard.map(|heard| heard.as_millis().to_string()).unwrap_or_default());
        script.arg(until.as_millis());
        let answer: Vec<String> = self.topology.run("notice_loss", &script).await?;
        let [fleet, interval @ ..] = answer.as_slice() else { return Ok(None) };
        tracing::error!(
            before,
            fleet,
            "the server has lost the fleet that was there: units are known again when they are heard, those that \
             stay silent are not; compare with your registry"
        );
        // What was known is written, or another instance has written it.
        *self.memory() = Memory { fleet: fleet.clone(), heard: None };
        found_fleet(&self.topology, &self.keys, Some(&self.key)).await?;
        match interval {
            [from, to] => parse_interval(&format!("{from} {to}")).map(Some),
            _ => Ok(None),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("nothing panics under this lock")
    }

    /// A number of what is stored of hearing. What is none is as if it were not there: Rollcall is blind until
    /// the next canary writes it.
    fn hearing_number(&self, field: &str, text: Option<&[u8]>) -> Option<i64> {
        let place = format!("{} {field}", self.keys.heard());
        let number = milliseconds(text?);
        match number {
            Some(_) => self.telemetry.readable(Stored::Hearing, &place),
            None => {
                let why = "it is no number; the time until the next canary is blind, which writes it anew";
                self.telemetry.unreadable(Stored::Hearing, &place, why);
            }
        }
        number
    }

    async fn depart(&self, member: &Member, name: &'static str, lost_until: String) -> Result<bool> {
        let mut script = self.scripts.depart.prepare_invoke();
        script.key(self.keys.members()).key(self.keys.floors());
        script.arg(&member.share).arg(&member.client_id).arg(member.connection).arg(lost_until);
        self.topology.run(name, &script).await
    }

    /// The intervals of a ledger. One that cannot be read is named and left out.
    fn read_intervals(&self, key: &str, scored: &[(Vec<u8>, f64)]) -> Vec<Interval> {
        let interval = |(text, _): &(Vec<u8>, f64)| {
            let text = String::from_utf8_lossy(text);
            let read = parse_interval(&text);
            if let Err(why) = &read {
                let place = format!("{key} {text}");
                self.telemetry.unreadable(Stored::Hearing, &place, &format!("{why}; ZREM it there"));
            }
            read.ok()
        };
        scored.iter().filter_map(interval).collect()
    }

    /// Up to when filters were heard. One that cannot be read was never heard, until the next canary says so.
    fn parse_filters(&self, filters: Vec<(Vec<u8>, Vec<u8>)>) -> BTreeMap<(Kind, String), Timestamp> {
        let parse = |(name, at): (Vec<u8>, Vec<u8>)| {
            let (name, at) = (String::from_utf8_lossy(&name), String::from_utf8_lossy(&at));
            let read = name.split_once(' ').and_then(|(kind, filter)| {
                let at = Timestamp::from_millis(at.parse().ok()?);
                Some(((kind.parse().ok()?, filter.to_owned()), at))
            });
            if read.is_none() {
                let place = format!("{} {name}", self.keys.filters());
                let why = format!("{at:?} is no time at which a filter was heard; HDEL it there");
                self.telemetry.unreadable(Stored::Hearing, &place, &why);
            }
            read
        };
        filters.into_iter().filter_map(parse).collect()
    }

    /// The ledgers and how far was heard, as of one moment, with their versions; of kinds that have filters.
    async fn read_ledger(&self, proved: &BTreeMap<(Kind, String), Timestamp>) -> Result<Known> {
        let kinds: BTreeSet<&Kind> = proved.keys().map(|(kind, _)| kind).collect();
        let mut pipe = pipe();
        pipe.atomic().hmget(self.keys.heard(), VERSIONS);
        pipe.zrange_withscores(self.keys.blind(), 0, -1);
        for kind in &kinds {
            pipe.zrange_withscores(self.keys.blind_of(kind), 0, -1);
        }
        let mut answers: Vec<Value> = self.topology.send("ledger", &pipe).await?;
        let damaged = |error| EngineError::Damaged(format!("the ledger: {error}"));
        let ledgers = answers.split_off(1);
        let ((heard, version, of_kinds, _),): (Versions,) =
            redis::from_redis_value(Value::Array(answers)).map_err(damaged)?;
        let ledgers: Vec<Vec<(Vec<u8>, f64)>> =
            redis::from_redis_value(Value::Array(ledgers)).map_err(damaged)?;
        let heard = self.hearing_number("at", heard.as_deref());
        let version = self.hearing_number("ledger", version.as_deref());
        let of_kinds = self.hearing_number("kinds", of_kinds.as_deref());
        let taken = ledgers[0].iter().filter(|(_, end)| end.fract() > 0.0);
        let taken: Vec<Timestamp> = taken.map(|(_, end)| Timestamp::from_millis(*end as i64)).collect();
        let mut blind = BTreeMap::new();
        for (kind, scored) in kinds.into_iter().zip(&ledgers[1..]) {
            let intervals = self.read_intervals(&self.keys.blind_of(kind), scored);
            if !intervals.is_empty() {
                blind.insert(kind.clone(), intervals);
            }
        }
        let intervals = self.read_intervals(&self.keys.blind(), &ledgers[0]);
        let hearing = Hearing {
            heard: heard.map(Timestamp::from_millis),
            ledger: Ledger::new(intervals).with_taken(taken),
            filters: Arc::new(FilterProofs { blind, ..FilterProofs::default() }),
            ..Hearing::default()
        };
        Ok(((version.unwrap_or(0), of_kinds.unwrap_or(0)), hearing))
    }
}

/// `<from> <to>` in ms.
pub(super) fn parse_interval(text: &str) -> Result<Interval> {
    let parse = |ms: &str| ms.parse().ok().map(Timestamp::from_millis);
    text.split_once(' ')
        .and_then(|(from, to)| Some(Interval { from: parse(from)?, to: parse(to)? }))
        .ok_or_else(|| EngineError::Damaged(format!("the ledger holds {text:?}, which is no blind interval")))
}
