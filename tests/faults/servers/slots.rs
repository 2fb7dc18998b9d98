//! Slots that move to other primaries, some of them new.

use super::{SECOND, Survivor, cluster};
use crate::world::{Plan, TIMEOUT, World, crowd, now};

/// The number that a debug build notifies within seconds on a busy machine. The soak has 20 000.
const MANY: usize = 3000;

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_lose_no_record_and_mark_no_unit_offline() {
    let mut world = World::new(Plan { units: 60, ..cluster() }).await;
    crowd::fill(&world, 0, MANY, now()).await;
    world.live(3 * TIMEOUT);
    // The slots move while a crowd falls silent.
    world.pass(TIMEOUT - SECOND).await;
    let mark = world.disturb();
    world.move_slots().await;
    world.disturbed_since(mark);
    crowd::all_are_notified_once(&world, 0, MANY).await;
    world.resumes().await;
    world.agrees().await;
    no_error_is_logged(&world);
    let members_change = async |world: &mut World| {
        let leaves = world.some_primary().await.number;
        let cluster = world.redis.cluster();
        let added = cluster.add().await;
        cluster.remove(leaves, added).await;
    };
    let world = Survivor(world).of("a primary is added and another one removed", members_change).await;
    no_error_is_logged(&world.0);
    world.rests().await;
}

fn no_error_is_logged(world: &World) {
    for instance in &world.instances {
        let log = instance.logged();
        // A busy machine delays probes.
        let is_error = |line: &&str| line.contains("ERROR") && !line.contains("telemetry::hearing");
        let errors: Vec<&str> = log.lines().filter(is_error).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}
