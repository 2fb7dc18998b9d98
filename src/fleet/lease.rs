//! The lease of this instance: renewed while the process runs, given up at an orderly stop.
//!
//! Each renewal answers two things: the time, which the clock of this process follows, and the other instances, from
//! which the partitions of this instance follow. Loops get both as views that they only read.
//!
//! An instance that cannot renew keeps its last view. Others see its lease end and take over; if it still reaches the
//! engine, some work is done twice.
//!
//! # When another process has the name of this instance
//! Two processes with one name would both own everything, and each would give up the lease of the other. So an
//! instance does not take a name in use: it adds a random part to the name, and is another instance. The lease of a
//! process that died a moment ago ends meanwhile; then the name is free.
//!
//! # Why so short
//! The partitions of a dead instance wait for its lease to end: two and a half seconds at the most, because another
//! instance renews at the moment when the first lease may end. A lease that ends by mistake only costs the others a
//! fill of their mirrors. No lease ends while the engine answers no instance: see [`crate::store::Roster::renew`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Ownership;
use crate::clock::{CONFIRMED, Clock, Stopwatch};
use crate::fleet::ownership::View;
use crate::store::roster::RenewalReply;
use crate::store::{HearingStore, Result, Roster};
use crate::telemetry::{EngineWarning, Loop, Telemetry};

/// How long an instance that does not renew counts as running.
pub const LENGTH: Duration = Duration::from_millis(2500);

/// The time between two renewals: four may fail.
pub const INTERVAL: Duration = Duration::from_millis(500);

/// The shortest time between two renewals, however many instances come and go.
const SHORTEST: Duration = Duration::from_millis(50);

/// The longest attempt to give the lease up; it ends by itself soon after.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest name of an instance, and the longest client id, in bytes.
const MAX_NAME: usize = 64;

/// Clocks further apart than this are a warning.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_millis(500);

/// The lease of a running instance.
pub struct Lease {
    roster: Arc<dyn Roster>,
    hearing: Arc<dyn HearingStore>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    view: watch::Sender<Arc<View>>,
    /// The address of this instance for metrics.
    address: Option<String>,
    /// The part that was added to the name of this instance, because another process has that name.
    part: Option<String>,
}

impl Lease {
    /// Takes the lease of `instance`, or of another name if another process has it: see the head of this file. From now
    /// on `clock` follows the time of the fleet.
    pub async fn take(
        roster: Arc<dyn Roster>,
        hearing: Arc<dyn HearingStore>,
        clock: Clock,
        telemetry: Arc<Telemetry>,
        instance: &str,
    ) -> Result<Lease> {
        let alone = View::new(instance, Vec::new(), roster.partitions());
        let view = watch::channel(Arc::new(alone)).0;
        let mut lease = Lease { roster, hearing, clock, telemetry, view, address: None, part: None };
        if lease.take_as(instance).await? {
            return Ok(lease);
        }
        tracing::info!(
            instance,
            "another process has the name of this instance, or had it until a moment ago"
        );
        let part = format!("{:08x}", rand::random::<u32>());
        let own = renamed(instance, &part);
        lease.take_as(&own).await?;
        let began = Stopwatch::start();
        while began.elapsed() < LENGTH + INTERVAL {
            tokio::time::sleep(INTERVAL / 2).await;
            lease.renew().await?;
            if !lease.view.borrow().instances.iter().any(|name| name == instance) {
                lease.roster.resign(&own).await?;
                if lease.take_as(instance).await? {
                    return Ok(lease);
                }
                lease.take_as(&own).await?;
                break;
            }
        }
        lease.telemetry.instance_name_taken(instance, &own);
        lease.part = Some(part);
        Ok(lease)
    }

    /// Takes the lease of that name; `false`: another process has it.
    async fn take_as(&self, instance: &str) -> Result<bool> {
        let alone = View::new(instance, Vec::new(), self.roster.partitions());
        self.view.send_replace(Arc::new(alone));
        self.renew().await?;
        let view = self.view.borrow().clone();
        let is_taken = view.terms > 0;
        if is_taken {
            // Announcements of this name before its lease ended, and of instances that are gone, count no more.
            let others: Vec<String> =
                view.instances.iter().filter(|name| *name != instance).cloned().collect();
            self.roster.forget_all_but(&others).await?;
        }
        Ok(is_taken)
    }

    /// The part that was added to the name of this instance, because another process has that name.
    pub fn added_part(&self) -> Option<&str> {
        self.part.as_deref()
    }

    /// Announces the address of this instance for metrics, now and with each renewal.
    pub async fn announce(&mut self, address: String) -> Result<()> {
        let instance = self.view.borrow().instance.clone();
        self.roster.announce(&instance, &address).await?;
        self.address = Some(address);
        Ok(())
    }

    /// The partitions of this instance, now and later.
    pub fn ownership(&self) -> Ownership {
        Ownership::follow(self.view.subscribe())
    }

    /// Renews until `leave`, then gives the lease up.
    pub async fn keep(self, leave: CancellationToken) -> anyhow::Result<()> {
        let mut rest = INTERVAL;
        loop {
            tokio::select! {
                () = leave.cancelled() => break,
                () = self.roster.changed() => tokio::time::sleep(SHORTEST).await,
                () = tokio::time::sleep(rest) => {}
            }
            rest = self.renew().await.unwrap_or_else(|error| {
                self.telemetry.engine_failed(Loop::Lease, "", &error);
                INTERVAL
            });
        }
        let instance = self.view.borrow().instance.clone();
        match tokio::time::timeout(RESIGN_TIMEOUT, self.roster.resign(&instance)).await {
            Ok(Ok(())) => {
                tracing::info!(instance, "lease resigned; other instances take over its partitions")
            }
            _ => tracing::warn!(
                instance,
                "the lease could not be given up; other instances take over within seconds"
            ),
        }
        Ok(())
    }

    /// Renews the lease. Returns the time until the next renewal or the end of another lease.
    async fn renew(&self) -> Result<Duration> {
        let before = self.view.borrow().clone();
        let heard = self.hearing.hearing().await?.heard;
        let asked = Stopwatch::start();
        let attendance = self.roster.renew(&before.instance, LENGTH, heard).await?;
        self.clock.follow(attendance.now, asked.elapsed());
        if let Some(address) = &self.address {
            self.roster.announce(&before.instance, address).await?;
        }
        let behind = attendance.now.since(attendance.engine_clock);
        let off = if attendance.ahead.is_some() { None } else { self.clock_is_off(behind) };
        self.telemetry.engine_warning(EngineWarning::ClockOff, off.as_deref());
        self.telemetry.clock_jumped(attendance.ahead.map(clock_has_jumped));
        let mut view = View::new(&before.instance, attendance.instances.clone(), self.roster.partitions());
        view.terms = before.terms + u64::from(attendance.is_new);
        self.telemetry.ownership(view.instances.len(), view.partitions.len());
        if attendance.is_new && before.terms > 0 {
            tracing::info!("the lease of this instance had ended; its partitions are read again");
        }
        if view.instances != before.instances {
            tracing::info!(
                instance = view.instance,
                instances = view.instances.join(" "),
                partitions = view.partitions.len(),
                "the instances of the fleet have changed"
            );
        }
        if view != *before {
            self.view.send_replace(Arc::new(view));
        }
        self.telemetry.engine_answered(Loop::Lease, "");
        Ok(rest(&attendance))
    }

    /// The text of the warning, if clocks differ. `behind`: how far the clock of the engine is behind the time of the
    /// fleet.
    fn clock_is_off(&self, behind: Duration) -> Option<String> {
        if behind > MAX_CLOCK_DIFFERENCE {
            return Some(format!(
                "the clock of the engine is {} ms behind the time of the fleet, which never goes back: the clock was \
                 set back, or another server took over; run a time service such as chrony there",
                behind.as_millis()
            ));
        }
        let (apart, is_ahead) = self.clock.machine_clock_offset();
        (apart > MAX_CLOCK_DIFFERENCE).then(|| {
            let direction = if is_ahead { "ahead of" } else { "behind" };
            format!(
                "the clock of this machine is {} ms {direction} that of the engine, which Rollcall uses; log times and \
                 certificates use the machine's clock: run a time service such as chrony on both",
                apart.as_millis()
            )
        })
    }
}

/// The name or the client id of an instance with a part that tells it from another one.
pub fn renamed(name: &str, part: &str) -> String {
    let most = MAX_NAME - 1 - part.len();
    let cut = (0..=most.min(name.len())).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!("{}-{part}", &name[..cut])
}

/// Whether `other` is the name of a process whose configuration says `instance`.
pub fn is_renamed(instance: &str, other: &str) -> bool {
    let part = other.rsplit('-').next().unwrap_or_default();
    part.len() == 8 && part.bytes().all(|byte| byte.is_ascii_hexdigit()) && renamed(instance, part) == other
}

/// The text of the warning about a step of the engine's clock that is not accepted yet.
fn clock_has_jumped(ahead: Duration) -> String {
    format!(
        "the clock of the engine jumped forward by {:.1} s; the time of the fleet follows it only if this lasts for {} s, \
         and nothing happens too early until then: set the clock right if the jump is a mistake",
        ahead.as_secs_f64(),
        CONFIRMED.as_secs()
    )
}

/// The time until the next renewal, or until the end of a lease that was not renewed in time. The lease of a running
/// instance always ends later than the next renewal.
fn rest(attendance: &RenewalReply) -> Duration {
    let end = attendance.first_end.map(|end| end.since(attendance.now) + Duration::from_millis(1));
    end.map_or(INTERVAL, |end| end.clamp(SHORTEST, INTERVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn a_name_with_an_added_part_is_known_by_the_name_before() {
        let long = "x".repeat(MAX_NAME);
        for name in ["one", "node-1", &long] {
            let other = renamed(name, "0123abcd");
            assert!(other.len() <= MAX_NAME && is_renamed(name, &other), "{other}");
            assert!(!is_renamed(name, name) && !is_renamed("two", &other));
        }
        assert!(renamed(&"ü".repeat(40), "0123abcd").len() <= MAX_NAME);
        assert_eq!(renamed("rollcall-one", "0123abcd"), "rollcall-one-0123abcd");
        assert!(!is_renamed("one", "one-two") && !is_renamed("one", "one-0123abcg"));
    }

    #[test]
    fn the_next_renewal_is_at_the_end_of_a_lease_that_ends_soon() {
        let now = Timestamp::from_millis(1_000_000);
        for (ends_in, expected) in [(None, 500), (Some(2000), 500), (Some(300), 301), (Some(3), 50)] {
            let first_end = ends_in.map(|ms| now + Duration::from_millis(ms));
            let attendance = RenewalReply {
                now,
                engine_clock: now,
                ahead: None,
                instances: Vec::new(),
                is_new: false,
                first_end,
            };
            assert_eq!(rest(&attendance), Duration::from_millis(expected), "{ends_in:?}");
        }
    }
}
