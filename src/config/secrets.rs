//! Secrets, which are in files of their own.

use std::path::Path;

use super::problem::Problems;
use crate::small_file::{MAX_SECRET, SmallFile};

/// Reads the secret in `file`, a path relative to `base`; `None` if no file is named or it cannot
/// be used. White space around the secret is ignored, because editors end files with a newline.
pub(super) fn read(option: &str, file: &str, base: &Path, problems: &mut Problems) -> Option<String> {
    if file.is_empty() {
        return None;
    }
    let path = base.join(file);
    let read = SmallFile::read(&path, MAX_SECRET).and_then(|file| Ok((file.mode, file.into_secret()?)));
    let read = read.map_err(|error| format!("{} cannot be read: {error}", path.display()));
    let (mode, secret) = read.map_err(|text| problems.error(option, text)).ok()?;
    warn_of_others(option, &path, mode, problems);
    Some(secret)
}

/// The text in `file`, which is no secret, such as a template.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let read = SmallFile::read(path, MAX_SECRET).and_then(|file| text(file.bytes));
    read.map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

fn text(bytes: Vec<u8>) -> std::io::Result<String> {
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is no text in UTF-8"))
}

/// Warns of a file with a secret that every user of this machine may read or change.
pub(super) fn check_mode(option: &str, path: &Path, problems: &mut Problems) {
    use std::os::unix::fs::PermissionsExt;
    if let Some(file) = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file) {
        warn_of_others(option, path, file.permissions().mode(), problems);
    }
}

fn warn_of_others(option: &str, path: &Path, mode: u32, problems: &mut Problems) {
    if mode & 0o007 != 0 {
        let path = path.display();
        problems
            .warn(option, format!("every user of this machine may read or change {path}; chmod o= {path}"));
    }
}
