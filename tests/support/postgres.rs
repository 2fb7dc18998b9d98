//! A PostgreSQL of the test's own, with a user and a database named `rollcall`, which a test may kill and restart.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use rollcall::history::{DatabaseAccess, DatabaseAddress};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::trust::TlsFiles;
use tokio_postgres::{Client, NoTls, Row};

use super::certificates::Authority;

pub const PASSWORD: &str = "open sesame";

pub struct Postgres {
    server: Server,
    /// The most bytes of a file.
    room: Option<u64>,
    // The last field, so that the server has ended when the directory is removed.
    dir: tempfile::TempDir,
}

impl Postgres {
    pub fn start() -> Postgres {
        Postgres::with(&[])
    }

    /// With further lines of its configuration.
    pub fn with(lines: &[&str]) -> Postgres {
        Postgres::made(lines, &[], None)
    }

    /// None of its files grows beyond so many bytes: to the server its disk is full then.
    pub fn with_room(bytes: u64) -> Postgres {
        // Files of the log of changes have their full size at once.
        Postgres::made(&["min_wal_size = 4MB"], &["--wal-segsize=1"], Some(bytes))
    }

    /// Speaks TLS, too, with a certificate of this authority.
    pub fn with_tls(authority: &Authority) -> Postgres {
        let mut postgres = Postgres::start();
        let data = postgres.dir.path().join("postgres/data");
        authority.certify_server(&data, false);
        run("chmod", &["600", &text(&data.join("server.key"))]);
        if is_root() {
            run("chown", &["postgres", &text(&data.join("server.key")), &text(&data.join("server.pem"))]);
        }
        let lines = "ssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.key'\n";
        let file = data.join("postgresql.auto.conf");
        let settings = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, settings + lines).unwrap();
        postgres.restart();
        postgres
    }

    fn made(lines: &[&str], of_data: &[&str], room: Option<u64>) -> Postgres {
        let dir = tempfile::tempdir().unwrap();
        run("chmod", &["755", &text(dir.path())]);
        let home = dir.path().join("postgres");
        std::fs::create_dir(&home).unwrap();
        std::fs::write(home.join("password"), PASSWORD).unwrap();
        if is_root() {
            run("chown", &["-R", "postgres", &text(&home)]);
        }
        let (data, password) = (text(&home.join("data")), text(&home.join("password")));
        let mut make = as_user(&text(&program("initdb")));
        make.extend(
            ["-D", &data, "-U", "rollcall", "-A", "scram-sha-256", "--pwfile", &password].map(str::to_owned),
        );
        make.extend(["--no-sync", "-E", "UTF8", "--locale=C"].map(str::to_owned));
        make.extend(of_data.iter().map(|option| (*option).to_owned()));
        run(&make[0], &make[1..].iter().map(String::as_str).collect::<Vec<_>>());
        let port = free_port().unwrap();
        let socket = text(&home);
        let mut settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{socket}'\n\
             shared_buffers = 64MB\nmax_connections = 40\nlogging_collector = off\n"
        );
        lines.iter().for_each(|line| settings += &format!("{line}\n"));
        let file = home.join("data/postgresql.auto.conf");
        std::fs::write(&file, settings).unwrap();
        let server = serve(dir.path(), port, room).unwrap();
        Postgres { server, room, dir }
    }

    pub fn port(&self) -> u16 {
        self.server.port()
    }

    pub fn url(&self) -> String {
        format!("postgres://rollcall@127.0.0.1:{}/postgres", self.port())
    }

    /// How history reaches it, in a schema of its own for each call.
    pub fn access(&self) -> DatabaseAccess {
        static SCHEMAS: AtomicU64 = AtomicU64::new(0);
        DatabaseAccess {
            address: DatabaseAddress::parse(&self.url()).unwrap(),
            password_file: Some(self.dir.path().join("postgres/password")),
            tls: TlsFiles::default(),
            schema: format!("fleet_{}", SCHEMAS.fetch_add(1, Ordering::Relaxed)),
            statement_timeout: std::time::Duration::from_secs(30),
        }
    }

    /// A connection of another program, with this schema.
    pub async fn client(&self, schema: &str) -> Client {
        let mut config: tokio_postgres::Config = self.url().parse().unwrap();
        let (client, connection) = config.password(PASSWORD).connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
            .batch_execute(&format!("SET search_path TO \"{schema}\"; SET TimeZone TO 'UTC'"))
            .await
            .unwrap();
        client
    }

    /// The rows of a query; none while there is no table.
    pub async fn rows(&self, schema: &str, query: &str) -> Vec<Row> {
        self.client(schema).await.query(query, &[]).await.unwrap_or_default()
    }

    /// Ends the server like a power cut.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Gives the server a larger disk, and starts it again.
    pub fn make_room(&mut self) {
        self.room = None;
        self.restart();
    }

    /// Starts the server again on its port with its data. The processes of the old one take a moment to notice its end.
    pub fn restart(&mut self) {
        self.server.kill();
        let port = self.port();
        let started = (0..50).find_map(|_| serve(self.dir.path(), port, self.room).ok());
        self.server = started.expect("it starts once the old processes have ended");
    }
}

fn serve(dir: &Path, port: u16, room: Option<u64>) -> std::io::Result<Server> {
    let data = text(&dir.join("postgres/data"));
    let mut command = match room {
        Some(bytes) => vec!["prlimit".to_owned(), format!("--fsize={bytes}"), "--".to_owned()],
        None => Vec::new(),
    };
    command.extend(as_user(&text(&program("postgres"))));
    command.extend(["-D".to_owned(), data]);
    Server::start(&command[0], &command[1..], dir, port, "ready to accept connections")
}

/// PostgreSQL refuses to run as root.
fn as_user(program: &str) -> Vec<String> {
    let change = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"];
    let change = change.into_iter().filter(|_| is_root());
    change.map(str::to_owned).chain([program.to_owned()]).collect()
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// A program of PostgreSQL: the one in the path, or of the newest one of Debian, which keeps them out of the path.
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file());
    let of_debian = || {
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
        let newest = versions.map(|one| one.path()).max_by_key(|path| number(path));
        newest.map(|path| path.join("bin").join(name)).filter(|path| path.is_file())
    };
    in_path.or_else(of_debian).unwrap_or_else(|| name.into())
}

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output();
    let done =
        done.unwrap_or_else(|error| panic!("{program} could not be started ({error}); is it installed?"));
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
