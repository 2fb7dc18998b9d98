//! The directory of a fleet, which belongs to one process at a time.
//!
//! | file | what it holds |
//! |---|---|
//! | `rollcall.db`, `-wal`, `-shm` | everything, see `database.rs` |
//! | `lock` | locked while a process works here; its number, and the id of the fleet |
//!
//! # Who may read it
//! Only the user that Rollcall runs as: units, labels and what notifications say are nobody else's. The
//! directory that is made is 0700, and every file 0600, also those of an earlier build. A directory that was
//! there before is left as it is, for it may hold more than the fleet; where others may enter it that is a
//! warning (`config/engine.rs`), and the files are closed to them all the same.
//!
//! # Why the id of the fleet stands in the lock file too
//! A database that was removed or emptied looks like a fleet that was never there. The lock file
//! remembers that there was one, so that nobody begins anew without having been asked.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::error::{damaged, explain_file};
use crate::store::{EngineError, Result};

/// The database.
pub(super) const DATABASE: &str = "rollcall.db";
const LOG: &str = "rollcall.db-wal";
const SHARED: &str = "rollcall.db-shm";
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
        make(path).map_err(|error| explain_file(&error, "made", path))?;
        let file = path.join(LOCK);
        let mut lock = private().open(&file).map_err(|error| explain_file(&error, "written", &file))?;
        let text = read(&mut lock, &file)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(occupied(path, &text)),
            Err(TryLockError::Error(error)) => return Err(explain_file(&error, "locked", &file)),
        }
        // Whoever was here may have left while it was read.
        let text = read(&mut lock, &file)?;
        for name in [LOCK, DATABASE, LOG, SHARED] {
            let file = path.join(name);
            if let Err(error) = close(&file) {
                let file = file.display();
                tracing::warn!(
                    "other users may read {file}, and that cannot be changed: {error}; chmod 600 {file}"
                );
            }
        }
        Ok(Directory { path: path.to_owned(), lock, fleet: word(&text, "fleet") })
    }

    /// Makes the database where it is missing. What SQLite makes beside it has the same rights.
    pub fn make_database(&self) -> Result<()> {
        let file = self.path.join(DATABASE);
        let made = private().open(&file).map(drop);
        made.map_err(|error| explain_file(&error, "written", &file))
    }

    /// DeadlineIndex whether somebody works here, and changes nothing.
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

/// Makes a directory that is closed to others. Those above it are as they usually are.
fn make(path: &Path) -> std::io::Result<()> {
    if let Some(above) = path.parent() {
        std::fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// How files of the fleet are opened or made.
fn private() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

/// Closes a file to others, if it is there and open to them.
fn close(file: &Path) -> std::io::Result<()> {
    match std::fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(found) if found.permissions().mode() & 0o077 == 0 => Ok(()),
        Ok(_) => std::fs::set_permissions(file, Permissions::from_mode(0o600)),
        Err(error) => Err(error),
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
