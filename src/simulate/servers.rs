//! Private servers: real programs on free ports of the loopback address, each in a directory of its own. Dropping a
//! [`Server`] ends its program through its own handle.
//!
//! # Why each has an exit cleanup
//! A killed process drops no values, and its servers would run for ever. The cleanup is a shell that waits for the end
//! of a pipe, which the kernel closes however this process ends. Servers and cleanups are in process groups of their
//! own: Ctrl-C reaches only this process, which ends them after its work.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Mutex;

/// How long a server may take to print that it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Ports below the range that the system assigns to connections.
const PORTS: Range<u16> = 10_000..32_000;

/// The number of ports that stay claimed; the servers of older claims have started long ago.
const CLAIMS: usize = 200;

/// A free port of the loopback address; no other call in any process gets it for a while.
pub fn free_port() -> io::Result<u16> {
    free_ports(1, 0)
}

/// A port for a node of a Redis Cluster: the port is free, and so is its bus port, ten thousand above.
pub fn free_cluster_port() -> io::Result<u16> {
    free_ports(1, 10_000)
}

/// The first of `count` consecutive free ports; the port `above` each of them is free, too.
pub fn free_ports(count: u16, above: u16) -> io::Result<u16> {
    let claim_both = |port: u16| claim(port) && (above == 0 || claim(port + above));
    let mut tried = (0..1000).map(|_| rand::random_range(PORTS.start..PORTS.end - above - count));
    let first = tried.find(|first| (*first..first + count).all(claim_both));
    first.ok_or_else(|| io::Error::other("no ports of the loopback address are free"))
}

/// Claims a port; returns whether that worked. The UDP port of the same number is the claim: the system gives it to one
/// process only, and takes it back when the process ends.
fn claim(port: u16) -> bool {
    static CLAIMED: Mutex<VecDeque<UdpSocket>> = Mutex::new(VecDeque::new());
    let at = (Ipv4Addr::LOCALHOST, port);
    let Ok(claim) = UdpSocket::bind(at) else { return false };
    let is_free = TcpListener::bind(at).is_ok();
    if is_free {
        let mut claimed = CLAIMED.lock();
        claimed.push_back(claim);
        let excess = claimed.len().saturating_sub(CLAIMS);
        claimed.drain(..excess);
    }
    is_free
}

/// Runs a script if this process ends without dropping the value.
pub struct ExitCleanup(Child);

impl ExitCleanup {
    /// Prepares to run `script`, for which `subject` is `$1`.
    pub fn new(script: &str, subject: impl AsRef<OsStr>) -> io::Result<ExitCleanup> {
        let mut shell = Command::new("sh");
        // The input gets no data; the shell waits for its end.
        shell.arg("-c").arg(format!("read -r _; {script}")).arg("cleanup").arg(subject);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(ExitCleanup(shell.process_group(0).spawn()?))
    }
}

impl Drop for ExitCleanup {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running server, which ends with this value.
pub struct Server {
    child: Child,
    cleanup: Option<ExitCleanup>,
    port: u16,
    program: String,
    dir: PathBuf,
}

impl Server {
    /// Starts `program`, a name or a path, with `args` in `dir` and waits until a line of its output
    /// holds `ready`. Its output goes to `<name of the program>.log` in `dir`.
    pub fn start(program: &str, args: &[String], dir: &Path, port: u16, ready: &str) -> io::Result<Server> {
        std::fs::create_dir_all(dir)?;
        let mut child = Command::new(find(program))
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("{program} could not be started ({error}); is it installed?"),
                )
            })?;
        let stdout = child.stdout.take().expect("it was piped");
        let stderr = child.stderr.take().expect("it was piped");
        let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = dir.join(format!("{name}.log"));
        // Build the value before other steps that can fail, so that a failure also ends the server.
        let mut server = Server { child, cleanup: None, port, program: name, dir: dir.to_owned() };
        server.cleanup = Some(ExitCleanup::new("kill -9 \"$1\"", server.pid().to_string())?);
        let log = File::options().create(true).append(true).open(log)?;
        let (lines, seen) = mpsc::channel();
        follow(stdout, log.try_clone()?, lines.clone());
        follow(stderr, log, lines);
        server.wait_until(ready, &seen)?;
        Ok(server)
    }

    /// A Redis server with expiry events, without persistence; `args` come last and win.
    pub fn redis(dir: &Path, port: u16, args: &[&str]) -> io::Result<Server> {
        Server::redis_after(&[], dir, port, args)
    }

    /// A Redis server with a command `before` its own command line, for example to give it another clock.
    pub fn redis_after(before: &[String], dir: &Path, port: u16, args: &[&str]) -> io::Result<Server> {
        let port_text = port.to_string();
        let mut all: Vec<&str> = before.iter().map(String::as_str).collect();
        all.extend(["redis-server", "--port", &port_text, "--bind", "127.0.0.1", "--save", ""]);
        all.extend([
            "--appendonly",
            "no",
            "--notify-keyspace-events",
            "Ex",
            "--maxmemory-policy",
            "noeviction",
        ]);
        all.extend(args);
        let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        Server::start(&all[0], &all[1..], dir, port, "Ready to accept connections")
    }

    /// A Mosquitto broker for anonymous clients with raised queue limits and persistent sessions
    /// in memory; `more` is appended to its configuration.
    pub fn mosquitto(dir: &Path, port: u16, more: &str) -> io::Result<Server> {
        std::fs::create_dir_all(dir)?;
        let file = dir.join("mosquitto.conf");
        let limits = "max_inflight_messages 1000\nmax_queued_messages 100000\nset_tcp_nodelay true\n";
        // Started as root, Mosquitto would change to another user, which a user namespace refuses.
        let text = format!(
            "user root\nlistener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n{limits}{more}\n"
        );
        std::fs::write(&file, text)?;
        let args = ["-c".to_owned(), file.to_string_lossy().into_owned()];
        Server::start("mosquitto", &args, dir, port, "running")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the server at once with SIGKILL.
    pub fn kill(&mut self) {
        // End the cleanup first: after the end of the server, its process id may belong to another process.
        self.cleanup = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn wait_until(&mut self, ready: &str, seen: &mpsc::Receiver<String>) -> io::Result<()> {
        let mut last = String::new();
        loop {
            match seen.recv_timeout(START_TIMEOUT) {
                Ok(line) if line.contains(ready) => return Ok(()),
                Ok(line) => last = line,
                Err(_) => {
                    let log = self.dir.join(format!("{}.log", self.program));
                    return Err(io::Error::other(format!(
                        "{} did not become ready; its last line was {last:?}, all lines are in {}",
                        self.program,
                        log.display()
                    )));
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn follow(from: impl io::Read + Send + 'static, mut log: File, lines: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = writeln!(log, "{line}");
            let _ = lines.send(line);
        }
    });
}

/// The path of a program. Debian installs servers in directories outside the path of an ordinary user.
fn find(program: &str) -> PathBuf {
    let usual = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&usual)
        .chain(more)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| program.into())
}
