//! Devices that keep a diary: they send heartbeats over real MQTT at QoS 1 and write down what the broker acknowledged
//! and when. Devices share a few connections; a lost connection is replaced.
//!
//! The packets are made by hand, because no client library tells which heartbeats the broker certainly has, and which
//! it may have. No heartbeat is repeated: a device that was not heard is not heard until its next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use rollcall::clock::{Clock, Timestamp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::diary::{Beat, Device};
use super::{PERIOD, TIMEOUT};

const CONNECTIONS: usize = 4;
const TICK: Duration = Duration::from_millis(20);
const RECONNECT: Duration = Duration::from_millis(100);
/// How long a broker may take to accept a connection, and heartbeats.
const MAX_WAIT: Duration = Duration::from_secs(3);

/// The fleet. It sends heartbeats until it is dropped.
pub struct Fleet {
    devices: Arc<Mutex<Vec<Device>>>,
    _connections: JoinSet<()>,
}

impl Fleet {
    /// A fleet that connects to the broker on `port` of the loopback address.
    pub fn start(port: u16, units: impl IntoIterator<Item = String>) -> Fleet {
        let devices = Arc::new(Mutex::new(Vec::new()));
        let mut connections = JoinSet::new();
        for number in 0..CONNECTIONS {
            connections.spawn(speak(port, number, devices.clone()));
        }
        let fleet = Fleet { devices, _connections: connections };
        units.into_iter().for_each(|unit| fleet.join(&unit, &format!("units/{unit}/heartbeat")));
        fleet
    }

    /// Adds a device, which sends at once.
    pub fn join(&self, unit: &str, topic: &str) {
        let mut devices = self.devices();
        // Spread over the period.
        let next = now() + PERIOD.mul_f64((devices.len() % 16) as f64 / 16.0);
        let (unit, topic) = (unit.to_owned(), topic.to_owned());
        devices.push(Device { unit, topic, beats: Vec::new(), silences: Vec::new(), next });
    }

    pub fn devices(&self) -> MutexGuard<'_, Vec<Device>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a device, for example its place.
    pub fn with(&self, unit: &str, change: impl FnOnce(&mut Device)) {
        change(self.devices().iter_mut().find(|device| device.unit == unit).expect("it was made"));
    }

    /// Makes the device silent from now on.
    pub fn silence(&self, unit: &str) {
        self.with(unit, |device| device.silences.push((now(), Timestamp::NEVER)));
    }

    /// Makes the device send again.
    pub fn wake(&self, unit: &str) {
        self.with(unit, |device| device.wake(now()));
    }

    /// Plans the next `span`: at random moments some devices die, some return, some
    /// pause, and most live.
    pub fn plan(&self, chance: &mut StdRng, span: Duration) {
        let begin = now();
        for device in self.devices().iter_mut() {
            let at = begin + span.mul_f64(chance.random());
            if device.is_silent(begin) {
                if chance.random_bool(0.3) {
                    device.wake(at);
                }
                continue;
            }
            match chance.random_range(0..100) {
                // Death.
                0..12 => device.silences.push((at, Timestamp::NEVER)),
                // Return.
                12..24 => device.silences.push((at, at + TIMEOUT.mul_f64(chance.random_range(1.2..2.5)))),
                // Pause.
                24..40 => device.silences.push((at, at + TIMEOUT.mul_f64(chance.random_range(0.2..0.5)))),
                _ => {}
            }
        }
    }

    /// Makes some dead devices send again.
    pub fn wake_some(&self, chance: &mut StdRng) -> Vec<String> {
        let now = now();
        let mut woken = Vec::new();
        for device in self.devices().iter_mut().filter(|device| device.is_dead(now)) {
            if chance.random_bool(0.5) {
                device.wake(now);
                woken.push(device.unit.clone());
            }
        }
        woken
    }

    /// How many heartbeats the broker has.
    pub fn spoken(&self) -> usize {
        self.devices().iter().flat_map(|device| &device.beats).filter(|beat| beat.acked.is_some()).count()
    }
}

pub fn now() -> Timestamp {
    Clock::system().now()
}

async fn speak(port: u16, number: usize, devices: Arc<Mutex<Vec<Device>>>) {
    loop {
        // After any failure the device connects again.
        let _ = talk(port, number, &devices).await;
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Serves a connection until it is lost.
async fn talk(port: u16, number: usize, devices: &Mutex<Vec<Device>>) -> std::io::Result<()> {
    let mut stream = timeout(MAX_WAIT, TcpStream::connect(("127.0.0.1", port))).await??;
    stream.set_nodelay(true)?;
    let hello = hello(&format!("devices-{number}-{:08x}", rand::random::<u32>()));
    timeout(MAX_WAIT, stream.write_all(&hello)).await??;
    let mut welcome = [0; 4];
    timeout(MAX_WAIT, stream.read_exact(&mut welcome)).await??;
    let (mut reader, mut writer) = stream.split();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting: HashMap<u16, (usize, usize)> = HashMap::new();
    let (mut packet, mut bytes, mut chunk) = (0u16, Vec::new(), [0; 4096]);
    loop {
        tokio::select! {
            read = reader.read(&mut chunk) => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                bytes.extend_from_slice(&chunk[..read]);
                let acked = now();
                let mut devices = devices.lock().unwrap_or_else(PoisonError::into_inner);
                // The broker sends only acknowledgements, of four bytes each.
                let whole = bytes.len() / 4 * 4;
                for answer in bytes[..whole].chunks_exact(4).filter(|answer| answer[0] == 0x40) {
                    let id = u16::from_be_bytes([answer[2], answer[3]]);
                    if let Some((device, beat)) = waiting.remove(&id) {
                        devices[device].beats[beat].acked = Some(acked);
                    }
                }
                bytes.drain(..whole);
            }
            _ = ticks.tick() => {
                let mut out = Vec::new();
                write_beats(number, &mut devices.lock().unwrap_or_else(PoisonError::into_inner), |topic, at| {
                    packet = packet % u16::MAX + 1;
                    waiting.insert(packet, at);
                    out.extend(publish(topic, packet));
                });
                timeout(MAX_WAIT, writer.write_all(&out)).await??;
            }
        }
    }
}

/// Writes down the heartbeats that are due on this connection, and returns them.
fn write_beats(number: usize, devices: &mut [Device], mut send: impl FnMut(&str, (usize, usize))) {
    let sent = now();
    for (n, device) in devices.iter_mut().enumerate().skip(number).step_by(CONNECTIONS) {
        if device.next > sent {
            continue;
        }
        device.next = sent + PERIOD;
        if !device.is_silent(sent) {
            device.beats.push(Beat { sent, acked: None });
            send(&device.topic, (n, device.beats.len() - 1));
        }
    }
}

/// CONNECT of MQTT 3.1.1, a clean session that is never pinged.
pub fn hello(id: &str) -> Vec<u8> {
    let mut rest = vec![0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0];
    rest.extend((id.len() as u16).to_be_bytes());
    rest.extend(id.bytes());
    let mut packet = vec![0x10, rest.len() as u8];
    packet.extend(rest);
    packet
}

/// PUBLISH at QoS 1, with `{}`.
pub fn publish(topic: &str, packet: u16) -> Vec<u8> {
    let length = u8::try_from(2 + topic.len() + 2 + 2).ok().filter(|length| *length < 128);
    let mut out = vec![0x32, length.expect("topics of tests are short")];
    out.extend((topic.len() as u16).to_be_bytes());
    out.extend(topic.bytes());
    out.extend(packet.to_be_bytes());
    out.extend(b"{}");
    out
}
