//! Flapping: a unit that goes offline and comes back repeatedly.
//!
//! The moments of a unit's last transitions are stored. An episode begins with the transition that makes too many of
//! them within a time: receivers are notified of the episode, and of no transition in it. The episode ends when the
//! unit has had no transition for some time.
//!
//! Receivers are notified of an episode as a record of its own, with the cause [`Cause::Flapping`]: it is opened when
//! the episode begins and closed when it ends. It has the id of the record whose transition began it, because services
//! that keep one alert for each id know that record and are not notified of its return.
//!
//! # Why a transition may be noted again
//! After a crash the entry of a noted transition is still in the outbox. The decision depends only on whether the
//! transition is before, in or after the episode, so the second decision is equal to the first.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cause, Closing, OfflineRecord};
use crate::clock::Timestamp;

/// How long a transition that is stored may be missing from the outbox before the unit counts as stable without it.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// How soon a unit with such a transition is checked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// When units of a kind flap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlapRule {
    /// How many transitions, offline or back, begin an episode,
    pub transitions: usize,
    /// if they are within this time.
    pub window: Duration,
    /// An episode ends after this time without a transition.
    pub stable: Duration,
}

/// The last transitions of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flaps {
    /// The moments of the transitions that may begin the next episode (ms), oldest first.
    #[serde(default)]
    moments: Vec<i64>,
    /// The moment of the last transition (ms).
    last: i64,
    /// Whether the last transition opened a record.
    #[serde(default)]
    offline: bool,
    /// The last episode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    episode: Option<Episode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Episode {
    /// The record with which receivers are notified of the begin.
    record: OfflineRecord,
    /// The moments of its first and last transition (ms).
    first: i64,
    last: i64,
    stage: EpisodeStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EpisodeStage {
    Lasts,
    /// The episode is over, and its end may not have joined its groups yet.
    Ending,
    Over,
}

/// The notification that follows a transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlapNotification {
    Plain,
    /// The episode to which the transition belongs: receivers are notified of it unless they know of it already.
    Episode(Box<OfflineRecord>),
}

/// The answer of [`Flaps::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlapCheck {
    /// Nothing is due before that moment.
    Wait(Timestamp),
    /// The episode has ended.
    End,
    /// The transitions of the unit are not needed any more.
    Forget,
}

/// The moment of the newest transition of a record. The moments of a unit's transitions are in order, within a record
/// and from one record to the next.
fn moment(record: &OfflineRecord) -> i64 {
    let opened = record.detected_at.as_millis();
    record.back_at.map_or(opened, |back| back.as_millis().max(opened + 1))
}

impl Flaps {
    /// Notes a transition. A transition that is not later than the last one changes nothing, so repeats are harmless.
    pub fn note(&mut self, record: &OfflineRecord, rule: &FlapRule) -> FlapNotification {
        let at = moment(record);
        let is_new = at > self.last;
        if let Some(episode) = &mut self.episode {
            let lasts = episode.stage == EpisodeStage::Lasts && is_new;
            if at >= episode.first && (at <= episode.last || lasts) {
                if lasts {
                    episode.last = at;
                    (self.last, self.offline) = (at, record.back_at.is_none());
                }
                return FlapNotification::Episode(Box::new(episode.record.clone()));
            }
        }
        if !is_new {
            return FlapNotification::Plain;
        }
        (self.last, self.offline) = (at, record.back_at.is_none());
        // A record that is closed for another reason says nothing of the unit.
        if record.closed_by.is_some_and(|why| why != Closing::Return) {
            return FlapNotification::Plain;
        }
        self.moments.push(at);
        let window = rule.window.as_millis() as i64;
        self.moments.retain(|one| at.saturating_sub(*one) <= window);
        if self.moments.len() < rule.transitions {
            return FlapNotification::Plain;
        }
        self.moments.clear();
        let record = begin(record, at);
        self.episode =
            Some(Episode { record: record.clone(), first: at, last: at, stage: EpisodeStage::Lasts });
        FlapNotification::Episode(Box::new(record))
    }

    /// The episode that lasts, as receivers are notified of its begin.
    pub fn lasting(&self) -> Option<&OfflineRecord> {
        self.episode
            .as_ref()
            .filter(|episode| episode.stage == EpisodeStage::Lasts)
            .map(|episode| &episode.record)
    }

    /// When to check the unit.
    pub fn look_at(&self, rule: Option<&FlapRule>) -> Timestamp {
        let last = Timestamp::from_millis(self.last);
        match (self.episode.as_ref().map(|episode| episode.stage), rule) {
            (Some(EpisodeStage::Ending), _) | (_, None) => last,
            (Some(EpisodeStage::Lasts), Some(rule)) => last + rule.stable,
            (Some(EpisodeStage::Over) | None, Some(rule)) => last + rule.window,
        }
    }

    /// Checks the unit. `rule`: `None` if its kind has no rule any more. `open`: whether the unit has an open record
    /// now; `None`: it is not a unit of the fleet. `paused_until`: the end of its last pause. A unit is not stable
    /// before it was watched for long enough after a pause.
    pub fn check(
        &self,
        rule: Option<&FlapRule>,
        open: Option<bool>,
        paused_until: Option<Timestamp>,
        now: Timestamp,
    ) -> FlapCheck {
        let watched = paused_until.zip(rule).map_or(Timestamp::ZERO, |(until, rule)| until + rule.stable);
        let at = self.look_at(rule).max(watched);
        match self.episode.as_ref().map(|episode| episode.stage) {
            Some(EpisodeStage::Ending) => FlapCheck::End,
            Some(EpisodeStage::Lasts) if open.is_none() || rule.is_none() => FlapCheck::End,
            _ if now < at => FlapCheck::Wait(at),
            // The next transition is on its way.
            Some(EpisodeStage::Lasts) if open != Some(self.offline) && now < at + MAX_DELAY => {
                FlapCheck::Wait(now + RETRY_INTERVAL)
            }
            Some(EpisodeStage::Lasts) => FlapCheck::End,
            Some(EpisodeStage::Over) | None => FlapCheck::Forget,
        }
    }

    /// These transitions once the end of the episode is decided.
    pub fn ending(&self) -> Flaps {
        self.at_stage(EpisodeStage::Ending)
    }

    /// These transitions once the end of the episode has joined its groups.
    pub fn over(&self) -> Flaps {
        self.at_stage(EpisodeStage::Over)
    }

    fn at_stage(&self, stage: EpisodeStage) -> Flaps {
        let episode = self.episode.clone().map(|episode| Episode { stage, ..episode });
        Flaps { episode, ..self.clone() }
    }

    /// The episode as receivers are notified of its end. `open`: the open record of the unit, `None` if it has none;
    /// `is_gone`: the unit does not belong to the fleet any more, so the episode is closed as removed.
    pub fn ended(&self, open: Option<&OfflineRecord>, is_gone: bool) -> Option<OfflineRecord> {
        let Episode { record, last, .. } = self.episode.as_ref()?;
        let closing = match open {
            _ if is_gone => Closing::Removed,
            Some(_) => Closing::StableOffline,
            None => Closing::Stable,
        };
        let since = open.map_or(Timestamp::from_millis(*last), |open| open.deadline);
        Some(OfflineRecord { back_at: Some(since), closed_by: Some(closing), ..record.clone() })
    }
}

/// The record of an episode that begins with a transition of `record`. Its moments are later than the moments of
/// `record`, so a group can tell the two apart.
fn begin(record: &OfflineRecord, at: i64) -> OfflineRecord {
    let since = at.max(record.deadline.as_millis() + 1).max(record.detected_at.as_millis() + 1);
    let since = Timestamp::from_millis(since);
    OfflineRecord {
        labels: record.labels.clone(),
        cause: Cause::Flapping,
        ..OfflineRecord::open(record.id.unit.clone(), record.last_seen, since, since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: FlapRule =
        FlapRule { transitions: 4, window: Duration::from_secs(3600), stable: Duration::from_secs(600) };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + 1000 * seconds)
    }

    /// A silence that was detected at that second, and its return.
    fn record(detected: i64, back: Option<i64>) -> OfflineRecord {
        let open =
            OfflineRecord::open("gate:7".parse().unwrap(), at(detected - 60), at(detected), at(detected));
        OfflineRecord { back_at: back.map(at), closed_by: back.map(|_| Closing::Return), ..open }
    }

    /// Whether each of these transitions, in seconds, offline first and then by turns, is quiet.
    fn quiet(flaps: &mut Flaps, seconds: &[i64]) -> Vec<bool> {
        let mut opened = 0;
        let mut quiet = Vec::new();
        for (nr, second) in seconds.iter().enumerate() {
            let one = if nr % 2 == 0 { record(*second, None) } else { record(opened, Some(*second)) };
            opened = if nr % 2 == 0 { *second } else { opened };
            quiet.push(flaps.note(&one, &RULE) != FlapNotification::Plain);
        }
        quiet
    }

    #[test]
    fn so_many_transitions_within_the_window_begin_an_episode() {
        let cases: [(&[i64], &[bool]); 5] = [
            (&[0, 10, 20], &[false, false, false]),
            (&[0, 10, 20, 30], &[false, false, false, true]),
            (&[0, 10, 20, 30, 40, 50], &[false, false, false, true, true, true]),
            // The first and the last are exactly the window apart, then a second more.
            (&[0, 10, 20, 3600], &[false, false, false, true]),
            (&[0, 10, 20, 3601, 3602], &[false, false, false, false, true]),
        ];
        for (seconds, expected) in cases {
            let mut flaps = Flaps::default();
            assert_eq!(quiet(&mut flaps, seconds), expected, "{seconds:?}");
            assert_eq!(flaps.lasting().is_some(), expected.contains(&true), "{seconds:?}");
            // Noted again, as after a crash, the transitions change nothing.
            let before = flaps.clone();
            assert_eq!(quiet(&mut flaps, seconds), expected, "{seconds:?} again");
            assert_eq!(flaps, before, "{seconds:?}");
            assert!(flaps.moments.len() < RULE.transitions, "they are bounded");
        }
    }

    #[test]
    fn a_record_that_is_closed_for_another_reason_is_no_flap() {
        let mut flaps = Flaps::default();
        for nr in 0..10 {
            let closed = record(20 * nr, Some(20 * nr + 10));
            let closed = OfflineRecord { closed_by: Some(Closing::Policy), ..closed };
            assert_eq!(flaps.note(&record(20 * nr, None), &RULE) == FlapNotification::Plain, nr < 3, "{nr}");
            flaps.note(&closed, &RULE);
        }
        // A return that was recorded late counts, too.
        let mut late = Flaps::default();
        late.note(&record(100, None), &RULE);
        late.note(&record(100, Some(90)), &RULE);
        assert_eq!((late.moments.len(), late.offline), (2, false));
    }

    #[test]
    fn an_episode_ends_when_the_unit_is_stable_and_the_next_needs_as_many_transitions_again() {
        let mut flaps = Flaps::default();
        quiet(&mut flaps, &[0, 10, 20, 30, 40]);
        let (stable, rule) = (40 + 600, Some(&RULE));
        assert_eq!(flaps.look_at(rule), at(stable));
        let cases = [
            (rule, Some(true), stable - 1, FlapCheck::Wait(at(stable))),
            (rule, Some(true), stable, FlapCheck::End),
            // The return of the unit is still in the outbox, or never was there.
            (rule, Some(false), stable, FlapCheck::Wait(at(stable + 1))),
            (rule, Some(false), stable + 60, FlapCheck::End),
            // The unit was removed, or the option.
            (rule, None, 41, FlapCheck::End),
            (None, Some(true), 41, FlapCheck::End),
        ];
        for (rule, open, now, expected) in cases {
            assert_eq!(flaps.check(rule, open, None, at(now)), expected, "{rule:?} {open:?} {now}");
        }
        // Nothing is known of a unit while it is paused.
        for (until, now, expected) in [
            (stable + 50, stable, FlapCheck::Wait(at(stable + 650))),
            (stable + 50, stable + 649, FlapCheck::Wait(at(stable + 650))),
            (stable + 50, stable + 650, FlapCheck::End),
            (0, stable, FlapCheck::End),
        ] {
            assert_eq!(flaps.check(rule, Some(true), Some(at(until)), at(now)), expected, "{until} {now}");
        }
        let open = record(40, None);
        let ended =
            |open, is_gone| flaps.ended(open, is_gone).map(|one| (one.closed_by.unwrap(), one.back_at));
        assert_eq!(ended(Some(&open), false), Some((Closing::StableOffline, Some(at(40)))));
        assert_eq!(ended(None, false), Some((Closing::Stable, Some(at(40)))));
        assert_eq!(ended(None, true).map(|(why, _)| why), Some(Closing::Removed));

        // A crash in between repeats the end.
        let mut ending = flaps.ending();
        assert_eq!(ending.check(rule, Some(true), None, at(stable + 5)), FlapCheck::End);
        assert_eq!(
            ending.note(&record(40, Some(stable + 6)), &RULE),
            FlapNotification::Plain,
            "the next is told"
        );
        let mut over = ending.over();
        assert_eq!(over.lasting(), None);
        assert_ne!(over.note(&record(40, None), &RULE), FlapNotification::Plain, "one of the episode is not");
        assert_eq!(quiet(&mut over, &[stable + 100, stable + 110, stable + 120]), [false, false, true]);
        assert_ne!(over.lasting().unwrap().id, flaps.lasting().unwrap().id);

        // Without an episode the transitions are forgotten.
        let mut few = Flaps::default();
        quiet(&mut few, &[0, 10]);
        assert_eq!(few.check(rule, Some(false), None, at(3609)), FlapCheck::Wait(at(3610)));
        assert_eq!(few.check(rule, Some(false), None, at(3610)), FlapCheck::Forget);
        assert_eq!(few.check(None, Some(false), None, at(10)), FlapCheck::Forget);
    }

    #[test]
    fn the_record_of_an_episode_is_not_taken_for_that_of_its_silence() {
        for silence in [record(30, None), record(30, Some(40)), record(30, Some(30)), record(30, Some(10))] {
            let rule = FlapRule { transitions: 1, ..RULE };
            let FlapNotification::Episode(begun) = Flaps::default().note(&silence, &rule) else {
                panic!("it begins")
            };
            assert_eq!(begun.id, silence.id);
            assert!(begun.deadline > silence.deadline && begun.detected_at > silence.detected_at);
            assert_eq!((begun.cause, begun.closed_by), (Cause::Flapping, None));
        }
    }
}
