//! Secrets, which stand in files of their own.

use std::path::Path;

use super::problem::Problems;

/// Reads the secret in `file`, a path relative to `base`; `None` if no file is named or it cannot
/// be used. White space around the secret is not part of it: editors end files with a newline.
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
        Ok(text) => return Some(text.trim().to_owned()),
    }
    None
}
