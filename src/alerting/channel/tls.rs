//! TLS of a receiver, from the files that its options name.

use rustls::ClientConfig;

use crate::trust::{self, TlsFiles};

/// TLS for a client. An error begins with the option, such as `ca_file`.
pub fn client(files: &TlsFiles) -> Result<ClientConfig, String> {
    let made = trust::client("tls", files, crate::small_file::read_file);
    let (config, _) = made.map_err(|error| format!("{}: {}", plain(&error.option), plain(&error.text)))?;
    Ok(config)
}

/// The text without the name of the section: a receiver has none.
fn plain(text: &str) -> String {
    text.replace("tls.", "")
}
