//! Why a unit is in its state, in one sentence.

use std::time::Duration;

use super::units::UnitDetails;
use crate::clock::{Timestamp, shown_span as span};
use crate::presence::{BrokerName, Cause, State};
use crate::routing::{Part, Said};

/// A kind whose last proof of hearing is older than this counts as not heard: a canary takes seconds at most.
const BEHIND: Duration = Duration::from_secs(10);

/// Why the unit is in its state. `proved`: up to when its kind was heard, at the broker that heard it last.
pub(super) fn sentence(view: &UnitDetails, proved: Option<Timestamp>, now: Timestamp) -> Said {
    let ago = |moment: Timestamp| Part::Ago(moment, now.since(moment));
    let heard = match view.last_seen {
        Some(seen) => {
            let at = match view.broker.as_ref() {
                Some(broker) if broker.is_http() => " over HTTP".to_owned(),
                broker => at_broker(broker),
            };
            Said::from("It was last heard ").then(ago(seen)).then(at)
        }
        None => "It was never heard".into(),
    };
    let timeout = span(Duration::from_secs_f64(view.timeout_seconds));
    let until_offline = view.deadline.filter(|deadline| *deadline > now).map(|deadline| {
        match proved.filter(|proved| now.since(*proved) > BEHIND) {
            Some(proved) => {
                let there = if at_broker(view.broker.as_ref()).is_empty() { "" } else { " there" };
                Said::from(format!(" Rollcall hears nothing of its kind{there} "))
                    .then(Part::Since(proved))
                    .then(": that time does not count as silence.")
            }
            None => Said::from(" It is offline ")
                .then(Part::In(deadline, deadline.since(now)))
                .then(" if it stays silent."),
        }
    });
    if let (Some(cause), Some(at)) = (view.late_cause, view.announced_at) {
        let unproved = || " Rollcall has no proof of hearing up to now yet.".into();
        let said = announced(cause, view.broker.as_ref());
        let said = heard.then(format!(". {said} ")).then(ago(at)).then(".");
        return said.then(until_offline.unwrap_or_else(unproved));
    }
    let until_offline = until_offline.unwrap_or_default();
    match view.state {
        State::Online => {
            let within = within(view, now);
            heard.then(format!("{within} within its timeout of {timeout}.")).then(until_offline)
        }
        State::NeverSeen => Said::from("It is registered and was never heard.").then(until_offline),
        State::Paused => heard.then(". ").then(paused(view, now)),
        State::Late => {
            heard.then(format!(", longer ago than its timeout of {timeout}; its grace is not over."))
        }
        State::Offline => match &view.record {
            Some(record) if record.cause.is_announced() => {
                let why = announced(record.cause, view.broker.as_ref());
                heard
                    .then(format!(". {why}, and nothing came from it since: it went offline "))
                    .then(ago(record.deadline))
                    .then(".")
            }
            Some(record) => heard.then(". Its deadline passed ").then(ago(record.deadline)).then("."),
            None => heard.then(", and its deadline has passed."),
        },
        State::Unknown => {
            heard.then(". Its deadline has passed, but Rollcall has no proof of hearing up to it yet.")
        }
    }
}

/// How the silence of a unit that is online is within its timeout: the time since its heartbeat may be longer, because
/// blind time, for one, does not count.
fn within(view: &UnitDetails, now: Timestamp) -> &'static str {
    let timeout = Duration::from_secs_f64(view.timeout_seconds);
    let is_longer = view.last_seen.is_some_and(|seen| now.since(seen) > timeout);
    if is_longer { "; what counts of that as silence is" } else { "," }
}

/// The sentence about the rhythm of a unit that is not offline.
pub(super) fn rhythm_of(view: &UnitDetails, now: Timestamp) -> Option<String> {
    if !matches!(view.state, State::Online | State::Late) {
        return None;
    }
    view.rhythm.as_ref()?.sentence(now.since(view.last_seen?))
}

/// Why the silence of the unit does not count.
fn paused(view: &UnitDetails, now: Timestamp) -> Said {
    let another = |until: Timestamp| Part::For(until, until.since(now));
    let said = "It said that it would be silent: that does not count until it is heard again";
    match (view.paused_until, view.sleeps_until) {
        (Some(until), _) => {
            Said::from("It is paused ").then(another(until)).then(": its silence does not count.")
        }
        (None, Some(until)) => Said::from(format!("{said}, ")).then(another(until)).then(" at most."),
        (None, None) => format!("{said}.").into(),
    }
}

fn at_broker(broker: Option<&BrokerName>) -> String {
    let broker = broker.filter(|broker| !broker.is_http());
    broker.map(|broker| format!(" at broker {broker}")).unwrap_or_default()
}

/// An announcement, in words. `broker`: the one that last heard the unit, if that is known; the death of a session came
/// over the same one. That the unit is disconnected may also come over HTTP.
pub(super) fn announced(cause: Cause, broker: Option<&BrokerName>) -> String {
    let at = at_broker(broker);
    match cause {
        Cause::LastWill => format!("Its last will was published{at}"),
        Cause::NodeDeath => format!("The death of its Sparkplug node was published{at}"),
        Cause::Disconnected => "It was reported as disconnected".to_owned(),
        Cause::Silence | Cause::NeverSeen | Cause::Flapping | Cause::Unusual => "It fell silent".to_owned(),
    }
}
