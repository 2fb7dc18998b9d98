//! Clocks that step by an hour, of an instance and of Redis. The monotonic clock goes on, as it does
//! when somebody sets the time.

use std::path::PathBuf;
use std::time::Duration;

use crate::world::{Plan, TIMEOUT, World};

const SECOND: Duration = Duration::from_secs(1);

/// The library that fakes clocks, where Debian has it: in a directory named after the machine.
fn library() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut found = found.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    found.find(|path| path.exists()).expect("libfaketime is missing; install the package faketime")
}

/// A clock that stands apart from that of the machine by as much as its file says.
struct Clock {
    file: tempfile::TempPath,
}

impl Clock {
    fn right() -> Clock {
        let clock = Clock { file: tempfile::NamedTempFile::new().unwrap().into_temp_path() };
        clock.step("+0");
        clock
    }

    /// The offset from now on, such as `+3600` or `-3600`.
    fn step(&self, offset: &str) {
        // In one step, so that nobody reads half of it.
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{offset}\n")).unwrap();
        std::fs::rename(&next, &self.file).unwrap();
    }

    /// What stands before a command line that is to go by it.
    fn before(&self) -> Vec<String> {
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", library().display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "FAKETIME_NO_CACHE=1".to_owned(),
        ]
    }
}

/// The clock of the first of three instances steps there and back while the fleet lives.
async fn steps(there: &str) {
    let clock = Clock::right();
    let mut world = World::new(Plan { before: clock.before(), ..Plan::new(3) }).await;
    world.live(4 * TIMEOUT);
    for offset in [there, "+0"] {
        world.pass_some(SECOND).await;
        clock.step(offset);
        world.pass(TIMEOUT.mul_f64(1.5)).await;
    }
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_clock_steps_forward_by_an_hour_calls_nobody_offline() {
    steps("+3600").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_clock_steps_back_by_an_hour_loses_nobody() {
    steps("-3600").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_starts_with_a_clock_that_is_an_hour_ahead_goes_by_the_engines() {
    let clock = Clock::right();
    clock.step("+3600");
    let mut world = World::new(Plan { before: clock.before(), ..Plan::new(1) }).await;
    world.live(2 * TIMEOUT);
    world.rests().await;
}
