//! What is published of units, as far as this instance knows: what the broker retained when it connected, and what this
//! and other instances published since.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::NO_MOMENT;
use crate::clock::Timestamp;
use crate::presence::{State, Unit};

#[derive(Default)]
pub struct Published(Mutex<PublishedStates>);

/// By unit, as in its topic: `<kind>/<unit>`.
#[derive(Default)]
pub struct PublishedStates {
    /// Whether everything is known that the broker retained.
    is_ready: bool,
    states: HashMap<Box<str>, PublishedState, FixedState>,
    /// Units that Home Assistant was told of.
    discovered: HashSet<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedState {
    /// `None`: it cannot be read.
    state: Option<State>,
    last_seen: Option<Timestamp>,
    /// The last pass that found its unit.
    pass: u32,
}

impl PublishedState {
    pub fn new(state: State, last_seen: Option<Timestamp>, pass: u32) -> PublishedState {
        PublishedState { state: Some(state), last_seen, pass }
    }

    pub fn read(state: Option<State>, last_seen: Option<Timestamp>) -> PublishedState {
        PublishedState { state, last_seen, pass: 0 }
    }
}

impl Published {
    pub fn is_ready(&self) -> bool {
        self.lock().is_ready
    }

    /// Everything is known that the broker retains.
    pub fn ready(&self) {
        self.lock().is_ready = true;
    }

    /// A new connection reads what the broker retains.
    pub fn forget(&self) {
        *self.lock() = PublishedStates::default();
    }

    /// The state of a unit changed: what is published may be older, also if the state is the same.
    pub fn doubt(&self, unit: &Unit) {
        if let Some(known) = self.lock().states.get_mut(&*key(unit.kind.as_str(), unit.id.as_str())) {
            known.last_seen = NO_MOMENT;
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, PublishedStates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(kind: &str, id: &str) -> String {
    format!("{kind}/{id}")
}

impl PublishedStates {
    /// Notes that the pass found a unit. Answers whether its state differs from the published one, with that state.
    pub fn differs(
        &mut self,
        (kind, id): (&str, &str),
        state: State,
        last_seen: Option<Timestamp>,
        pass: u32,
    ) -> Option<Option<State>> {
        let Some(known) = self.states.get_mut(&*key(kind, id)) else { return Some(None) };
        known.pass = pass;
        // An online unit is heard again and again.
        let is_same = known.state == Some(state)
            && known.last_seen != NO_MOMENT
            && (state != State::Offline || known.last_seen == last_seen);
        (!is_same).then_some(known.state)
    }

    pub fn set(&mut self, unit: &Unit, state: PublishedState) {
        let key = key(unit.kind.as_str(), unit.id.as_str());
        let pass = self.states.get(&*key).map_or(0, |known| known.pass);
        let state = PublishedState { pass: state.pass.max(pass), ..state };
        self.states.insert(key.into(), state);
    }

    pub fn remove(&mut self, unit: &Unit) {
        self.states.remove(&*key(unit.kind.as_str(), unit.id.as_str()));
    }

    /// The units that the pass did not find, among those that it looked for.
    pub fn missing(&self, pass: u32, is_own: impl Fn(&Unit) -> bool) -> Vec<Unit> {
        let missing = self.states.iter().filter(|(_, state)| state.pass != pass);
        let unit = |key: &str| key.replacen('/', ":", 1).parse().ok();
        missing.filter_map(|(key, _)| unit(key)).filter(is_own).collect()
    }

    pub fn is_discovered(&self, object: &str) -> bool {
        self.discovered.contains(object)
    }

    pub fn discovered(&mut self, object: &str) {
        self.discovered.insert(object.into());
    }

    pub fn removed_discovery(&mut self, object: &str) {
        self.discovered.remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_published_when_it_differs_and_an_offline_one_for_each_silence() {
        let unit: Unit = "pump:7".parse().unwrap();
        let at = |ms| Some(Timestamp::from_millis(ms));
        let published = Published::default();
        // The published state, the state of the unit, and whether they differ.
        let cases = [
            ((State::Online, at(1)), (State::Online, at(9)), false),
            ((State::Online, at(1)), (State::Late, at(1)), true),
            ((State::Offline, at(1)), (State::Offline, at(1)), false),
            ((State::Offline, at(1)), (State::Offline, at(9)), true),
        ];
        let differs = |state, last_seen, pass| {
            published.lock().differs(("pump", "7"), state, last_seen, pass).is_some()
        };
        assert!(differs(State::Online, at(1), 1), "it was not published");
        for ((state, seen), (now, last), expected) in cases {
            published.lock().set(&unit, PublishedState::new(state, seen, 1));
            assert_eq!(differs(now, last, 2), expected, "{state:?} {now:?}");
        }
        published.lock().set(&unit, PublishedState::new(State::Online, at(1), 2));
        published.doubt(&unit);
        assert!(differs(State::Online, at(9), 3), "it was offline in between");
        assert_eq!(published.lock().missing(4, |_| true), std::slice::from_ref(&unit));
        assert_eq!(published.lock().missing(4, |_| false), []);
        assert_eq!(published.lock().missing(3, |_| true), []);
        published.lock().set(&unit, PublishedState::read(None, None));
        assert!(differs(State::Online, at(9), 4), "what is published cannot be read");
    }
}
