//! Waiting notifications of a failing receiver also go to its fallback.
//!
//! Since when the receiver takes nothing is in the engine, so that a restart or another owner of its partitions does
//! not begin the wait again. A success of any instance ends it; an instance that still fails begins it again.
//!
//! A receiver that answered 410 has no wait: its notifications go to the fallback at once, before they become dead
//! letters.

use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::time::Instant;

use super::engine_calls::{EngineCalls, FallbackCall};
use super::{Deliver, fall};
use crate::alerting::TICK;
use crate::store::{EngineError, Result};
use crate::telemetry::Loop;

/// The time until the engine is asked again, after all notifications were queued for the fallback.
const PAUSE: Duration = Duration::from_secs(5);

impl Deliver {
    /// Begins a call if one is due: tells the engine whether the receiver is down, and queues its notifications for the
    /// fallback.
    pub(super) fn fall_back(&self, calls: &mut EngineCalls, is_down: Option<bool>, now: Instant) {
        let Some(fallback) = self.receiver.fallback.clone() else { return };
        let (Some(is_down), None) = (is_down, &calls.falling) else { return };
        if now < calls.fall_at && calls.known_down == Some(is_down)
            || calls.known_down == Some(false) && !is_down
        {
            return;
        }
        let (engine, name, at) = (self.engine.clone(), self.receiver.name.clone(), self.clock.now());
        let (own, destinations) = (self.partitions(), self.destinations.clone());
        let call = async move {
            if !is_down {
                engine.is_up(&name).await?;
                return Ok(FallbackCall { is_down, queued: None });
            }
            Ok(FallbackCall {
                is_down,
                queued: fall(&engine, &own, &name, &fallback, &destinations, at).await?,
            })
        };
        calls.falling = Some(call.boxed());
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
                calls.fall_at = Instant::now() + if queued.is_some() { PAUSE } else { TICK };
                self.log_fallen(queued);
                None
            }
            Err(error) => {
                // The engine is asked again, also if the receiver is up by then.
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
