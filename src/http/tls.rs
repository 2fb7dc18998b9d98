//! TLS of the web server.

use std::net::SocketAddr;

use crate::small_file::read_file;
use crate::trust::{ServerFiles, ServerTls, TlsError};

/// The TLS address and the files of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// An address other than loopback needs at least one token.
    pub listen: SocketAddr,
    pub files: ServerFiles,
}

/// # Errors
/// The first file that cannot be used, with advice.
pub fn open_tls(files: &ServerFiles) -> Result<ServerTls, TlsError> {
    ServerTls::open("http", files, vec![b"http/1.1".to_vec()], read_file)
}
