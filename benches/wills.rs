//! The last wills of a tenth of a large fleet come at one instant, with `proof`: the time until all records are
//! durable, against as many units that are due at one instant by their deadlines. Both on the same servers, one after
//! the other.
//!
//! Wills have to pass the broker, which a deadline has not: at QoS 1 Mosquitto alone is busy for longer than the deadlines
//! take. So the time in which as many heartbeats pass and are recorded is shown, too, and the goal is for what wills take
//! beyond it. Where the broker has all wills before Rollcall has read the first, the canary that proves them comes behind
//! the last, and records begin when all have passed.

use std::time::Duration;

use rollcall::clock::Clock;

use crate::harness::figures::{Goal, Report, TAKEN};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT, unit};
use crate::harness::other_load::OtherLoad;
use crate::harness::publisher;
use crate::harness::{World, records, thousands, until};
use crate::mass::wait_for;

const MAX_WAIT: Duration = Duration::from_secs(120);
/// The time between the last preparation and the instant.
const SETTLE: Duration = Duration::from_secs(5);
const PRESENCE: &str =
    "presence = { format = \"last_will\", trust = \"proof\", topics = [\"units/{unit}/status\"] }";

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let (clock, due) = (Clock::system(), units / 10);
    let mut world = World::new()?;
    let process = world.serve(&format!("{KIND}\n{PRESENCE}\n")).await?;
    let mut client = world.client().await?;
    let others = OtherLoad::watch()?;

    let fleet = Fleet(0..due);
    let instant = clock.now() + SETTLE + Duration::from_micros(150 * u64::from(due));
    fleet.fill(&world.engine().await?, clock.now(), |_| instant - TIMEOUT).await?;
    let before = records::count(&mut client).await?;
    wait_for(instant, &clock).await?;
    let (by_deadline, after) =
        records::wait_for(&mut client, &clock, instant, before, due.into(), MAX_WAIT).await?;
    let deadlines = after.as_secs_f64();

    let fleet = Fleet(due..2 * due);
    let now = clock.now();
    fleet.fill(&world.engine().await?, now, |_| now).await?;
    let topics = |what: &'static str| (due..2 * due).map(move |n| format!("units/{}/{what}", unit(n).id));
    let recorded = process.recorded().await?;
    let began = clock.now();
    publisher::publish_all(world.broker.port(), topics("heartbeat"), b"{}", 1).await?;
    until("the heartbeats are recorded", MAX_WAIT, async || {
        Ok(process.recorded().await? >= recorded + f64::from(due))
    })
    .await?;
    let passing = clock.now().since(began).as_secs_f64();

    let before = records::count(&mut client).await?;
    let began = clock.now();
    publisher::publish_all(world.broker.port(), topics("status"), b"offline", 1).await?;
    let (by_will, after) =
        records::wait_for(&mut client, &clock, began, before, due.into(), MAX_WAIT).await?;
    let wills = after.as_secs_f64();

    let title = format!("{} wills at one instant, proof", thousands(due));
    let mut add = |what: &str, value, unit, goal| report.add(format!("{title}: {what}"), value, unit, goal);
    add("records durable", wills, "s", Goal::None);
    add("as many by their deadlines", deadlines, "s", Goal::None);
    add("as many heartbeats, recorded", passing, "s", Goal::None);
    add("wills ÷ deadlines", wills / deadlines, "", Goal::None);
    add(
        "wills ÷ deadlines, without the time of as many heartbeats",
        (wills - passing) / deadlines,
        "",
        Goal::AtMost(1.2),
    );
    add("records by wills", by_will as f64, "", Goal::Exactly(due.into()));
    add("records by deadlines", by_deadline as f64, "", Goal::Exactly(due.into()));
    add(TAKEN, others.percent()?, "%", Goal::None);
    Ok(())
}
