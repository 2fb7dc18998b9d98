//! Sums of days, and reports, of a fleet whose time is known to the second.

use rollcall::clock::Timestamp;
use rollcall::history::{Database, report};
use rollcall::presence::{Interval, Labels, Registration, TimeSpent, Unit};
use rollcall::reports::{AvailabilityReport, Days, GroupBy};

use crate::world::{EngineType, SECOND, World, units, until};

/// Three units from 22:13:20 on, two of them in the north: the first is offline for ten minutes, the second is paused
/// for 200 s, and after 700 s Rollcall is blind until two hours after midnight.
pub async fn fleet(world: &World) -> (Vec<Unit>, Timestamp) {
    let (all, begin) = (units(3), world.clock.now());
    world.roll.canary_returned(begin).await.unwrap();
    for (unit, site) in all.iter().zip(["north", "north", "south"]) {
        let labels: Labels = [("site".to_owned(), site.to_owned())].into_iter().collect();
        world.roll.register(unit, &Registration { labels, ..Registration::default() }, begin).await.unwrap();
    }
    world.hear(&all).await;
    world.silence(&all[..1]).await;
    world.pass(598 * SECOND).await;
    let pause = Interval { from: begin + 200 * SECOND, to: begin + 400 * SECOND };
    let paused = Registration { pause: Some(pause), ..Registration::default() };
    world.roll.register(&all[1], &paused, world.clock.now()).await.unwrap();
    world.hear(&all).await;
    assert_eq!(world.clock.now(), begin + 700 * SECOND);
    let back = world.records().await.remove(0);
    assert_eq!((back.deadline, back.back_at), (begin + 100 * SECOND, Some(begin + 700 * SECOND)));
    world.clock.advance(8000 * SECOND);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    (all, begin)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_is_summed_to_the_second_and_time_before_a_unit_was_known_counts_for_nothing() {
    let mut world = World::new(EngineType::Embedded).await;
    fleet(&world).await;
    world.write();
    until(async || world.count("daily").await > 0).await;
    let database = Database::connect(&world.access).await.unwrap();
    let days = Days { from: "2023-11-01".parse().unwrap(), until: "2023-12-01".parse().unwrap() };
    let made = async |group: &str| report(&database, days, &GroupBy::from(group.to_owned())).await.unwrap();
    // Of the day, 6400 s were left when the units became known.
    let seconds = |spent: &TimeSpent| {
        let parts = [spent.online, spent.offline, spent.blind, spent.paused, spent.unknown, spent.longest];
        parts.map(|part| part.as_secs())
    };
    let by_site = made("site").await;
    assert_eq!((by_site.until.to_string().as_str(), by_site.losses.len()), ("2023-11-15", 0));
    let row = |report: &AvailabilityReport, name: &str| {
        report.rows.iter().find(|row| row.name == name).unwrap().clone()
    };
    let (north, south) = (row(&by_site, "north"), row(&by_site, "south"));
    assert_eq!(
        (north.units, north.spent.outages, seconds(&north.spent)),
        (2, 1, [600, 600, 11_400, 200, 0, 600])
    );
    assert_eq!((south.units, south.spent.outages, seconds(&south.spent)), (1, 0, [700, 0, 5700, 0, 0, 0]));
    assert_eq!(north.spent.online_share(), Some(0.5));
    assert_eq!(seconds(&by_site.total.spent), [1300, 600, 17_100, 200, 0, 600]);
    assert_eq!(row(&made("kind").await, "detector").spent, by_site.total.spent);
    // What units spent, worked out one by one for the days that are summed, adds up to the same.
    let by_unit = made("unit").await;
    let sum: TimeSpent = by_unit.rows.iter().map(|row| row.spent).sum();
    assert_eq!(by_unit.rows.len(), 3);
    assert_eq!(
        (sum.online, sum.offline, sum.outages),
        (by_site.total.spent.online, by_site.total.spent.offline, 1)
    );
    assert_eq!(seconds(&row(&by_unit, "detector/unit-0001").spent)[..4], [500, 0, 5700, 200]);
    // A label that no unit has is said.
    let nosuch = made("nosuch").await;
    assert!(nosuch.rows.is_empty(), "{nosuch:?}");
    let said = "no unit has the label \"nosuch\" in these days, or it has more than 2000 values";
    assert!(nosuch.notes().iter().any(|note| note == said), "{:?}", nosuch.notes());
    assert!(!by_site.notes().iter().any(|note| note.contains("label")), "{:?}", by_site.notes());
    assert_eq!(by_site.from.to_string(), "2023-11-14", "earlier days have no sums");
    // A unit that was online all the time has no row of its own.
    let rows = "SELECT name FROM daily WHERE scope = 'unit' ORDER BY 1";
    let rows = world.postgres.rows(&world.access.schema, rows).await;
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["detector/unit-0000", "detector/unit-0001"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_was_removed_is_known_until_then() {
    let mut world = World::new(EngineType::Redis).await;
    let (all, _) = fleet(&world).await;
    world.write();
    until(async || world.count("units").await == 3).await;
    world.roll.retire(&all[2], world.clock.now()).await.unwrap();
    world.clock.advance(3601 * SECOND);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    let removed = "SELECT count(*) FROM units WHERE removed_at IS NOT NULL AND unit = 'unit-0002'";
    until(async || world.postgres.rows(&world.access.schema, removed).await[0].get::<_, i64>(0) == 1).await;
    assert_eq!(world.count("units").await, 3);
}
