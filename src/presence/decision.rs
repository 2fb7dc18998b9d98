//! The decisions about a unit: it was heard, it is looked at, it is registered, it is removed.
//!
//! Pure functions from what is stored to what is to be stored. Two instances that decide at the
//! same time cannot both be applied, because a [`Change`] holds only for the snapshot it was made
//! from; whoever comes second reads again.
//!
//! # Why a last seen time may be presumed
//! A look reads the newest heartbeat from the expiry key before the key can be gone, because the
//! next look is never further away than the key stands. If nobody looked in time (everything was
//! down for longer than that), the key may have held a newer heartbeat than the facts and be gone.
//! Then the silence is presumed to begin at the latest moment at which a heartbeat could have been
//! recorded: telling late is better than telling what is not true. What is presumed is kept apart from
//! what was truly seen (`silent_from`), which is what the record and its id tell.

use std::time::Duration;

use super::{
    Cause, Change, Closing, Facts, Hearing, Heartbeat, IndexChange, Interval, KeyChange, KindRules, Labels,
    Ledger, Override, Policy, Registry, Silence, Snapshot, Standing, State,
};
use crate::clock::Timestamp;

/// What a heartbeat turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The first of a unit.
    New,
    /// One more of a unit that is present.
    Refreshed,
    /// The end of a silence.
    Back,
    /// Older than what is known: changes nothing.
    Stale,
    /// From a unit that is not registered, in a kind that admits none.
    Stranger,
    /// From a unit that was removed.
    Retired,
    /// From an id that is new, in a kind that has as many units as it may.
    TooMany,
}

/// Decides what a heartbeat changes.
pub fn hear(
    seen: &Snapshot,
    beat: &Heartbeat,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> (Heard, Option<Change>) {
    let hearing = hearing.of(&rules.kind);
    let known = match &seen.facts {
        Some(Facts { standing: Standing::Retired(at), .. }) if now.since(*at) < rules.forget_after => {
            return (Heard::Retired, None);
        }
        Some(Facts { standing: Standing::Retired(_), .. }) | None => None,
        Some(facts) => Some(facts),
    };
    let Some(facts) = known else {
        // One of whom something is stored that cannot be read is no stranger.
        if rules.registry == Registry::Closed && !seen.is_unreadable() {
            return (Heard::Stranger, None);
        }
        let facts = declare(Facts::new(Standing::Present, beat.at), beat);
        return (Heard::New, Some(present(facts, rules, hearing, now)));
    };
    match &facts.standing {
        Standing::Offline(silence) => come_back(seen, facts, silence, beat, rules, hearing, now),
        Standing::NeverSeen => {
            let facts = Facts { standing: Standing::Present, ..facts.clone().heard(beat.at) };
            (Heard::New, Some(present(declare(facts, beat), rules, hearing, now)))
        }
        _ => {
            let newest = facts.last_seen.max(seen.alive.unwrap_or(Timestamp::ZERO));
            if beat.at < newest && seen.alive == Some(newest) && beat.declared.is_empty() {
                return (Heard::Stale, None);
            }
            let current = facts.clone().heard(newest.max(beat.at));
            let facts = if beat.at < newest { current } else { declare(current, beat) };
            (Heard::Refreshed, Some(present(facts, rules, hearing, now)))
        }
    }
}

/// A heartbeat of a unit with an open record. One that is itself older than the unit is allowed to
/// be silent does not bring it back: it was on its way for too long to say that the unit lives.
fn come_back(
    seen: &Snapshot,
    facts: &Facts,
    silence: &Silence,
    beat: &Heartbeat,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> (Heard, Option<Change>) {
    let back = Facts { standing: Standing::Present, last_seen: beat.at, silent_from: None, ..facts.clone() };
    let back = declare(back, beat);
    let sent = beat.not_before.map_or(beat.at, |earliest| earliest.min(beat.at));
    if sent <= facts.silent_since() + same_word(silence)
        || times(&back, beat.at, beat.at, &back.policy(rules), hearing).deadline < now
    {
        return (Heard::Stale, None);
    }
    let record = facts.closed(&seen.unit, silence, beat.at, Closing::Return);
    (Heard::Back, Some(Change { record: Some(record), ..present(back, rules, hearing, now) }))
}

/// How much later than the last one a heartbeat of an offline unit may be and still say nothing new.
/// Several instances hear the same message some milliseconds apart, and one that was kept from
/// writing it down must not bring back whom another has seen die. Who lives speaks again.
fn same_word(silence: &Silence) -> Duration {
    (silence.allowed / 10).min(Duration::from_secs(1))
}

fn declare(mut facts: Facts, beat: &Heartbeat) -> Facts {
    facts.declared_timeout = beat.declared.timeout.or(facts.declared_timeout);
    facts.labels.extend(beat.declared.labels.clone());
    while facts.labels.len() > super::MOST_LABELS {
        facts.labels.pop_last();
    }
    facts.sleep = beat.declared.sleep.map(|span| Interval { from: beat.at, to: beat.at + span });
    facts
}

/// The change that makes a unit with these facts present.
fn present(mut facts: Facts, rules: &KindRules, hearing: &Hearing, now: Timestamp) -> Change {
    let policy = facts.policy(rules);
    facts.looked_at = Some(now);
    let look = next_check(&facts, rules, hearing, now);
    Change {
        key: KeyChange::Set { last_seen: facts.last_seen, ttl: policy.allowed() },
        index: IndexChange::LookAt(look),
        facts: Some(facts),
        record: None,
    }
}

/// What a look at a unit found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has time left: the next look is set.
    Alive(Change),
    /// Its time is up: a record is opened.
    Offline(Change),
    /// Its record is closed: a heartbeat was recorded beside it, or it is allowed more now.
    Back(Change),
    /// It is due, but Rollcall has not heard far enough to say.
    Undecided,
    /// It has no business in the index and is taken out of it, if it is in there.
    Gone(Change),
}

/// Looks at a unit.
pub fn check_deadline(seen: &Snapshot, rules: &KindRules, hearing: &Hearing, now: Timestamp) -> Verdict {
    look_again(seen, now, rules, hearing, now)
}

/// Looks at a unit whose expiry key, if there is none, is known to be gone since `gone`.
pub fn look_again(
    seen: &Snapshot,
    gone: Timestamp,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Verdict {
    let hearing = hearing.of(&rules.kind);
    // The key of a stranger goes too: heartbeats would keep it standing, and never be admitted.
    let Some(facts) = &seen.facts else { return no_business(KeyChange::Delete, None) };
    match &facts.standing {
        Standing::Retired(_) => no_business(KeyChange::Delete, Some(facts)),
        Standing::Offline(silence) => look_at_offline(seen, facts, silence, rules, hearing, now),
        Standing::NeverSeen | Standing::Present => look_at_watched(seen, facts, gone, rules, hearing, now),
    }
}

fn no_business(key: KeyChange, facts: Option<&Facts>) -> Verdict {
    Verdict::Gone(Change { key, index: IndexChange::Take, facts: facts.cloned(), record: None })
}

fn look_at_watched(
    seen: &Snapshot,
    facts: &Facts,
    gone: Timestamp,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Verdict {
    let presumed = presumed(seen, facts, rules, hearing, gone);
    let mut facts = as_seen(seen, facts.clone(), presumed, rules, hearing, now);
    let policy = facts.policy(rules);
    let deadline = times_since(&facts, facts.silent_since(), &policy, hearing).deadline;
    if deadline >= now {
        let index = IndexChange::LookAt(next_check(&facts, rules, hearing, now));
        return Verdict::Alive(Change { key: KeyChange::Keep, index, facts: Some(facts), record: None });
    }
    // The ledger may not show yet why nobody looked in time. So the hearing has to cover the silence
    // after a heartbeat that may have come unseen, too. Such a one is not later than the deadline, or
    // a look since then would have found its key.
    let covers = |deadline: Timestamp| hearing.heard >= Some(deadline - policy.slack());
    let after = |unseen: Timestamp| times_since(&facts, unseen, &policy, hearing).deadline;
    let proof = presumed.map_or(deadline, |at| after(at.min(deadline)).max(deadline));
    if !covers(proof) {
        return Verdict::Undecided;
    }
    // Unless nobody looked since then: who has more to record than there is time records late, and
    // looks late. Presumed once, it does not move again, and the wait for hearing has an end.
    if let Some(at) = presumed.filter(|at| *at > deadline && !covers(after(*at))) {
        facts.silent_from = Some(at);
        let index = IndexChange::LookAt(next_check(&facts, rules, hearing, now));
        return Verdict::Alive(Change { key: KeyChange::Keep, index, facts: Some(facts), record: None });
    }
    let cause = match facts.standing {
        Standing::NeverSeen => Cause::NeverSeen,
        _ => Cause::Silence,
    };
    let silence = Silence { deadline, detected_at: now, cause, allowed: policy.allowed() };
    let record = facts.record(&seen.unit, &silence);
    facts.standing = Standing::Offline(silence);
    facts.looked_at = None;
    Verdict::Offline(Change {
        key: KeyChange::Delete,
        index: IndexChange::Take,
        facts: Some(facts),
        record: Some(record),
    })
}

/// What a look makes of the facts: the newest heartbeat is the key's or, without a key, the one in the facts.
/// A newer one may have come and gone unseen.
fn as_seen(
    seen: &Snapshot,
    facts: Facts,
    presumed: Option<Timestamp>,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Facts {
    if let Some(alive) = seen.alive {
        let newest = alive.max(facts.last_seen);
        return Facts { looked_at: Some(now), ..facts.heard(newest) };
    }
    // Where the time is up either way, nothing is presumed of the silence.
    let policy = facts.policy(rules);
    let matters = |at: &Timestamp| times_since(&facts, *at, &policy, hearing).deadline > now;
    let silent_from = presumed.filter(matters).or(facts.silent_from);
    Facts { looked_at: None, silent_from, ..facts }
}

/// The latest moment at which a heartbeat may have come whose key is gone again; `None` if there can
/// be none that was not seen.
fn presumed(
    seen: &Snapshot,
    facts: &Facts,
    rules: &KindRules,
    hearing: &Hearing,
    gone: Timestamp,
) -> Option<Timestamp> {
    let looked_at = facts.looked_at.filter(|_| seen.alive.is_none())?;
    let newest_unseen = gone - facts.key_stands(rules);
    let is_possible = newest_unseen > looked_at;
    is_possible.then(|| hearing.ledger.latest_hearing(newest_unseen).max(facts.silent_since()))
}

fn look_at_offline(
    seen: &Snapshot,
    facts: &Facts,
    silence: &Silence,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Verdict {
    if let Some(heard) = seen.alive.filter(|heard| *heard > facts.silent_since()) {
        let record = facts.closed(&seen.unit, silence, heard, Closing::Return);
        let back = Facts { standing: Standing::Present, ..facts.clone().heard(heard) };
        return Verdict::Back(Change { record: Some(record), ..present(back, rules, hearing, now) });
    }
    match reprieve(seen, facts.clone(), silence, rules, hearing, now) {
        Some(change) => Verdict::Back(change),
        None => no_business(KeyChange::Keep, Some(facts)),
    }
}

/// Closes a record whose unit is allowed a silence that has not passed yet.
fn reprieve(
    seen: &Snapshot,
    mut facts: Facts,
    silence: &Silence,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Option<Change> {
    let policy = facts.policy(rules);
    let deadline = times_since(&facts, facts.silent_since(), &policy, hearing).deadline;
    if policy.allowed() == silence.allowed || deadline < now {
        return None;
    }
    let record = facts.closed(&seen.unit, silence, now, Closing::Policy);
    let key = match silence.cause {
        Cause::NeverSeen => KeyChange::Keep,
        Cause::Silence => {
            let ttl = deadline.since(now).max(Duration::from_millis(1));
            KeyChange::Set { last_seen: facts.last_seen, ttl }
        }
    };
    facts.standing = match silence.cause {
        Cause::NeverSeen => Standing::NeverSeen,
        Cause::Silence => Standing::Present,
    };
    facts.looked_at = None;
    let index = IndexChange::LookAt(next_check(&facts, rules, hearing, now));
    Some(Change { key, index, facts: Some(facts), record: Some(record) })
}

/// What an operator registers a unit with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// The silence it is allowed, if not what it declares or its kind says.
    pub set: Override,
    /// Labels; those of the unit that are not named stay.
    pub labels: Labels,
    /// A planned absence.
    pub pause: Option<Interval>,
}

/// Registers a unit or changes what was set for it.
pub fn register(
    seen: &Snapshot,
    wanted: &Registration,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Change {
    let hearing = hearing.of(&rules.kind);
    let mut facts = match &seen.facts {
        None | Some(Facts { standing: Standing::Retired(_), .. }) => Facts::new(Standing::NeverSeen, now),
        Some(facts) => facts.clone(),
    };
    facts.set = wanted.set;
    facts.pause = wanted.pause;
    facts.labels.extend(wanted.labels.clone());
    if let Standing::Offline(silence) = facts.standing {
        return reprieve(seen, facts.clone(), &silence, rules, hearing, now).unwrap_or(Change {
            key: KeyChange::Keep,
            index: IndexChange::Keep,
            facts: Some(facts),
            record: None,
        });
    }
    let presumed = presumed(seen, &facts, rules, hearing, now);
    let facts = as_seen(seen, facts, presumed, rules, hearing, now);
    let index = IndexChange::LookAt(next_check(&facts, rules, hearing, now));
    let ttl = facts.policy(rules).allowed();
    let key = match seen.alive {
        Some(last_seen) => KeyChange::Set { last_seen, ttl },
        None => KeyChange::Keep,
    };
    Change { key, index, facts: Some(facts), record: None }
}

/// Removes a unit from the fleet; `None` if it is not in it.
pub fn retire(seen: &Snapshot, now: Timestamp) -> Option<Change> {
    let facts = seen.facts.as_ref()?;
    let (index, record) = match &facts.standing {
        Standing::Retired(_) => return None,
        Standing::Offline(silence) => {
            (IndexChange::Keep, Some(facts.closed(&seen.unit, silence, now, Closing::Removed)))
        }
        Standing::NeverSeen | Standing::Present => (IndexChange::Take, None),
    };
    let gone = Facts::new(Standing::Retired(now), facts.last_seen);
    Some(Change { key: KeyChange::Delete, index, facts: Some(gone), record })
}

/// Closes the open record of a unit whose kind is configured no more; `None` if it has none. The unit starts anew: if
/// its kind comes back it is like one that was registered now and not heard yet. `look`: the next look at it.
pub fn unwatch(seen: &Snapshot, look: Timestamp, now: Timestamp) -> Option<Change> {
    let facts = seen.facts.as_ref()?;
    let Standing::Offline(silence) = &facts.standing else { return None };
    let record = facts.closed(&seen.unit, silence, now, Closing::KindRemoved);
    let anew = Facts {
        standing: Standing::NeverSeen,
        last_seen: now,
        silent_from: None,
        looked_at: None,
        sleep: None,
        ..facts.clone()
    };
    let index = IndexChange::LookAt(look);
    Some(Change { key: KeyChange::Delete, index, facts: Some(anew), record: Some(record) })
}

/// The moments at which a silence matters.
struct Times {
    late: Timestamp,
    deadline: Timestamp,
}

/// Of a unit that was heard last as its facts say, and is silent from `silent` on.
fn times_since(facts: &Facts, silent: Timestamp, policy: &Policy, hearing: &Hearing) -> Times {
    times(facts, facts.last_seen, silent, policy, hearing)
}

fn times(facts: &Facts, seen: Timestamp, silent: Timestamp, policy: &Policy, hearing: &Hearing) -> Times {
    let sleep = facts.sleep.filter(|sleep| seen <= sleep.from);
    let ledger: &Ledger = &hearing.ledger;
    let ledger = ledger.with(facts.pause);
    let ledger = ledger.with(sleep);
    let owed = policy.timeout.min(hearing.settle);
    let deadline = ledger.deadline(silent, policy.allowed(), owed);
    let late = if policy.grace.is_zero() {
        deadline
    } else {
        ledger.deadline(silent, policy.timeout, owed).min(deadline)
    };
    Times { late, deadline }
}

/// The next time worth looking at a unit that is not offline: no later than a key that was set since this look
/// surely stands, also if that look is late. One that comes too late to see it has to wait for more hearing.
fn next_check(facts: &Facts, rules: &KindRules, hearing: &Hearing, now: Timestamp) -> Timestamp {
    let times = times_since(facts, facts.silent_since(), &facts.policy(rules), hearing);
    let look = if now < times.late { times.late } else { times.deadline };
    match facts.looked_at {
        Some(_) => {
            let stands = facts.key_stands(rules);
            look.min(now + (stands - hearing.delay.min(stands / 4 * 3)))
        }
        None => look,
    }
}

/// The deadline of a unit as far as the ledger reaches.
pub fn deadline(seen: &Snapshot, rules: &KindRules, hearing: &Hearing) -> Option<Timestamp> {
    let hearing = hearing.of(&rules.kind);
    let facts = seen.facts.as_ref()?;
    match &facts.standing {
        Standing::Offline(silence) => Some(silence.deadline),
        Standing::Retired(_) => None,
        _ => {
            let newest = facts.last_seen.max(seen.alive.unwrap_or(Timestamp::ZERO));
            let silent = facts.silent_since().max(newest);
            Some(times(facts, newest, silent, &facts.policy(rules), hearing).deadline)
        }
    }
}

/// The state of a unit; `None` for a stranger and a unit that was removed.
pub fn state(seen: &Snapshot, rules: &KindRules, hearing: &Hearing, now: Timestamp) -> Option<State> {
    let hearing = hearing.of(&rules.kind);
    let facts = seen.facts.as_ref()?;
    match &facts.standing {
        Standing::Offline(_) => return Some(State::Offline),
        Standing::Retired(_) => return None,
        Standing::NeverSeen | Standing::Present => {}
    }
    let newest = facts.last_seen.max(seen.alive.unwrap_or(Timestamp::ZERO));
    let asleep = facts.sleep.filter(|sleep| newest <= sleep.from);
    if [facts.pause, asleep].into_iter().flatten().any(|i| i.contains(now)) {
        return Some(State::Paused);
    }
    let silent = facts.silent_since().max(newest);
    let times = times(facts, newest, silent, &facts.policy(rules), hearing);
    Some(if times.deadline < now {
        State::Unknown
    } else if facts.standing == Standing::NeverSeen {
        State::NeverSeen
    } else if times.late < now {
        State::Late
    } else {
        State::Online
    })
}

#[cfg(test)]
mod tests;
