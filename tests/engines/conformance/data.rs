//! Promises about the metrics of units.

use std::collections::BTreeMap;

use rollcall::clock::Timestamp;
use rollcall::presence::Unit;
use rollcall::store::{MetricValue, Reading};

use super::ground::Ground;
use super::world::World;

const VOLTS: &str = "detector_battery_volts";
const FIRMWARE: &str = "detector_firmware_info";

impl<G: Ground> World<G> {
    async fn keep_value(&self, unit: &Unit, metric: &str, at: Timestamp, value: &str) -> bool {
        let known = self.engine.keep_values(&[Reading { unit, metric, at, value }]).await.unwrap();
        assert_eq!(known.len(), 1);
        known[0]
    }

    async fn values_of(&self, unit: &Unit) -> [Option<MetricValue>; 2] {
        self.engine.values(unit, &[VOLTS, FIRMWARE]).await.unwrap().try_into().unwrap()
    }

    /// Every value of a metric, by the name of its unit; no value comes twice.
    async fn walked(&self, metric: &str, pages_at_once: u32) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let pages = self.engine.pages();
        for partition in 0..self.engine.partitions() {
            for from in (0..pages).step_by(pages_at_once as usize) {
                let step = from..pages.min(from + pages_at_once);
                for (name, value) in self.engine.walk_values(partition, metric, step).await.unwrap() {
                    assert_eq!(all.insert(name, value), None);
                }
            }
        }
        all
    }
}

fn value(at: Timestamp, text: &str) -> Option<MetricValue> {
    Some(MetricValue { at, text: text.to_owned() })
}

pub async fn of_each_metric_and_unit_the_newest_value_is_kept<G: Ground>(world: World<G>) {
    let (one, other) = (world.unit("1"), world.unit("2"));
    world.hear_all(&[one.clone(), other.clone()], world.at(0)).await;
    assert_eq!(world.values_of(&one).await, [None, None]);
    let reading = |unit, metric, ms, value| Reading { unit, metric, at: world.at(ms), value };
    let readings = [
        reading(&one, VOLTS, 5, "3.6"),
        reading(&other, VOLTS, 5, "3.7"),
        reading(&one, FIRMWARE, 9, "v 1 \"ü\""),
        reading(&one, VOLTS, 7, "3.5"),
    ];
    assert_eq!(world.engine.keep_values(&readings).await.unwrap(), [true; 4]);
    assert!(world.keep_value(&one, VOLTS, world.at(6), "9.9").await, "known, though it is too late");
    assert_eq!(world.values_of(&one).await, [value(world.at(7), "3.5"), value(world.at(9), "v 1 \"ü\"")]);
    assert_eq!(world.values_of(&other).await, [value(world.at(5), "3.7"), None]);
    world.keep_value(&one, VOLTS, world.at(7), "3.4").await;
    assert_eq!(world.values_of(&one).await[0], value(world.at(7), "3.4"), "of one moment the last counts");
}

pub async fn values_belong_to_known_units_and_are_removed_with_them<G: Ground>(world: World<G>) {
    let (gone, stays, unknown) = (world.unit("gone"), world.unit("stays"), world.unit("unknown"));
    world.hear_all(&[gone.clone(), stays.clone()], world.at(0)).await;
    let reading = |unit| Reading { unit, metric: VOLTS, at: world.at(1), value: "3.6" };
    let known = world.engine.keep_values(&[reading(&gone), reading(&unknown), reading(&stays)]).await;
    assert_eq!(known.unwrap(), [true, false, true]);
    world.keep_value(&gone, FIRMWARE, world.at(1), "v1").await;
    world.roll.retire(&gone, world.at(2)).await.unwrap();
    assert_eq!(world.values_of(&gone).await, [None, None]);
    assert!(!world.keep_value(&gone, VOLTS, world.at(3), "3.6").await, "it was on its way");
    let units = [gone.clone(), unknown.clone(), stays.clone()];
    world.engine.forget_values(&units).await.unwrap();
    world.engine.forget_values(&units).await.unwrap();
    assert_eq!(world.walked(VOLTS, 7).await, [(stays.to_string(), "3.6".to_owned())].into());
    assert_eq!(world.walked(FIRMWARE, 7).await, [].into());
}

pub async fn every_value_is_on_exactly_one_page<G: Ground>(world: World<G>) {
    let units = world.units(1500);
    world.hear_all(&units, world.at(0)).await;
    let texts: Vec<String> = (0..units.len()).map(|number| number.to_string()).collect();
    let readings = units.iter().zip(&texts);
    let readings: Vec<Reading> =
        readings.map(|(unit, value)| Reading { unit, metric: VOLTS, at: world.at(1), value }).collect();
    assert!(world.engine.keep_values(&readings).await.unwrap().iter().all(|known| *known));
    let all: BTreeMap<String, String> = units.iter().map(Unit::to_string).zip(texts.clone()).collect();
    for pages_at_once in [1, 100, 100_000] {
        assert_eq!(world.walked(VOLTS, pages_at_once).await, all);
    }
    assert_eq!(world.walked("another", 100).await, [].into());
}

pub async fn values_survive_a_crash<G: Ground>(mut world: World<G>) {
    let unit = world.unit("1");
    world.hear(&unit, world.at(0)).await;
    world.keep_value(&unit, VOLTS, world.at(1), "3.6").await;
    world.ground.crash().await;
    world.engine = world.ground.engine().await;
    assert_eq!(world.values_of(&unit).await[0], value(world.at(1), "3.6"));
}
