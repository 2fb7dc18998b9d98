//! What is wrong with the directory though it works, and what to do; and a look at one on which the
//! service may run one day, which changes nothing.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::Access;
use tokio::sync::Notify;

use super::config::Config;
use super::database;
use super::directory::{DATABASE, Directory};
use super::error::explain_file;
use crate::store::Condition;
use crate::store::{EngineError, Result, Warning};
use crate::telemetry::EngineWarning;

/// Less room than this is worth a word, and so is less than the fleet takes itself: a copy of it, or a
/// storm, needs that.
const LITTLE: u64 = 256 * MIB;

const MIB: u64 = 1024 * 1024;

/// The directory that the service works in.
pub(super) struct DatabaseFile {
    path: PathBuf,
    /// The file that was opened: another one under its name is another fleet.
    database: (u64, u64),
    /// That it is gone was noticed.
    is_missed: AtomicBool,
    missed: Notify,
}

impl DatabaseFile {
    pub fn new(path: &Path) -> Result<DatabaseFile> {
        let file = path.join(DATABASE);
        let found = std::fs::metadata(&file).map_err(|error| explain_file(&error, "read", &file))?;
        let database = identity(&found);
        Ok(DatabaseFile {
            path: path.to_owned(),
            database,
            is_missed: AtomicBool::new(false),
            missed: Notify::new(),
        })
    }

    /// Whether the database was removed or replaced, answered with yes once. Costs a few microseconds.
    pub fn was_removed(&self) -> bool {
        let is_new = !self.is_there() && !self.is_missed.swap(true, Ordering::SeqCst);
        if is_new {
            self.missed.notify_one();
        }
        is_new
    }

    /// Ends when it was noticed that the database is gone.
    pub async fn missed(&self) {
        self.missed.notified().await;
    }

    fn is_there(&self) -> bool {
        let found = std::fs::metadata(self.path.join(DATABASE)).ok();
        found.as_ref().map(identity) == Some(self.database)
    }

    pub fn warnings(&self) -> Result<Vec<Warning>> {
        let mut warnings = Vec::new();
        if !self.is_there() {
            let place = self.path.display();
            let text = format!(
                "{DATABASE} in {place} was removed or replaced while rollcall works with it: what is recorded goes \
                 nowhere; stop rollcall, put the directory back, and start it again"
            );
            warnings.push(Warning { name: EngineWarning::LostItsData, text });
        }
        // A directory that is gone has no disk.
        if warnings.is_empty() || self.path.exists() {
            warnings.extend(little_room(&self.path)?);
        }
        Ok(warnings)
    }
}

/// DeadlineIndex at the directory of `config` without changing anything: whether the service could run on it, and
/// what is wrong with it.
///
/// # Errors
/// `Refused` if the service would be refused there; `Damaged` if what is there cannot be read.
pub async fn survey(config: &Config) -> Result<Condition> {
    let config = config.clone();
    let ended = |_| EngineError::Unavailable("the look at the fleet was broken off".into());
    tokio::task::spawn_blocking(move || look(&config)).await.map_err(ended)?
}

fn look(config: &Config) -> Result<Condition> {
    let path = &config.path;
    let engine = format!("SQLite {}", rusqlite::version());
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            check_rights(path)?;
            return Ok(Condition {
                server: format!("{engine}, a directory to be made at the start"),
                warnings: Vec::new(),
            });
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
    let user = if Directory::is_occupied(path) { ", in use by rollcall" } else { "" };
    let size = occupied(path) / MIB;
    Ok(Condition {
        server: format!("{engine}, {size} MiB{user}"),
        warnings: little_room(path)?.into_iter().collect(),
    })
}

/// Whether the directory could be written or, where there is none, be made.
fn check_rights(path: &Path) -> Result<()> {
    let here = |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
    let Some(there) = path.ancestors().map(here).find(|path| path.exists()) else { return Ok(()) };
    let may = rustix::fs::access(&there, Access::WRITE_OK | Access::EXEC_OK);
    may.map_err(|error| explain_file(&error.into(), "written", &there))
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// The bytes that the fleet takes.
fn occupied(path: &Path) -> u64 {
    let files = ["", "-wal"].map(|end| path.join(format!("{DATABASE}{end}")));
    files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|found| found.len()).sum()
}

fn little_room(path: &Path) -> Result<Option<Warning>> {
    let disk = rustix::fs::statvfs(path).map_err(|error| explain_file(&error.into(), "read", path))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let wanted = LITTLE.max(occupied(path));
    Ok((free < wanted).then(|| {
        let text = format!(
            "the disk of {} has {} MiB left, the fleet wants {}; make room before it is full: then nothing is \
             recorded any more",
            path.display(),
            free / MIB,
            wanted / MIB
        );
        Warning { name: EngineWarning::DiskNearlyFull, text }
    }))
}
