//! The program on the command line: its exit codes and its output.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rollcall::alerting::Example;
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{
    Cause, Change, Facts, IndexChange, KeyChange, Labels, Lifecycle, OfflineRecord, RecordId, Silence,
    Snapshot, Unit,
};
use rollcall::simulate::servers::{Server, free_cluster_port, free_port};
use rollcall::simulate::webhook_sink::{Options, WebhookSink};
use rollcall::store::Examine;
use rollcall::store::Layout;
use rollcall::store::embedded::EmbeddedEngine;
use rollcall::store::redis::RedisEngine;
use rollcall::store::{
    Capacity, Destinations, Discarded, Engine, Group, Join, OutboxEvent, Pace, Queries, StoredDeliveries,
    StoredGroups,
};
use rollcall::telemetry::Telemetry;
use serde_json::Value;

/// How long the program may take to print the next line.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Runs the program in `dir`, with no variables of Rollcall but those given.
pub fn rollcall(dir: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    command(dir, arguments, variables).output().unwrap()
}

fn command(dir: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ROLLCALL_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command.current_dir(dir).args(arguments).envs(variables.iter().copied());
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The outcomes of `check --json` by name.
fn outcomes(output: &Output) -> Vec<(String, String)> {
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let word = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    findings.iter().map(|finding| (word(finding, "name"), word(finding, "outcome"))).collect()
}

#[test]
fn a_wrong_filter_of_the_log_ends_the_command_and_says_what_would_be_right() {
    let dir = tempfile::tempdir().unwrap();
    for (variables, code, option) in [
        ([("RUST_LOG", "loud")], 78, "RUST_LOG: \"loud\""),
        ([("ROLLCALL_LOG__LEVEL", "rollcall=loud")], 78, "log.level: \"rollcall=loud\""),
    ] {
        let output = rollcall(dir.path(), &["serve"], &variables);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(printed.contains(&format!("{option} is not a level; write off, error, warn")), "{printed}");
    }
}

#[test]
fn a_bad_configuration_ends_with_78_and_a_bad_command_line_with_2() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rollcall.toml"), "[mqtt]\nqso = 1\n").unwrap();
    for command in [&["serve"][..], &["check"], &["send-test", "--receiver", "hook"]] {
        let output = rollcall(dir.path(), command, &[]);
        let printed = text(&output.stderr) + &text(&output.stdout);
        assert_eq!(output.status.code(), Some(78), "{command:?}: {printed}");
        assert!(printed.contains("rollcall.toml:2:1: unknown key `qso`; did you mean `qos`?"), "{printed}");
    }
    let output = rollcall(dir.path(), &["serv"], &[]);
    assert_eq!(output.status.code(), Some(2));
    std::fs::write(dir.path().join("rollcall.toml"), "[[kind]]\nname = \"pump\"\ntimeout = \"401d\"\n")
        .unwrap();
    for command in [&["serve"][..], &["check"], &["units"], &["silence", "list"]] {
        let output = rollcall(dir.path(), command, &[]);
        let printed = text(&output.stderr) + &text(&output.stdout);
        assert_eq!(output.status.code(), Some(78), "{command:?}: {printed}");
        assert!(
            printed.contains("rollcall.toml:3: kind \"pump\": timeout: 401d is out of bounds"),
            "{printed}"
        );
    }
    let output = rollcall(dir.path(), &["check", "--config", "gone.toml"], &[]);
    assert_eq!(output.status.code(), Some(78));
    let output = rollcall(dir.path(), &["check"], &[("ROLLCALL_CONFIG", "gone.toml")]);
    assert!(text(&output.stdout).contains("gone.toml cannot be read"));
}

#[test]
fn an_offline_check_asks_no_server_and_refuses_what_serve_would_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rollcall.toml");
    // No server is there.
    let away = "engine.url = \"redis://127.0.0.1:1\"\nmqtt.url = \"mqtt://127.0.0.1:1\"\n";
    for (text, code, says) in [
        (away.to_owned(), 0, "ok    configuration: rollcall.toml is valid"),
        (format!("{away}http.listen = \"0.0.0.0:8080\"\n"), 78, "there is no [[http.token]]"),
        (format!("{away}engine.urll = \"\"\n"), 78, "unknown key `urll`"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = rollcall(dir.path(), &["check", "--offline"], &[]);
        let printed = self::text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(printed.contains(says) && !printed.contains("engine: "), "{printed}");
    }
    assert_eq!(
        rollcall(dir.path(), &["check", "--offline", "--config", "gone.toml"], &[]).status.code(),
        Some(78)
    );
}

#[test]
fn the_version_names_the_commit_of_the_clone_that_it_was_built_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let printed = text(&rollcall(root, &["--version"], &[]).stdout);
    assert!(printed.starts_with(concat!("rollcall ", env!("CARGO_PKG_VERSION"), " (")), "{printed}");
    if root.join(".git").exists() {
        let commit = printed.split_once("(commit ").and_then(|(_, rest)| rest.split_once(", with"));
        let commit = commit.unwrap_or_else(|| panic!("no commit: {printed}")).0;
        // Another one may be checked out since.
        let known = Command::new("git")
            .args(["cat-file", "-e", &format!("{commit}^{{commit}}")])
            .current_dir(root)
            .output()
            .unwrap();
        assert!(known.status.success(), "{commit}: {}", text(&known.stderr));
    }
}

#[tokio::test]
async fn an_offline_check_refuses_the_fleet_of_a_directory_that_serve_would_refuse_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (file, fleet) = (dir.path().join("rollcall.toml"), dir.path().join("fleet"));
    let engine = "engine.type = \"embedded\"\nengine.path = \"fleet\"\n";
    let check = |more: &str| {
        std::fs::write(&file, format!("{engine}{more}")).unwrap();
        let output = rollcall(dir.path(), &["check", "--offline"], &[]);
        (output.status.code(), text(&output.stdout))
    };
    assert_eq!(check("").0, Some(0));
    assert!(!fleet.exists(), "it made the fleet");
    let config = rollcall::store::embedded::EmbeddedConfig { path: fleet.clone(), partitions: Some(16) };
    drop(EmbeddedEngine::open(&config, telemetry()).await.unwrap());
    let database = fleet.join("rollcall.db");
    let layout = |set: Option<i32>| -> i32 {
        let connection = rusqlite::Connection::open(&database).unwrap();
        if let Some(number) = set {
            connection.pragma_update(None, "user_version", number).unwrap();
        }
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    let ours = layout(None);
    for (stored, more, code, says) in [
        (ours, "", 0, "is valid"),
        (ours, "engine.partitions = 64\n", 1, "was created with 16 partitions"),
        (ours + 1, "", 1, "which is a newer version's"),
        (ours - 1, "", 1, "rollcall export"),
    ] {
        layout(Some(stored));
        let before = std::fs::read(&database).unwrap();
        let (ended, printed) = check(more);
        assert_eq!(ended, Some(code), "{printed}");
        assert!(printed.contains(says), "{printed}");
        assert!(std::fs::read(&database).unwrap() == before, "layout {stored}: the file was changed");
    }
}

#[test]
fn check_passes_when_everything_is_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &["--save", "60 1"]).unwrap();
    let broker = Server::mosquitto(&dir.path().join("mqtt"), free_port().unwrap(), "").unwrap();
    let redis_url = format!("redis://127.0.0.1:{}/0", redis.port());
    let broker_url = format!("mqtt://127.0.0.1:{}", broker.port());
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let variables = [
        ("ROLLCALL_ENGINE__URL", redis_url.as_str()),
        ("ROLLCALL_MQTT__URL", broker_url.as_str()),
        ("ROLLCALL_HTTP__LISTEN", listen.as_str()),
    ];
    let output = rollcall(dir.path(), &["check", "--json"], &variables);
    let found = outcomes(&output);
    assert_eq!(output.status.code(), Some(0), "{found:?}");
    // One finding differs: with every option at its default there is no receiver.
    let expected = [("configuration", "ok"), ("receivers", "warn"), ("engine", "ok"), ("mqtt", "ok")];
    assert_eq!(found, expected.map(|(name, outcome)| (name.to_owned(), outcome.to_owned())));
    let output = rollcall(dir.path(), &["check"], &variables);
    assert!(text(&output.stdout).starts_with(
        "ok    configuration: every option has its default: neither rollcall.toml nor /etc/rollcall/rollcall.toml exists\n\
         warn  receivers: no receiver is configured: no notification will be sent; "
    ));
}

#[test]
fn every_example_of_a_notification_can_be_rendered_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let config = "receiver = [{ name = \"hook\", type = \"webhook\", url = \"http://127.0.0.1:9/\" }]\n";
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    for example in Example::ALL {
        let arguments = ["template", "render", "--receiver", "hook", "--example", example.as_str()];
        let output = rollcall(dir.path(), &arguments, &[]);
        assert!(output.status.success(), "{example:?}: {}", text(&output.stderr));
        assert!(text(&output.stdout).starts_with('{'), "{example:?}: {}", text(&output.stdout));
    }
}

#[test]
fn the_method_and_the_headers_of_a_template_are_shown_beside_its_text_and_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"
        [[receiver]]
        name = "sms"
        type = "webhook"
        format = "template"
        method = "PUT"
        url = "https://sms.example.org/a-path-that-may-be-secret"
        headers = { x-key = "s3cret-s3cret", x-priority = "{% if status == 'firing' %}high{% else %}low{% endif %}" }
        body = '{"text": {{ title | tojson }}}'
    "#;
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    for (example, priority) in [("offline", "high"), ("recovery", "low")] {
        let arguments = ["template", "render", "--receiver", "sms", "--example", example];
        let output = rollcall(dir.path(), &arguments, &[]);
        let head = format!("PUT https://sms.example.org\nx-key: ***\nx-priority: {priority}\n");
        assert_eq!(text(&output.stderr), head, "{example}");
        assert!(text(&output.stdout).starts_with("{\"text\": "), "{example}: {}", text(&output.stdout));
    }
}

#[test]
fn check_fails_for_an_address_that_another_program_has_and_for_a_directory_that_cannot_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let (used, free) = (TcpListener::bind("127.0.0.1:0").unwrap(), free_port().unwrap());
    let config = format!(
        "engine = {{ type = \"embedded\", path = \"/proc/x\" }}\nbroker.listen = \"127.0.0.1:{free}\"\n\
         http.listen = \"{}\"\n",
        used.local_addr().unwrap()
    );
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    let output = rollcall(dir.path(), &["check"], &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    for line in ["FAIL  engine: /proc/x cannot be created", "FAIL  http: 127.0.0.1:"] {
        assert!(printed.contains(line), "{printed}");
    }
}

#[test]
fn check_fails_where_the_in_process_broker_would_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let pem = |name: &str| {
        let one = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(dir.path().join(format!("{name}.pem")), one.cert.pem()).unwrap();
        let key = dir.path().join(format!("{name}.key"));
        std::fs::write(&key, one.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(key, Permissions::from_mode(0o600)).unwrap();
    };
    ["own", "other"].iter().for_each(|name| pem(name));
    let used = TcpListener::bind("127.0.0.1:0").unwrap();
    let (used, free, tls) = (used.local_addr().unwrap(), free_port().unwrap(), free_port().unwrap());
    let tls = |key: &str| {
        format!("tls_listen = \"127.0.0.1:{tls}\"\ncert_file = \"own.pem\"\nkey_file = \"{key}.key\"")
    };
    let cases = [
        (tls("own"), "ok"),
        (tls("other"), "fail"),
        (format!("listen = \"127.0.0.1:{free}\"\npassword_file = \"gone\""), "fail"),
        (format!("listen = \"127.0.0.1:{free}\"\nrules_file = \"gone\""), "fail"),
        (format!("listen = \"{used}\""), "fail"),
    ];
    for (broker, outcome) in cases {
        let config = format!(
            "engine = {{ type = \"embedded\", path = \"fleet\" }}\nhttp.listen = \"127.0.0.1:{}\"\n[broker]\n{broker}\n",
            free_port().unwrap()
        );
        std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
        let output = rollcall(dir.path(), &["check", "--json"], &[]);
        let found = ("broker".to_owned(), outcome.to_owned());
        assert!(outcomes(&output).contains(&found), "{broker}: {}", text(&output.stdout));
        assert_eq!(output.status.code(), Some(i32::from(outcome == "fail")), "{broker}");
    }
}

#[test]
fn check_warns_of_a_route_that_is_never_active() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "engine = {{ type = \"embedded\", path = \"fleet\" }}\nbroker.listen = \"127.0.0.1:{}\"\n\
         http.listen = \"127.0.0.1:{}\"\n\
         time = [{{ name = \"past\", years = [\"2020\"] }}, {{ name = \"night\", times = [{{ start_time = \"00:00\", \
                             end_time = \"06:00\" }}] }}]\n\
         route.routes = [{{ matchers = [\"site=a\"], active_times = [\"past\"] }}, {{ active_times = [\"night\"] }}]\n",
        free_port().unwrap(),
        free_port().unwrap()
    );
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    let printed = text(&rollcall(dir.path(), &["check"], &[]).stdout);
    assert!(printed.contains("warn  routes: route.routes[0] is muted until after 20"), "{printed}");
    assert!(!printed.contains("route.routes[1]"), "{printed}");
}

#[test]
fn check_warns_of_a_broker_that_admits_anonymous_clients_under_ids_like_rollcalls() {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().join("users");
    let made =
        Command::new("mosquitto_passwd").args(["-c", "-b"]).arg(&users).args(["rollcall", "secret"]).status();
    assert!(made.unwrap().success());
    std::fs::write(dir.path().join("password"), "secret").unwrap();
    std::fs::set_permissions(dir.path().join("password"), Permissions::from_mode(0o600)).unwrap();
    // Mosquitto admits every client here; if a setting comes twice, the last one counts.
    for (more, warned) in [("", true), ("allow_anonymous false\n", false)] {
        let more = format!("password_file {}\n{more}", users.display());
        let place = dir.path().join(format!("mqtt-{warned}"));
        let broker = Server::mosquitto(&place, free_port().unwrap(), &more).unwrap();
        let text = format!(
            "engine.type = \"embedded\"\n\
             mqtt = {{ url = \"mqtt://127.0.0.1:{}\", username = \"rollcall\", password_file = \"password\" }}\n",
            broker.port()
        );
        std::fs::write(dir.path().join("rollcall.toml"), text).unwrap();
        let found = outcomes(&rollcall(dir.path(), &["check", "--json"], &[]));
        assert_eq!(found.iter().find(|(name, _)| name == "mqtt").unwrap().1, "ok");
        assert_eq!(found.contains(&("client ids".to_owned(), "warn".to_owned())), warned, "{found:?}");
    }
}

#[test]
fn check_names_each_dependency_that_fails_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let weak =
        ["--requirepass", "12345678", "--notify-keyspace-events", "", "--maxmemory-policy", "allkeys-lru"];
    let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &weak).unwrap();
    let broker = Server::mosquitto(&dir.path().join("mqtt"), free_port().unwrap(), "").unwrap();
    std::fs::write(dir.path().join("password"), "12345678\n").unwrap();
    std::fs::set_permissions(dir.path().join("password"), Permissions::from_mode(0o600)).unwrap();
    let dead = free_port().unwrap();
    let config = format!(
        r#"
        engine = {{ url = "redis://127.0.0.1:{}", password_file = "password" }}
        mqtt.url = "mqtt://127.0.0.1:{}"
        receiver = [
            {{ name = "hook", type = "webhook", url = "http://127.0.0.1:{dead}", secret = "whsec_MfKQ9r8GKYqrTwjU" }},
            {{ name = "mail", type = "email", smtp = "smtp://127.0.0.1:{dead}", from = "a@b.c", to = ["d@e.f"] }},
        ]
        route.receivers = ["hook", "mail"]
        "#,
        redis.port(),
        broker.port()
    );
    std::fs::write(dir.path().join("rollcall.toml"), &config).unwrap();
    let output = rollcall(dir.path(), &["check", "--json"], &[]);
    let expected = [
        ("configuration", "ok"),
        ("engine", "ok"),
        ("persistence_off", "warn"),
        ("eviction_possible", "fail"),
        ("notifications_off", "warn"),
        ("mqtt", "ok"),
        ("receiver hook", "fail"),
        ("receiver mail", "fail"),
    ];
    let expected = expected.map(|(name, outcome)| (name.to_owned(), outcome.to_owned()));
    assert_eq!(outcomes(&output), expected, "{}", text(&output.stdout));
    assert_eq!(output.status.code(), Some(1));
    let (events, keys) = settled(&redis, "12345678");
    assert_eq!((events.as_str(), keys), ("", 0), "a check changes nothing");

    std::fs::write(dir.path().join("password"), "wrong\n").unwrap();
    let dead = format!("mqtt://127.0.0.1:{dead}");
    let output = rollcall(dir.path(), &["check"], &[("ROLLCALL_MQTT__URL", &dead)]);
    let printed = text(&output.stdout);
    assert!(printed.contains("FAIL  engine: redis at 127.0.0.1:"), "{printed}");
    assert!(printed.contains("refused the login; check engine.url and engine.password_file"), "{printed}");
    assert!(printed.contains("FAIL  mqtt: "), "{printed}");
    assert!(!printed.contains("wrong"), "{printed}");
}

#[test]
fn a_command_whose_reader_is_gone_ends_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for arguments in [&["route", "show"][..], &["template", "render", "--receiver", "hook"], &["check"]] {
        std::fs::write(
            dir.path().join("rollcall.toml"),
            "receiver = [{ name = \"hook\", type = \"webhook\", url = \"http://127.0.0.1:1/\" }]\n\
             route.receivers = [\"hook\"]\nengine = { type = \"embedded\", path = \"fleet\" }\n",
        )
        .unwrap();
        let mut command = command(dir.path(), arguments, &[]);
        let ended = command.stdout(writer.try_clone().unwrap()).output().unwrap();
        let said = text(&ended.stderr);
        assert!(ended.status.success() && !said.contains("panicked"), "{arguments:?}: {said}");
    }
}

#[test]
fn check_reads_the_directory_of_an_embedded_fleet_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port().unwrap();
    let config = format!(
        "engine = {{ type = \"embedded\", path = \"fleet\" }}\nbroker.listen = \"127.0.0.1:{port}\"\n"
    );
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    let check = || text(&rollcall(dir.path(), &["check"], &[]).stdout);
    let printed = check();
    assert!(
        printed.contains("ok    engine: fleet does not exist yet; it is created at the start (SQLite "),
        "{printed}"
    );
    assert!(!dir.path().join("fleet").exists());
    std::fs::create_dir(dir.path().join("fleet")).unwrap();
    std::fs::write(dir.path().join("fleet/rollcall.db"), "Dear diary, today nothing happened.\n".repeat(200))
        .unwrap();
    let printed = check();
    assert!(
        printed.contains("FAIL  engine: the fleet in fleet is damaged (file is not a database"),
        "{printed}"
    );
    let there = std::fs::read_dir(dir.path().join("fleet")).unwrap().count();
    assert_eq!(there, 1, "nothing but the file");
}

/// The setting of keyspace events, and the number of keys.
fn settled(redis: &Server, password: &str) -> (String, usize) {
    let url = format!("redis://:{password}@127.0.0.1:{}/0", redis.port());
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let events: (String, String) =
        redis::cmd("CONFIG").arg(&["GET", "notify-keyspace-events"]).query(&mut connection).unwrap();
    (events.1, redis::cmd("DBSIZE").query(&mut connection).unwrap())
}

#[test]
fn check_names_the_rights_that_the_user_of_redis_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let server = |name: &str, args: &[&str]| {
        Server::redis(&dir.path().join(name), free_cluster_port().unwrap(), args).unwrap()
    };
    let check = |redis: &Server| {
        let url = format!("redis://fleet:secret@127.0.0.1:{}/0", redis.port());
        let output = rollcall(dir.path(), &["check"], &[("ROLLCALL_ENGINE__URL", &url)]);
        assert!(!text(&output.stdout).contains("secret"));
        text(&output.stdout)
    };
    let login = "--user fleet on >secret ~rollcall:* ";
    let user = |rights: &str| format!("{login}{rights}").split(' ').map(str::to_owned).collect::<Vec<_>>();
    let cases = [
        (
            "&* +@all -config",
            "ok    engine: ",
            "warn  notifications_off: redis does not let its settings be read",
        ),
        (
            "resetchannels +@all",
            "ok    engine: ",
            "warn  notifications_off: notifications of expiry cannot be heard",
        ),
        ("&* +@all -eval", "FAIL  engine: ", "lacks the commands EVAL; grant them: ACL SETUSER"),
        ("&* +@all -zadd", "FAIL  engine: ", "lacks the commands ZADD; grant them: ACL SETUSER"),
        ("resetkeys ~other:* &* +@all", "FAIL  engine: ", "lacks the keys rollcall:meta, "),
    ];
    for (number, (rights, engine, expected)) in cases.into_iter().enumerate() {
        let rights = user(rights);
        let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
        let printed = check(&server(&number.to_string(), &rights));
        assert!(printed.contains(engine) && printed.contains(expected), "{rights:?}: {printed}");
    }
    let primary = server("primary", &[]);
    let of = primary.port().to_string();
    let printed = check(&server(
        "replica",
        &[user("&* +@all").iter().map(String::as_str).collect(), vec!["--replicaof", "127.0.0.1", &of]]
            .concat(),
    ));
    assert!(printed.contains("is a replica; engine.url has to name the primary"), "{printed}");
    let printed = check(&server(
        "cluster",
        &[user("&* +@all").iter().map(String::as_str).collect(), vec!["--cluster-enabled", "yes"]].concat(),
    ));
    assert!(printed.contains("FAIL  engine: "), "{printed}");
}

#[test]
fn a_broker_that_requires_a_username_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let more = "allow_anonymous false";
    let broker = Server::mosquitto(&dir.path().join("mqtt"), free_port().unwrap(), more).unwrap();
    let url = format!("mqtt://127.0.0.1:{}", broker.port());
    let output = rollcall(dir.path(), &["check"], &[("ROLLCALL_MQTT__URL", &url)]);
    let printed = text(&output.stdout);
    assert!(
        printed.contains("FAIL  mqtt: ") && printed.contains("check mqtt.username and mqtt.password_file\n"),
        "{printed}"
    );
}

#[test]
fn check_says_which_topic_is_not_heard_and_which_right_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &["--save", "60 1"]).unwrap();
    let redis_url = format!("redis://127.0.0.1:{}/0", redis.port());
    let canary = "topic readwrite rollcall/canary/#";
    let read = "topic read units/+/heartbeat\ntopic read units/+/data";
    // (rules, exit code, lines about the broker)
    let cases = [
        (
            format!("{canary}\ntopic read units/+/heartbeat\ntopic write units/#"),
            1,
            vec![("FAIL", "allow the anonymous user to read units/+/data")],
        ),
        (
            format!("{canary}\n{read}"),
            0,
            vec![
                ("warn", "publish to units/rollcall-probe/heartbeat; allow it to write there"),
                ("warn", "publish to units/rollcall-probe/data; allow it to write there"),
            ],
        ),
        (
            format!("topic write rollcall/canary/#\n{read}\ntopic write units/#"),
            1,
            vec![("FAIL", "allow the anonymous user to read rollcall/canary/rollcall-check-")],
        ),
        (format!("{canary}\n{read}\ntopic write units/rollcall-probe/#"), 0, vec![("ok", "is heard")]),
    ];
    for (number, (rules, code, expected)) in cases.into_iter().enumerate() {
        let file = dir.path().join(format!("rules-{number}"));
        std::fs::write(&file, rules + "\n").unwrap();
        let more = format!("acl_file {}", file.display());
        let home = dir.path().join(format!("mqtt-{number}"));
        let broker = Server::mosquitto(&home, free_port().unwrap(), &more).unwrap();
        let url = format!("mqtt://127.0.0.1:{}", broker.port());
        let with = [
            ("ROLLCALL_ENGINE__URL", redis_url.as_str()),
            ("ROLLCALL_MQTT__URL", url.as_str()),
            ("ROLLCALL_MQTT__CLIENT_ID", "rollcall"),
        ];
        let output = rollcall(dir.path(), &["check"], &with);
        let printed = text(&output.stdout);
        let of_broker: Vec<&str> = printed.lines().filter(|line| line.contains("  mqtt: ")).collect();
        assert_eq!(of_broker.len(), expected.len(), "{number}: {printed}");
        for (line, (outcome, what)) in of_broker.iter().zip(expected) {
            assert!(line.starts_with(outcome) && line.contains(what), "{number}: {printed}");
        }
        assert_eq!(output.status.code(), Some(code), "{number}: {printed}");
    }
}

#[test]
fn a_service_that_cannot_start_says_what_to_do_and_ends_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let password = ["--requirepass", "12345678"];
    let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &password).unwrap();
    let url = format!("redis://:wrong@127.0.0.1:{}/0", redis.port());
    let free = format!("127.0.0.1:{}", free_port().unwrap());
    let with = [("ROLLCALL_ENGINE__URL", url.as_str()), ("ROLLCALL_HTTP__LISTEN", free.as_str())];
    let output = rollcall(dir.path(), &["serve"], &with);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("refused the login; check engine.url and engine.password_file"), "{printed}");
    assert!(!printed.contains("wrong@"), "{printed}");

    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    let output = rollcall(dir.path(), &["serve"], &[("ROLLCALL_HTTP__LISTEN", &taken)]);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains(&format!("cannot listen on {taken}; choose another http.listen")), "{printed}");
}

#[test]
fn a_service_that_is_asked_to_stop_ends_with_0() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &[]).unwrap();
    let broker = Server::mosquitto(&dir.path().join("mqtt"), free_port().unwrap(), "").unwrap();
    let variables = [
        ("ROLLCALL_ENGINE__URL", format!("redis://127.0.0.1:{}/0", redis.port())),
        ("ROLLCALL_MQTT__URL", format!("mqtt://127.0.0.1:{}", broker.port())),
        ("ROLLCALL_HTTP__LISTEN", format!("127.0.0.1:{}", free_port().unwrap())),
        ("ROLLCALL_LOG__FORMAT", "json".to_owned()),
    ];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let mut service = command(dir.path(), &["serve"], &variables).stderr(Stdio::piped()).spawn().unwrap();
    let lines = follow(service.stderr.take().unwrap());
    let first: Value = serde_json::from_str(&lines.recv_timeout(MAX_WAIT).unwrap()).unwrap();
    let without =
        "every option has its default: neither rollcall.toml nor /etc/rollcall/rollcall.toml exists";
    assert_eq!(first["message"], without);
    let asked = Command::new("kill").args(["-TERM", &service.id().to_string()]).status().unwrap();
    assert!(asked.success());
    let mut stopped = false;
    loop {
        match lines.recv_timeout(MAX_WAIT) {
            Ok(line) => stopped |= line.contains("\"stopped\""),
            // The pipe is closed: the process has ended.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => service.kill().unwrap(),
        }
    }
    assert_eq!(service.wait().unwrap().code(), Some(0));
    assert!(stopped);
}

/// Probes use the address of the configuration, also with another port and with every address.
#[test]
fn health_asks_the_address_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let [http, broker] = [free_port().unwrap(), free_port().unwrap()];
    let token = "0".repeat(64);
    let config = format!(
        "engine.type = \"embedded\"\nbroker.listen = \"127.0.0.1:{broker}\"\n\
         [http]\nlisten = \"0.0.0.0:{http}\"\ntoken = [{{ name = \"test\", sha256 = \"{token}\", role = \"viewer\" \
                            }}]\n"
    );
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    let health = |more: &[&str]| rollcall(dir.path(), &[&["health"], more].concat(), &[]);
    let unanswered = health(&[]);
    let printed = text(&unanswered.stderr);
    assert_eq!(unanswered.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains(&format!("127.0.0.1:{http} does not answer; does rollcall serve run?")),
        "{printed}"
    );
    let serve = ["serve".to_owned()];
    let program = env!("CARGO_BIN_EXE_rollcall");
    let service = Server::start(program, &serve, dir.path(), http, "the fleet is heard").unwrap();
    assert_eq!(health(&[]).status.code(), Some(0));
    let ready = health(&["--ready"]);
    assert!(text(&ready.stdout).contains("\"ready\":true"), "{}", text(&ready.stderr));
    drop(service);
    assert_eq!(health(&["--ready"]).status.code(), Some(1));
}

/// The lines that are written to a pipe, as they come.
fn follow(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (lines, seen) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
    });
    seen
}

#[test]
fn a_fleet_is_simulated_for_as_long_as_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Server::mosquitto(&dir.path().join("mqtt"), free_port().unwrap(), "").unwrap();
    let url = format!("mqtt://127.0.0.1:{}", broker.port());
    let fleet = ["simulate", "--url", &url, "--units", "20", "--interval", "100ms", "--duration", "1s"];
    let output = rollcall(dir.path(), &fleet, &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(printed.contains(" heartbeats sent and 0 missed in ") && !printed.starts_with("0 "), "{printed}");
    let shown = text(&output.stderr);
    assert!(shown.contains("20 units, 0 silent; "), "without a terminal it says nothing: {shown:?}");
    let output = rollcall(dir.path(), &["simulate", "--interval", "soon"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let dead = format!("mqtt://127.0.0.1:{}", free_port().unwrap());
    let output = rollcall(dir.path(), &["simulate", "--url", &dead], &[]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_test_for_an_unknown_receiver_names_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let hook = "receiver = [{ name = \"hook\", type = \"webhook\", url = \"http://127.0.0.1:1\" }]";
    std::fs::write(dir.path().join("rollcall.toml"), hook).unwrap();
    let output = rollcall(dir.path(), &["send-test", "--receiver", "hok"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("there is no receiver \"hok\"; configured receivers: hook"));
    let output = rollcall(dir.path(), &["send-test", "--receiver", "hook"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("receiver hook was not notified: "), "{}", text(&output.stderr));
}

#[test]
fn routes_are_drawn_and_a_unit_is_shown_its_way_through_them() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"
        receiver = [
            { name = "hook", type = "webhook", url = "http://127.0.0.1:1" },
            { name = "north", type = "webhook", url = "http://127.0.0.1:2" },
        ]
        [route]
        receivers = ["hook"]
        [[route.routes]]
        matchers = ['site="north", unit=~"pump-.*"']
        receivers = ["north"]
        group_by = ["site"]
        [[route.routes.routes]]
        matchers = ["cause=never_seen"]
        receivers = []
        group_wait = "1m"
        [[route.routes]]
        matchers = ['site!=""']
        continue = true
        for = "30m"
        recoveries = "for 1m"
        mute_times = ["always"]
        [[time]]
        name = "always"
        [[inhibit]]
        source_matchers = ["unit=gw"]
        target_matchers = ['unit=~"g.*|pump-.*"']
        equal = ["site"]
    "#;
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    let run = |arguments: &[&str]| {
        let output = rollcall(dir.path(), arguments, &[]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let drawn = r#"route: hook; by kind; group_wait 10s, group_interval 5m
├── site="north", unit=~"pump-.*": north; by site; group_wait 10s, group_interval 5m
│   └── cause="never_seen": no receiver; by site; group_wait 1m, group_interval 5m
└── site!="" (continue): hook; by kind; group_wait 10s, group_interval 5m, for 30m, recoveries for 1m, muted in always
"#;
    assert_eq!(run(&["route", "show"]), drawn);
    let cases: [(&[&str], &[&str]); 5] = [
        (
            &["detector/gw"],
            &[
                "inhibit[0] holds it while a unit with unit=\"gw\" and site=\"\" is offline, unless that unit is a \
                 target, too",
                "inhibit[0]: while it is offline it holds units with unit=~\"g.*|pump-.*\" and site=\"\"",
            ],
        ),
        (
            &["detector/a", "--label", "site=south"],
            &["it takes route.routes[1]: hook; by kind", "  muted now, within always, until "],
        ),
        (
            &["detector/pump-7", "--label", "site=north"],
            &[
                r#"detector/pump-7, site="north""#,
                r#"  route.routes[0] matches: site="north", unit=~"pump-.*""#,
                r#"  route.routes[0].routes[0] does not match: cause="never_seen", and cause is "silence""#,
                "it takes route.routes[0]: north; by site; group_wait 10s, group_interval 5m",
                "  group: north.",
                "inhibit[0] holds it while a unit with unit=\"gw\" and site=\"north\" is offline\n",
            ],
        ),
        (
            &["detector/pump-7", "--label", "site=north", "--never-seen"],
            &[
                "it takes route.routes[0].routes[0]: no receiver; by site; group_wait 1m",
                "  group: .",
                "site=north",
            ],
        ),
        (
            &["detector/a"],
            &[
                "detector/a, no labels",
                r#"  route.routes[0] does not match: site="north", and site is """#,
                r#"  route.routes[1] does not match: site!="", and site is """#,
                "it takes route: hook; by kind",
                "  group: kind=detector",
            ],
        ),
    ];
    for (arguments, expected) in cases {
        let shown = run(&[&["route", "test"], arguments].concat());
        for line in expected {
            assert!(shown.contains(line), "{shown}\n--- expected\n{line}");
        }
    }
    let unknown = rollcall(dir.path(), &["route", "test", "gate/1"], &[]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("there is no kind gate in the configuration"));
    for wrong in [&["route", "test", "gate"][..], &["route", "test", "detector/1", "--label", "a b=c"]] {
        assert_eq!(rollcall(dir.path(), wrong, &[]).status.code(), Some(2), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_notification_reaches_its_receiver() {
    let dir = tempfile::tempdir().unwrap();
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let options = Options { secret: Some(secret.to_owned()), ..Options::default() };
    let sink = WebhookSink::start(options).await.unwrap();
    let hook = format!(
        "receiver = [{{ name = \"hook\", type = \"webhook\", url = \"{}\", secret = \"{secret}\" }}]",
        sink.url()
    );
    std::fs::write(dir.path().join("rollcall.toml"), hook).unwrap();
    let output = rollcall(dir.path(), &["send-test", "--receiver", "hook"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "receiver hook accepted the test\n");
    assert_eq!(sink.received().len(), 1);
}

/// Three silences wait for a receiver that is not configured, and a unit of a kind that is not configured is offline.
async fn leave_behind(engine: Arc<dyn Engine>) {
    let now = Timestamp::from_millis(1_700_000_000_000);
    let unit: Unit = "pump:a".parse().unwrap();
    let allowed = Duration::from_secs(60);
    let silence_of_pump = Silence { deadline: now, detected_at: now, cause: Cause::Silence, allowed };
    let facts = Facts::new(Lifecycle::Offline(silence_of_pump), now);
    let record = facts.open_record(&unit);
    let change = Change { key: KeyChange::Keep, index: IndexChange::Keep, facts: Some(facts), record };
    let seen = Snapshot { unit, alive: None, alive_at: None, facts: None, stored: None };
    assert_eq!(engine.apply(&[(seen, change)]).await.unwrap(), [true]);
    let joins: Vec<Join> = ["a", "b", "c"].map(|id| silence(id, now)).into();
    let pace = Pace::AT_ONCE;
    let (gone, partitions) = (["gone".to_owned()], (0..engine.partitions()).collect::<Vec<u16>>());
    StoredGroups::new(engine.clone())
        .join(&joins, &Destinations::all(pace, &gone), &Capacity::NONE, now)
        .await
        .unwrap();
    StoredGroups::new(engine.clone()).seal(&partitions, &Destinations::all(pace, &gone), now).await.unwrap();
    // The list of receivers is rebuilt from their backlogs, as after an upgrade from a version without a list.
    StoredDeliveries::new(engine).register_receivers(&["hook".to_owned()], now).await.unwrap();
}

fn silence(id: &str, at: Timestamp) -> Join {
    let unit: Unit = format!("detector:{id}").parse().unwrap();
    let record = OfflineRecord::open(unit, at, at, at);
    Join {
        groups: vec![Group { key: id.to_owned(), labels: Labels::new() }],
        event: OutboxEvent::Record(record),
    }
}

/// `check` warns of the backlog of a removed receiver until it is discarded, and of a kind that is not configured.
async fn check_shows_what_is_left(dir: &Path, engine: Arc<dyn Engine>) {
    leave_behind(engine.clone()).await;
    let left = "orphaned_notifications: notifications are kept for receivers that are not configured: gone (3 groups \
                wait, 0 dead letters)";
    let printed = text(&rollcall(dir, &["check"], &[]).stdout);
    assert!(printed.contains(left), "{printed}");
    assert!(printed.contains("warn  kinds_not_configured: there are open records of kinds"), "{printed}");
    assert!(printed.contains("pump (1 open)"), "{printed}");
    let deliveries = StoredDeliveries::new(engine);
    while deliveries.discard("gone", Clock::system().now()).await.unwrap() != Discarded::default() {}
    let printed = text(&rollcall(dir, &["check"], &[]).stdout);
    assert!(!printed.contains("orphaned_notifications"), "{printed}");
}

const HOOK: &str = "receiver = [{ name = \"hook\", type = \"webhook\", url = \"http://127.0.0.1:1\" }]\n";

fn telemetry() -> Arc<Telemetry> {
    Arc::new(Telemetry::new(&Clock::system()))
}

#[tokio::test(flavor = "multi_thread")]
async fn check_shows_the_backlog_of_a_removed_receiver_in_redis() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let config = format!("engine = {{ type = \"redis\", url = \"{url}\" }}\n{HOOK}");
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    let config = rollcall::store::redis::RedisConfig { url, ..Default::default() };
    let engine = RedisEngine::connect(&config, telemetry()).await.unwrap();
    check_shows_what_is_left(dir.path(), Arc::new(engine)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_shows_the_backlog_of_a_removed_receiver_in_a_directory_that_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("engine = {{ type = \"embedded\", path = \"fleet\" }}\n{HOOK}");
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    let config =
        rollcall::store::embedded::EmbeddedConfig { path: dir.path().join("fleet"), partitions: Some(16) };
    let engine = EmbeddedEngine::open(&config, telemetry()).await.unwrap();
    check_shows_what_is_left(dir.path(), Arc::new(engine)).await;
}

/// Values were quarantined: `check` warns, `repair` lists them, restores readable ones and deletes the rest.
fn repair(dir: &Path, places: [&str; 2]) {
    let checked = text(&rollcall(dir, &["check"], &[]).stdout);
    assert!(checked.contains("warn  unreadable_values: 2 stored values"), "{checked}");
    assert!(checked.contains("rollcall repair"), "{checked}");
    let shown = rollcall(dir, &["repair"], &[]);
    let printed = text(&shown.stdout);
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    assert!(printed.ends_with("2 values are quarantined\n"), "{printed}");
    assert!(places.iter().all(|place| printed.contains(place)), "{printed}");
    let restored = rollcall(dir, &["repair", "--restore"], &[]);
    let printed = text(&restored.stdout);
    assert_eq!(restored.status.code(), Some(1), "one is left: {printed}");
    assert!(printed.contains("put back: ") && printed.contains("cannot be put back: "), "{printed}");
    assert!(printed.ends_with("1 values were put back\n1 values are quarantined\n"), "{printed}");
    let discarded = rollcall(dir, &["repair", "--discard"], &[]);
    assert_eq!(discarded.status.code(), Some(0), "{}", text(&discarded.stderr));
    assert!(text(&discarded.stdout).ends_with("1 values were deleted\n0 values are quarantined\n"));
    assert!(text(&rollcall(dir, &["repair"], &[]).stdout).ends_with("0 values are quarantined\n"));
    assert!(!text(&rollcall(dir, &["check"], &[]).stdout).contains("unreadable_values"));
}

#[tokio::test(flavor = "multi_thread")]
async fn values_quarantined_in_redis_are_shown_restored_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let config = format!("engine = {{ type = \"redis\", url = \"{url}\" }}\n");
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    let config = rollcall::store::redis::RedisConfig { url: url.clone(), ..Default::default() };
    let engine = RedisEngine::connect(&config, telemetry()).await.unwrap();
    let mut client = redis::Client::open(url).unwrap().get_connection().unwrap();
    // An older version could not read the first; another program wrote the second.
    let (key, outbox) = ("rollcall:{p3}:archive", "rollcall:{p3}:outbox");
    let lost = r#"{"from":1000,"to":2000}"#;
    let entries = [("blind", "1000 2000"), ("garbage{", lost)];
    for (field, value) in entries {
        let quarantine = format!("{outbox}:unreadable");
        redis::cmd("XADD").arg(quarantine).arg("*").arg(field).arg(value).exec(&mut client).unwrap();
    }
    repair(dir.path(), [outbox, "garbage{"]);
    let back: usize = redis::cmd("XLEN").arg(outbox).query(&mut client).unwrap();
    assert_eq!(back, 1, "the readable entry is back");
    // The service quarantines a key of a wrong type, and `repair` restores it once it is corrected.
    redis::cmd("SET").arg(key).arg("x").exec(&mut client).unwrap();
    let id = "detector:a:1000".parse::<RecordId>().unwrap();
    let partition = "rollcall:{p3}:";
    assert!(key.starts_with(partition));
    let at: Unit = (0..)
        .map(|n| format!("detector:u{n}").parse().unwrap())
        .find(|unit| rollcall::store::partition_of(unit, engine.partitions()) == 3)
        .unwrap();
    let answer = engine.record(&RecordId { unit: at, ..id }).await;
    assert!(answer.is_err(), "the engine reads it");
    engine.examine(Clock::system().now()).await.unwrap();
    assert!(text(&rollcall(dir.path(), &["repair"], &[]).stdout).contains(key));
    let quarantine = format!("{key}:unreadable");
    redis::cmd("DEL").arg(&quarantine).exec(&mut client).unwrap();
    redis::cmd("HSET").arg(&quarantine).arg("id").arg("record").exec(&mut client).unwrap();
    let restored = rollcall(dir.path(), &["repair", "--restore"], &[]);
    assert_eq!(restored.status.code(), Some(0), "{}", text(&restored.stdout));
    let back: String = redis::cmd("HGET").arg(key).arg("id").query(&mut client).unwrap();
    assert_eq!(back, "record");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_quarantined_in_a_directory_are_shown_restored_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let config = "engine = { type = \"embedded\", path = \"fleet\" }\n";
    std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
    let path = dir.path().join("fleet");
    let config = rollcall::store::embedded::EmbeddedConfig { path: path.clone(), partitions: Some(16) };
    // The service still runs.
    let engine = EmbeddedEngine::open(&config, telemetry()).await.unwrap();
    let database = rusqlite::Connection::open(path.join("rollcall.db")).unwrap();
    for value in ["x'ff00'", "1000"] {
        let insert = format!("INSERT INTO blind VALUES({value}, 2000)");
        database.execute(&insert, []).unwrap();
    }
    database.execute("INSERT INTO entries VALUES('lasting', 0, x'ff', 0)", []).unwrap();
    engine.examine(Clock::system().now()).await.unwrap();
    let left: i64 = database.query_row("SELECT count(*) FROM blind", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 1, "what can be read stays");
    // An operator corrects one of the values.
    let update = "UPDATE unreadable SET row = '{\"start\":1500,\"until\":2000}' WHERE source = 'blind'";
    assert_eq!(database.execute(update, []).unwrap(), 1);
    repair(dir.path(), ["table blind", "table entries"]);
    let left: i64 = database.query_row("SELECT count(*) FROM blind", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 2, "it is back");
    drop(engine);
}

#[test]
fn a_new_token_is_printed_with_the_lines_that_the_configuration_needs_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let new = |rest: &[&str]| rollcall(dir.path(), &[&["token", "new"], rest].concat(), &[]);
    let text = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let name = "the \"desk\" \\ 2";
    let output = new(&["--name", name, "--role", "operator", "--expires", "2099-01-01T01:00:00+01:00"]);
    let printed = text(&output);
    let secret = printed.lines().find(|line| line.starts_with("rollcall_")).unwrap();
    let (_, lines) = printed.split_once("For the configuration:").unwrap();
    let config = rollcall::config::parse(lines, None, []).unwrap();
    let [token] = config.http.tokens.as_slice() else { panic!("{lines}") };
    assert_eq!((token.name.as_str(), token.role), (name, rollcall::http::Role::Operator));
    assert_eq!(token.sha256, rollcall::http::Token::digest(secret));
    assert_eq!(token.expires_at.unwrap().to_string(), "2099-01-01T00:00:00.000Z");

    let made: Vec<Value> =
        (0..2).map(|_| serde_json::from_str(&text(&new(&["--name", "screen", "--json"]))).unwrap()).collect();
    assert_ne!(made[0]["token"], made[1]["token"]);
    assert_eq!((&made[0]["role"], &made[0]["expires"]), (&"viewer".into(), &Value::Null));
    for (wrong, why) in [
        (&["--name", ""][..], "--name"),
        (&["--name", "a\u{1b}[2J"], "--name"),
        (&["--name", "a", "--expires", "2020-01-01T00:00:00Z"], "--expires"),
    ] {
        let output = new(wrong);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{said}");
    }
}
