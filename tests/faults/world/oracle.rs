//! The oracle: compares the diaries of devices with the records and the notifications.
//!
//! The oracle tells findings that time may still resolve from findings that it cannot, so that a test waits for the
//! first and fails at once with the second.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::{Closing, OfflineRecord};

use super::TIMEOUT;
use super::diary::Device;
use super::poison::Broken;
use super::processor::Waits;

/// A gap in a diary this much shorter than the timeout was not a silence: the slack of a deadline
/// before `heard`.
const MARGIN: Duration = Duration::from_millis(TIMEOUT.as_millis() as u64 / 10);
/// A heartbeat counts for at most this much later than the broker had it, however long it was
/// under way: a gap between canaries, three of their periods.
const GAP: Duration = Duration::from_millis(3 * 250);
/// The largest difference between the clocks of fleet and diaries.
const SKEW: Duration = Duration::from_millis(150);
/// A partition whose owner died is swept by the others this late at the most.
const LATE_CHECK: Duration = Duration::from_secs(3);
/// Within this time every instance has renewed its lease, and so knows the time.
pub const RENEWAL: Duration = Duration::from_millis(2500);
/// A silence that lasts for longer than this after its detection must be notified.
const SWALLOWED: Duration = Duration::from_secs(10);

/// A notification about one record.
#[derive(Clone, Debug)]
pub struct NotifiedRecord {
    /// The `webhook-id` of the notification.
    pub notification: String,
    pub record: OfflineRecord,
}

impl NotifiedRecord {
    fn is_return(&self) -> bool {
        self.record.closed_by.is_some()
    }
}

/// A span whose changes the engine lost.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub from: Timestamp,
    pub to: Timestamp,
    /// Whether the units themselves are lost, too.
    pub of_everything: bool,
    /// Whether groups are lost of units on another server, which have their records.
    pub of_other_groups: bool,
}

/// The evidence; every moment is by the clock of the diaries.
pub struct Evidence {
    /// Records whose id does not contain the last seen time of their unit.
    pub misnamed: Vec<Finding>,
    /// When the time of the fleet jumped or stood still.
    pub jumps: Vec<Timestamp>,
    /// How far the time of the fleet may catch up unnoticed: while a step of the clock is held back, the time is
    /// behind by the way of a request.
    pub catches_up: Duration,
    pub devices: Vec<Device>,
    pub records: Vec<OfflineRecord>,
    pub notified_records: Vec<NotifiedRecord>,
    /// When the broker was away.
    pub outages: Vec<(Timestamp, Timestamp)>,
    /// When anything was disturbed.
    pub disturbances: Vec<(Timestamp, Timestamp)>,
    pub losses: Vec<Loss>,
    /// The broken values of units.
    pub broken: Vec<Broken>,
    /// How long connections waited for a processor.
    pub waits: Waits,
    /// Blind intervals that instances reported.
    pub blind: Vec<(Timestamp, Timestamp)>,
    pub now: Timestamp,
}

/// A violation of a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub unit: String,
    pub what: String,
    /// Whether time may still resolve the finding.
    pub heals: bool,
}

fn wrong(unit: &str, what: String) -> Finding {
    Finding { unit: unit.to_owned(), what, heals: false }
}

fn not_yet(unit: &str, what: String) -> Finding {
    Finding { unit: unit.to_owned(), what, heals: true }
}

/// Records whose id does not hold the unit and its last seen time, by the clock of the fleet.
pub fn misnamed(records: &[OfflineRecord]) -> Vec<Finding> {
    let should = |record: &OfflineRecord| {
        let id = format!("{}:{}:{}", record.kind, record.unit, record.last_seen.as_millis());
        let what = format!("{}: the id should be {id}", record.id);
        (record.id.to_string() != id).then(|| wrong(record.unit.as_str(), what))
    };
    records.iter().filter_map(should).collect()
}

impl Evidence {
    /// All violations.
    pub fn judge(&self) -> Vec<Finding> {
        let devices: HashMap<&str, &Device> =
            self.devices.iter().map(|device| (device.unit.as_str(), device)).collect();
        let mut findings = self.misnamed.clone();
        let mut of_unit: HashMap<&str, Vec<&OfflineRecord>> = HashMap::new();
        for record in &self.records {
            let unit = record.unit.as_str();
            match devices.get(unit) {
                Some(device) => findings.extend(self.judge_record(device, record)),
                None => findings.push(wrong(unit, "has a record and never was".to_owned())),
            }
            of_unit.entry(unit).or_default().push(record);
        }
        for device in &self.devices {
            let records = of_unit.get(device.unit.as_str()).map(Vec::as_slice).unwrap_or_default();
            findings.extend(self.judge_device(device, records));
        }
        findings.extend(self.judge_notifications());
        findings.sort();
        findings.dedup();
        findings
    }

    /// Adds a record that has several readings: the record is right if one reading is right.
    pub fn add(&mut self, mut readings: Vec<OfflineRecord>) {
        let devices = self.devices.iter();
        let right = devices.filter(|device| device.unit == readings[0].unit.as_str()).find_map(|device| {
            readings.iter().position(|record| self.judge_record(device, record).is_empty())
        });
        self.records.push(readings.swap_remove(right.unwrap_or(0)));
    }

    /// Everything about a unit, for a message of a failed test; moments in ms.
    pub fn story(&self, unit: &str) -> String {
        let ms = |moment: Timestamp| moment.as_millis();
        let devices = self.devices.iter().filter(|device| device.unit == unit);
        let mut story: String = devices.map(|device| device.story() + "\n").collect();
        let mut records: Vec<_> = self.records.iter().filter(|record| record.unit.as_str() == unit).collect();
        records.sort_by_key(|record| record.detected_at);
        for record in records {
            let (seen, detected) = (ms(record.last_seen), ms(record.detected_at));
            story += &format!(
                "  record: last seen {seen}, deadline +{}, detected at {detected} (+{}), back at {:?}, {:?}\n",
                ms(record.deadline) - seen,
                detected - seen,
                record.back_at.map(ms),
                record.closed_by
            );
        }
        for notified in self.notified_records.iter().filter(|notified| notified.record.unit.as_str() == unit)
        {
            let what = if notified.is_return() { "return" } else { "silence" };
            let seen = ms(notified.record.last_seen);
            story += &format!("  notified: {what} of {seen} as {}\n", notified.notification);
        }
        story
    }

    /// Whether state of this moment may have been lost since.
    fn is_lost(&self, moment: Timestamp) -> bool {
        self.losses.iter().any(|loss| moment < loss.to)
    }

    /// Whether the group of a silence may have been lost since, though another server has the record: its replica was
    /// late, and took over. Then the silence is not notified.
    fn is_unjoined(&self, record: &OfflineRecord) -> bool {
        let detected = record.detected_at;
        let lost =
            |loss: &Loss| loss.of_other_groups && loss.from <= detected + LATE_CHECK && detected < loss.to;
        self.losses.iter().any(lost)
    }

    /// Whether the facts of this unit were broken after this moment: the unit was unknown until its next heartbeat.
    fn is_unknown(&self, unit: &str, moment: Timestamp) -> bool {
        self.broken.iter().any(|broken| broken.is_facts && broken.unit == unit && moment < broken.at)
    }

    /// Whether this unit was presumed heard at this moment: its expiry key was broken, which the next check found, and
    /// everything had been heard up to a gap before that.
    fn is_presumed(&self, unit: &str, moment: Timestamp) -> bool {
        let of_it = self.broken.iter().filter(|broken| !broken.is_facts && broken.unit == unit);
        let mut checks = of_it.map(|broken| (broken.at - GAP, broken.at + TIMEOUT + LATE_CHECK));
        checks.any(|(from, to)| from <= moment && moment <= to)
    }

    /// The heartbeat after which the silence of this record began; `None` if there was no silence.
    ///
    /// This heartbeat is the last before the record's last seen time, with one exception: without a check before the
    /// key expired, the record has the heartbeat of the last check, and later ones may have expired with the key.
    fn silence_of(&self, device: &Device, record: &OfflineRecord) -> Option<usize> {
        let seen = record.last_seen;
        let first = device.beat_before(seen)?;
        let was_silent = |beat: &usize| {
            device.longest_gap_after(*beat, &self.outages).is_none_or(|gap| gap + MARGIN > TIMEOUT)
        };
        let disturbed = self.disturbances.iter().any(|&(from, to)| from <= record.detected_at && seen <= to);
        // The silence had lasted for the timeout when it was detected, unless heartbeats were lost in time that is
        // known to be blind. That also bounds the age of the last check: a check in time saw every
        // heartbeat before it. The lateness of checks on a busy machine is no claim of this oracle.
        let unheard = if disturbed { 2 * GAP } else { Duration::ZERO };
        let reach = (record.detected_at + SKEW + unheard - TIMEOUT).max(seen);
        let within = |beat: &usize| *beat == first || device.beats[*beat].sent <= reach;
        (first..device.beats.len()).take_while(within).find(was_silent)
    }

    fn judge_record(&self, device: &Device, record: &OfflineRecord) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut is_wrong =
            |what: String| findings.push(wrong(&device.unit, format!("{}: {what}", record.id)));
        let seen = record.last_seen;
        // Instances learn of a jump one after the other. Times that the last of them writes meanwhile lie
        // in time that is blind to the first, at the end of which a silence may begin.
        let jumped = self.jumps.iter().any(|jump| seen <= *jump + RENEWAL && *jump <= record.detected_at);
        let allowed = TIMEOUT - if jumped { RENEWAL } else { self.catches_up };
        if record.detected_at <= seen + allowed || record.deadline < seen + allowed {
            is_wrong(format!("detected at {}, before its time was up", record.detected_at.as_millis()));
        }
        let Some(beat) = device.beat_before(seen) else {
            is_wrong("last seen before it spoke for the first time".to_owned());
            return findings;
        };
        // A heartbeat that was under way for long counts for the latest moment at which it can have been sent: that is
        // less than a gap later, or before the end of the blind interval that began meanwhile.
        // While a flood lies in the broker's queue, a gap includes how long messages take through it. It always includes
        // the way to the broker and back, to which the wait of a connection for a processor adds.
        let held = |acked: Timestamp| {
            let during = self.disturbances.iter().filter(move |(from, to)| (*from..=*to).contains(&acked));
            during.map(|(_, to)| *to).max().unwrap_or_default().max(acked)
        };
        let latest = device.beats[beat].acked.map(|acked| held(acked) + GAP);
        let latest = latest.map(|latest| {
            let blind = self.blind.iter().filter(|(from, _)| *from <= latest + SKEW);
            blind.map(|(_, to)| *to).max().unwrap_or_default().max(latest)
        });
        let waited = self.waits.between(device.beats[beat].sent - 2 * GAP, seen);
        if let Some(late) =
            latest.map(|latest| seen.since(latest + SKEW + waited)).filter(|late| !late.is_zero())
            && !self.is_presumed(&device.unit, seen)
        {
            is_wrong(format!("last seen {} ms later than it can have been", late.as_millis()));
        }
        let Some(beat) = self.silence_of(device, record) else {
            let gap = device.longest_gap_after(beat, &self.outages).unwrap_or_default();
            is_wrong(format!("it was never silent for longer than {} ms there", gap.as_millis()));
            return findings;
        };
        let is_last = beat + 1 == device.beats.len();
        if record.closed_by == Some(Closing::Return) && is_last && !self.is_lost(seen) {
            is_wrong("closed although it never spoke again".to_owned());
        }
        let spoke = device.beats[beat + 1..]
            .iter()
            .any(|beat| beat.acked.is_some_and(|_| beat.sent > record.detected_at));
        if record.closed_by.is_none() && spoke && !device.is_silent(self.now) {
            findings.push(not_yet(&device.unit, format!("{} is still open, and it speaks", record.id)));
        }
        findings
    }

    fn judge_device(&self, device: &Device, records: &[&OfflineRecord]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut by_silence: BTreeMap<usize, Vec<&OfflineRecord>> = BTreeMap::new();
        for record in records {
            by_silence.entry(self.silence_of(device, record).unwrap_or(0)).or_default().push(record);
        }
        for several in by_silence.values().filter(|records| records.len() > 1) {
            if !several.iter().any(|record| self.is_lost(record.last_seen)) {
                let ids: Vec<String> = several.iter().map(|record| record.id.to_string()).collect();
                findings.push(wrong(&device.unit, format!("one silence has several records: {ids:?}")));
            }
        }
        let Some(last) = device.beats.iter().rev().find(|beat| beat.acked.is_some()) else { return findings };
        let forgotten = self.losses.iter().any(|loss| loss.of_everything && last.sent < loss.to)
            || self.is_unknown(&device.unit, last.sent);
        let is_open = records.iter().any(|record| record.closed_by.is_none());
        if device.is_dead(self.now) && !is_open && !forgotten {
            findings.push(not_yet(&device.unit, "is dead and has no open record".to_owned()));
        }
        findings
    }

    fn judge_notifications(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        // For each record: the ids of the notifications of its silence, and of its return.
        let mut ids_by_record: BTreeMap<String, [BTreeSet<&str>; 2]> = BTreeMap::new();
        let known: HashMap<String, &OfflineRecord> =
            self.records.iter().map(|record| (record.id.to_string(), record)).collect();
        for notified in &self.notified_records {
            let id = notified.record.id.to_string();
            let (unit, seen) = (notified.record.unit.as_str(), notified.record.last_seen);
            if !known.contains_key(&id) && !self.is_lost(seen) && !self.is_unknown(unit, seen) {
                findings.push(wrong(unit, format!("{id} was notified and there is no such record")));
            }
            ids_by_record.entry(id).or_default()[usize::from(notified.is_return())]
                .insert(&notified.notification);
        }
        let nothing = Default::default();
        for (id, record) in known {
            let [offline, online] = ids_by_record.get(&id).unwrap_or(&nothing);
            let (unit, lenient) = (record.unit.as_str(), self.is_lost(record.last_seen));
            for (ids, what) in [(offline, "silence"), (online, "return")] {
                if ids.len() > 1 && !lenient {
                    findings.push(wrong(unit, format!("the {what} of {id} was notified as {ids:?}")));
                }
            }
            if offline.is_empty() && !online.is_empty() && !lenient {
                findings
                    .push(wrong(unit, format!("the return of {id} was notified and its silence was not")));
            }
            match record.back_at {
                None if offline.is_empty() && !self.is_unjoined(record) => {
                    findings.push(not_yet(unit, format!("{id} was not notified")))
                }
                Some(_) if !offline.is_empty() && online.is_empty() && !lenient => {
                    findings.push(not_yet(unit, format!("the end of {id} was not notified")));
                }
                Some(back) if offline.is_empty() && online.is_empty() && !lenient => {
                    let open = (record.detected_at, back);
                    let was_undisturbed =
                        !self.disturbances.iter().any(|&(from, to)| from < open.1 && open.0 < to + SWALLOWED);
                    if was_undisturbed && back.since(record.detected_at) > SWALLOWED {
                        findings.push(wrong(unit, format!("{id} was open for long and never notified")));
                    }
                }
                _ => {}
            }
        }
        findings
    }
}
