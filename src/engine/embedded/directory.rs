//! The directory of a fleet, which belongs to one process at a time.
//!
//! | file | what it holds |
//! |---|---|
//! | `rollcall.db`, `-wal`, `-shm` | everything, see `database.rs` |
//! | `lock` | locked while a process works here; its number, and the id of the fleet |
//!
//! # Why the id of the fleet stands in the lock file too
//! A database that was removed or emptied looks like a fleet that was never there. The lock file
//! remembers that there was one, so that nobody begins anew without having been asked.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::fault::{damaged, explain_file};
use crate::engine::{EngineError, Result};

/// The database.
pub(super) const DATABASE: &str = "rollcall.db";
const LOCK: &str = "lock";

/// A directory that nobody else works in for as long as this lives.
pub(super) struct Directory {
    path: PathBuf,
    lock: File,
    fleet: Option<String>,
}

impl Directory {
    /// Makes the directory where it is missing, and keeps others out.
    pub fn enter(path: &Path) -> Result<Directory> {
        std::fs::create_dir_all(path).map_err(|error| explain_file(&error, "made", path))?;
        let file = path.join(LOCK);
        let options = File::options().read(true).write(true).create(true).truncate(false).open(&file);
        let mut lock = options.map_err(|error| explain_file(&error, "written", &file))?;
        let text = read(&mut lock, &file)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(occupied(path, &text)),
            Err(TryLockError::Error(error)) => return Err(explain_file(&error, "locked", &file)),
        }
        // Whoever was here may have left while it was read.
        let text = read(&mut lock, &file)?;
        Ok(Directory { path: path.to_owned(), lock, fleet: word(&text, "fleet") })
    }

    /// Looks whether somebody works here, and changes nothing.
    pub fn is_occupied(path: &Path) -> bool {
        File::open(path.join(LOCK)).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses to begin anew where there was a fleet.
    pub fn check_new(&self) -> Result<()> {
        match &self.fleet {
            None => Ok(()),
            Some(_) => Err(EngineError::Damaged(damaged(&self.path, "its database is missing or empty"))),
        }
    }

    /// The id of the fleet in here, if there is one.
    pub fn fleet(&self) -> Option<&str> {
        self.fleet.as_deref()
    }

    /// The fleet in here has this id.
    pub fn sign(&mut self, fleet: &str) -> Result<()> {
        self.fleet = Some(fleet.to_owned());
        let text = format!("process {}\nfleet {fleet}\n", std::process::id());
        let write = |lock: &mut File| {
            lock.rewind()?;
            lock.write_all(text.as_bytes())?;
            lock.set_len(text.len() as u64)
        };
        write(&mut self.lock).map_err(|error| explain_file(&error, "written", &self.path.join(LOCK)))
    }
}

fn read(lock: &mut File, file: &Path) -> Result<String> {
    let mut text = Vec::new();
    let read = lock.rewind().and_then(|()| lock.read_to_end(&mut text));
    read.map_err(|error| explain_file(&error, "read", file))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn word(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned)
}

fn occupied(path: &Path, text: &str) -> EngineError {
    let who = word(text, "process").map_or("another process".into(), |id| format!("process {id}"));
    EngineError::Refused(format!(
        "the fleet in {} is in use by {who}; one fleet has one process: stop that one, or choose another \
         engine.path",
        path.display()
    ))
}
