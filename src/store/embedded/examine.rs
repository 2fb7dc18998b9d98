//! Warnings about the directory of a running service, and a read-only check of a directory before the service runs
//! on it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::Access;
use tokio::sync::Notify;

use super::config::EmbeddedConfig;
use super::database;
use super::directory::{DATABASE, Directory};
use super::error::explain_file;
use crate::store::Condition;
use crate::store::{EngineError, Result, Warning};
use crate::telemetry::EngineWarning;

/// Free space below this, or below the size of the fleet, is a warning: a copy of the fleet, or a storm, needs it.
const MIN_FREE: u64 = 256 * MIB;

const MIB: u64 = 1024 * 1024;

/// The database of the running service, as a file.
pub(super) struct DatabaseFile {
    path: PathBuf,
    /// Device and inode of the opened file: another file of that name is another fleet.
    database: (u64, u64),
    is_removed: AtomicBool,
    removed: Notify,
}

impl DatabaseFile {
    pub fn new(path: &Path) -> Result<DatabaseFile> {
        let file = path.join(DATABASE);
        let found = std::fs::metadata(&file).map_err(|error| explain_file(&error, "read", &file))?;
        let database = identity(&found);
        Ok(DatabaseFile {
            path: path.to_owned(),
            database,
            is_removed: AtomicBool::new(false),
            removed: Notify::new(),
        })
    }

    /// Whether the database was removed or replaced since the last call. Takes a few microseconds.
    pub fn was_removed(&self) -> bool {
        let is_new = !self.is_there() && !self.is_removed.swap(true, Ordering::SeqCst);
        if is_new {
            self.removed.notify_one();
        }
        is_new
    }

    /// Ends when [`DatabaseFile::was_removed`] notices that the database is gone.
    pub async fn removed(&self) {
        self.removed.notified().await;
    }

    fn is_there(&self) -> bool {
        let found = std::fs::metadata(self.path.join(DATABASE)).ok();
        found.as_ref().map(identity) == Some(self.database)
    }

    pub fn warnings(&self) -> Result<Vec<Warning>> {
        let mut warnings = Vec::new();
        if !self.is_there() {
            let directory = self.path.display();
            let text = format!(
                "{DATABASE} in {directory} was removed or replaced while rollcall works with it: nothing that is \
                 recorded is kept; stop rollcall, put the directory back, and start it again"
            );
            warnings.push(Warning { name: EngineWarning::LostItsData, text });
        }
        // A directory that is gone has no free space to read.
        if warnings.is_empty() || self.path.exists() {
            warnings.extend(low_disk_space(&self.path)?);
        }
        Ok(warnings)
    }
}

/// Checks the directory of `config` without changing it: whether the service could run on it, and its warnings.
///
/// # Errors
/// `Refused` if the service could not use it; `Damaged` if its fleet cannot be read.
pub async fn survey(config: &EmbeddedConfig) -> Result<Condition> {
    let config = config.clone();
    let ended = |_| EngineError::Unavailable("the check of the fleet was broken off".into());
    tokio::task::spawn_blocking(move || check(&config)).await.map_err(ended)?
}

/// Checks, by a few rows of the fleet of `config`, whether the service would refuse it. A directory without a fleet passes.
///
/// # Errors
/// `Refused` if it is of another layout, has another number of partitions, or is moved incompletely; `Damaged` if it cannot be
/// read.
pub fn check_stored(config: &EmbeddedConfig) -> Result<()> {
    match config.path.join(DATABASE).exists() {
        true => database::check(&config.path, config.partitions),
        false => Ok(()),
    }
}

fn check(config: &EmbeddedConfig) -> Result<Condition> {
    let path = &config.path;
    let engine = format!("SQLite {}", rusqlite::version());
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            check_creation(path)?;
            return Ok(Condition { server: engine, warnings: Vec::new() });
        }
        Err(error) => return Err(explain_file(&error, "read", path)),
        Ok(found) if !found.is_dir() => {
            let text = format!("{} is no directory; choose another engine.path", path.display());
            return Err(EngineError::Refused(text));
        }
        Ok(_) => check_rights(path)?,
    }
    if path.join(DATABASE).exists() {
        database::survey(path, config.partitions)?;
    }
    let user = if Directory::is_locked(path) { ", in use by rollcall" } else { "" };
    let size = size(path) / MIB;
    Ok(Condition {
        server: format!("{engine}, {size} MiB{user}"),
        warnings: low_disk_space(path)?.into_iter().collect(),
    })
}

/// Checks that the directory can be written.
fn check_rights(path: &Path) -> Result<()> {
    let may = rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK);
    may.map_err(|error| explain_file(&error.into(), "written", path))
}

/// Checks that the missing directory can be created: another directory is created beside it, and removed.
///
/// Permissions do not show this: file systems such as `/proc` accept no directory from any user.
fn check_creation(path: &Path) -> Result<()> {
    let here = |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
    let Some(there) = path.ancestors().map(here).find(|path| path.exists()) else { return Ok(()) };
    let tried = there.join(format!(".rollcall-check-{:016x}", rand::random::<u64>()));
    std::fs::create_dir(&tried).map_err(|error| explain_file(&error, "created", path))?;
    std::fs::remove_dir(&tried).map_err(|error| explain_file(&error, "removed", &tried))
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// The size of the fleet in bytes.
fn size(path: &Path) -> u64 {
    let files = ["", "-wal"].map(|end| path.join(format!("{DATABASE}{end}")));
    files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|found| found.len()).sum()
}

/// The text does not say how much is left: a disk is full for a write that is larger than that.
fn low_disk_space(path: &Path) -> Result<Option<Warning>> {
    let disk = rustix::fs::statvfs(path).map_err(|error| explain_file(&error.into(), "read", path))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let wanted = MIN_FREE.max(size(path));
    Ok((free < wanted).then(|| {
        let text = format!(
            "the disk of {} has less room than the {} MiB that the fleet wants; make room: on a full disk nothing is \
             recorded",
            path.display(),
            wanted.div_ceil(MIB)
        );
        Warning { name: EngineWarning::DiskNearlyFull, text }
    }))
}
