//! What the demo needs around it: a Redis, a broker and two receivers, on free ports of the loopback
//! address and in a directory that goes with them.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::screen::Screen;
use crate::config::{self, Config};
use crate::simulate::servers::{Guard, Server, free_port, is_installed};
use crate::simulate::{mail_sink, webhook_sink};

/// Programs that are run, and the Debian packages that hold them.
const PROGRAMS: [&str; 2] = ["redis-server", "mosquitto"];

pub(super) struct World {
    redis: Server,
    pub broker: Server,
    hook: webhook_sink::WebhookSink,
    mail: mail_sink::MailSink,
    /// The last one, so that the servers have ended when it is removed.
    _dir: Directory,
}

impl World {
    pub async fn start(screen: &Screen) -> anyhow::Result<World> {
        let missing: Vec<&str> = PROGRAMS.into_iter().filter(|program| !is_installed(program)).collect();
        if !missing.is_empty() {
            let missing = missing.join(" ");
            bail!(
                "the demo runs servers that are not installed here: {missing}; `apt-get install {missing}`"
            );
        }
        let dir = Directory::new().context("no directory for the demo")?;
        let redis = Server::redis(&dir.path.join("redis"), free_port()?, &["--save", "60 1"])?;
        let broker = Server::mosquitto(&dir.path.join("mosquitto"), free_port()?, "")?;
        let print = || Some(screen.printer());
        let hook = webhook_sink::Options { print: print(), ..Default::default() };
        let mail = mail_sink::Options { print: print(), ..Default::default() };
        let hook = webhook_sink::WebhookSink::start(hook).await?;
        let mail = mail_sink::MailSink::start(mail).await?;
        Ok(World { redis, broker, hook, mail, _dir: dir })
    }

    /// The configuration with which they are used, as a file would hold it.
    pub fn config(&self, listen: SocketAddr) -> anyhow::Result<Config> {
        let text = format!(
            r#"
            engine.url = "redis://127.0.0.1:{redis}/0"
            mqtt.url = "mqtt://127.0.0.1:{broker}"
            http.listen = "{listen}"
            route = {{ receivers = ["hook", "mail"], group_wait = "2s", group_interval = "5s" }}
            [[kind]]
            name = "detector"
            topics = ["sites/{{site}}/{{unit}}/heartbeat"]
            timeout = "5s"
            [[receiver]]
            name = "hook"
            type = "webhook"
            url = "{hook}"
            [[receiver]]
            name = "mail"
            type = "email"
            smtp = "{mail}"
            from = "rollcall@demo.example"
            to = ["ops@demo.example"]
            "#,
            redis = self.redis.port(),
            broker = self.broker.port(),
            hook = self.hook.url(),
            mail = self.mail.url(),
        );
        Ok(config::parse(&text, None, [])?)
    }

    /// Of how many silences and of how many returns the webhook was told.
    pub fn told(&self) -> (usize, usize) {
        let told = self.hook.received();
        let count = |list: &str| {
            let each = told.iter().map(|one| one.json()["data"][list].as_array().map_or(0, Vec::len));
            each.sum()
        };
        (count("offline"), count("online"))
    }

    /// How many webhooks and how many mails came.
    pub fn received(&self) -> (usize, usize) {
        (self.hook.received().len(), self.mail.mails().len())
    }
}

/// A directory of its own that goes when the value or the process goes.
struct Directory {
    path: PathBuf,
    _guard: Guard,
}

impl Directory {
    fn new() -> io::Result<Directory> {
        let path = std::env::temp_dir().join(format!("rollcall-demo-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&path)?;
        // A server that is just being ended by its own guard may still write there.
        let guard = Guard::new("for try in 1 2 3; do rm -rf \"$1\" && break; sleep 1; done", &path)?;
        Ok(Directory { path, _guard: guard })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
