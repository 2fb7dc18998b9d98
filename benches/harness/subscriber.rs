//! A bare subscriber: the MQTT library alone, counting. No service can receive more. It has the
//! subscription of Rollcall, in a session that the broker keeps.

use std::process::Stdio;

use anyhow::Context;
use clap::Args;
use rumqttc::{AsyncClient, Event, MqttOptions, NetworkOptions, Packet, QoS, SubscribeFilterInput};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;

use super::redis_writer::RedisWriter;

/// Messages in flight, as for Rollcall.
const WINDOW: u16 = 1000;

/// Seconds for which the broker keeps the session, as it does for Rollcall.
const SESSION: u32 = 3600;

/// The topics to count.
#[derive(Debug, Args)]
pub struct Options {
    /// Port of the broker.
    #[arg(long)]
    port: u16,
    /// The quality of service, 0 or 1.
    #[arg(long)]
    qos: u8,
    /// The port of the Redis to which each heartbeat is written, if any; then only written heartbeats count.
    #[arg(long)]
    redis: Option<u16>,
}

/// A subscriber in a process of its own, which ends with this value.
pub struct Subscriber {
    pub child: Child,
    counts: Lines<BufReader<ChildStdout>>,
}

impl Subscriber {
    /// Starts the process and waits until it is subscribed.
    pub async fn start(port: u16, qos: u8, redis: Option<u16>) -> anyhow::Result<Subscriber> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["subscribe", "--port", &port.to_string(), "--qos", &qos.to_string()])
            .args(redis.map(|port| format!("--redis={port}")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let counts = BufReader::new(child.stdout.take().context("it is piped")?).lines();
        let mut subscriber = Subscriber { child, counts };
        subscriber.next().await?;
        Ok(subscriber)
    }

    /// How many messages the subscriber has received so far.
    pub async fn count(&mut self) -> anyhow::Result<f64> {
        self.child.stdin.as_mut().context("it is piped")?.write_all(b"\n").await?;
        self.next().await
    }

    async fn next(&mut self) -> anyhow::Result<f64> {
        let line = self.counts.next_line().await?.context("the subscriber has ended")?;
        Ok(line.parse()?)
    }
}

/// Subscribes, prints 0, and then prints the number of messages for each line that it reads.
pub async fn count(options: Options) -> anyhow::Result<()> {
    let mut mqtt =
        MqttOptions::new(format!("subscriber-{}", std::process::id()), ("127.0.0.1", options.port));
    let mut network = NetworkOptions::new();
    network.set_tcp_nodelay(true);
    mqtt.set_network_options(network)
        .set_clean_start(false)
        .set_session_expiry_interval(Some(SESSION))
        .set_receive_maximum(Some(WINDOW));
    let (client, mut events) = AsyncClient::builder(mqtt).capacity(4 * usize::from(WINDOW)).build();
    let qos = if options.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
    client.try_subscribe_many([SubscribeFilterInput::new("units/+/heartbeat", qos)])?;
    let writer = match options.redis {
        None => None,
        Some(port) => Some(RedisWriter::start(port).await?),
    };
    let mut asked = lines_of_input();
    let mut count = 0_u64;
    loop {
        tokio::select! {
            event = events.poll() => match event? {
                Event::Incoming(Packet::Publish(publish)) => match &writer {
                    None => count += 1,
                    Some(writer) => writer.heard(&publish.topic)?,
                },
                Event::Incoming(Packet::SubAck(_)) => println!("{count}"),
                _ => {}
            },
            ask = asked.recv() => match ask {
                Some(()) => println!("{}", writer.as_ref().map_or(count, |writer| writer.recorded())),
                None => return Ok(()),
            },
        }
    }
}

/// Reports each line that is read, and ends when the parent process is gone.
pub fn lines_of_input() -> mpsc::Receiver<()> {
    let (lines, read) = mpsc::channel(1);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines().map_while(Result::ok) {
            let _ = lines.blocking_send(());
        }
    });
    read
}
