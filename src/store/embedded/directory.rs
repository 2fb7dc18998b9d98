//! The directory of a fleet, locked by one process at a time.
//!
//! | file | content |
//! |---|---|
//! | `rollcall.db`, `-wal`, `-shm` | everything, see `database.rs` |
//! | `lock` | locked while a process works here; the number of the process, and the id of the fleet |
//!
//! # Permissions
//! Only the user that runs Rollcall may read units, labels and notifications. A new directory gets 0700, and every
//! file 0600, existing files too. The permissions of an existing directory stay, because it may hold more than the
//! fleet; if other users may enter it, that is a warning (`config/engine.rs`), and the files are closed to them
//! anyway.
//!
//! # Why a link is refused
//! Rollcall would change permissions, and write a fleet, at the target of the link: a link to `/dev/null` would close
//! that device to all users of the machine. So each file here must be a regular file and is opened without following
//! a link, and its permissions are changed through the open file. The directory itself may be a link.
//!
//! # Why the id of the fleet stands in the lock file too
//! A database that was removed or emptied looks like a new fleet. The lock file remembers the old fleet, so that
//! Rollcall does not begin a new fleet by mistake.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::error::{damaged, explain_file};
use crate::store::{EngineError, Result};

pub(super) const DATABASE: &str = "rollcall.db";
const LOG: &str = "rollcall.db-wal";
const SHARED: &str = "rollcall.db-shm";
const LOCK: &str = "lock";

/// A directory that is locked until this is dropped.
pub(super) struct Directory {
    path: PathBuf,
    lock: File,
    fleet: Option<String>,
}

impl Directory {
    /// Creates the directory if it is missing, and locks it.
    pub fn lock(path: &Path) -> Result<Directory> {
        create_private(path).map_err(|error| explain_file(&error, "made", path))?;
        refuse_links(path)?;
        let file = path.join(LOCK);
        let mut lock = private().open(&file).map_err(|error| explain_file(&error, "written", &file))?;
        let text = read(&mut lock, &file)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(path, &text)),
            Err(TryLockError::Error(error)) => return Err(explain_file(&error, "locked", &file)),
        }
        // Another process may have changed the file before it released the lock.
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
        Ok(Directory { path: path.to_owned(), lock, fleet: value(&text, "fleet") })
    }

    /// Creates the database if it is missing. SQLite gives the files beside it the same permissions.
    pub fn make_database(&self) -> Result<()> {
        let file = self.path.join(DATABASE);
        let made = private().open(&file).map(drop);
        made.map_err(|error| explain_file(&error, "written", &file))
    }

    /// Whether a process has locked the directory.
    pub fn is_locked(path: &Path) -> bool {
        File::open(path.join(LOCK)).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a new fleet in a directory that had one before.
    pub fn check_new(&self) -> Result<()> {
        match &self.fleet {
            None => Ok(()),
            Some(_) => Err(EngineError::Damaged(damaged(&self.path, "its database is missing or empty"))),
        }
    }

    pub fn fleet(&self) -> Option<&str> {
        self.fleet.as_deref()
    }

    /// Writes the id of the fleet into the lock file.
    pub fn write_fleet_id(&mut self, fleet: &str) -> Result<()> {
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

/// Creates a directory that is closed to other users; its parents get the usual permissions.
fn create_private(path: &Path) -> std::io::Result<()> {
    if let Some(above) = path.parent() {
        std::fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

fn private() -> OpenOptions {
    let mut options = unfollowed();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

/// Options that follow no link, and do not wait for the other end of a pipe.
fn unfollowed() -> OpenOptions {
    let mut options = File::options();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    options
}

/// Refuses a directory in which one of the files is not a regular file.
pub(super) fn refuse_links(path: &Path) -> Result<()> {
    for file in [LOCK, DATABASE, LOG, SHARED].map(|name| path.join(name)) {
        let Ok(found) = std::fs::symlink_metadata(&file) else { continue };
        if found.is_file() {
            continue;
        }
        let what = if found.is_symlink() { "a link" } else { "not a regular file" };
        let file = file.display();
        return Err(EngineError::Refused(format!(
            "{file} is {what}, and the embedded engine writes into files of its own only: move it away; a fleet in \
             another directory is named by engine.path"
        )));
    }
    Ok(())
}

/// Closes a file to other users, if it exists and is open to them.
fn close(path: &Path) -> std::io::Result<()> {
    let file = match unfollowed().read(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let found = file.metadata()?;
    match found.is_file() && found.permissions().mode() & 0o077 != 0 {
        true => file.set_permissions(Permissions::from_mode(0o600)),
        false => Ok(()),
    }
}

fn read(lock: &mut File, file: &Path) -> Result<String> {
    let mut text = Vec::new();
    let read = lock.rewind().and_then(|()| lock.read_to_end(&mut text));
    read.map_err(|error| explain_file(&error, "read", file))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn value(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned)
}

fn locked(path: &Path, text: &str) -> EngineError {
    let owner = value(text, "process").map_or("another process".into(), |id| format!("process {id}"));
    EngineError::Refused(format!(
        "the fleet in {} is in use by {owner}; only one process can use it: stop that process, or choose another \
         engine.path",
        path.display()
    ))
}
