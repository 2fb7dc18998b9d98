//! Applies requests about timers, in the order of their arrival.

use serde_json::{Value, json};

use super::{ReceivedCommand, TimerCommand};
use crate::fleet::Timers;
use crate::fleet::timers::{TimerAnswer, TimerRefusal, TimerRequest};
use crate::intake::engine_writer::EngineWriter;
use crate::presence::{TimerId, TimerState};
use crate::store::{EngineError, TimerRegistered};

/// The name of this work, for readiness.
const TIMERS: &str = "timers";

/// Requests to apply together: registrations, or cancellations.
enum Run<'a> {
    Register(Vec<TimerRequest>),
    Cancel(Vec<TimerId>),
    Refused(Option<&'a TimerId>, &'a str),
}

/// Applies requests and answers each; `None` if Rollcall is stopping and the engine is away.
pub(in crate::intake) async fn apply(
    writer: &EngineWriter,
    timers: &Timers,
    requests: &[ReceivedCommand],
) -> Option<Vec<Value>> {
    let mut answers = Vec::with_capacity(requests.len());
    for run in runs(requests) {
        match run {
            Run::Register(wanted) => answers.extend(register(writer, timers, &wanted).await?),
            Run::Cancel(ids) => answers.extend(cancel(writer, timers, &ids).await?),
            Run::Refused(id, why) => answers.push(json!({ "id": id, "error": why })),
        }
    }
    Some(answers)
}

/// Groups consecutive requests of one sort, to apply each group at once. A timer that is registered and then cancelled
/// is in two groups.
fn runs(requests: &[ReceivedCommand]) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for request in requests {
        match (&request.asked, runs.last_mut()) {
            (TimerCommand::Register(wanted), Some(Run::Register(run))) => run.push(wanted.clone()),
            (TimerCommand::Cancel(id), Some(Run::Cancel(run))) => run.push(id.clone()),
            (TimerCommand::Register(wanted), _) => runs.push(Run::Register(vec![wanted.clone()])),
            (TimerCommand::Cancel(id), _) => runs.push(Run::Cancel(vec![id.clone()])),
            (TimerCommand::Refused { id, why }, _) => runs.push(Run::Refused(id.as_ref(), why)),
        }
    }
    runs
}

async fn register(writer: &EngineWriter, timers: &Timers, wanted: &[TimerRequest]) -> Option<Vec<Value>> {
    let registered = writer.ask_until_answered(TIMERS, || timers.register(wanted)).await?;
    Some(wanted.iter().zip(registered).map(|(wanted, answer)| answered(wanted, &answer)).collect())
}

/// The answer to a registration.
fn answered(wanted: &TimerRequest, answer: &TimerAnswer) -> Value {
    let timer = &wanted.timer;
    match answer {
        Ok(registered) => {
            let (state, result) = match registered {
                TimerRegistered::Created => ("waiting", "created"),
                TimerRegistered::Changed | TimerRegistered::Exists => ("waiting", "changed"),
                TimerRegistered::HasFired => ("fired", "fired"),
            };
            json!({ "id": timer.id, "state": state, "result": result, "type": timer.timer_type, "due": timer.due })
        }
        Err(refused) => json!({ "id": timer.id, "error": refused.why }),
    }
}

async fn cancel(writer: &EngineWriter, timers: &Timers, ids: &[TimerId]) -> Option<Vec<Value>> {
    let cancelled = writer.ask_until_answered(TIMERS, || timers.cancel(ids, writer.clock.now())).await?;
    let ended = ids.iter().zip(&cancelled).filter(|(_, one)| **one == Ok(false)).map(|(id, _)| id.clone());
    let mut states = states(writer, timers, ended.collect()).await?.into_iter();
    let answer = |(id, cancelled): (&TimerId, Result<bool, TimerRefusal>)| match cancelled {
        Ok(true) => json!({ "id": id, "cancelled": true, "state": TimerState::Cancelled }),
        Ok(false) => json!({ "id": id, "cancelled": false, "state": states.next().flatten() }),
        Err(refused) => json!({ "id": id, "error": refused.why }),
    };
    Some(ids.iter().zip(cancelled).map(answer).collect())
}

/// The states of timers; `None` if unknown.
async fn states(
    writer: &EngineWriter,
    timers: &Timers,
    ids: Vec<TimerId>,
) -> Option<Vec<Option<TimerState>>> {
    if ids.is_empty() {
        return Some(Vec::new());
    }
    let read = async || match timers.read(&ids).await {
        // A timer that cannot be read is no reason to ask the engine again.
        Err(EngineError::Damaged(_)) => Ok(Vec::new()),
        other => other,
    };
    let read = writer.ask_until_answered(TIMERS, read).await?;
    Some(read.into_iter().map(|timer| timer.map(|timer| timer.state())).collect())
}
