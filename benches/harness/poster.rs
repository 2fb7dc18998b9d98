//! The lower bound of notifying: notifications in memory, posted by Rollcall's own
//! webhook channel to the same sink, without anything durable.

use std::time::Duration;

use anyhow::Context;
use futures_util::{StreamExt, TryStreamExt, stream};

use rollcall::alerting::{ChannelConfig, MessageConfig, ReceiverConfig, Retry, WebhookConfig, open};
use rollcall::clock::Clock;
use rollcall::presence::{Cause, OfflineRecord, RecordId};
use rollcall::store::{Delivery, Group};

use super::fleet::unit;
use super::sink::Sink;

/// Requests in flight, here and in Rollcall.
pub const CONCURRENCY: usize = 64;

/// Posts one notification for each of `count` units and answers how long that took.
pub async fn post(sink: &Sink, count: u32, clock: &Clock) -> anyhow::Result<Duration> {
    let receiver = ReceiverConfig {
        name: "hook".to_owned(),
        channel: ChannelConfig::Webhook(Box::new(WebhookConfig {
            url: sink.url(),
            ..WebhookConfig::default()
        })),
        message: MessageConfig::default(),
        concurrency: CONCURRENCY,
        timeout: Duration::from_secs(30),
        retry: Retry {
            first: Duration::from_secs(5),
            longest: Duration::from_secs(60),
            give_up_after: Duration::from_secs(600),
        },
        fallback: None,
        rate_limit: None,
    };
    let channel = open(&receiver).map_err(anyhow::Error::msg)?;
    let deliveries: Vec<Delivery> = (0..count).map(|number| delivery(number, clock)).collect();
    let began = clock.now();
    stream::iter(deliveries)
        .map(|delivery| {
            let (channel, now) = (channel.clone(), clock.now());
            async move {
                tokio::spawn(async move { channel.send(&delivery, now).await })
                    .await
                    .context("posting")?
                    .map(|_| ())
                    .map_err(anyhow::Error::from)
            }
        })
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await?;
    Ok(clock.now().since(began))
}

fn delivery(number: u32, clock: &Clock) -> Delivery {
    let (unit, now) = (unit(number), clock.now());
    let record = OfflineRecord {
        id: RecordId { unit: unit.clone(), last_seen: now },
        kind: unit.kind.clone(),
        unit: unit.id.clone(),
        labels: Default::default(),
        last_seen: now,
        silent_from: None,
        deadline: now,
        detected_at: now,
        back_at: None,
        cause: Cause::Silence,
        closed_by: None,
        acknowledged: None,
    };
    let group = Group { key: unit.to_string(), labels: [("unit".to_owned(), unit.id.to_string())].into() };
    let notification = Delivery::new(format!("ntf_memory-{number:013}.hook"), "hook", group, now);
    Delivery { offline: vec![record], ..notification }
}
