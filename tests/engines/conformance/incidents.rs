//! Promises about the incident of a group.

use std::time::Duration;

use rollcall::presence::{FirstUnit, GroupIncident, Incident, OfflineRecord};
use rollcall::store::{
    Capacity, Delivery, Destinations, Group, Join, KeptIncident, OutboxEvent, Pace, incident_in,
};

use super::alerts::offline;
use super::ground::Ground;
use super::world::World;

const MINUTE: Duration = Duration::from_secs(60);
const SHARED: Pace = Pace { is_shared: true, ..Pace::new(MINUTE, MINUTE) };
const GROUP: &str = "site=north";

impl<G: Ground> World<G> {
    /// The notification of a unit that falls silent at this hour.
    async fn notification(&self, name: &str, hour: u32) -> Delivery {
        let to = Destinations::all(SHARED, &["hook".to_owned()]);
        let record: OfflineRecord = offline(&self.unit(name), self.hours(hour));
        let group = Group { key: GROUP.into(), labels: Default::default() };
        let joins = [Join { groups: vec![group], event: OutboxEvent::Record(record) }];
        self.engine.join(&joins, &to, &Capacity::NONE, self.hours(hour)).await.unwrap();
        let now = self.hours(hour) + 2 * MINUTE;
        self.engine.seal(&self.partitions(), &to, now).await.unwrap();
        self.engine.lease(&self.partitions(), "hook", now, now + MINUTE, 1).await.unwrap().remove(0)
    }

    async fn kept(&self) -> Option<String> {
        self.engine.incident(GROUP).await.unwrap()
    }
}

pub async fn an_incident_is_written_into_its_notification_once_and_kept_for_the_next_one<G: Ground>(
    world: World<G>,
) {
    let now = world.hours(1);
    let first = world.notification("a", 1).await;
    assert!(!first.situation.is_judged && world.kept().await.is_none());
    let incident = Incident {
        label: "site".to_owned(),
        value: "a \"hall\" 3\n".to_owned(),
        offline: 7,
        units: 9,
        since: now,
        first: FirstUnit { kind: "gateway".to_owned(), unit: "gw 7".to_owned() },
        still_offline: 7,
        until: None,
        notified_from: None,
        acknowledged_at: None,
    };
    let kept = GroupIncident { incident: incident.clone(), is_notified: true };
    let engine = &world.engine;
    let keep = engine.keep_incident(&first, Some(&incident), None, Some(&kept), now).await.unwrap();
    assert_eq!(keep, KeptIncident::Kept);
    let again = engine.keep_incident(&first, None, None, None, now).await.unwrap();
    assert_eq!(again, KeptIncident::Known(Some(incident.clone())), "the first judgement counts");
    let before = world.kept().await;
    assert_eq!(before.as_deref().and_then(incident_in), Some(kept.clone()));
    let later = now + 4 * MINUTE;
    let leased = engine.lease(&world.partitions(), "hook", later, later + MINUTE, 1).await.unwrap().remove(0);
    assert_eq!(leased.situation.incident, Some(incident), "each attempt says the same");
    assert!(leased.situation.is_judged);
    engine.delivered(&[leased], later).await.unwrap();

    let second = world.notification("b", 2).await;
    let stale = engine.keep_incident(&second, None, None, None, world.hours(2)).await.unwrap();
    assert_eq!((stale, world.kept().await), (KeptIncident::Changed, before.clone()));
    let over = engine.keep_incident(&second, None, before.as_deref(), None, world.hours(2)).await.unwrap();
    assert_eq!((over, world.kept().await), (KeptIncident::Kept, None));
    let known = engine.keep_incident(&second, None, None, None, world.hours(2)).await.unwrap();
    assert_eq!(known, KeptIncident::Known(None), "that it has none is a judgement, too");
}
