//! Rollcall calls the roll of a fleet. Every unit answers over MQTT. A unit that stays silent past its deadline gets
//! exactly one offline record; operators are notified once, and once more when the unit is back.
//!
//! # The map
//! Four floors; imports go down only, and `tests/files/house.rs` prints every import that does not.
//!
//! | floor | module | what it is for |
//! |---|---|---|
//! | 3 assembly | [`cli`], [`config`], [`engines`], [`service`] | the command line; the file that becomes a checked configuration; the engine of a configuration; building, running and stopping the loops |
//! | 2 work | [`intake`] | MQTT to recorded heartbeats, from a broker or straight from devices ([`intake::listener`]), and the canary that proves hearing |
//! | | [`expiry`] | finds units that may be due, and checks their deadlines |
//! | | [`alerting`] | outbox to groups to receivers |
//! | | [`http`] | metrics, health, records, units, and the web page, on threads of their own |
//! | | [`history`] | records for years, in PostgreSQL |
//! | | [`deadman`] | pings another monitor while all is well |
//! | | [`simulate`] | a fleet and sinks for the demo, and private servers for the tests |
//! | 1 memory | [`store`] | the state of the fleet behind small traits; [`store::redis`] and [`store::embedded`] keep it; [`store::table`] is the one table of units in memory, which the embedded engine keeps itself; [`store::migration`] moves a fleet from one engine to another; `store/redis/topology/` knows the servers: one, those behind Sentinel, a cluster |
//! | | [`fleet`] | decisions above a store: [`fleet::Roll`], the one place where stored state meets the rules; the mirror, which is a view of the embedded engine's table or a copy of what Redis keeps, and the walk that keeps a copy true; leases, and which instance owns which partition |
//! | | [`small_file`] | reads a secret or a certificate, and nothing that is no regular file or too large |
//! | | [`telemetry`] | one method per fact: counts it, and logs it where an operator should know |
//! | 0 meaning | [`presence`] | pure rules: unit, heartbeat, deadline, offline, back, blind |
//! | | [`routing`] | which route a silence takes: its receivers, its group, its pace; alert silences; and [`routing::trial`], a policy tried on the past |
//! | | [`reports`] | what a report of availability says, and which days it is about |
//! | | [`cause`] | causes of failures in words for operators |
//! | | [`clock`], [`backoff`], [`address`], [`trust`], [`signature`], [`csv_row`], [`pages`] | time; backoff; broker addresses; TLS certificates; webhook signatures; rows of CSV; paths of pages |
//!
//! Loops of floor 2 never call one another: they communicate through the store, which is durable. So a crash between
//! any two of them has the effect of a pause.
//!
//! ```text
//!   devices ──MQTT──▶ broker ──▶ intake ──▶ store: expiry keys, deadline index, records
//!                       ▲          │          │
//!                       └─ canary ─┘          ├─ due? ──▶ expiry: exactly one offline record
//!              (proof of hearing)             │              │
//!                                             │              ▼
//!               Grafana ◀── Prometheus ◀──────┴── outbox ──▶ groups ──▶ webhook, e-mail
//! ```
//!
//! # Journey of a heartbeat
//! `units/{unit}/heartbeat` arrives at [`intake`]: the topic names the unit, and the payload may contain more. While
//! one batch is written, the next one fills. [`fleet::Roll::hear`] writes most heartbeats straight into their expiry
//! keys, in one pipeline that creates no key. The units of other heartbeats (a new unit, an offline unit, a unit that
//! declares something new) are read; [`presence::hear`] decides, and the [`presence::Change`] applies only if the unit
//! has not changed since it was read. Then the message is acknowledged.
//!
//! # Journey of an expiry
//! The deadline index holds the next check of each unit, and moves lazily: a heartbeat never delays a check, it only brings
//! one forward. When the first entry is due, or Redis hints that a key expired, [`expiry`] has the roll check the deadline.
//! [`presence::check_deadline`] takes the last heartbeat, adds timeout, grace and blind time, and answers: alive until
//! then; undecided, because Rollcall has not heard so far; or offline. The change that opens the record removes the
//! unit from the index; the instance that removes it opens the record. Record and outbox entry are written in the same
//! step, if the unit has not changed since it was read.
//!
//! # Journey of a notification
//! All from the outbox on is cells of a partition ([`store::Cells`]), read in batches, decided upon by pure rules, and
//! changed by a change-set that applies in full if everything it expects is unchanged; if not, it is read and decided
//! again. So engines know nothing of groups, deliveries, timers or silences: these stand once, above the engines.
//!
//! [`alerting`] takes an entry of the outbox and lets its transition join the groups of its routes
//! ([`store::StoredGroups`]). A group that has waited long enough is sealed: one step takes its members, writes the
//! notification under an id that follows from the group and the moment, and puts it into the lane of each receiver.
//! The loop of a receiver leases the first notification of each lane ([`store::StoredDeliveries`]), attempts it, and
//! ends it with one change-set: delivered, tried again later, or given up. A lease that ends without that is taken by
//! whoever asks next, with the same id, so a crash repeats an attempt and never a notification.
//!
//! # Announcements
//! A last will reports at once what a deadline finds later, but it is false when a session is taken over or a broker
//! ends. So it only moves the deadline of its unit ([`presence::announce`]), and the check above decides: in the same
//! step if it can decide now, otherwise when the unit is due in the deadline index. Before that, the announcement waits
//! in [`intake`] until a canary proves that the broker is still alive.
//!
//! # Blindness
//! Every second, or faster where timeouts are short, a canary goes out over the broker and comes back through the same
//! connection and the same batches as heartbeats. When it is recorded, everything before it was heard. Two successive
//! canaries too far apart enclose a blind interval, whatever the cause. No unit is declared offline beyond what was
//! heard, and blind time does not count as silence: see [`presence::Ledger`]. If several connections share the fleet,
//! it is heard as far as the slowest connection. If a connection ends and loses messages, that time is blind for the
//! fleet, or with several brokers for the kinds of its broker. A canary proves nothing about topics that the broker
//! withholds: probes, canaries on topics of the fleet, prove for each kind that its filters are heard.
//!
//! # Metrics that units report
//! A kind may name fields of its messages as metrics. [`intake`] reads them with the message, lets the newest of each
//! wait for a moment, and writes them beside the heartbeats, which they never delay. The engine stores them with the
//! unit ([`store::DataStore`]); [`http`] reads them page by page while it writes an answer. They decide nothing.
//!
//! # Rhythm
//! When a heartbeat moves the last seen time of its unit in memory, the unit's [`presence::Rhythm`] learns the interval
//! since the previous heartbeat, unless a part of it was blind or planned. [`fleet::RhythmKeeper`] writes rhythms from
//! time to time. Readers derive from them which silences are unusual, and which timeouts fit a kind. They decide
//! nothing; a route may request notifications of unusual silences.
//!
//! # Timers
//! A program registers a timer over [`http`] or MQTT ([`intake`]); [`fleet::Timers`] checks it against its class and
//! the limits, and the store keeps it. Registering answers when it fires, and cancelling answers whether it was still
//! waiting. A timer is in the partition of its group. A loop of [`alerting`] sleeps until the first one is due, and
//! fires it: one step removes it from the waiting timers and queues a delivery for each receiver of its type. The
//! instance that fired it leases as many deliveries as its receivers have free slots. In a storm, firing follows the
//! pace of the receivers. After that it is a notification like any other, under the id `<timer>:<due ms>`; the step
//! that ends a delivery writes the timer's receipt. A timer that is delivered at most once ends in the engine before
//! its only attempt.
//!
//! # Several instances
//! There is no leader. Each instance holds a lease in the engine ([`fleet::Lease`]) and computes from all leases which
//! partitions it owns ([`fleet::Ownership`]). It sweeps them, notifies receivers of their transitions and shows their
//! units. Every instance sweeps units that are overdue for a second, and exactly one applies each step: a wrong view of
//! the owner costs time, never correctness. Before an instance seals a group, the entries in the outboxes of the other
//! instances have joined it; if no instance works on an outbox, this instance joins its entries. The lease also carries
//! the time: the clock of every instance follows the engine's, and never goes back.
//!
//! # The promises
//! They stand in [`store`], numbered. All but two, which name their tests, have cases in the conformance suite in
//! `tests/engines/conformance`: every engine passes it.

pub mod address;
pub mod alerting;
pub mod backoff;
pub mod cause;
pub mod cli;
pub mod clock;
pub mod config;
pub mod csv_row;
pub mod deadman;
pub mod engines;
pub mod expiry;
pub mod fleet;
pub mod history;
pub mod http;
pub mod intake;
pub mod pages;
pub mod presence;
pub mod reports;
pub mod routing;
pub mod service;
pub mod signature;
pub mod simulate;
pub mod small_file;
pub mod store;
pub mod telemetry;
pub mod trust;
