//! A clock for a server of a test's own, which the test sets.

use std::path::PathBuf;

/// The path of the library that fakes clocks, as Debian installs it, in a directory named after the architecture.
fn library() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut found = found.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    found.find(|path| path.exists()).expect("libfaketime is missing; install the package faketime")
}

/// A clock with an offset from the machine's, which a file holds.
pub struct Clock {
    file: tempfile::TempPath,
}

impl Clock {
    pub fn right() -> Clock {
        let clock = Clock { file: tempfile::NamedTempFile::new().unwrap().into_temp_path() };
        clock.step("+0");
        clock
    }

    /// Sets the offset from now on, such as `+3600` or `-3600`.
    pub fn step(&self, offset: &str) {
        // Written in one step, so that no process reads half of it.
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{offset}\n")).unwrap();
        std::fs::rename(&next, &self.file).unwrap();
    }

    /// The prefix of a command line that uses this clock.
    pub fn before(&self) -> Vec<String> {
        vec![
            "env".to_owned(),
            // The allocator of Redis reads the time before the library can answer; libc's does not.
            format!("LD_PRELOAD={} libc.so.6", library().display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "FAKETIME_NO_CACHE=1".to_owned(),
        ]
    }
}
