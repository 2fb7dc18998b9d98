//! The broker of a world: Mosquitto, or the broker within the instance, which starts and ends with the instance.

use std::path::Path;

use rollcall::simulate::servers::{Server, free_port};

pub enum Broker {
    Mosquitto(Server),
    /// The broker within the instance, on this port.
    Within(u16),
}

impl Broker {
    /// Starts Mosquitto. `more`: lines of its configuration.
    pub fn mosquitto(dir: &Path, port: u16, more: &str) -> Broker {
        Broker::Mosquitto(Server::mosquitto(&dir.join("broker"), port, more).unwrap())
    }

    pub fn within() -> Broker {
        Broker::Within(free_port().unwrap())
    }

    pub fn port(&self) -> u16 {
        match self {
            Broker::Mosquitto(server) => server.port(),
            Broker::Within(port) => *port,
        }
    }

    pub fn pid(&self) -> u32 {
        self.server().pid()
    }

    pub fn kill(&mut self) {
        match self {
            Broker::Mosquitto(server) => server.kill(),
            Broker::Within(_) => panic!("it dies with its instance"),
        }
    }

    fn server(&self) -> &Server {
        match self {
            Broker::Mosquitto(server) => server,
            Broker::Within(_) => panic!("it is not a process of its own"),
        }
    }
}
