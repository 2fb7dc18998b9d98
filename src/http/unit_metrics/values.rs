//! The part of the text that comes from the engine: the values of units.
//!
//! Values are read page by page while the text is written, one family after the other, and not stored. If the engine
//! does not answer, the values are missing and `rollcall_unit_values_read` is 0; presence is shown anyway.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};

use super::FrameSender;
use super::text::UnitMetricsText;
use crate::fleet::Mirror;
use crate::fleet::mirror::UnitFilter;
use crate::presence::Unit;
use crate::store::{DataStore, EngineError, Metric, Result};

/// How many pages one read contains, of some sixty units each in a large fleet.
const PAGES_AT_ONCE: u32 = 32;
/// How many reads of [`PAGES_AT_ONCE`] pages run ahead, so that the engine works while text is written.
const READS_AT_ONCE: usize = 3;
/// The most units without a row in the mirror whose values are removed after one text.
const MAX_GONE: usize = 1000;

pub(super) struct UnitMetricValues {
    pub engine: Arc<dyn DataStore>,
    pub mirror: Arc<Mirror>,
    pub metrics: Vec<Metric>,
    pub filter: UnitFilter,
}

/// The values of some pages of a partition, with the names of their units.
type PageValues = (u16, Vec<(String, String)>);

impl UnitMetricValues {
    /// Writes all families. Returns the text, and whether the engine answered; `None` if the client has disconnected.
    pub async fn write(
        self,
        mut text: UnitMetricsText,
        frames: &FrameSender,
    ) -> Option<(UnitMetricsText, bool)> {
        let mut gone = Vec::new();
        for metric in &self.metrics {
            text.begin_values(metric);
            let mut batches = self.batches(&metric.name);
            while let Some(batch) = batches.next().await {
                let Ok((partition, values)) = batch else { return Some((text, false)) };
                let unknown = text.write_values(metric, partition, values);
                if self.mirror.is_partition_filled(partition) {
                    gone.extend(unknown.into_iter().take(MAX_GONE - gone.len().min(MAX_GONE)));
                }
                if text.has_frame() {
                    let (rest, frame) = take_frame_on_a_thread(text).await?;
                    text = rest;
                    frames.send(frame).await?;
                }
            }
        }
        self.forget(&gone).await;
        Some((text, true))
    }

    fn batches(&self, metric: &str) -> impl Stream<Item = Result<PageValues>> + Unpin {
        let pages = self.engine.pages();
        let is_read =
            |partition: &u16| self.mirror.keeps(*partition) && self.filter.has_partition(*partition);
        let partitions: Vec<u16> = (0..self.mirror.partition_count()).filter(is_read).collect();
        let (engine, metric) = (self.engine.clone(), metric.to_owned());
        let steps = partitions.into_iter().flat_map(move |partition| {
            let starts = (0..pages).step_by(PAGES_AT_ONCE as usize);
            starts.map(move |from| (partition, from..pages.min(from + PAGES_AT_ONCE)))
        });
        let read = move |(partition, pages)| {
            let (engine, metric) = (engine.clone(), metric.clone());
            // A task of its own, because decoding values takes as long as writing them.
            let reading = tokio::spawn(async move { engine.walk_values(partition, &metric, pages).await });
            async move {
                let values = reading.await.map_err(|panic| EngineError::Damaged(panic.to_string()))?;
                Ok((partition, values?))
            }
        };
        Box::pin(stream::iter(steps).map(read).buffered(READS_AT_ONCE))
    }

    /// Removes values that a crash left behind while their unit was removed. The engine checks that the unit is gone.
    async fn forget(&self, gone: &[String]) {
        let units: Vec<Unit> = gone.iter().filter_map(|name| name.parse().ok()).collect();
        if !units.is_empty() {
            // After a failure the next text finds them again.
            let _ = self.engine.forget_values(&units).await;
        }
    }
}

/// Takes a frame on a thread of its own, because compression would block other tasks.
pub(super) async fn take_frame_on_a_thread(mut text: UnitMetricsText) -> Option<(UnitMetricsText, Bytes)> {
    let taken = tokio::task::spawn_blocking(move || {
        let frame = text.take_frame();
        (text, frame)
    });
    taken.await.ok()
}
