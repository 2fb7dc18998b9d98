//! Reminders and escalations.

use std::time::Duration;

/// Reminders and escalations of silences that last.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FollowUps {
    /// How often the receivers are reminded; `None`: never.
    pub repeat: Option<Duration>,
    /// In the order of their times.
    pub escalate: Vec<Escalation>,
}

/// Other receivers that are notified of a silence which lasts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Escalation {
    /// How long after the notification.
    pub after: Duration,
    pub receivers: Vec<String>,
}

impl FollowUps {
    /// How long after a notification the first escalation is due; `None`: there is none.
    pub fn first_escalation(&self) -> Option<Duration> {
        self.escalate.iter().map(|step| step.after).min()
    }

    /// The receivers that are notified of a silence of a route with these receivers at once, then those that it is
    /// escalated to, each once.
    pub fn notified<'a>(&'a self, receivers: &'a [String]) -> Vec<&'a String> {
        let mut all: Vec<&String> = Vec::new();
        for name in receivers.iter().chain(self.escalate.iter().flat_map(|step| &step.receivers)) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }

    /// How long after a notification the first reminder or escalation is due.
    pub fn first(&self) -> Option<Duration> {
        self.repeat.into_iter().chain(self.escalate.iter().map(|step| step.after)).min()
    }
}
