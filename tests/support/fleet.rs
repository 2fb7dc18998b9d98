//! The servers of a fleet, and services of Rollcall in this process.

use rollcall::config;
use rollcall::service;
use rollcall::simulate::servers::{Server, free_port};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Redis without persistence, and Mosquitto, in a directory of their own.
pub struct Servers {
    pub redis: Server,
    pub broker: Server,
    // The last field, so that the servers have ended when the directory is removed.
    pub dir: TempDir,
}

impl Servers {
    pub fn start() -> Servers {
        let dir = tempfile::tempdir().unwrap();
        let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &[]).unwrap();
        let broker = Server::mosquitto(&dir.path().join("mosquitto"), free_port().unwrap(), "").unwrap();
        Servers { redis, broker, dir }
    }
}

pub struct Service {
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Service {
    /// Starts a service with this configuration.
    pub fn start(configuration: &str) -> Service {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = config::parse(configuration, None, []).unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = tokio::spawn(async move { service::run(config, stopped).await.unwrap() });
        Service { stop, running }
    }

    /// Stops the service, and waits for its end.
    pub async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}
