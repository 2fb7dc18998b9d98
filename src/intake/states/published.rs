//! The published states of units, as far as this instance knows: those that the broker retained when it connected, and
//! those that this and other instances have published since.

use std::collections::HashSet;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use super::NO_MOMENT;
use crate::clock::Timestamp;
use crate::presence::{State, Unit};

/// The most states in memory beside those of units: any client that may publish on these topics can invent units.
const INVENTED: usize = 250_000;
/// The most units of the fleet for each unit of this instance: other instances publish the states of their units.
const SHARES: usize = 4;

#[derive(Default)]
pub struct Published(Mutex<PublishedStates>);

/// By unit, as in its topic: `<kind>/<unit>`.
#[derive(Default)]
pub struct PublishedStates {
    /// All retained states have been read.
    is_ready: bool,
    states: HashMap<Box<str>, PublishedState, FixedState>,
    /// The names of units in Home Assistant whose discovery message is as it should be.
    discovered: HashSet<Box<str>>,
    /// The number of units whose states this instance publishes.
    units: usize,
    /// The passes so far: no two have one number.
    passes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedState {
    /// `None` if the state cannot be read.
    state: Option<State>,
    /// When the unit was last heard or, if it is late, announced as gone, as this instance knew it: the engine may say
    /// another moment, as of a unit whose expiry key has ended.
    moment: Option<Timestamp>,
    /// The last pass that found its unit.
    pass: u32,
}

impl PublishedState {
    pub fn new(state: State, moment: Option<Timestamp>, pass: u32) -> PublishedState {
        PublishedState { state: Some(state), moment, pass }
    }

    pub fn read(state: Option<State>, moment: Option<Timestamp>) -> PublishedState {
        PublishedState { state, moment, pass: 0 }
    }
}

impl Published {
    pub fn is_ready(&self) -> bool {
        self.lock().is_ready
    }

    /// Notes that all retained states have been read.
    pub fn ready(&self) {
        self.lock().is_ready = true;
    }

    /// Forgets all states: a new connection reads the retained ones.
    pub fn forget(&self) {
        let mut published = self.lock();
        let (units, passes) = (published.units, published.passes);
        *published = PublishedStates { units, passes, ..PublishedStates::default() };
    }

    /// Begins a pass over units; answers its number.
    pub fn begin_pass(&self) -> u32 {
        let mut published = self.lock();
        published.passes += 1;
        published.passes
    }

    /// Notes of how many units this instance publishes the states: what others publish is remembered for some times as many.
    pub fn expect(&self, units: usize) {
        self.lock().units = units;
    }

    /// Notes that the state of a unit changed: the published one may be older, even if the state is the same.
    pub fn doubt(&self, unit: &Unit) {
        if let Some(known) = self.lock().states.get_mut(&*key(unit.kind.as_str(), unit.id.as_str())) {
            known.moment = NO_MOMENT;
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, PublishedStates> {
        self.0.lock()
    }
}

fn key(kind: &str, id: &str) -> String {
    format!("{kind}/{id}")
}

impl PublishedStates {
    /// Notes that the pass found a unit. Returns the published state if the state of the unit differs from it. `moment`:
    /// when it was last heard or, if it is late, announced as gone.
    pub fn differs(
        &mut self,
        (kind, id): (&str, &str),
        state: State,
        moment: Option<Timestamp>,
        pass: u32,
    ) -> Option<Option<State>> {
        let Some(known) = self.states.get_mut(&*key(kind, id)) else { return Some(None) };
        known.pass = pass;
        // A unit that is online, or paused by an operator, is heard all the time. In any other state it may have been
        // online in between.
        let is_same = known.state == Some(state)
            && known.moment != NO_MOMENT
            && (matches!(state, State::Online | State::Paused) || known.moment == moment);
        (!is_same).then_some(known.state)
    }

    pub fn set(&mut self, unit: &Unit, state: PublishedState) {
        let key = key(unit.kind.as_str(), unit.id.as_str());
        let pass = self.states.get(&*key).map_or(0, |known| known.pass);
        let state = PublishedState { pass: state.pass.max(pass), ..state };
        self.states.insert(key.into(), state);
    }

    /// Notes a state from another client. States beyond the limit are not stored: if such a state belongs to a unit, it
    /// is published once more.
    pub fn heard(&mut self, unit: &Unit, state: PublishedState) {
        if self.has_room(self.states.len()) || self.has(unit) {
            self.set(unit, state);
        }
    }

    /// Notes a discovery message from another client. `is_right`: Rollcall publishes it for a unit of the fleet.
    pub fn heard_discovery(&mut self, object: &str, is_right: bool) {
        if !is_right {
            self.discovered.remove(object);
        } else if self.has_room(self.discovered.len()) {
            self.discovered(object);
        }
    }

    fn has_room(&self, remembered: usize) -> bool {
        remembered < self.units * SHARES + INVENTED
    }

    pub fn remove(&mut self, unit: &Unit) {
        self.states.remove(&*key(unit.kind.as_str(), unit.id.as_str()));
    }

    /// The units that the pass did not find, among those that it searched.
    pub fn missing(&self, pass: u32, is_own: impl Fn(&Unit) -> bool) -> Vec<Unit> {
        let missing = self.states.iter().filter(|(_, state)| state.pass != pass);
        let unit = |key: &str| key.replacen('/', ":", 1).parse().ok();
        missing.filter_map(|(key, _)| unit(key)).filter(is_own).collect()
    }

    /// Whether a state of the unit is published.
    pub fn has(&self, unit: &Unit) -> bool {
        self.states.contains_key(&*key(unit.kind.as_str(), unit.id.as_str()))
    }

    /// Whether the discovery message of the unit is as it should be.
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
    fn invented_states_have_a_bound_and_those_of_units_do_not() {
        let unit = |n: usize| format!("pump:{n}").parse::<Unit>().unwrap();
        let (published, state) = (Published::default(), PublishedState::read(Some(State::Online), None));
        let bound = INVENTED + SHARES;
        published.expect(1);
        published.forget();
        let mut states = published.lock();
        for n in 0..bound + 5 {
            states.heard(&unit(n), state);
            states.heard_discovery(&n.to_string(), true);
        }
        assert_eq!((states.states.len(), states.discovered.len()), (bound, bound));
        states.heard(&unit(0), PublishedState::read(Some(State::Offline), None));
        assert_eq!(states.differs(("pump", "0"), State::Online, None, 1), Some(Some(State::Offline)));
        states.set(&unit(bound), state);
        assert_eq!(states.differs(("pump", &bound.to_string()), State::Online, None, 1), None);
    }

    #[test]
    fn a_state_is_published_when_it_differs_also_if_the_unit_was_online_in_between() {
        let unit: Unit = "pump:7".parse().unwrap();
        let at = |ms| Some(Timestamp::from_millis(ms));
        let published = Published::default();
        // The published state, the state of the unit, and whether they differ.
        let cases = [
            ((State::Online, at(1)), (State::Online, at(9)), false),
            ((State::Online, at(1)), (State::Late, at(1)), true),
            ((State::Offline, at(1)), (State::Offline, at(1)), false),
            ((State::Offline, at(1)), (State::Offline, at(9)), true),
            ((State::Late, at(1)), (State::Late, at(1)), false),
            ((State::Late, at(1)), (State::Late, at(9)), true),
            ((State::Unknown, at(1)), (State::Unknown, at(9)), true),
            // It is heard while an operator has paused it.
            ((State::Paused, at(1)), (State::Paused, at(9)), false),
            ((State::NeverSeen, None), (State::NeverSeen, None), false),
        ];
        let differs =
            |state, moment, pass| published.lock().differs(("pump", "7"), state, moment, pass).is_some();
        assert!(differs(State::Online, at(1), 1), "it was not published");
        for ((state, then), (now, moment), expected) in cases {
            published.lock().set(&unit, PublishedState::new(state, then, 1));
            assert_eq!(differs(now, moment, 2), expected, "{state:?} {now:?}");
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
