//! Every unit of a fleet is heard for the first time over the broker, until all are admitted.

use std::time::Duration;

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::KIND;
use crate::harness::publisher::Load;
use crate::harness::{World, thousands, until};
use rollcall::clock::Stopwatch;

const MAX_WAIT: Duration = Duration::from_secs(600);

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let mut world = World::new()?;
    let rollcall = world.serve(KIND).await?;
    let (port, connections) = (world.broker.port(), 4);
    let load = Load { port, first: 0, units, qos: 1, rate: 0, once: true, connections };
    let began = Stopwatch::start();
    let _publisher = load.start()?;
    until("every unit was admitted", MAX_WAIT, async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(rollcall.metric("rollcall_heartbeats_total{result=\"new\"}").await? >= f64::from(units))
    })
    .await?;
    let seconds = began.elapsed().as_secs_f64();
    let title = format!("first contact of {} units, QoS 1", thousands(units));
    report.add(format!("{title}: all admitted after"), seconds, "s", Goal::None);
    report.add(title, f64::from(units) / seconds, "/s", Goal::None);
    Ok(())
}
