//! How transitions join groups, and when a group is sealed.
//!
//! A transition that leads to no next [`Stage`] of its member changes nothing. So a transition may join again at any
//! time, and a return may come before its silence. A silence that is over and is detected again is a member of its own.
//!
//! Only a silence waits: if its unit comes back meanwhile, receivers are not notified. Every other transition is part
//! of the next notification of its group. Two notifications of a group are at least an interval apart.
//!
//! # Why a script repeats this
//! When a hundred thousand units fall silent at once, each joins a group of its own. On Redis that is one step of
//! `join.lua` for many of them; a step that reads and one that writes would double the work of the server.
//! A test gives the same generated cases to both engines and compares the notifications and their times.

use std::time::Duration;

use crate::clock::Timestamp;

/// How fast groups are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The wait of each silence: if its unit comes back meanwhile, receivers are not notified.
    pub wait: Duration,
    /// The least time between two notifications of one group.
    pub interval: Duration,
}

/// The transition of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Offline,
    Online,
    /// The silence is over, and receivers are not notified of it.
    Removed,
    Blind,
}

impl Form {
    pub fn as_str(self) -> &'static str {
        match self {
            Form::Offline => "offline",
            Form::Online => "online",
            Form::Removed => "removed",
            Form::Blind => "blind",
        }
    }
}

/// How far a member of a group has come. It is stored as a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `o`: its silence, or blind interval, waits for the next notification.
    Waits,
    /// `t`: receivers were notified of its silence.
    Notified,
    /// `b`: receivers were notified of its silence, and its return waits for the next notification.
    IsBack,
    /// `x`: receivers were notified of both, or it was over before they were notified.
    Over,
}

impl Stage {
    pub fn letter(self) -> char {
        match self {
            Stage::Waits => 'o',
            Stage::Notified => 't',
            Stage::IsBack => 'b',
            Stage::Over => 'x',
        }
    }

    /// `None` for the letter of no stage.
    pub fn of(letter: char) -> Option<Stage> {
        [Stage::Waits, Stage::Notified, Stage::IsBack, Stage::Over]
            .into_iter()
            .find(|stage| stage.letter() == letter)
    }

    /// The stage of a member after a transition; `None`: the transition changes nothing. `now` is `None` for a new
    /// member.
    pub fn next(now: Option<Stage>, form: Form) -> Option<Stage> {
        let is_end = matches!(form, Form::Online | Form::Removed);
        match now {
            None if !is_end => Some(Stage::Waits),
            Some(Stage::Notified) if form == Form::Online => Some(Stage::IsBack),
            None | Some(Stage::Waits | Stage::Notified) if is_end => Some(Stage::Over),
            _ => None,
        }
    }

    /// The stage of a waiting member after its notification. A blind interval is notified once.
    pub fn once_notified(self, is_blind: bool) -> Stage {
        if is_blind || self == Stage::IsBack { Stage::Over } else { Stage::Notified }
    }
}

/// Whether a silence that was detected at `detected_at` is another one than the known one of its name.
pub fn is_detected_again(known: Stage, detected_before: Timestamp, detected_at: Timestamp) -> bool {
    known == Stage::Over && detected_before < detected_at
}

/// When the wait of a member that joins now begins. Only a silence waits.
pub fn waits_since(form: Form, pace: Pace, now: Timestamp) -> Timestamp {
    if form == Form::Offline { now } else { now - pace.wait }
}

/// When a group was sealed last, and when it is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTimes {
    pub sealed: Option<Timestamp>,
    /// `None`: no member waits.
    pub due: Option<Timestamp>,
}

impl GroupTimes {
    /// When the group is due once this transition has joined.
    pub fn due_with(&self, form: Form, pace: Pace, now: Timestamp) -> Timestamp {
        // A sealing in the future is ignored: the group would wait for it.
        let sealed = self.sealed.filter(|sealed| *sealed <= now && form != Form::Blind);
        let at = if form == Form::Blind { now } else { now + pace.wait };
        let at = sealed.map_or(at, |sealed| at.max(sealed + pace.interval));
        self.due.unwrap_or(at)
    }

    /// Whether the group is sealed with a transition that joins it alone.
    pub fn is_sealed_at_once(&self, form: Form, pace: Pace, now: Timestamp) -> bool {
        self.due.is_none() && self.due_with(form, pace, now) <= now
    }

    /// The start of the interval if the group is sealed now: the last sealing, if this one notifies of the rest that
    /// waited then.
    pub fn sealed_now(&self, pace: Pace, now: Timestamp) -> Timestamp {
        self.follows(pace).unwrap_or(now)
    }

    /// When the group is due after a sealing, where the first and the newest member that still wait joined at
    /// `waiting`. One more notification follows when the wait of all of them is over; a member that joins after that
    /// waits for the interval to pass.
    pub fn due_after(
        &self,
        waiting: (Timestamp, Timestamp),
        has_sealed: bool,
        pace: Pace,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let (first, newest) = (waiting.0 + pace.wait, waiting.1 + pace.wait);
        if first <= now {
            return self.due;
        }
        Some(match self.follows(pace) {
            Some(last) => first.max(last + pace.interval),
            None if has_sealed => newest,
            None => first,
        })
    }

    /// The last sealing, if the next one notifies of the rest that waited then.
    fn follows(&self, pace: Pace) -> Option<Timestamp> {
        self.sealed.filter(|last| self.due.is_some_and(|due| due > *last && due < *last + pace.interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    const PACE: Pace = Pace { wait: Duration::from_secs(10), interval: Duration::from_secs(100) };
    const AT_ONCE: Pace = Pace { wait: Duration::ZERO, interval: Duration::ZERO };

    #[test]
    fn a_member_goes_from_one_stage_to_the_next_and_nothing_else_changes_it() {
        use Stage::{IsBack, Notified, Over, Waits};
        // The stage, and the next one after offline, online, removed, blind.
        let cases: [(Option<Stage>, [Option<Stage>; 4]); 5] = [
            (None, [Some(Waits), Some(Over), Some(Over), Some(Waits)]),
            (Some(Waits), [None, Some(Over), Some(Over), None]),
            (Some(Notified), [None, Some(IsBack), Some(Over), None]),
            (Some(IsBack), [None; 4]),
            (Some(Over), [None; 4]),
        ];
        for (stage, next) in cases {
            let forms = [Form::Offline, Form::Online, Form::Removed, Form::Blind];
            assert_eq!(forms.map(|form| Stage::next(stage, form)), next, "{stage:?}");
            assert_eq!(stage.and_then(|stage| Stage::of(stage.letter())), stage);
        }
        assert_eq!(Stage::of('?'), None);
        let notified = |stage: Stage| [stage.once_notified(false), stage.once_notified(true)];
        assert_eq!([notified(Waits), notified(IsBack)], [[Notified, Over], [Over, Over]]);
        assert!(is_detected_again(Over, at(1), at(2)) && !is_detected_again(Over, at(2), at(2)));
        assert!(!is_detected_again(Notified, at(1), at(2)));
    }

    #[test]
    fn a_group_is_due_after_its_wait_and_an_interval_after_it_was_sealed() {
        let now = at(1000);
        // Sealed, due, the transition that joins, when the group is due then, whether it is sealed at once.
        let cases = [
            (PACE, None, None, Form::Offline, 1010, false),
            (AT_ONCE, None, None, Form::Offline, 1000, true),
            (AT_ONCE, Some(1000), None, Form::Offline, 1000, true),
            (PACE, Some(950), None, Form::Offline, 1050, false),
            (PACE, Some(900), None, Form::Offline, 1010, false),
            (PACE, Some(2000), None, Form::Offline, 1010, false), // in the future
            (PACE, Some(950), None, Form::Blind, 1000, true),
            (PACE, Some(950), None, Form::Online, 1050, false),
            (PACE, None, Some(1005), Form::Offline, 1005, false),
            (AT_ONCE, None, Some(900), Form::Blind, 900, false), // others wait
        ];
        for (pace, sealed, due, form, expected, at_once) in cases {
            let times = GroupTimes { sealed: sealed.map(at), due: due.map(at) };
            let case = format!("{times:?} {form:?}");
            assert_eq!(times.due_with(form, pace, now), at(expected), "{case}");
            assert_eq!(times.is_sealed_at_once(form, pace, now), at_once, "{case}");
        }
        assert_eq!(waits_since(Form::Offline, PACE, now), now);
        assert_eq!(waits_since(Form::Online, PACE, now), at(990));
    }

    #[test]
    fn members_whose_wait_is_not_over_follow_once_and_do_not_move_the_interval() {
        let now = at(1000);
        // Sealed, due, when the first and the newest that wait joined, whether some were sealed; the next due, and
        // the start of the interval.
        let cases = [
            (None, 1000, (995, 998), true, 1008, 1000),
            (None, 1000, (995, 998), false, 1005, 1000),
            (Some(990), 1000, (995, 998), true, 1090, 990),
            (Some(890), 1000, (995, 998), true, 1008, 1000),
            (None, 1000, (980, 998), true, 1000, 1000), // more than one notification holds
        ];
        for (sealed, due, (first, newest), has_sealed, next, interval_from) in cases {
            let times = GroupTimes { sealed: sealed.map(at), due: Some(at(due)) };
            let waiting = (at(first), at(newest));
            let case = format!("{times:?} {waiting:?}");
            assert_eq!(times.due_after(waiting, has_sealed, PACE, now), Some(at(next)), "{case}");
            assert_eq!(times.sealed_now(PACE, now), at(interval_from), "{case}");
        }
    }
}
