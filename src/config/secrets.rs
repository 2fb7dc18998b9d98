//! Secrets, which are in files of their own.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::problem::Problems;

/// Reads the secret in `file`, a path relative to `base`; `None` if no file is named or it cannot
/// be used. White space around the secret is ignored, because editors end files with a newline.
pub(super) fn read(option: &str, file: &str, base: &Path, problems: &mut Problems) -> Option<String> {
    if file.is_empty() {
        return None;
    }
    let path = base.join(file);
    match std::fs::read_to_string(&path) {
        Err(error) => problems.error(option, format!("{} cannot be read: {error}", path.display())),
        Ok(text) if text.trim().is_empty() => {
            problems.error(option, format!("{} is empty; write the secret into it", path.display()));
        }
        Ok(text) => {
            check_mode(option, &path, problems);
            return Some(text.trim().to_owned());
        }
    }
    None
}

/// Warns of a file with a secret that every user of this machine may read or change.
pub(super) fn check_mode(option: &str, path: &Path, problems: &mut Problems) {
    let others = |mode: u32| mode & 0o007 != 0;
    if std::fs::metadata(path).is_ok_and(|file| file.is_file() && others(file.permissions().mode())) {
        let path = path.display();
        problems
            .warn(option, format!("every user of this machine may read or change {path}; chmod o= {path}"));
    }
}
