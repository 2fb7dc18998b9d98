//! Three brokers against one at the same total rate: the processor time of Rollcall for a heartbeat. Every unit is of a
//! kind that is heard at all of them, and each sends to one.

use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::simulate::servers::Server;

use crate::harness::figures::{Goal, Report, TAKEN};
use crate::harness::fleet::{Fleet, KIND};
use crate::harness::other_load::OtherLoad;
use crate::harness::process::usage;
use crate::harness::publisher::Load;
use crate::harness::{World, say};

/// Heartbeats a second, of all brokers together.
const RATES: [u32; 2] = [3_000, 30_000];
const BROKERS: u32 = 3;
/// Connections of publishers, of all brokers together: so messages come in the same bursts.
const CONNECTIONS: u32 = 6;
const WARM_UP: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(10);
/// How often each is measured, in turn, so that other load on the machine hits both.
const TURNS: usize = 3;
const UNITS: u32 = 90_000;

pub async fn run(report: &mut Report) -> anyhow::Result<()> {
    let mut world = World::new()?;
    let now = Clock::system().now();
    Fleet(0..UNITS).fill(&world.engine().await?, now, |_| now).await?;
    for rate in RATES {
        let others = OtherLoad::watch()?;
        let (mut one, mut three) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            one.push(cost(&mut world, 1, rate).await?);
            three.push(cost(&mut world, BROKERS, rate).await?);
        }
        let [one, three] = [one, three].map(middle);
        let title = format!("{rate}/s");
        report.add(format!("{title}, one broker: CPU of Rollcall for a heartbeat"), one, "µs", Goal::None);
        report.add(
            format!("{title}, three brokers: CPU of Rollcall for a heartbeat"),
            three,
            "µs",
            Goal::None,
        );
        report.add(format!("{title}: three brokers ÷ one"), three / one, "", Goal::AtMost(1.1));
        report.add(format!("{title}: {TAKEN}"), others.percent()?, "%", Goal::None);
    }
    Ok(())
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The CPU time of Rollcall for a heartbeat in µs, with so many fresh brokers.
async fn cost(world: &mut World, count: u32, rate: u32) -> anyhow::Result<f64> {
    say(format!("{count} brokers, {rate}/s"));
    let brokers: Vec<Server> = (0..count).map(|_| world.another_broker()).collect::<anyhow::Result<_>>()?;
    let ports: Vec<u16> = brokers.iter().map(Server::port).collect();
    let rollcall = world.serve_at(&ports, KIND).await?;
    let share = UNITS / count;
    let load = |(at, port): (u32, &u16)| {
        let rate = rate / count;
        let connections = CONNECTIONS / count;
        Load { port: *port, first: at * share, units: share, qos: 0, rate, once: false, connections }.start()
    };
    let _publishers: Vec<_> = (0..).zip(&ports).map(load).collect::<anyhow::Result<_>>()?;
    tokio::time::sleep(WARM_UP).await;
    let (before, first) = (usage(rollcall.server.pid())?.cpu, rollcall.recorded().await?);
    tokio::time::sleep(MEASURED).await;
    let recorded = rollcall.recorded().await? - first;
    let spent = usage(rollcall.server.pid())?.cpu - before;
    let wanted = f64::from(rate) * MEASURED.as_secs_f64();
    anyhow::ensure!(recorded > wanted * 0.9, "only {recorded} of {wanted} heartbeats were recorded");
    Ok(spent.as_secs_f64() * 1e6 / recorded)
}
