//! The part of the text that comes from the engine: what units tell of themselves.
//!
//! Read page by page while it is written, one family after the other, so that nothing of it is held.
//! When the engine does not answer, that part is missing, and the text says so: what is known of
//! presence is worth more than that.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};

use super::Pieces;
use super::text::Text;
use crate::fleet::Mirror;
use crate::fleet::mirror::Wanted;
use crate::presence::Unit;
use crate::store::{Engine, EngineError, Metric, Result};

/// How many pages are read at a time, of some sixty units each in a large fleet.
const PAGES_AT_ONCE: u32 = 32;
/// How many of these are under way, so that the engine works while text is written.
const UNDER_WAY: usize = 3;
/// The most units without a place in the mirror whose values are removed after one text.
const MOST_GONE: usize = 1000;

/// What values are read from.
pub(super) struct Values {
    pub engine: Arc<dyn Engine>,
    pub mirror: Arc<Mirror>,
    pub metrics: Vec<Metric>,
    pub wanted: Wanted,
}

/// The values of some pages of a partition, with the names of their units.
type Batch = (u16, Vec<(String, String)>);

impl Values {
    /// Writes all families. Answers with the text and whether the engine answered; nothing if the
    /// client is gone.
    pub async fn write(self, mut text: Text, pieces: &Pieces) -> Option<(Text, bool)> {
        let mut gone = Vec::new();
        for metric in &self.metrics {
            text.begin_values(metric);
            let mut batches = self.batches(&metric.name);
            while let Some(batch) = batches.next().await {
                let Ok((partition, values)) = batch else { return Some((text, false)) };
                let nobody = text.write_values(metric, partition, values);
                if self.mirror.is_partition_filled(partition) {
                    gone.extend(nobody.into_iter().take(MOST_GONE - gone.len().min(MOST_GONE)));
                }
                if text.has_piece() {
                    let (rest, piece) = on_a_thread(text).await?;
                    text = rest;
                    pieces.send(piece).await?;
                }
            }
        }
        self.forget(&gone).await;
        Some((text, true))
    }

    fn batches(&self, metric: &str) -> impl Stream<Item = Result<Batch>> + Unpin {
        let pages = self.engine.pages();
        let wanted = |partition: &u16| self.mirror.keeps(*partition) && self.wanted.takes(*partition);
        let partitions: Vec<u16> = (0..self.mirror.partition_count()).filter(wanted).collect();
        let (engine, metric) = (self.engine.clone(), metric.to_owned());
        let steps = partitions.into_iter().flat_map(move |partition| {
            let starts = (0..pages).step_by(PAGES_AT_ONCE as usize);
            starts.map(move |from| (partition, from..pages.min(from + PAGES_AT_ONCE)))
        });
        let read = move |(partition, pages)| {
            let (engine, metric) = (engine.clone(), metric.clone());
            // On a task of its own: to unpack values takes as long as to write them.
            let reading = tokio::spawn(async move { engine.walk_values(partition, &metric, pages).await });
            async move {
                let values = reading.await.map_err(|panic| EngineError::Damaged(panic.to_string()))?;
                Ok((partition, values?))
            }
        };
        Box::pin(stream::iter(steps).map(read).buffered(UNDER_WAY))
    }

    /// Values that a crash left behind when their unit was removed. The engine looks whether it was.
    async fn forget(&self, gone: &[String]) {
        let units: Vec<Unit> = gone.iter().filter_map(|name| name.parse().ok()).collect();
        if !units.is_empty() {
            // The next text comes upon what is left.
            let _ = self.engine.forget_values(&units).await;
        }
    }
}

/// Takes a piece where compressing it keeps nobody waiting.
pub(super) async fn on_a_thread(mut text: Text) -> Option<(Text, Bytes)> {
    let taken = tokio::task::spawn_blocking(move || {
        let piece = text.take_piece();
        (text, piece)
    });
    taken.await.ok()
}
