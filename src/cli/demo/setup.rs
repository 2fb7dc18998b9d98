//! The parts of the demo besides its fleet: a directory for the engine, ports for the broker and the
//! web server, and a receiver.

use std::fs::DirBuilder;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use super::notification;
use crate::config::{self, Config};
use crate::http::Switches;
use crate::simulate::webhook_sink::{Options, Watcher, WebhookSink};

/// The timeout of the units.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct DemoSetup {
    pub web: Port,
    pub broker: Port,
    pub directory: TemporaryDirectory,
    receiver: WebhookSink,
}

impl DemoSetup {
    /// Calls `watcher` with each notification.
    pub async fn prepare(web: u16, broker: u16, watcher: Watcher) -> anyhow::Result<DemoSetup> {
        let directory = TemporaryDirectory::new().context("no directory for the fleet can be made")?;
        let receiver = WebhookSink::start(Options { watcher: Some(watcher), ..Options::default() }).await?;
        // The listener stays open until both ports are found, so that they differ.
        let (web, _held) = Port::find(web)?;
        let (broker, _held) = Port::find(broker)?;
        Ok(DemoSetup { web, broker, directory, receiver })
    }

    /// The configuration of the service, as a file would hold it.
    pub fn config(&self, switches: Switches) -> anyhow::Result<Config> {
        let path =
            self.directory.path.to_str().context("the path of the temporary directory is not a text")?;
        let text = format!(
            r#"
            engine = {{ type = "embedded", path = {path} }}
            broker.listen = "{broker}"
            http.listen = "{web}"
            http.count_by_labels = ["site"]
            route = {{ receivers = ["screen"], group_by = ["site"], group_wait = "2s", group_interval = "5s" }}
            [[kind]]
            name = "detector"
            topics = ["sites/{{site}}/{{unit}}/heartbeat"]
            unit = "{{unit}}"
            timeout = "{timeout}s"
            [[receiver]]
            name = "screen"
            type = "webhook"
            url = "{receiver}"
            "#,
            path = toml::Value::from(path),
            broker = self.broker.address(),
            web = self.web.address(),
            timeout = TIMEOUT.as_secs(),
            receiver = self.receiver.url(),
        );
        let mut config = config::parse(&text, None, [])?;
        config.http.switches = Some(switches);
        Ok(config)
    }

    /// The notifications so far.
    pub fn notifications(&self) -> notification::NotificationCounts {
        notification::count(&self.receiver.received())
    }
}

/// A port of the loopback address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub wanted: u16,
    pub found: u16,
}

impl Port {
    /// The wanted port or, if it is in use, a free one.
    fn find(wanted: u16) -> anyhow::Result<(Port, TcpListener)> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted))
            .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .context("no port of 127.0.0.1 is free")?;
        Ok((Port { wanted, found: free.local_addr()?.port() }, free))
    }

    pub fn is_another(&self) -> bool {
        self.wanted != 0 && self.wanted != self.found
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.found).into()
    }
}

/// A temporary directory that no other user can read. Dropping the value removes it; if the process is
/// killed it stays, until the system cleans up.
pub(super) struct TemporaryDirectory {
    path: PathBuf,
}

impl TemporaryDirectory {
    fn new() -> io::Result<TemporaryDirectory> {
        let path = std::env::temp_dir().join(format!("rollcall-demo-{:016x}", rand::random::<u64>()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(TemporaryDirectory { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory now.
    pub fn remove(&self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.path)
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}
