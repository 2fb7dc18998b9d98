//! Deliveries, in the engine or at an instance.

use reqwest::Method;
use serde_json::{Value, json};

use super::Access;
use crate::cli::remote::{PAGE, Remote};
use crate::cli::wrong;
use crate::clock::Timestamp;
use crate::fleet::deliveries::{DeliveriesChanged, DeliveriesError, DeliveryFilter, DeliveryState};

const DELIVERIES: [&str; 3] = ["api", "v1", "deliveries"];

impl Access {
    /// A page of deliveries; `next` in it is the cursor of the page after it.
    pub async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        limit: usize,
        cursor: Option<&str>,
    ) -> anyhow::Result<Value> {
        match self {
            Access::Engine(engine) => {
                let page = engine
                    .deliveries
                    .list(filter, limit, cursor, &engine.configured())
                    .await
                    .map_err(refused)?;
                Ok(serde_json::to_value(page)?)
            }
            Access::Instance(remote) => {
                let moment = |at: Option<Timestamp>| at.map(|at| at.to_string());
                let parts = [
                    ("limit", Some(limit.to_string())),
                    ("receiver", filter.receiver.clone()),
                    ("state", filter.state.map(|state| state.as_str().to_owned())),
                    ("from", moment(filter.from)),
                    ("until", moment(filter.until)),
                    ("cursor", cursor.map(str::to_owned)),
                ];
                let query: Vec<_> =
                    parts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                remote.get(&DELIVERIES, &query, "deliveries").await
            }
        }
    }

    pub async fn count_deliveries(&self, filter: &DeliveryFilter) -> anyhow::Result<usize> {
        let (mut count, mut cursor) = (0, None::<String>);
        loop {
            let page = self.deliveries(filter, PAGE, cursor.as_deref()).await?;
            count += page["deliveries"].as_array().map_or(0, Vec::len);
            match page["next"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => return Ok(count),
            }
        }
    }

    /// One notification, with every attempt.
    pub async fn delivery(&self, id: &str) -> anyhow::Result<Value> {
        match self {
            Access::Engine(engine) => Ok(serde_json::to_value(
                engine.deliveries.show(id, &engine.configured()).await.map_err(refused)?,
            )?),
            Access::Instance(remote) => {
                remote.get(&[&DELIVERIES[..], &[id]].concat(), &[], "deliveries").await
            }
        }
    }

    /// Delivers notifications again; returns how many.
    pub async fn replay(&self, id: &str, author: &str, now: Timestamp) -> anyhow::Result<usize> {
        match self {
            Access::Engine(engine) => {
                Ok(engine.deliveries.replay(id, &engine.configured(), author, now).await.map_err(refused)?)
            }
            Access::Instance(remote) => {
                let (changed, _) = changed(remote, &[id, "replay"], &json!({}), author).await?;
                Ok(changed.count)
            }
        }
    }

    /// Delivers all notifications again that a filter selects, step by step; returns how many.
    pub async fn replay_all(
        &self,
        filter: DeliveryFilter,
        author: &str,
        now: Timestamp,
    ) -> anyhow::Result<usize> {
        let filter = DeliveryFilter { until: filter.until.or(Some(now)), ..filter };
        let (mut count, mut cursor) = (0, None::<String>);
        loop {
            let (done, next) = match self {
                Access::Engine(engine) => engine
                    .deliveries
                    .replay_all(&filter, cursor.as_deref(), &engine.configured(), author, now)
                    .await
                    .map_err(refused)?,
                Access::Instance(remote) => {
                    let body = json!({ "filter": filter, "cursor": cursor });
                    changed(remote, &["replay"], &body, author).await?
                }
            };
            count += done.count;
            cursor = next;
            if !done.more {
                return Ok(count);
            }
        }
    }

    /// Removes the dead letters that a filter selects, step by step.
    pub async fn purge(
        &self,
        filter: &DeliveryFilter,
        author: &str,
        now: Timestamp,
    ) -> anyhow::Result<usize> {
        let filter = DeliveryFilter { state: Some(DeliveryState::Dead), ..filter.clone() };
        let mut count = 0;
        loop {
            let done = match self {
                Access::Engine(engine) => {
                    engine.deliveries.purge(&filter, author, now).await.map_err(refused)?
                }
                Access::Instance(remote) => {
                    changed(remote, &["purge"], &json!({ "filter": filter }), author).await?.0
                }
            };
            count += done.count;
            if !done.more {
                return Ok(count);
            }
        }
    }
}

/// Deliveries that are refused because of the request mean wrong arguments.
fn refused(error: DeliveriesError) -> anyhow::Error {
    match error {
        DeliveriesError::Cursor | DeliveriesError::Refused(_) => wrong(error.to_string()),
        error => error.into(),
    }
}

/// A change of deliveries, and the `cursor` of the next call.
async fn changed(
    remote: &Remote,
    path: &[&str],
    body: &Value,
    author: &str,
) -> anyhow::Result<(DeliveriesChanged, Option<String>)> {
    let answer =
        remote.change(Method::POST, &[&DELIVERIES[..], path].concat(), Some(body), Some(author)).await?;
    let count = answer["count"].as_u64().unwrap_or_default() as usize;
    let changed = DeliveriesChanged { count, more: answer["more"] == true };
    Ok((changed, answer["next"].as_str().map(str::to_owned)))
}
