//! The files of TLS that a section names.

use std::path::Path;

use super::problem::Problems;
use super::secrets;
use crate::trust::TlsFiles;

/// The options of a section: `ca_file`, `client_cert_file` and `client_key_file`.
pub(super) type Named<'a> = [&'a str; 3];

/// The files that a section names. With an address without TLS they are errors, because the operator expects
/// encryption: then `unused` says what to write.
pub(super) fn files(
    section: &str,
    named: Named<'_>,
    unused: Option<String>,
    base: &Path,
    problems: &mut Problems,
) -> TlsFiles {
    let options = ["ca_file", "client_cert_file", "client_key_file"].map(|name| format!("{section}.{name}"));
    if let Some(why) = unused {
        for (option, _) in options.iter().zip(named).filter(|(_, file)| !file.is_empty()) {
            problems.error(option, why.as_str());
        }
        return TlsFiles::default();
    }
    let [ca, client_cert, client_key] = named.map(|file| (!file.is_empty()).then(|| base.join(file)));
    if let Some(key) = &client_key {
        secrets::check_mode(&options[2], key, problems);
    }
    TlsFiles { ca, client_cert, client_key }
}
