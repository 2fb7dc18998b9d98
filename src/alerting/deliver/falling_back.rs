//! Waiting notifications of a failing receiver also go to its fallback.
//!
//! The engine stores since when the receiver takes nothing, so that a restart or a new owner of its partitions does
//! not begin the wait again. A success of any instance ends it; an instance that still fails begins it again.
//!
//! A receiver that answered 410 has no wait: its notifications go to the fallback at once, before they become dead
//! letters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::FutureExt;

use super::Deliver;
use super::engine_calls::{EngineCalls, FallbackCall};
use crate::alerting::{Fallback, TICK};
use crate::clock::{Timestamp, monotonic};
use crate::store::{EngineError, MeantFor, Result};
use crate::telemetry::Loop;

/// The time until the engine is called again, after all notifications were queued for the fallback.
const PAUSE: Duration = Duration::from_secs(5);

impl Deliver {
    /// Begins a call if one is due: tells the engine whether the receiver is down, and queues its notifications for the
    /// fallback.
    pub(super) fn fall_back(self: &Arc<Self>, calls: &mut EngineCalls, is_down: Option<bool>, now: Instant) {
        let Some(fallback) = self.receiver.fallback.clone() else { return };
        let (Some(is_down), None) = (is_down, &calls.falling) else { return };
        if now < calls.fall_at && calls.known_down == Some(is_down)
            || calls.known_down == Some(false) && !is_down
        {
            return;
        }
        let (this, own) = (self.clone(), self.partitions());
        // This instance makes no attempts: another one knows whether the receiver is down.
        if own.is_empty() {
            return;
        }
        let call = async move {
            if !is_down {
                this.engine.is_up(&this.receiver.name).await?;
                return Ok(FallbackCall { is_down, queued: None });
            }
            let queued = this.queue_for(&fallback, fallback.after, &own, this.clock.now()).await?;
            Ok(FallbackCall { is_down, queued })
        };
        calls.falling = Some(call.boxed());
    }

    /// Queues the notifications of the receiver for its fallback, once it has been down for `after`. Answers how many;
    /// `None`: it is too early.
    pub(super) async fn queue_for(
        &self,
        fallback: &Fallback,
        after: Duration,
        own: &[u16],
        now: Timestamp,
    ) -> Result<Option<usize>> {
        let name = &self.receiver.name;
        let since = self.engine.down_since(name, now).await?;
        if now.since(since) < after {
            return Ok(None);
        }
        let meant_for = MeantFor { receiver: name.clone(), since };
        self.engine.fall_back(own, &meant_for, &fallback.receiver, now).await.map(Some)
    }

    pub(super) fn fell_back(
        &self,
        calls: &mut EngineCalls,
        answer: Result<FallbackCall>,
    ) -> Option<EngineError> {
        let receiver = &self.receiver.name;
        let which = format!("fallback of {receiver}");
        match answer {
            Ok(FallbackCall { is_down, queued }) => {
                self.telemetry.engine_answered(Loop::Delivery, &which);
                calls.known_down = Some(is_down);
                calls.fall_at = monotonic() + if queued.is_some() { PAUSE } else { TICK };
                self.log_fallen(queued);
                None
            }
            Err(error) => {
                // Call the engine again, even if the receiver is up in the meantime.
                calls.known_down = None;
                self.telemetry.engine_failed(Loop::Delivery, &which, &error);
                Some(error)
            }
        }
    }

    pub(super) fn log_fallen(&self, queued: Option<usize>) {
        if let (Some(queued @ 1..), Some(fallback)) = (queued, &self.receiver.fallback) {
            tracing::warn!(
                receiver = self.receiver.name,
                to = fallback.receiver,
                queued,
                "the receiver is down; waiting notifications also go to its fallback"
            );
        }
    }
}
