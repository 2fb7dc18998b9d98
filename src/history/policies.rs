//! The policies of kinds as they were: timeout and grace, from a moment until the next one. A trial needs them, because a
//! silence was recorded by the timeout of its time.

use tokio_postgres::types::ToSql;

use super::database::{Database, Result};
use super::rows::moment;
use crate::clock::Timestamp;
use crate::fleet::SharedRules;
use crate::presence::{Kind, Policy};

/// The policies that are not written yet, with the moments from which they are in force.
///
/// A reload is noticed within seconds, also while the database is away: then up to [`MAX_WAITING`] of them wait.
#[derive(Default)]
pub(super) struct ChangedPolicies {
    /// The number of the rules that were looked at last.
    edition: Option<u64>,
    waiting: Vec<(Timestamp, Vec<(Kind, Policy)>)>,
}

/// More reloads while the database is away count as one.
const MAX_WAITING: usize = 100;

impl ChangedPolicies {
    /// Notes the policies of all kinds if rules were replaced since the last call.
    pub fn note(&mut self, rules: &SharedRules, now: Timestamp) {
        let edition = rules.edition();
        if self.edition == Some(edition) {
            return;
        }
        self.edition = Some(edition);
        let of_kind = |(kind, rules): (&Kind, &crate::presence::KindRules)| (kind.clone(), rules.policy);
        let policies = rules.rules().iter().map(of_kind).collect();
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop();
        }
        self.waiting.push((now, policies));
    }

    /// Writes those that differ from the last ones in history.
    pub async fn write(&mut self, database: &Database) -> Result<u64> {
        let mut written = 0;
        while let Some((since, policies)) = self.waiting.first() {
            written += write(database, *since, policies).await?;
            self.waiting.remove(0);
        }
        Ok(written)
    }
}

async fn write(database: &Database, since: Timestamp, policies: &[(Kind, Policy)]) -> Result<u64> {
    let kinds: Vec<String> = policies.iter().map(|(kind, _)| kind.to_string()).collect();
    let timeouts: Vec<i64> = policies.iter().map(|(_, one)| one.timeout.as_millis() as i64).collect();
    let graces: Vec<i64> = policies.iter().map(|(_, one)| one.grace.as_millis() as i64).collect();
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
