//! Deliveries, in the engine or at the instance that has locked it.

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::{Access, Instance, segment};
use crate::clock::Timestamp;
use crate::fleet::deliveries::{
    DeliveriesChanged, DeliveryDetails, DeliveryFilter, DeliveryPage, DeliveryState, LARGEST_PAGE,
};

const DELIVERIES: &str = "/api/v1/deliveries";

impl Access {
    pub async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        limit: usize,
        cursor: Option<&str>,
    ) -> anyhow::Result<DeliveryPage> {
        match self {
            Access::Engine(engine) => {
                Ok(engine.deliveries.list(filter, limit, cursor, &engine.configured).await?)
            }
            Access::Instance(instance) => {
                let mut path = format!("{DELIVERIES}?limit={limit}");
                let moment = |at: Option<Timestamp>| at.map(|at| at.to_string());
                let parts = [
                    ("receiver", filter.receiver.clone()),
                    ("state", filter.state.map(|state| state.as_str().to_owned())),
                    ("from", moment(filter.from)),
                    ("until", moment(filter.until)),
                    ("cursor", cursor.map(str::to_owned)),
                ];
                for (name, value) in parts {
                    path.extend(value.map(|value| format!("&{name}={}", segment(&value))));
                }
                instance.get(&path).await
            }
        }
    }

    pub async fn count_deliveries(&self, filter: &DeliveryFilter) -> anyhow::Result<usize> {
        let (mut count, mut cursor) = (0, None);
        loop {
            let page = self.deliveries(filter, LARGEST_PAGE, cursor.as_deref()).await?;
            count += page.deliveries.len();
            cursor = page.next;
            if cursor.is_none() {
                return Ok(count);
            }
        }
    }

    pub async fn delivery(&self, id: &str) -> anyhow::Result<DeliveryDetails> {
        match self {
            Access::Engine(engine) => Ok(engine.deliveries.show(id, &engine.configured).await?),
            Access::Instance(instance) => instance.get(&format!("{DELIVERIES}/{}", segment(id))).await,
        }
    }

    /// Answers how many are delivered again.
    pub async fn replay(&self, id: &str, author: &str, now: Timestamp) -> anyhow::Result<usize> {
        match self {
            Access::Engine(engine) => Ok(engine.deliveries.replay(id, author, now).await?),
            Access::Instance(instance) => {
                let path = format!("{DELIVERIES}/{}/replay", segment(id));
                Ok(instance.change_deliveries(&path, &json!({}), author).await?.0.count)
            }
        }
    }

    /// The same for all that a filter takes, step by step.
    pub async fn replay_all(
        &self,
        filter: DeliveryFilter,
        author: &str,
        now: Timestamp,
    ) -> anyhow::Result<usize> {
        let filter = DeliveryFilter { until: filter.until.or(Some(now)), ..filter };
        let (mut count, mut cursor) = (0, None::<String>);
        loop {
            let (changed, next) = match self {
                Access::Engine(engine) => {
                    engine.deliveries.replay_all(&filter, cursor.as_deref(), author, now).await?
                }
                Access::Instance(instance) => {
                    let body = json!({ "filter": filter, "cursor": cursor });
                    instance.change_deliveries(&format!("{DELIVERIES}/replay"), &body, author).await?
                }
            };
            count += changed.count;
            cursor = next;
            if !changed.more {
                return Ok(count);
            }
        }
    }

    /// Removes the dead letters that a filter takes, step by step.
    pub async fn purge(
        &self,
        filter: &DeliveryFilter,
        author: &str,
        now: Timestamp,
    ) -> anyhow::Result<usize> {
        let filter = DeliveryFilter { state: Some(DeliveryState::Dead), ..filter.clone() };
        let mut count = 0;
        loop {
            let changed = match self {
                Access::Engine(engine) => engine.deliveries.purge(&filter, author, now).await?,
                Access::Instance(instance) => {
                    let (path, body) = (format!("{DELIVERIES}/purge"), json!({ "filter": filter }));
                    instance.change_deliveries(&path, &body, author).await?.0
                }
            };
            count += changed.count;
            if !changed.more {
                return Ok(count);
            }
        }
    }
}

impl Instance {
    async fn change_deliveries(
        &self,
        path: &str,
        body: &serde_json::Value,
        author: &str,
    ) -> anyhow::Result<(DeliveriesChanged, Option<String>)> {
        #[derive(Deserialize)]
        struct Changed {
            #[serde(flatten)]
            changed: DeliveriesChanged,
            #[serde(default)]
            next: Option<String>,
        }
        let answer = self.ask(Method::POST, path, Some(body.to_string()), author).await?;
        let Changed { changed, next } = self.read(&answer)?;
        Ok((changed, next))
    }
}
