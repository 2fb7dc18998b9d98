//! A subscriber that writes heartbeats straight to Redis: the commands that Rollcall sends, without its other work. If
//! this writer is slower than the bare subscriber, the machine is saturated.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use rollcall::clock::Clock;
use rollcall::presence::{Kind, Unit};
use rollcall::store::partition_of;

use super::fleet::TIMEOUT;

const PARTITIONS: u16 = 16;
/// Batches in flight, each on a connection of its own.
const AT_ONCE: usize = 2;
/// Heartbeats that wait; more are dropped and count as not recorded.
const MAX_WAITING: usize = 65_536;

/// Heartbeats to be written, by partition.
#[derive(Default)]
struct Waiting {
    count: usize,
    parts: Vec<Part>,
}

#[derive(Clone, Default)]
struct Part {
    count: usize,
    sets: Vec<u8>,
    checks: Vec<u8>,
}

/// Writes heartbeats.
pub struct RedisWriter {
    kind: Kind,
    clock: Clock,
    waiting: Mutex<Waiting>,
    more: Notify,
    recorded: AtomicU64,
}

impl RedisWriter {
    /// Connects to the Redis at a port of this machine.
    pub async fn start(port: u16) -> anyhow::Result<Arc<RedisWriter>> {
        let writer = Arc::new(RedisWriter {
            kind: "detector".parse()?,
            clock: Clock::system(),
            waiting: Mutex::default(),
            more: Notify::new(),
            recorded: AtomicU64::new(0),
        });
        for _ in 0..AT_ONCE {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            let writer = writer.clone();
            tokio::spawn(async move { writer.write(stream).await.expect("redis goes on answering") });
        }
        Ok(writer)
    }

    /// How many heartbeats Redis has answered.
    pub fn recorded(&self) -> u64 {
        self.recorded.load(Relaxed)
    }

    /// Takes a heartbeat on this topic.
    pub fn heard(&self, topic: &[u8]) -> anyhow::Result<()> {
        let id = std::str::from_utf8(topic)?.split('/').nth(1).context("a topic of the fleet")?;
        let unit = Unit::new(self.kind.clone(), id.parse()?);
        let partition = partition_of(&unit, PARTITIONS);
        let (now, ttl) = (self.clock.now().as_millis(), TIMEOUT.as_millis() as i64);
        let mut waiting = self.waiting.lock().expect("nothing panics under this lock");
        if waiting.count >= MAX_WAITING {
            return Ok(());
        }
        waiting.count += 1;
        waiting.parts.resize(PARTITIONS.into(), Part::default());
        let part = &mut waiting.parts[usize::from(partition)];
        part.count += 1;
        command(&mut part.sets, 7);
        argument(&mut part.sets, &["SET"]);
        let (tag, name) = (TAGS[usize::from(partition)], ["detector:", id]);
        argument(&mut part.sets, &["rollcall:{p", tag, "}:alive:", name[0], name[1]]);
        number(&mut part.sets, now);
        argument(&mut part.sets, &["PX"]);
        number(&mut part.sets, ttl);
        argument(&mut part.sets, &["XX"]);
        argument(&mut part.sets, &["GET"]);
        number(&mut part.checks, now + ttl);
        argument(&mut part.checks, &name);
        drop(waiting);
        self.more.notify_one();
        Ok(())
    }

    /// Writes all waiting heartbeats, and waits for the answers.
    async fn write(&self, mut stream: TcpStream) -> anyhow::Result<()> {
        let mut answers = vec![0; 65_536];
        loop {
            let waiting = std::mem::take(&mut *self.waiting.lock().expect("nothing panics under this lock"));
            if waiting.count == 0 {
                self.more.notified().await;
                continue;
            }
            let (mut bytes, mut open) = (Vec::new(), waiting.count);
            for (partition, part) in waiting.parts.iter().enumerate().filter(|(_, part)| part.count > 0) {
                open += 1;
                bytes.extend_from_slice(&part.sets);
                command(&mut bytes, 4 + 2 * part.count);
                argument(&mut bytes, &["ZADD"]);
                argument(&mut bytes, &["rollcall:{p", TAGS[partition], "}:deadlines"]);
                argument(&mut bytes, &["XX"]);
                argument(&mut bytes, &["LT"]);
                bytes.extend_from_slice(&part.checks);
            }
            stream.write_all(&bytes).await?;
            while open > 0 {
                let read = stream.read(&mut answers).await?;
                ensure!(read > 0, "redis ended the connection");
                // A text for each SET, a number for each ZADD; both consist of digits.
                let begun = answers[..read].iter().filter(|byte| matches!(**byte, b'$' | b':')).count();
                ensure!(!answers[..read].contains(&b'-'), "redis refused something or a unit is not there");
                open = open.checked_sub(begun).context("redis answers what it was asked")?;
            }
            self.recorded.fetch_add(waiting.count as u64, Relaxed);
        }
    }
}

const TAGS: [&str; PARTITIONS as usize] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];

fn command(bytes: &mut Vec<u8>, arguments: usize) {
    bytes.extend_from_slice(format!("*{arguments}\r\n").as_bytes());
}

fn argument(bytes: &mut Vec<u8>, parts: &[&str]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    bytes.extend_from_slice(b"$");
    if length >= 10 {
        bytes.push(b'0' + (length / 10) as u8);
    }
    bytes.push(b'0' + (length % 10) as u8);
    bytes.extend_from_slice(b"\r\n");
    parts.iter().for_each(|part| bytes.extend_from_slice(part.as_bytes()));
    bytes.extend_from_slice(b"\r\n");
}

fn number(bytes: &mut Vec<u8>, mut number: i64) {
    let mut digits = [0; 20];
    let mut from = digits.len();
    while number > 0 {
        from -= 1;
        digits[from] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    argument(bytes, &[std::str::from_utf8(&digits[from..]).expect("digits are text")]);
}
