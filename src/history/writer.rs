//! The loop that copies the engine into history.
//!
//! Nothing waits for it. While the database is away, the loop waits and tries again; the engine holds the entries that
//! are not written yet for as long as it keeps records at all. Entries that left the engine before they were written
//! are reported as a loss.
//!
//! Each instance writes the entries of its partitions. Two instances seldom write the same rows, and that is harmless.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::blind::{BlindTime, WrittenIntervals};
use super::database::{Database, HistoryError, Result};
use super::policies::ChangedPolicies;
use super::refused::Pieces;
use super::rows::{operation_id, write_notifications, write_operations};
use super::schema::{self, Months};
use super::sources::{HistorySource, HistorySources, PASS, SETTLE, SourcePart};
use super::transition_rows::TransitionRows;
use super::{
    BLIND, HistoryConfig, OPEN, OPERATIONS, UNITS, cursors, daily, kept, losses, reconciling, units,
};
use crate::backoff::Backoff;
use crate::clock::{Clock, Timestamp};
use crate::fleet::{Beginning, Ownership, Roll, past_pauses};
use crate::presence::Interval;
use crate::store::{AuditEntry, Cells, Documents, EngineError, MAX_AUDITED, Queries, partition_of};
use crate::telemetry::Telemetry;

/// How often the loop reads the engine.
const PERIOD: Duration = Duration::from_secs(2);
const RECONNECT: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// The most parts of a source that are written before the next source has its turn.
const PARTS: usize = 20;
/// The fewest entries of a part, for a slow database.
const FEWEST: usize = 50;
/// How often the units of a partition are written.
const REFRESH: Duration = Duration::from_secs(3600);
/// How often open records are compared with the engine.
const RECONCILE: Duration = Duration::from_secs(300);

/// The parts that history needs.
pub struct HistoryWriter {
    pub config: HistoryConfig,
    pub queries: Arc<dyn Queries>,
    pub cells: Arc<dyn Cells>,
    pub roll: Arc<Roll>,
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

impl HistoryWriter {
    /// Writes until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        stop.run_until_cancelled(self.write()).await;
        Ok(())
    }

    async fn write(&self) {
        let (mut failures, mut batch) = (0, self.config.batch);
        let mut policies = ChangedPolicies::new(self.cells.clone());
        loop {
            // Also while the database is away: a restart of this instance finds the change in the engine.
            if let Err(error) = self.note(&mut policies).await {
                tracing::debug!("a change of policies is not noted yet: {error}");
            }
            let error = match self.session(&mut batch, &mut failures, &mut policies).await {
                Err(error) => error,
                Ok(never) => match never {},
            };
            if let HistoryError::TooSlow(_) = error {
                batch = (batch / 2).max(FEWEST);
            }
            failures += 1;
            match error {
                // Other loops report a failure of the engine.
                HistoryError::Engine(error) => tracing::debug!("history waits for the engine: {error}"),
                error => self.telemetry.history_failed(&error),
            }
            tokio::time::sleep(RECONNECT.wait(failures, rand::random())).await;
        }
    }

    /// Notes the policies, if this instance owns the outbox of hearing.
    async fn note(&self, policies: &mut ChangedPolicies) -> Result<(), EngineError> {
        if self.ownership.view().outboxes.contains(&self.cells.partitions()) {
            policies.note(self.roll.shared_rules(), self.clock.now()).await?;
        }
        Ok(())
    }

    /// Writes over one connection until something fails.
    async fn session(
        &self,
        batch: &mut usize,
        failures: &mut u32,
        policies: &mut ChangedPolicies,
    ) -> Result<std::convert::Infallible> {
        let mut database = Database::connect(&self.config.access).await?;
        let fleet = schema::fleet_digest(self.roll.key());
        let fleet = (fleet.as_str(), self.cells.partitions());
        schema::prepare(&mut database, &self.config.access, Some(fleet)).await?;
        let now = self.clock.now();
        let watched = Beginning::new(self.cells.clone()).since(now).await?;
        let oldest = now - self.config.keep_records;
        kept::begin_anew(&database, oldest).await?;
        kept::begin_with(&database, watched.max(oldest)).await?;
        policies.begin();
        let sources = HistorySources { queries: self.queries.clone(), cells: self.cells.clone() };
        let mut session = WriterSession {
            writer: self,
            database,
            sources,
            months: Months::default(),
            partitions: Vec::new(),
            tails: BTreeMap::new(),
            newest_operation: None,
            policies,
            blind: WrittenIntervals::default(),
            reconciled: None,
            refreshed: BTreeMap::new(),
            batch: *batch,
        };
        loop {
            let has_more = session.pass().await?;
            self.telemetry.history_answers();
            (*failures, *batch) = (0, (*batch * 2).min(self.config.batch));
            session.batch = *batch;
            if !has_more {
                tokio::time::sleep(PERIOD).await;
            }
        }
    }
}

/// How far a source is read in this session.
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// Everything before this is written, and settled.
    settled: Timestamp,
    /// Everything before this was read once.
    read: Timestamp,
}

/// The state of one connection.
struct WriterSession<'a> {
    writer: &'a HistoryWriter,
    database: Database,
    sources: HistorySources,
    months: Months,
    /// The partitions that the tails cover.
    partitions: Vec<u16>,
    tails: BTreeMap<HistorySource, Tail>,
    /// The newest entry of the audit that is written.
    newest_operation: Option<AuditEntry>,
    policies: &'a mut ChangedPolicies,
    blind: WrittenIntervals,
    /// When open records were compared.
    reconciled: Option<Timestamp>,
    /// When the units of each partition were written.
    refreshed: BTreeMap<u16, Timestamp>,
    batch: usize,
}

impl WriterSession<'_> {
    /// Writes new entries. Returns whether more are waiting.
    async fn pass(&mut self) -> Result<bool> {
        let view = self.writer.ownership.view();
        if self.partitions != view.partitions || self.tails.is_empty() {
            self.follow(&view.partitions).await?;
        }
        let mut has_more = false;
        for source in HistorySource::ALL {
            has_more |= !self.partitions.is_empty() && self.pass_over(source).await?;
        }
        // Entries without a partition are written by the owner of the number after the last partition.
        let fleet = self.sources.cells.partitions();
        self.writer.note(self.policies).await?;
        if view.outboxes.contains(&fleet) {
            self.write_operations(fleet).await?;
            let written = self.policies.write(&self.database).await?;
            self.writer.telemetry.history_written("policies", written);
            let (roll, now) = (&self.writer.roll, self.writer.clock.now());
            // Read it: at the start there is no copy yet, which would say that nothing was ever heard.
            let hearing = roll.refresh_hearing().await?;
            let found = BlindTime::of(&hearing, roll.filters(), now);
            self.writer.telemetry.history_lag(BLIND, now.since(found.until));
            let written = self.blind.write(&mut self.database, found, fleet).await?;
            self.writer.telemetry.history_written(BLIND, written);
        }
        let now = self.writer.clock.now();
        has_more |= self.refresh_units().await?;
        if !has_more && self.reconciled.is_none_or(|last| now.since(last) >= RECONCILE) {
            has_more = self.reconcile(now).await?;
            self.reconciled = Some(now).filter(|_| !has_more);
        }
        if !has_more && view.outboxes.contains(&fleet) {
            has_more = daily::sum_next(&mut self.database, &mut self.months, fleet).await?;
        }
        Ok(has_more)
    }

    /// Continues from the cursors of these partitions.
    async fn follow(&mut self, partitions: &[u16]) -> Result<()> {
        self.tails.clear();
        for source in HistorySource::ALL {
            let client = self.database.client();
            let read = self.database.limited("read a cursor", async {
                let all = cursors::load(client, source.as_str(), partitions).await?;
                Ok((all, cursors::oldest(client, source.as_str(), partitions).await?))
            });
            let (all, oldest) = read.await?;
            let from = all.unwrap_or(Timestamp::ZERO);
            self.tails.insert(source, Tail { settled: from, read: from });
            if let Some(oldest) = oldest {
                self.name_losses(source, oldest, partitions).await?;
                let forget = cursors::forget_before(self.database.client(), source.as_str(), partitions);
                self.database.limited("move a cursor", forget).await?;
            }
        }
        self.partitions = partitions.to_vec();
        Ok(())
    }

    /// Reports the entries that left the engine after the cursor.
    async fn name_losses(
        &mut self,
        source: HistorySource,
        cursor: Timestamp,
        partitions: &[u16],
    ) -> Result<()> {
        let (config, now) = (&self.writer.config, self.writer.clock.now());
        let kept = match source {
            HistorySource::Opened | HistorySource::Closed => now - config.keep_records,
            HistorySource::Notifications => {
                let full = losses::attempts_left_from(&*self.sources.cells, partitions).await?;
                full.unwrap_or(Timestamp::ZERO).max(now - config.keep_deliveries)
            }
        };
        if cursor < kept {
            let lost = Interval { from: cursor, to: kept };
            self.lost(source.table(), lost, "the engine kept them no longer").await?;
        }
        Ok(())
    }

    /// Writes the units of the partition whose last refresh is oldest, if it is due. Returns whether it was.
    async fn refresh_units(&mut self) -> Result<bool> {
        let now = self.writer.clock.now();
        let last = |partition: &u16| self.refreshed.get(partition).copied();
        let due = |partition: &u16| last(partition).is_none_or(|last| now.since(last) >= REFRESH);
        let Some(partition) = self.partitions.iter().copied().filter(due).min_by_key(last) else {
            return Ok(false);
        };
        // An earlier connection, or an earlier owner, may have written them.
        if last(&partition).is_none() {
            let own = [partition];
            let read = cursors::load(self.database.client(), UNITS, &own);
            if let Some(at) = self.database.limited("read a cursor", read).await? {
                self.refreshed.insert(partition, at);
                return Ok(true);
            }
        }
        let done = units::refresh(&mut self.database, &*self.sources.queries, partition, now).await?;
        self.writer.telemetry.history_written(UNITS, done.rows);
        self.left_out(UNITS, done.refused).await?;
        self.refreshed.insert(partition, now);
        Ok(true)
    }

    async fn lost(&mut self, table: &'static str, time: Interval, why: &str) -> Result<()> {
        let now = self.writer.clock.now();
        if losses::write(&self.database, table, time, now, why).await? {
            self.writer.telemetry.history_lost(table, time.from, time.to);
        }
        Ok(())
    }

    /// Names rows that the database refuses, each a loss of its moment.
    async fn left_out(&self, table: &'static str, refused: Vec<(Timestamp, String)>) -> Result<()> {
        let now = self.writer.clock.now();
        for (at, why) in refused {
            let moment = Interval { from: at, to: at + Duration::from_millis(1) };
            if losses::write(&self.database, table, moment, now, &why).await? {
                self.writer.telemetry.history_refused(table, &why);
            }
        }
        Ok(())
    }

    async fn pass_over(&mut self, source: HistorySource) -> Result<bool> {
        let now = self.writer.clock.now();
        let horizon = now - SETTLE;
        let tail = self.tails[&source];
        if tail.settled < tail.read && horizon.since(tail.settled) >= PASS {
            self.settle(source, tail.read.min(horizon)).await?;
        }
        let mut parts = 0;
        while self.tails[&source].read < now && parts < PARTS {
            let tail = self.tails[&source];
            let (part, until) = self.part(source, Interval { from: tail.read, to: now }).await?;
            let is_settled = tail.settled == tail.read;
            let settled = if is_settled { until.min(horizon).max(tail.settled) } else { tail.settled };
            self.write(source, part, Some(settled).filter(|at| *at > tail.settled)).await?;
            self.tails.insert(source, Tail { settled, read: until });
            parts += 1;
        }
        let tail = self.tails[&source];
        self.writer.telemetry.history_lag(source.as_str(), now.since(tail.read));
        Ok(tail.read < now)
    }

    /// Reads again up to a moment whose entries are all written, and moves the cursor there.
    async fn settle(&mut self, source: HistorySource, until: Timestamp) -> Result<()> {
        while self.tails[&source].settled < until {
            let Tail { settled, read } = self.tails[&source];
            let (part, to) = self.part(source, Interval { from: settled, to: until }).await?;
            self.write(source, part, Some(to)).await?;
            self.tails.insert(source, Tail { settled: to, read });
        }
        Ok(())
    }

    async fn part(&self, source: HistorySource, time: Interval) -> Result<(SourcePart, Timestamp)> {
        self.sources.read(source, &self.partitions, time, self.batch).await
    }

    /// Writes a part, and the cursor with it.
    async fn write(
        &mut self,
        source: HistorySource,
        part: SourcePart,
        cursor: Option<Timestamp>,
    ) -> Result<()> {
        if part.len() == 0 && cursor.is_none() {
            return Ok(());
        }
        let (table, name, all) = (source.table(), source.as_str(), self.sources.queries.partitions());
        self.months.make(&self.database, table, part.moments()).await?;
        let (mut pieces, mut written) = (Pieces::of(part.len()), 0);
        while let Some((piece, is_last)) = pieces.next() {
            let partitions = &self.partitions;
            let done = self.database.in_transaction("write history", async |transaction| {
                let written = match &part {
                    _ if piece.is_empty() => 0,
                    SourcePart::Records(records) => {
                        let mut rows = TransitionRows::default();
                        let some = &records[piece.clone()];
                        some.iter().for_each(|one| rows.add(one, partition_of(&one.id.unit, all)));
                        rows.write(transaction).await?
                    }
                    SourcePart::Attempts(attempts) => {
                        write_notifications(transaction, &attempts[piece.clone()]).await?
                    }
                };
                if let Some(at) = cursor.filter(|_| is_last) {
                    cursors::advance(transaction, name, partitions, at).await?;
                }
                Ok(written)
            });
            let done = done.await;
            written += pieces.note(piece, done)?;
        }
        self.writer.telemetry.history_written(table, written);
        let refused = pieces.refused.into_iter().map(|(place, why)| part.refused(place, &why));
        self.left_out(table, refused.collect()).await
    }

    /// Writes the missing entries of the audit. The audit is short, so it is read as a whole.
    async fn write_operations(&mut self, fleet: u16) -> Result<()> {
        let audit = Documents::new(self.sources.cells.clone());
        let newest = audit.audited(1).await?.pop();
        if newest.is_none() || newest == self.newest_operation {
            return Ok(());
        }
        let entries = audit.audited(MAX_AUDITED).await?;
        let (Some(first), Some(last)) = (entries.last(), entries.first()) else { return Ok(()) };
        let fleet = [fleet];
        let client = self.database.client();
        let read = self.database.limited("read a cursor", async {
            let cursor = cursors::load(client, OPERATIONS, &fleet).await?;
            Ok((cursor, cursors::oldest(client, OPERATIONS, &fleet).await?))
        });
        let (cursor, oldest) = read.await?;
        if let Some(from) = oldest.filter(|at| *at < first.at && entries.len() >= MAX_AUDITED) {
            let lost = Interval { from, to: first.at };
            self.lost("operations", lost, "the audit has its newest entries only").await?;
        }
        let forget = cursors::forget_before(self.database.client(), OPERATIONS, &fleet);
        self.database.limited("move a cursor", forget).await?;
        let pauses = past_pauses(entries.iter().rev(), cursor.unwrap_or(Timestamp::ZERO));
        let (mut pieces, mut written) = (Pieces::of(entries.len()), 0);
        while let Some((piece, is_last)) = pieces.next() {
            let done = self.database.in_transaction("write operations", async |transaction| {
                let written = write_operations(transaction, &entries[piece.clone()]).await?;
                if is_last {
                    units::write_past_pauses(transaction, &pauses).await?;
                    cursors::advance(transaction, OPERATIONS, &fleet, last.at).await?;
                }
                Ok(written)
            });
            let done = done.await;
            written += pieces.note(piece, done)?;
        }
        self.writer.telemetry.history_written("operations", written);
        let named = |(place, why): (usize, String)| {
            let entry: &AuditEntry = &entries[place];
            (entry.at, format!("operation {}: {why}", operation_id(entry)))
        };
        self.left_out("operations", pieces.refused.into_iter().map(named).collect()).await?;
        self.newest_operation = newest;
        Ok(())
    }

    /// Writes what differs between the open records of the engine and of history: see `reconciling.rs`. Answers whether
    /// there is more.
    async fn reconcile(&mut self, now: Timestamp) -> Result<bool> {
        let found =
            reconciling::differences(&self.database, &*self.sources.queries, &self.partitions).await?;
        for records in found.records.chunks(self.batch) {
            self.write(HistorySource::Opened, SourcePart::Records(records.to_vec()), None).await?;
        }
        self.close_forgotten(&found.forgotten, now).await?;
        for source in HistorySource::ALL {
            let cursor = self.tails[&source].read;
            if cursor > Timestamp::ZERO {
                self.name_losses(source, cursor, &self.partitions.clone()).await?;
            }
        }
        let partitions = &self.partitions;
        let compared = self.database.in_transaction("write a cursor", async |transaction| {
            if !found.has_more {
                cursors::advance(transaction, OPEN, partitions, now).await?;
            }
            Ok(found.has_more)
        });
        compared.await
    }

    /// Closes records that the engine has no more, and names the time as a loss in which they ended.
    async fn close_forgotten(&mut self, forgotten: &[String], now: Timestamp) -> Result<()> {
        let read = cursors::load(self.database.client(), OPEN, &self.partitions);
        let compared = self.database.limited("read a cursor", read).await?;
        let ends = reconciling::last_known(&self.database, forgotten, compared).await?;
        let Some(first) = ends.iter().min().copied() else { return Ok(()) };
        // A record that was closed later would still be there, if that is why it is not.
        let kept = now - self.writer.config.keep_records;
        let lost = Interval { from: first, to: if first < kept { kept } else { now } };
        self.lost("transitions", lost, "the engine had open records no longer").await?;
        self.months.make(&self.database, "transitions", ends.into_iter()).await?;
        let closed = self.database.in_transaction("write history", async |transaction| {
            reconciling::close(transaction, forgotten, compared).await
        });
        self.writer.telemetry.history_written("transitions", closed.await?);
        Ok(())
    }
}
