//! When a silent unit is late and when it is due, and its state between these moments.

use crate::clock::Timestamp;
use crate::presence::{
    Cause, Departure, Facts, Hearing, Interval, KindRules, Ledger, Lifecycle, Policy, Snapshot, State,
};

/// When a silent unit is late, and when it is due.
pub(super) struct Times {
    pub late: Timestamp,
    pub deadline: Timestamp,
    /// The announcement that holds: it makes the unit late, if its timeout does not.
    pub announced: Option<Departure>,
    /// The announcement that makes the deadline so early.
    pub decides: Option<Departure>,
}

/// The times of a unit whose silence begins at `silent`.
pub(super) fn times_since(facts: &Facts, silent: Timestamp, policy: &Policy, hearing: &Hearing) -> Times {
    times(facts, facts.last_seen, silent, policy, hearing)
}

pub(super) fn times(
    facts: &Facts,
    seen: Timestamp,
    silent: Timestamp,
    policy: &Policy,
    hearing: &Hearing,
) -> Times {
    let [pause, sleep] = absences(facts, seen, hearing);
    let ledger: &Ledger = &hearing.ledger;
    let ledger = ledger.with(pause);
    let ledger = ledger.with(sleep);
    let owed = policy.timeout.min(hearing.settle);
    let deadline = ledger.deadline(silent, policy.allowed(), owed);
    let late = if policy.grace.is_zero() {
        deadline
    } else {
        ledger.deadline(silent, policy.timeout, owed).min(deadline)
    };
    let Some(departure) = held_departure(facts, seen, silent, hearing) else {
        return Times { late, deadline, announced: None, decides: None };
    };
    let settle = departure.settle;
    let settled = match departure.is_certain() {
        true => departure.at,
        false => ledger.deadline(departure.at, settle, settle.min(hearing.settle)),
    };
    Times {
        late: late.min(departure.at),
        deadline: deadline.min(settled),
        announced: Some(departure),
        decides: Some(departure).filter(|_| settled < deadline),
    }
}

/// The announcement that the unit is gone, if it holds: it came in this silence, in no planned absence, and blind time
/// does not make it void.
pub(super) fn held_departure(
    facts: &Facts,
    seen: Timestamp,
    silent: Timestamp,
    hearing: &Hearing,
) -> Option<Departure> {
    facts.departure.filter(|departure| {
        departure.at >= silent
            && !departure.is_blind(&hearing.ledger)
            && !is_absent(facts, seen, departure.at, hearing)
    })
}

/// The planned absences of a unit that was last heard at `seen`: a heartbeat ends a sleep.
fn absences(facts: &Facts, seen: Timestamp, hearing: &Hearing) -> [Option<Interval>; 2] {
    [facts.pause, hearing.sleep(facts.sleep, seen)]
}

/// Whether a unit that was last heard at `seen` has a planned absence at `at`.
pub(super) fn is_absent(facts: &Facts, seen: Timestamp, at: Timestamp, hearing: &Hearing) -> bool {
    absences(facts, seen, hearing).into_iter().flatten().any(|absence| absence.contains(at))
}

/// The next check of a unit that is not offline: no later than the expiry of a key that was set since this check,
/// even if the next check is late. A check that comes too late to find that key has to wait for more hearing.
pub(super) fn next_check(facts: &Facts, rules: &KindRules, hearing: &Hearing, now: Timestamp) -> Timestamp {
    let times = times_since(facts, facts.silent_since(), &facts.policy(rules), hearing);
    let next_check = if now < times.late { times.late } else { times.deadline };
    match facts.checked_at {
        Some(_) => {
            let lifetime = facts.key_lifetime(rules);
            next_check.min(now + (lifetime - hearing.delay.min(lifetime / 4 * 3)))
        }
        None => next_check,
    }
}

/// The deadline of a unit as far as the ledger reaches.
pub fn deadline(seen: &Snapshot, rules: &KindRules, hearing: &Hearing) -> Option<Timestamp> {
    let hearing = hearing.of_unit(seen, rules);
    let facts = seen.facts.as_ref()?;
    match &facts.lifecycle {
        Lifecycle::Offline(silence) => Some(silence.deadline),
        Lifecycle::Retired(_) => None,
        _ => {
            let newest = facts.last_seen.max(seen.alive.unwrap_or(Timestamp::ZERO));
            let silent = facts.silent_since().max(newest);
            Some(times(facts, newest, silent, &facts.policy(rules), hearing).deadline)
        }
    }
}

/// The state of a unit; `None` for an unknown unit and for a removed unit.
pub fn state(seen: &Snapshot, rules: &KindRules, hearing: &Hearing, now: Timestamp) -> Option<State> {
    let hearing = hearing.of_unit(seen, rules);
    let facts = seen.facts.as_ref()?;
    match &facts.lifecycle {
        Lifecycle::Offline(_) => return Some(State::Offline),
        Lifecycle::Retired(_) => return None,
        Lifecycle::NeverSeen | Lifecycle::Present => {}
    }
    let newest = facts.last_seen.max(seen.alive.unwrap_or(Timestamp::ZERO));
    if is_absent(facts, newest, now, hearing) {
        return Some(State::Paused);
    }
    let silent = facts.silent_since().max(newest);
    let times = times(facts, newest, silent, &facts.policy(rules), hearing);
    Some(if times.deadline < now {
        State::Unknown
    } else if facts.lifecycle == Lifecycle::NeverSeen {
        State::NeverSeen
    } else if times.late < now {
        State::Late
    } else {
        State::Online
    })
}

/// The state of a unit, and since when it is in that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSince {
    pub state: State,
    pub since: Timestamp,
    /// `None`: it was never heard.
    pub last_seen: Option<Timestamp>,
    /// Why it is offline, or late before its timeout.
    pub cause: Option<Cause>,
}

/// The state of a unit, and since when it is in that state; `back`: when its last silence ended, which may be one of
/// before it was removed and admitted again. `None` for an unknown unit and for a removed unit.
pub fn state_since(
    seen: &Snapshot,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
    back: Option<Timestamp>,
) -> Option<StateSince> {
    let (state, facts) = (state(seen, rules, hearing, now)?, seen.facts.as_ref()?);
    let newest = facts.last_seen.max(seen.alive.unwrap_or(Timestamp::ZERO));
    let silent = facts.silent_since().max(newest);
    let hearing = hearing.of_unit(seen, rules);
    let times = times(facts, newest, silent, &facts.policy(rules), hearing);
    let known = facts.known.map(|known| known.since);
    let (since, cause) = match (state, &facts.lifecycle) {
        (_, Lifecycle::Offline(silence)) => (silence.deadline, Some(silence.cause)),
        (State::Late, _) => (times.late, times.announced.map(|departure| departure.cause)),
        (State::Paused, _) => {
            let absences = [facts.pause, hearing.sleep(facts.sleep, newest)].into_iter().flatten();
            let now = absences.filter(|absence| absence.contains(now)).map(|absence| absence.from).min();
            (now.unwrap_or(newest), None)
        }
        (State::NeverSeen, _) => (known.unwrap_or(facts.last_seen), None),
        (State::Online, _) => (back.max(known).unwrap_or(newest), None),
        _ => (times.deadline, None),
    };
    Some(StateSince { state, since, last_seen: seen.last_heard(), cause })
}
