//! Units that are heard alternately at two places: two devices probably have one id, and the heartbeats of one hide the
//! silence of the other. Each is a problem until its timeout has passed without a heartbeat from the other place.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};

use super::labels::TWO_PLACES;
use super::problems::{Severity, UNIT_AT_TWO_PLACES};
use super::{MAX_SHOWN, Telemetry, truncate};
use crate::clock::{Clock, Timestamp};
use crate::presence::{Kind, Unit, UnitName};

/// The most units in memory; further ones are only logged.
const MAX_UNITS: usize = 1000;

/// The units that are heard at two places now.
pub(super) struct TwoPlaces {
    clock: Clock,
    units: Mutex<BTreeMap<Unit, AtTwoPlaces>>,
}

struct AtTwoPlaces {
    /// Cut and escaped: devices choose topics.
    topics: [String; 2],
    advice: String,
    until: Timestamp,
}

impl TwoPlaces {
    pub fn new(clock: Clock) -> TwoPlaces {
        TwoPlaces { clock, units: Mutex::default() }
    }

    fn current(&self) -> MutexGuard<'_, BTreeMap<Unit, AtTwoPlaces>> {
        let mut units = self.units.lock();
        if !units.is_empty() {
            let now = self.clock.now();
            units.retain(|_, one| one.until >= now);
        }
        units
    }
}

impl Telemetry {
    /// A unit is heard alternately on two topics; `name` is how its kind names units. `until`: when its timeout passes.
    pub fn unit_at_two_places(&self, unit: &Unit, name: &UnitName, topics: &[String; 2], until: Timestamp) {
        let topics = topics.each_ref().map(|topic| truncate(topic, MAX_SHOWN).escape_debug().to_string());
        let advice = format!(
            "if two devices have this id, the silence of one is not noticed: name more of the topic in `unit` of kind \
             {}, which is {name}; if one device publishes on both topics, write + for the level that differs",
            unit.kind
        );
        if let Some(suppressed) = self.samples.admit(TWO_PLACES) {
            let [one, other] = &topics;
            tracing::warn!(%unit, topic = one, other_topic = other, suppressed, "unit_at_two_places: {advice}");
        }
        let mut units = self.two_places.current();
        if units.contains_key(unit) || units.len() < MAX_UNITS {
            units.insert(unit.clone(), AtTwoPlaces { topics, advice, until });
        }
    }

    /// The two topics on which the unit is heard, and the advice.
    pub fn two_places_of(&self, unit: &Unit) -> Option<([String; 2], String)> {
        self.two_places.current().get(unit).map(|one| (one.topics.clone(), one.advice.clone()))
    }

    /// Counts the units that are heard at two places, and sets or clears the problem of each kind.
    pub(super) fn count_two_places(&self) {
        let units = self.two_places.current();
        let mut kinds: BTreeMap<&Kind, (i64, &Unit, &AtTwoPlaces)> = BTreeMap::new();
        for (unit, one) in units.iter() {
            kinds.entry(&unit.kind).or_insert((0, unit, one)).0 += 1;
        }
        self.series.units_at_two_places.reset();
        let names: Vec<String> = kinds.keys().map(|kind| kind.to_string()).collect();
        self.problems.keep(UNIT_AT_TWO_PLACES, &names);
        for (kind, (count, unit, AtTwoPlaces { topics: [one, other], advice, .. })) in kinds {
            self.series.units_at_two_places.with_label_values(&[kind.as_str()]).set(count);
            let text = format!(
                "{count} units are heard on two topics in turn, such as {unit} on {one} and {other}; {advice}"
            );
            self.problems.set(UNIT_AT_TWO_PLACES, kind.as_str(), text, Severity::Warning);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_unit_at_two_places_is_a_problem_of_its_kind_until_its_timeout_has_passed() {
        let clock = Clock::by_hand(Timestamp::from_millis(1_732_147_200_000));
        let telemetry = Telemetry::new(&clock);
        let texts = || -> Vec<String> {
            let problems = telemetry.problems().into_iter();
            problems.filter(|one| one.name == UNIT_AT_TWO_PLACES).map(|one| one.text).collect()
        };
        let unit: Unit = "pump:1".parse().unwrap();
        let topics = ["s/north/1".to_owned(), "s/so\nuth/1".to_owned()];
        telemetry.unit_at_two_places(
            &unit,
            &UnitName::default(),
            &topics,
            clock.now() + Duration::from_secs(60),
        );
        let text = texts().pop().unwrap();
        assert!(text.starts_with(
            "1 units are heard on two topics in turn, such as pump:1 on s/north/1 and s/so\\nuth/1; "
        ));
        assert!(telemetry.two_places_of(&unit).is_some());
        clock.advance(Duration::from_secs(61));
        assert_eq!((texts().len(), telemetry.two_places_of(&unit)), (0, None));
    }
}
