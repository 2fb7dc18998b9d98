//! Every key that Rollcall has in Redis. Other programs may read the keys; only Rollcall writes them.
//!
//! The partition is a hash tag at the beginning of each name, so that all keys of one unit, and all keys of one
//! group, are in one slot of a cluster: no script crosses slots. A fleet that was created in a cluster has `{pN.s}`
//! where the table has `{pN}`, see `tags.rs`; the field `tags` of `rollcall:meta` says so.
//!
//! | key | type | content |
//! |---|---|---|
//! | `rollcall:meta` | hash | `fleet` id, `layout`: the number of the layout, `partitions`, and `tags` if they are not `{pN}`, all fixed when the fleet is created; `moving` instead of the id during a migration; `key`: the key that signs canaries, if it is not the id |
//! | `rollcall:{hearing}:heard` | hash | `at`: up to when everything was heard (ms); `ledger`: its version, another value after each change; `kinds`: the version of the ledgers of kinds; `fleet`: the id of the fleet, which reveals its loss; `layout`, `partitions`, `tags`, `key`: a copy of `meta`, see `meta.rs`; `loss_told`: the loss of the fleet before it was reported; `emptied`: the partitions whose loss was reported; `emptied_at`: when the fleet or partitions were lost last (ms); `has_watermarks`: `1` since every partition has had its watermark; `evicted`: up to when keys may have been evicted (ms) |
//! | `rollcall:{hearing}:members` | hash | members of shared subscriptions: `<share>/<client id>`, or `<broker>/<share>/<client id>` at a broker with a name → `<heard> <release> <connection>` (ms, ms, number) |
//! | `rollcall:{hearing}:floors` | hash | share → until when a member that has left may have lost heartbeats (ms) |
//! | `rollcall:{hearing}:plain` | hash | plain subscriptions: client id → `<heard> <since> <connection>`: up to when it has heard, and since when its connection proves that (ms, ms, number) |
//! | `rollcall:{hearing}:session:<client id>` | string | up to when a session that the broker keeps has heard (ms); PX = how long the broker keeps it |
//! | `rollcall:{hearing}:blind` | zset | blind intervals, `<from> <to>` by `to` (ms); half a millisecond more if the broker may have given heartbeats to another client |
//! | `rollcall:{hearing}:blind:<kind>` | zset | blind intervals of a kind, in the same form |
//! | `rollcall:{hearing}:filters` | hash | `<kind> <topic filter>` → up to when it was heard (ms); of a broker with a name, `<broker>/<topic filter>`, `<broker>/$share/<share>` for its share, and `http/$share/requests` for requests over HTTP |
//! | `rollcall:{hearing}:outbox` | stream | long blind intervals that have joined no group yet |
//! | `rollcall:{hearing}:roster` | zset | instances by the end of their leases (ms); also the channel for instances that start or stop |
//! | `rollcall:{hearing}:cells:<table>` | hash | the cells of a table of the fleet, by their names (JSON): see `store/cells.rs`. `silences`, `sources`, `sessions`, with their `versions`; `breaker`, `limits`, `digests`, `receivers`, `watched`; `node_deaths`: node that died → its death, until its devices are marked; `policies`: the timeouts and graces of kinds, until history has them; `minute_counts`, `hour_counts`: hour, or day → the counts of the fleet by the minute, or by the hour; `receiver_list`: receivers that are or were configured, and since when each is configured or absent; `down`: receivers with a fallback that take nothing, and since when; `audit`: the last changes that operators made; `addresses`: instance → its address for metrics; `instance_counts`: instance → its own units by kind, their number and shortest timeout |
//! | `rollcall:{hearing}:index:<index>` | zset | `audited`: the entries of `audit`, by when the change was made (ms) |
//! | `rollcall:{hearing}:clock` | hash | `server`: the server's clock, `fleet`: the time of the fleet, at the last renewal; `jump`: the server's clock when a jump forward was handled (ms); `ahead`, `since`, `stepped`, `skipped`: steps of the server's clock, see `renew.lua` |
//! | `rollcall:{pN}:alive:<kind>:<unit>` | string | the expiry key: last seen (ms) and, where the kind is heard at several brokers, a space and the one that heard it; PX = timeout + grace |
//! | `rollcall:{pN}:heard` | string | in a cluster: up to when this partition has everything that was heard (ms), and how far the clock of its server was ahead of the time of the fleet (ms), see `watermarks.rs` |
//! | `rollcall:{pN}:replicated` | string | `1`: a write for which Rollcall waits until replicas have it, see `replication.rs` |
//! | `rollcall:{pN}:deadlines` | zset | `<kind>:<unit>` by next check (ms) |
//! | `rollcall:{pN}:facts:<page>` | hash | `<kind>:<unit>` → facts, see `store/encoding.rs` |
//! | `rollcall:{pN}:data` | set | names of the metrics with values in this partition |
//! | `rollcall:{pN}:data:<metric>:<page>` | hash | `<kind>:<unit>` → `<at> <value>`: the newest value and when it arrived (ms) |
//! | `rollcall:{pN}:offline` | zset | `<kind>:<unit>` by time of detection (ms): units with an open record, which is in their facts |
//! | `rollcall:{pN}:past` | zset | ids of closed records by time of detection (ms) |
//! | `rollcall:{pN}:closed` | zset | ids of closed records by time of closing (ms) |
//! | `rollcall:{pN}:archive` | hash | record id → record (JSON), closed records |
//! | `rollcall:{pN}:outbox` | stream | opened and closed records that have joined no group yet: an entry for each step, see `outbox.rs` |
//! | `rollcall:{pN}:outbox:unreadable` | stream | quarantined entries of the outbox |
//! | `rollcall:{pN}:cells:<table>` | hash | the cells of a table, by their names: see `store/cells.rs`. `flaps`: unit → its last transitions, where its kind has flap detection (JSON, see `presence/flapping.rs`); `episodes`: unit that flaps → the record of its episode (JSON); `unusual`: unit whose silence is unusual → the notice of it (JSON); `rhythms`: block of units → their rhythms; `attempts`: attempts to deliver; `attempts_of`: word of attempts → the entries of `attempts` that have it; `counts`: `attempts` → their bytes; `incidents`: group → the incident of its silences that lasts (JSON, see `alerting/incidents.rs`); `groups`: group → its labels and when it was sealed last (JSON); `group_versions`: group → how often members began to wait or to last there; `members`: `<group>`, line break, `<member>` → the state of the member, which receivers were notified of it, and its record while it waits (JSON, see `store/groups/member.rs`); `groups_of`: member → the groups of its record (JSON), by the unit's partition; `past_timers`: timer that fired or was cancelled → its type, moment, data and receipts (JSON); `timer_counts`: type → how many timers of it wait; `notifications`: id → notification that waits (JSON); `owed`: id → number of receivers that still need the notification, if more than one |
//! | `rollcall:{pN}:cells:<table>:<receiver>` | hash | the cells of a table that each receiver has. `lanes`: group → attempts at its first notification, with `+` while one is under way, and the ids of all in order; `dead_letters`: id → dead letter (JSON); `fallback_done`: group → the last of its notifications that its fallback got too, while the receiver takes nothing; `unnotified`: silences that the receiver was not notified of, `<detected at> <record id>`, and the group if it is one of a route → the dead letter, or `-`; `-` → `-` if some of them may be in notifications that wait |
//! | `rollcall:{pN}:cells:<table>:<page>` | hash | one page of the cells of a paged table. `timers`: timer that waits → its type, moment and data, see `store/timers/stored.rs` |
//! | `rollcall:{pN}:index:<index>` | zset | the entries of an index. `groups_due`: groups in which members wait, by when they are due (ms); `waiting`: members that wait, `<group>`, line break, `0` or for a silence `1` and since when (ms, 15 digits), line break, `<member>`; `lasting`: lasting silences that receivers know of, `<group>`, line break, when they were notified, line break, `<member>`; `returning`: `<group>`, line break, `<unit>` by since when its return waits, where returns wait (ms); `reminders`: groups with members in `lasting`, by their next check (ms); `over`: members that are over, kept for a day so that late repetitions do not join (ms); `flap_checks`: the units of `flaps`, by their next check (ms); `attempts_written`: the entries of `attempts`, by when they were written (ms); `timers`: timers that wait, by their moment (ms), or by when an instance checks them again, if their type is not configured; `timers_ended`, `timers_kept`: the timers of `past_timers`, by their moment, and by until when they are kept (ms); `noted`: pages of `facts` that another instance changed and the owner has not read yet; `only_attempts`: the timers of `past_timers` with an attempt that is never repeated and has no outcome, by when the last such attempt began (ms) |
//! | `rollcall:{pN}:index:<index>:<receiver>` | zset | the entries of an index that each receiver has. `queue`: groups by their next attempt (ms); `dead`: ids of dead letters by when they were given up (ms) |
//! | `rollcall:{pN}:unreadable`, `rollcall:{hearing}:unreadable` | hash | quarantined values: key, or key, line break, member → the value. A key of a wrong type is beside it, as `<key>:unreadable` |
//!
//! # Why facts lie on pages, and timers that wait
//! A hash for each unit would cost over 100 bytes before it holds anything; a field of a large hash costs 60 more
//! than in a small hash, which Redis stores as one packed string. With 1024 pages a partition, pages stay small up to
//! about two million units and grow gracefully beyond.

use std::fmt::Display;
use std::sync::Arc;

mod rules;

pub use rules::{KEY_RULES, KeyPlace, KeyRule};

use super::tags::HashTags;
use super::topology::slot_of;
use crate::presence::{Kind, Unit};
use crate::store::partition::page_of;
use crate::store::{Index, Table, crc16, partition_of};
use crate::telemetry::Stored;

/// The most pages of a partition's facts.
const MAX_PAGES: u32 = 1024;

/// The part of an expiry key between its begin and the name of the unit.
const ALIVE: &str = "alive:";

/// The place of the facts of a unit: the partition, and the page there.
pub type PageId = (u16, u32);

/// The names of all keys of one fleet.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
    partitions: u16,
    tags: HashTags,
    /// The first part of the keys of each partition, with the tag: `rollcall:{p0}:`; the last entry is for the keys of
    /// the fleet.
    begins: Arc<[String]>,
    /// The slot of each entry of `begins`.
    slots: Arc<[u16]>,
}

impl Keys {
    pub fn new(prefix: &str, partitions: u16, tags: HashTags) -> Keys {
        let partitions = partitions.max(1);
        let tags_of_partitions = (0..partitions).map(|partition| tags.tag(partition, partitions).to_string());
        let all = tags_of_partitions.chain(["hearing".to_owned()]);
        let begins: Arc<[String]> = all.map(|tag| format!("{prefix}:{{{tag}}}:")).collect();
        let slots = begins.iter().map(|begin| slot_of(begin.as_bytes())).collect();
        Keys { prefix: prefix.to_owned(), partitions, tags, begins, slots }
    }

    pub fn tags(&self) -> HashTags {
        self.tags
    }

    /// The first part of all keys of a partition. Here and below, the number after the last partition stands for the
    /// fleet.
    pub fn begin(&self, partition: u16) -> &str {
        &self.begins[usize::from(partition.min(self.partitions))]
    }

    fn within(&self, partition: u16, rest: impl Display) -> String {
        format!("{}{rest}", self.begin(partition))
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn partitions(&self) -> u16 {
        self.partitions
    }

    pub fn pages(&self) -> u32 {
        (65_536 / u32::from(self.partitions)).clamp(1, MAX_PAGES)
    }

    pub fn partition(&self, unit: &Unit) -> u16 {
        partition_of(unit, self.partitions)
    }

    /// The slot of the keys of a partition.
    pub fn slot(&self, partition: u16) -> u16 {
        self.slots[usize::from(partition.min(self.partitions))]
    }

    pub fn slot_of_hearing(&self) -> u16 {
        self.slot(self.partitions)
    }

    pub fn meta(&self) -> String {
        format!("{}:meta", self.prefix)
    }

    pub fn heard(&self) -> String {
        format!("{}:{{hearing}}:heard", self.prefix)
    }

    pub fn members(&self) -> String {
        format!("{}:{{hearing}}:members", self.prefix)
    }

    pub fn floors(&self) -> String {
        format!("{}:{{hearing}}:floors", self.prefix)
    }

    pub fn plain(&self) -> String {
        format!("{}:{{hearing}}:plain", self.prefix)
    }

    pub fn session(&self, client_id: &str) -> String {
        format!("{}:{{hearing}}:session:{client_id}", self.prefix)
    }

    pub fn blind(&self) -> String {
        format!("{}:{{hearing}}:blind", self.prefix)
    }

    pub fn blind_of(&self, kind: &Kind) -> String {
        format!("{}:{{hearing}}:blind:{kind}", self.prefix)
    }

    pub fn filters(&self) -> String {
        format!("{}:{{hearing}}:filters", self.prefix)
    }

    pub fn roster(&self) -> String {
        format!("{}:{{hearing}}:roster", self.prefix)
    }

    pub fn clock(&self) -> String {
        format!("{}:{{hearing}}:clock", self.prefix)
    }

    /// The outbox of a partition; the number after the last partition is the outbox of hearing.
    pub fn outbox(&self, number: u16) -> String {
        self.in_partition(number, "outbox")
    }

    /// The stream of quarantined entries of an outbox.
    pub fn unreadable(&self, number: u16) -> String {
        format!("{}:unreadable", self.outbox(number))
    }

    /// The hash of quarantined values for a key of this fleet.
    pub fn unreadable_of(&self, key: &str) -> String {
        let tag = key.find('{').zip(key.find('}')).map_or("{hearing}", |(from, to)| &key[from..=to]);
        format!("{}:{tag}:unreadable", self.prefix)
    }

    /// All hashes of quarantined values.
    pub fn all_unreadable(&self) -> Vec<String> {
        (0..=self.partitions).map(|partition| self.in_partition(partition, "unreadable")).collect()
    }

    /// A pattern that matches the names of all keys of the fleet except `meta`, and no key of another fleet, whose
    /// prefix may begin with this prefix.
    pub fn tagged_pattern(&self) -> String {
        self.escaped_prefix() + ":{*"
    }

    /// A pattern that matches the keys of this name with any owner in any partition, and some other keys.
    pub fn owned_pattern(&self, name: &str) -> String {
        self.escaped_prefix() + &format!(":{{p*}}:{name}:*")
    }

    /// A pattern that matches the names of all keys of the fleet.
    pub fn pattern(&self) -> String {
        self.escaped_prefix() + ":*"
    }

    fn escaped_prefix(&self) -> String {
        let mut pattern = String::new();
        for c in self.prefix.chars() {
            if "*?[]\\^".contains(c) {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern
    }

    /// The rule of a key of this fleet; `None` for other keys, and for quarantined keys.
    pub fn sort(&self, key: &str) -> Option<&'static KeyRule> {
        self.sort_and_owner(key).map(|(sort, _)| sort)
    }

    /// The word for the values of a key in the log and in metrics.
    pub fn what(&self, key: &str) -> Stored {
        let Some((sort, owner)) = self.sort_and_owner(key) else { return Stored::Other };
        let of_place: fn(&str) -> Option<Stored> = match sort.name {
            "cells" => Table::what_in,
            "index" => Index::what_in,
            _ => return sort.what,
        };
        owner.and_then(of_place).unwrap_or(sort.what)
    }

    fn sort_and_owner<'a>(&self, key: &'a str) -> Option<(&'static KeyRule, Option<&'a str>)> {
        let rest = key.strip_prefix(&self.prefix)?.strip_prefix(':')?;
        let (tag, rest) = rest.strip_prefix('{')?.split_once("}:")?;
        let place = if tag == "hearing" { KeyPlace::Hearing } else { KeyPlace::Partition };
        let (name, owner) = match rest.split_once(':') {
            Some((name, owner)) => (name, Some(owner)),
            None => (rest, None),
        };
        // Quarantine renamed this key.
        if owner.is_some_and(|owner| owner == "unreadable" || owner.ends_with(":unreadable")) {
            return None;
        }
        let is_it =
            |sort: &&KeyRule| sort.name == name && sort.is_at(place) && sort.has_owner == owner.is_some();
        Some((KEY_RULES.iter().find(is_it)?, owner))
    }

    /// One key of each sort in each partition, for the examination of rights.
    pub fn one_of_each(&self) -> Vec<String> {
        let owner = |sort: &KeyRule| if sort.has_owner { ":probe" } else { "" };
        let mut all = vec![self.meta()];
        for sort in KEY_RULES.iter().filter(|sort| sort.name != "meta") {
            let of = |p| self.in_partition(p, &format!("{}{}", sort.name, owner(sort)));
            let from = if sort.is_at(KeyPlace::Partition) { 0 } else { self.partitions };
            let to = self.partitions + u16::from(sort.is_at(KeyPlace::Hearing));
            all.extend((from..to).map(of));
        }
        all
    }

    pub fn outboxes(&self) -> u16 {
        self.partitions + 1
    }

    pub fn alive(&self, unit: &Unit) -> String {
        self.within(self.partition(unit), format_args!("{ALIVE}{unit}"))
    }

    /// Writes the first part of the expiry keys of a partition into `key`; the name of the unit follows.
    pub fn begin_alive(&self, partition: u16, key: &mut String) {
        key.clear();
        key.extend([self.begin(partition), ALIVE]);
    }

    /// The number of the page that holds the facts of a unit.
    pub fn page(&self, unit: &Unit) -> u32 {
        self.page_id(unit).1
    }

    /// The page of the facts of a unit: the low part of the checksum is the partition, the high part the page.
    pub fn page_id(&self, unit: &Unit) -> PageId {
        (self.partition(unit), page_of(unit, self.partitions, self.pages()))
    }

    /// The indices of units, sorted by page.
    pub fn by_page<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) -> Vec<(PageId, usize)> {
        let pages_of = units.into_iter().map(|unit| self.page_id(unit));
        let mut located: Vec<(PageId, usize)> = pages_of.zip(0..).collect();
        located.sort_unstable();
        located
    }

    pub fn facts_page(&self, partition: u16, page: u32) -> String {
        self.within(partition, format_args!("facts:{page}"))
    }

    pub fn data_page(&self, partition: u16, metric: &str, page: u32) -> String {
        self.within(partition, format_args!("data:{metric}:{page}"))
    }

    /// A key with one instance in each partition, such as `deadlines` or `groups`: the keys of [`KEY_RULES`] without an
    /// owner.
    pub fn in_partition(&self, partition: u16, name: &str) -> String {
        [self.begin(partition), name].concat()
    }

    /// The hash of a table that is not on pages.
    pub fn cells(&self, partition: u16, table: Table) -> String {
        self.within(partition, format_args!("cells:{table}"))
    }

    /// The hash with the cell of this name: its table, or the page of a paged table. The low part of the checksum may
    /// be the partition, so the high part is the page.
    pub fn cell(&self, partition: u16, table: Table, name: &str) -> String {
        if !table.is_paged() {
            return self.cells(partition, table);
        }
        let crc = crc16(&[name.as_bytes()]);
        self.cells_page(partition, table, u32::from(crc / self.partitions) % self.pages())
    }

    /// A page of a table on pages.
    pub fn cells_page(&self, partition: u16, table: Table, page: u32) -> String {
        self.within(partition, format_args!("cells:{}:{page}", table.as_str()))
    }

    /// The sorted set of an index.
    pub fn index(&self, partition: u16, index: Index) -> String {
        self.within(partition, format_args!("index:{index}"))
    }

    /// The unit of an expiry key of this fleet.
    pub fn unit_of_alive(&self, key: &str) -> Option<Unit> {
        // No tag contains a colon, but the name of a unit may contain anything.
        let (_, rest) = key.strip_prefix(&self.prefix)?.strip_prefix(":{")?.split_once(':')?;
        let unit: Unit = rest.strip_prefix(ALIVE)?.parse().ok()?;
        (key.strip_prefix(self.begin(self.partition(&unit))) == Some(rest)).then_some(unit)
    }
}

#[cfg(test)]
mod tests;
