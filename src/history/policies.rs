//! The policies of kinds as they were: timeout and grace, from a moment until the next one. A trial needs them, because a
//! silence was recorded by the timeout of its time.
//!
//! The engine keeps a change until the database has it, through restarts of either, and the last one after that, which
//! says at the next start whether anything changed. The owner of what belongs to no partition notes and writes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio_postgres::types::ToSql;

use super::database::{Database, Result};
use super::rows::moment;
use crate::clock::Timestamp;
use crate::fleet::SharedRules;
use crate::presence::{Kind, KindRules};
use crate::store::{Cells, Documents, EngineError, Table, TableValue};

/// The name of the only document.
const FLEET: &str = "fleet";
/// More changes while the database is away count as one.
const MAX_WAITING: usize = 100;

/// The timeout and the grace of each kind, in milliseconds.
type Policies = BTreeMap<String, (i64, i64)>;

/// The policies of all kinds from moments on, the oldest first.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct PolicyChanges(Vec<(Timestamp, Policies)>);

impl TableValue for PolicyChanges {
    type Name = String;
    const TABLE: Table = Table::Policies;
}

/// The changes of policies, on their way from the rules to the database.
pub(super) struct ChangedPolicies {
    documents: Documents,
    /// The number of the rules that were looked at last.
    edition: Option<u64>,
    /// Whether the database has all changes.
    is_written: bool,
}

impl ChangedPolicies {
    pub fn new(cells: Arc<dyn Cells>) -> ChangedPolicies {
        ChangedPolicies { documents: Documents::new(cells), edition: None, is_written: false }
    }

    /// Notes the policies of all kinds if rules were replaced since the last call and they differ from the last ones.
    pub async fn note(&mut self, rules: &SharedRules, now: Timestamp) -> Result<(), EngineError> {
        let edition = rules.edition();
        if self.edition == Some(edition) {
            return Ok(());
        }
        let stored = self.documents.one::<PolicyChanges>(&FLEET.to_owned()).await?;
        let of_kind = |(kind, rules): (&Kind, &KindRules)| {
            let policy = rules.policy;
            (kind.to_string(), (policy.timeout.as_millis() as i64, policy.grace.as_millis() as i64))
        };
        let policies: Policies = rules.rules().iter().map(of_kind).collect();
        let PolicyChanges(mut changes) = stored.value.clone().unwrap_or_default();
        if changes.last().is_none_or(|(_, last)| *last != policies) {
            changes.truncate(MAX_WAITING - 1);
            changes.push((now, policies));
            let change = self.documents.change(&stored, Some(&PolicyChanges(changes)))?;
            if self.documents.write(&[change]).await? != [true] {
                // Another instance noted its own; the next call looks at them.
                return Ok(());
            }
        }
        (self.edition, self.is_written) = (Some(edition), false);
        Ok(())
    }

    /// Lets the next [`write`](Self::write) write again what the engine keeps, to a database that may lack it.
    pub fn begin(&mut self) {
        self.is_written = false;
    }

    /// Writes those that differ from the last ones in history.
    pub async fn write(&mut self, database: &Database) -> Result<u64> {
        if self.is_written {
            return Ok(0);
        }
        let stored = self.documents.one::<PolicyChanges>(&FLEET.to_owned()).await?;
        let PolicyChanges(mut changes) = stored.value.clone().unwrap_or_default();
        let mut written = 0;
        for (since, policies) in &changes {
            written += write(database, *since, policies).await?;
        }
        let older = changes.len().saturating_sub(1);
        self.is_written = older == 0 || {
            let last = PolicyChanges(changes.split_off(older));
            self.documents.write(&[self.documents.change(&stored, Some(&last))?]).await? == [true]
        };
        Ok(written)
    }
}

async fn write(database: &Database, since: Timestamp, policies: &Policies) -> Result<u64> {
    let kinds: Vec<&str> = policies.keys().map(String::as_str).collect();
    let (timeouts, graces): (Vec<i64>, Vec<i64>) = policies.values().copied().unzip();
    let since = moment(since);
    let insert = "INSERT INTO policies (kind, since, timeout_ms, grace_ms) \
                  SELECT k, $1, t, g FROM unnest($2::text[], $3::bigint[], $4::bigint[]) x(k, t, g) \
                  WHERE NOT EXISTS (SELECT FROM (SELECT timeout_ms, grace_ms FROM policies WHERE kind = k AND since <= $1 \
                  ORDER BY since DESC LIMIT 1) last WHERE last.timeout_ms = t AND last.grace_ms = g) \
                  ON CONFLICT (kind, since) DO UPDATE SET timeout_ms = excluded.timeout_ms, \
                  grace_ms = excluded.grace_ms";
    let parameters: [&(dyn ToSql + Sync); 4] = [&since, &kinds, &timeouts, &graces];
    database.limited("write policies", database.client().execute(insert, &parameters)).await
}
