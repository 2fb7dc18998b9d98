//! Valid configuration files, and the errors for invalid ones.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rollcall::alerting::ChannelConfig;
use rollcall::config::{self, Config, ConfigError, EngineConfig};
use rollcall::http::Role;
use rollcall::presence::{Guarantee, Kind, Recoveries, Registry, TimeSource};

const HOUR: Duration = Duration::from_secs(3600);

fn load(text: &str) -> Result<Config, ConfigError> {
    with_variables(text, &[])
}

fn with_variables(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    config::parse(text, None, variables)
}

fn refused(text: &str) -> String {
    load(text).expect_err("it makes no sense").to_string()
}

fn kind(name: &str) -> Kind {
    name.parse().unwrap()
}

#[cfg(not(feature = "broker"))]
#[test]
fn a_broker_that_is_not_built_in_is_refused() {
    let why = refused("broker.listen = \"127.0.0.1:1883\"");
    assert!(
        why.contains("broker: this rollcall is built without the in-process broker; build it with"),
        "{why}"
    );
}

#[test]
fn without_a_file_a_fleet_of_detectors_on_this_machine_is_watched() {
    let config = load("").unwrap();
    assert_eq!(config.engine.to_string(), "redis://127.0.0.1:6379/0");
    assert_eq!(config.intake[0].url, "mqtt://127.0.0.1:1883");
    let topics = ["units/{unit}/heartbeat", "units/{unit}/data"];
    let expected: Vec<_> = topics.map(|topic| (topic.to_owned(), Some(kind("detector")))).into();
    assert_eq!(config.intake[0].topics, expected);
    assert_eq!(config.rules[&kind("detector")].policy.timeout, 48 * HOUR);
    assert_eq!(config.alerting.route.pace.interval, Duration::from_secs(300));
    assert_eq!(config.hearing.gap, Duration::from_secs(3));
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:8080");
    assert!(config.alerting.receivers.is_empty() && config.warnings.is_empty());
}

#[test]
fn the_shortest_timeout_of_all_kinds_sets_the_pace_of_canaries_unless_that_is_configured() {
    let kinds = "[[kind]]\nname = \"a\"\ntimeout = \"12s\"\n\
                 [[kind]]\nname = \"b\"\ntimeout = \"3s\"\ntopics = [\"b/{unit}\"]";
    // Period and gap, in ms.
    let cases = [
        (String::new(), (1000, 3000), true),
        (kinds.to_owned(), (150, 750), true),
        (format!("hearing.canary_period = \"auto\"\n{kinds}"), (150, 750), true),
        (format!("hearing.canary_period = \"2s\"\n{kinds}"), (2000, 6000), false),
        (format!("hearing.canary_period = \"50ms\"\n{kinds}"), (50, 150), false),
    ];
    for (text, (period, gap), follows) in cases {
        let config = load(&text).unwrap();
        assert_eq!(config.intake[0].canary_period, Duration::from_millis(period), "{text}");
        assert_eq!(config.hearing.gap, Duration::from_millis(gap), "{text}");
        assert_eq!(config.hearing.follows, follows, "{text}");
    }
    let wrong = refused("hearing.canary_period = \"often\"");
    assert!(wrong.contains("\"auto\" or a span of time"), "{wrong}");
}

#[test]
fn every_option_of_a_kind_reaches_its_rules() {
    let text = r#"
        [[kind]]
        name = "pump"
        topics = ["pumps/{site}/{unit}"]
        timeout = "1m 30s"
        grace = "10s"
        accept_timeout = false
        clock = "device"
        registry = "closed"
        forget_after = "1d"
        archive_after = "90d"
    "#;
    let config = load(text).unwrap();
    let rules = &config.rules[&kind("pump")];
    assert_eq!(config.rules.len(), 1);
    assert_eq!(rules.policy.timeout, Duration::from_secs(90));
    assert_eq!(rules.policy.grace, Duration::from_secs(10));
    assert!(!rules.accept_timeout);
    assert_eq!((rules.clock, rules.registry), (TimeSource::Device, Registry::Closed));
    assert_eq!(rules.forget_after, 24 * HOUR);
    assert_eq!(rules.archive_after, Some(90 * 24 * HOUR));
    assert_eq!(config.alerting.archive_after, [(kind("pump"), 90 * 24 * HOUR)].into());
}

#[test]
fn a_template_with_kind_is_kept_once_and_belongs_to_no_kind() {
    let text = r#"
        kind = [
            { name = "a", topics = ["{kind}/{unit}", "a-only/{unit}"] },
            { name = "b", topics = ["{kind}/{unit}"] },
        ]
    "#;
    let topics = load(text).unwrap().intake.remove(0).topics;
    let expected = [("{kind}/{unit}".to_owned(), None), ("a-only/{unit}".to_owned(), Some(kind("a")))];
    assert_eq!(topics, expected);
}

#[test]
fn a_syntax_error_is_shown_with_a_caret_under_it() {
    let cases = [
        (
            "[mqtt]\nurl = \"mqtt://x\"\nkeep_alife = \"1s\"\n",
            "rollcall.toml:3:1: unknown key `keep_alife`; did you mean `keep_alive`?\n  |\n\
             3 | keep_alife = ...\n  | ^^^^^^^^^^",
        ),
        ("[mqt]\n", "rollcall.toml:1:2: unknown key `mqt`; did you mean `mqtt`?\n  |\n1 | [mqt]\n  |  ^^^"),
        ("[log]\nformat = \"jason\"\n", "rollcall.toml:2:10: unknown value `jason`; did you mean `json`?"),
        (
            "[route]\n\tgroup_wait = 10\n",
            "rollcall.toml:2:15: invalid type: integer `10`, expected a span of time in quotes, such as \"48h\" \
             or \"1m 30s\"\n  |\n2 | \tgroup_wait = 10\n  | \t             ^^",
        ),
        (
            "[http]\nlisten = \"localhost\"\n",
            "rollcall.toml:2:10: invalid value: string \"localhost\", expected an IP address and a port",
        ),
        ("[log]\nlevel = 'é' x\n", "rollcall.toml:2:13: "),
        ("[[kind]]\nname = \"a\"\nname = \"b\"\n", "rollcall.toml:3:1: duplicate key"),
        ("[engine", "rollcall.toml:1:8: "),
    ];
    for (text, expected) in cases {
        let refusal = refused(text);
        assert!(refusal.starts_with(expected), "{refusal}\n--- expected\n{expected}");
    }
    let refusal = refused("[engine]\nzzzzzzzzz = 1\n");
    assert!(refusal.contains("unknown key `zzzzzzzzz`; known here: type, url, password_file"), "{refusal}");
}

#[test]
fn a_secret_is_never_shown_not_even_in_an_error_or_a_debug_line() {
    let refusal = refused("[[receiver]]\nsecret = whsec_dG9wc2VjcmV0\n");
    assert!(refusal.contains("2 | secret = ...") && !refusal.contains("dG9wc2VjcmV0"), "{refusal}");
    for text in [
        "[engine]\nurl = \"redis://:hunter2@h\nprefix = 1",
        "[engine]\nurl = [\"redis://:hunter2@h\"]",
        "[engine]\nurll = \"redis://:hunter2@h\"",
        "[engine]\npasswrd = \"hunter2",
        "engine = { url = \"redis://:hunter2@h\", partitions = \"8\" }",
        "engine = { passwrd = \"hunter2\" }",
        "[deadman]\nurl = \"https://h/hunter2\"x",
        "[[receiver]]\nsecret = \"\"\"\nhunter2\\q\n\"\"\"",
        "[[receiver]]\nsecret = \"\"\"\nhunter2=\\q\n\"\"\"",
        "[[receiver]]\nto = [\n  \"hunter2\",\n  7]",
        "[[receiver]]\nsecret = [\"hunter2\"]",
        "[[http.token]]\nname = 7\nsha256 = \"hunter2",
        "[[http.token]]\ntoken = \"hunter2\"",
        "[http]\ntoken = \"hunter2\"",
        "\"hunter2\" 7",
        "hunter2",
    ] {
        let refusal = refused(text);
        assert!(!refusal.contains("hunter2"), "{text}\n---\n{refusal}");
    }
    let refusal = refused("[[receiver]]\nsecret = 4711\n");
    assert!(!refusal.contains("4711"), "{refusal}");
    let variables = [("ROLLCALL_ENGINE__URL", "ftp://:hunter2@h"), ("ROLLCALL_DEADMAN__URL", "hunter2")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let refusal = config::parse("", None, variables).unwrap_err().to_string();
    assert!(refusal.contains("engine.url") && !refusal.contains("hunter2"), "{refusal}");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("secret"), "hunter2").unwrap();
    let text = r#"
        engine.url = "redis://:hunter2@127.0.0.1/0"
        mqtt = { username = "rollcall", password_file = "secret" }
        receiver = [{ name = "m", type = "email", smtp = "smtps://u@h", password_file = "secret", from = "a@b.c", to = ["d@e.f"] }]
        route.receivers = ["m"]
    "#;
    let config = config::parse(text, Some(&dir.path().join("rollcall.toml")), []).unwrap();
    let shown = format!("{config:?} {:?} {:?} {:?}", config.engine, config.intake, config.alerting);
    assert!(shown.contains("redis://127.0.0.1/0") && shown.contains("Email"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn every_invalid_value_is_reported_at_once_under_the_name_of_its_option() {
    let text = r#"
        [engine]
        path = "data"
        partitions = 0
        prefix = "a{b}"
        [mqtt]
        url = "mqt://broker"
        password_file = "missing"
        client_id = "a/b"
        qos = 2
        [broker]
        listen = "here"
        tls_listen = "0.0.0.0:8883"
        max_packet = 5
        [[kind]]
        name = "Detector"
        timeout = "500ms"
        topics = ["units/{unit}/#/+", "units/heartbeat", "units/x{unit}", "{a}/{a}/{unit}", "rollcall/{unit}"]
        [[kind]]
        name = "b"
        timeout = "401d"
        topics = []
        [[receiver]]
        name = "hook"
        type = "webhook"
        url = "ftp://example.org"
        secret = "geheim"
        from = "a@example.org"
        concurrency = 0
        [[receiver]]
        name = "hook"
        type = "email"
        smtp = "smtp://u:p@127.0.0.1"
        from = "nobody"
        retry = { first = "2h", longest = "1h" }
        [[receiver]]
        name = "pager"
        [route]
        receivers = ["hok", "hook", "hook"]
        group_by = ["a b"]
        repeat_interval = "4s"
        [breaker]
        share = 50
        min_units = 0
        window = "2h"
        max_hold = "25h"
        [hearing]
        canary_period = "2m"
        [expiry]
        sweep = false
        hints = false
        [records]
        keep = "1h"
        [http]
        listen = "0.0.0.0:8080"
        [log]
        level = "rollcall=loud"
    "#;
    let Err(ConfigError::Meaning(problems)) = load(text) else { panic!("it makes no sense") };
    let mut paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
    paths.sort();
    let expected = [
        "breaker.max_hold",
        "breaker.min_units",
        "breaker.share",
        "breaker.window",
        "broker.cert_file",
        "broker.key_file",
        "broker.listen",
        "broker.max_packet",
        "engine.partitions",
        "engine.path",
        "engine.prefix",
        "expiry",
        "hearing.canary_period",
        "http.listen",
        "kind[0].name",
        "kind[0].timeout",
        "kind[0].topics[0]",
        "kind[0].topics[1]",
        "kind[0].topics[2]",
        "kind[0].topics[3]",
        "kind[0].topics[4]",
        "kind[1].timeout",
        "log.level",
        "mqtt.client_id",
        "mqtt.password_file",
        "mqtt.password_file",
        "mqtt.qos",
        "mqtt.url",
        "mqtt.url",
        "receiver[0]",
        "receiver[0].concurrency",
        "receiver[0].from",
        "receiver[0].url",
        "receiver[1].from",
        "receiver[1].name",
        "receiver[1].retry.first",
        "receiver[1].smtp",
        "receiver[1].to",
        "receiver[2].type",
        "records.keep",
        "route.group_by[0]",
        "route.receivers[0]",
        "route.receivers[2]",
        "route.repeat_interval",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn a_planned_option_is_refused_with_not_yet_and_an_unknown_one_with_a_suggestion() {
    let cases = [
        (
            "[[receiver]]\nname = \"a\"\ntype = \"webhook\"\nurl = \"http://a\"\nfallback = \"b\"",
            "receiver[0].fallback: there is no receiver \"b\"",
        ),
        (
            "[[receiver]]\nname = \"a\"\ntype = \"webhook\"\nurl = \"http://a\"\nfallback = \"a\"",
            "receiver[0].fallback: the fallbacks of \"a\" form a circle",
        ),
        (
            "[records]\nkeep = \"2d\"\nkeep_deliveries = \"3d\"",
            "records.keep_deliveries: is longer than records.keep",
        ),
        ("[engine]\npath = \"data\"", "engine.path: belongs to the embedded engine"),
        ("[engine]\ntype = \"embedded\"\nurl = \"redis://a\"", "engine.url: belongs to the engine on Redis"),
        ("[engine]\ntype = \"embedded\"\npath = \"\"", "engine.path: is empty"),
        (
            "[engine]\ntype = \"embedded\"\n[expiry]\nsweep = false",
            "expiry.sweep: is the only way to find silences with the embedded engine",
        ),
        (
            "[engine]\nurl = \"redis-sentinel://a\"",
            "engine.url: lacks the name of the service that the sentinels watch; write redis-sentinel://host:26379/",
        ),
        (
            "[engine]\nurl = \"redis-cluster://a/1\"",
            "engine.url: names a database; a cluster has only database 0",
        ),
        (
            "[engine]\nurl = \"redis-clutser://a\"",
            "engine.url: redis-clutser:// is unknown; did you mean redis-cluster://",
        ),
        ("[engine]\nwait_replicas = 6", "engine.wait_replicas: 6 is out of bounds; 0 to 5 are allowed"),
        (
            "[engine]\nwait_timeout = \"9ms\"",
            "engine.wait_timeout: 9ms is out of bounds; 10ms to 5s are allowed",
        ),
        (
            "[engine]\ntype = \"embedded\"\nwait_replicas = 0",
            "engine.wait_replicas: belongs to the engine on Redis",
        ),
        ("[engine]\nurl = \"redi://a\"", "engine.url: redi:// is unknown; did you mean redis://?"),
        ("[engine]\nurl = \"localhost\"", "engine.url: is not an address"),
        ("[mqtt]\nurl = \"mqt://a\"", "mqtt.url: a broker's address is written mqtt://host:port"),
        (
            "[mqtt]\nurl = \"mqtt://u:p@a\"",
            "mqtt.url: a broker's address must not hold a user name or a password",
        ),
        (
            "[[kind]]\nflapping = { transitions = 1 }",
            "kind[0].flapping.transitions: 1 is out of bounds; 2 to 100 are allowed",
        ),
        (
            "[broker]\nlisten = \"0.0.0.0:1883\"",
            "broker.listen: every client that reaches 0.0.0.0:1883 can pretend to be a device",
        ),
        (
            "[broker]\nlisten = \"127.0.0.1:1\"\n[mqtt]\nurl = \"mqtt://a\"",
            "mqtt.url: belongs to a broker elsewhere",
        ),
        ("[broker]\nrules_file = \"rules\"", "broker.rules_file: belongs to the broker within the process"),
    ];
    for (text, expected) in cases {
        let refusal = refused(text);
        assert!(refusal.starts_with(expected), "{refusal}\n--- expected\n{expected}");
    }
    let refusal = refused("[[receiver]]\nname = \"mail\"\n[route]\nreceivers = [\"mial\"]");
    assert!(refusal.contains("there is no receiver \"mial\"; did you mean \"mail\"?"), "{refusal}");
}

const RECEIVERS: &str = r#"
    [[receiver]]
    name = "hook"
    type = "webhook"
    url = "http://127.0.0.1:1"
    [[receiver]]
    name = "mail"
    type = "webhook"
    url = "http://127.0.0.1:2"
"#;

#[test]
fn a_route_inherits_what_it_does_not_say() {
    let text = r#"
        [route]
        receivers = ["hook"]
        group_by = ["site"]
        group_wait = "1s"
        group_interval = "1m"
        [[route.routes]]
        matchers = ['site="north", kind=~"a|b"', "unit!=x"]
        continue = true
        group_wait = "2s"
        [[route.routes.routes]]
        receivers = []
        group_by = ["..."]
        group_interval = "2m"
        [[route.routes]]
        receivers = ["mail"]
        [[kind]]
        name = "a"
    "#;
    let config = load(&format!("{RECEIVERS}{text}")).unwrap();
    let shown: Vec<String> = config
        .alerting
        .route
        .all()
        .iter()
        .map(|route| {
            let matchers: Vec<String> = route.matchers.iter().map(ToString::to_string).collect();
            let (wait, interval) = (route.pace.wait.as_secs(), route.pace.interval.as_secs());
            let (receivers, group_by) = (route.receivers.join(" "), route.group_by.join(" "));
            format!("{} {} [{receivers}] [{group_by}] {wait} {interval}", matchers.join(","), route.continues)
        })
        .collect();
    let expected = [
        " false [hook] [site] 1 60",
        r#"site="north",kind=~"a|b",unit!="x" true [hook] [site] 2 60"#,
        " false [] [...] 2 120",
        " false [mail] [site] 1 60",
    ];
    assert_eq!(shown, expected);
    let warnings: Vec<&str> = config.warnings.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(
        warnings,
        ["receiver[0]", "receiver[1]"],
        "each is named by a route; only secrets are missing"
    );
}

#[test]
fn a_route_inherits_how_long_silences_and_returns_must_last() {
    let text = r#"
        [route]
        for = "5m"
        recoveries = "for 1m"
        [[route.routes]]
        matchers = ["kind=a"]
        recoveries = false
        [[route.routes]]
        matchers = ["kind=b"]
        for = "0s"
        recoveries = true
    "#;
    let config = load(&format!("{RECEIVERS}{text}")).unwrap();
    let routes = config.alerting.route.all();
    let shown: Vec<(u64, Recoveries)> =
        routes.iter().map(|route| (route.pace.lasts.as_secs(), route.pace.recoveries)).collect();
    let after = |seconds| Recoveries::After(Duration::from_secs(seconds));
    assert_eq!(shown, [(300, after(60)), (300, Recoveries::None), (0, after(0))]);
    assert_eq!(load("").unwrap().alerting.route.pace.recoveries, after(0));
}

#[test]
fn a_route_that_cannot_be_obeyed_is_refused_with_its_place() {
    let route = |lines: &str| format!("{RECEIVERS}[route]\n{lines}");
    let nested = |lines: &str| route(&format!("[[route.routes]]\n[[route.routes.routes]]\n{lines}"));
    let at = "route.routes[0].routes[0]";
    let cases = [
        (nested("matchers = ['site']"), format!("{at}.matchers[0]: \"site\", column 5: the end stands")),
        (nested("matchers = ['a=b', 'site=~\"(\"']"), format!("{at}.matchers[1]: ")),
        (nested("matchers = ['']"), format!("{at}.matchers[0]: \"\", column 1: there is no matcher")),
        (
            nested("receivers = ['mial']"),
            format!("{at}.receivers[0]: there is no receiver \"mial\"; did you mean"),
        ),
        (nested("receivers = ['mail', 'mail']"), format!("{at}.receivers[1]: \"mail\" is there twice")),
        (nested("group_by = ['a b']"), format!("{at}.group_by[0]: \"a b\" is neither kind, unit")),
        (nested("group_by = ['...', 'kind']"), format!("{at}.group_by[0]: \"...\" is every label")),
        (nested("group_wait = '2d'"), format!("{at}.group_wait: 48h is out of bounds")),
        (nested("group_interval = '8d'"), format!("{at}.group_interval: 8d is out of bounds")),
        (
            nested("mute_times = ['nigth']\n[[time]]\nname = 'night'"),
            format!("{at}.mute_times[0]: there is no time \"nigth\"; did you mean \"night\"?"),
        ),
        (
            nested("active_times = ['day']"),
            format!("{at}.active_times[0]: there is no time \"day\"; add a [[time]]"),
        ),
        (nested("[[time]]"), "time[0].name: is missing".to_owned()),
        (
            nested("[[time]]\nname = 'a'\nzone = 'Nowhere'"),
            "time[0].zone: there is no zone \"Nowhere\"".to_owned(),
        ),
        (
            nested("[[time]]\nname = 'a'\nweekdays = ['caturday']"),
            "time[0].weekdays[0]: \"caturday\" is not a weekday".to_owned(),
        ),
        (
            nested("[[time]]\nname = 'a'\ntimes = [{ start_time = '22:00', end_time = '06:00' }]"),
            "time[0].times[0]: 22:00 is not before 06:00; for a night write two ranges".to_owned(),
        ),
        (nested("repeat_interval = '1s'"), format!("{at}.repeat_interval: 1s is out of bounds")),
        (
            nested("escalate = [{ after = '1m', receivers = ['boss'] }]"),
            format!("{at}.escalate[0].receivers[0]: there is no receiver"),
        ),
        (nested("escalate = [{ receivers = ['hook'] }]"), format!("{at}.escalate[0].after: is missing")),
        (nested("escalate = [{ after = '1m' }]"), format!("{at}.escalate[0].receivers: is empty")),
        (
            nested("matchers = ['unusual=\"yes\"']"),
            format!(
                "{at}.matchers[0]: \"unusual=\\\"yes\\\"\", unusual is never \"yes\"; it is one of true, false"
            ),
        ),
        (nested("matchers = ['a=b', 'cause=~\"sil\"']"), format!("{at}.matchers[1]: ")),
        (nested("matchers = ['state!=gone']"), format!("{at}.matchers[0]: ")),
        (nested("for = '91d'"), format!("{at}.for: 91d is out of bounds")),
        (nested("recoveries = 'for 2d'"), format!("{at}.recoveries: 48h is out of bounds")),
    ];
    for (text, expected) in cases {
        let refusal = refused(&text);
        assert!(refusal.starts_with(&expected), "{refusal}\n--- expected\n{expected}");
    }
    for known in [
        "unusual=\"true\"",
        "unusual!=true",
        "cause=~\"last_will|node_death\"",
        "state=offline",
        "cause!~\"n.*\"",
    ] {
        load(&nested(&format!("matchers = ['{known}']"))).unwrap();
    }
    // The root matches everything, so it has neither option.
    for line in ["matchers = ['a=b']", "continue = true"] {
        let refusal = refused(&route(line));
        assert!(refusal.contains(&format!("`{}`", line.split(' ').next().unwrap())), "{refusal}");
    }
    let refusal = refused(&nested("matcher = ['a=b']"));
    assert!(refusal.contains("`matcher`"), "{refusal}");
    let unreached = route("[[route.routes]]\nreceivers = ['hook']\n[[route.routes]]\nreceivers = ['mail']");
    let warnings = load(&unreached).unwrap().warnings;
    let found = warnings.iter().any(|problem| {
        problem.path == "route.routes[1]" && problem.text.starts_with("is never reached, because routes[0]")
    });
    assert!(found, "{warnings:?}");
}

#[test]
fn a_fallback_that_gets_nothing_before_notifications_are_given_up_is_refused() {
    let receiver = |after: &str| {
        format!(
            "receiver = [{{ name = \"a\", type = \"webhook\", url = \"http://127.0.0.1:1/\", fallback = \"b\", \
             fallback_after = \"{after}\", retry = {{ give_up_after = \"1h\" }} }}, \
             {{ name = \"b\", type = \"webhook\", url = \"http://127.0.0.1:1/\" }}]\nroute.receivers = [\"a\"]\n"
        )
    };
    load(&receiver("59m")).unwrap();
    for after in ["1h", "2h"] {
        let refusal = refused(&receiver(after));
        assert!(
            refusal.starts_with("receiver[0].fallback_after: is not shorter than retry.give_up_after"),
            "{refusal}"
        );
    }
}

#[test]
fn a_rule_of_inhibition_that_is_wrong_or_inhibits_nothing_is_named() {
    let rule = |source: &str, target: &str, equal: &str| {
        format!(
            "[[inhibit]]\nsource_matchers = [{source}]\ntarget_matchers = [{target}]\nequal = [{equal}]\n"
        )
    };
    let cases = [
        (rule("", "'kind=a'", ""), "inhibit[0].source_matchers: is empty; write at least one matcher"),
        (rule("'kind=a'", "", ""), "inhibit[0].target_matchers: is empty; write at least one matcher"),
        (rule("'kind=a'", "'kind=~('", ""), "inhibit[0].target_matchers[0]: \"kind=~(\""),
        (rule("'kind=a'", "'kind=b'", "'a b'"), "inhibit[0].equal[0]: \"a b\" is neither kind, unit nor"),
        (rule("'kind=a'", "'kind=b'", "'state'"), "inhibit[0].equal[0]: \"state\" is neither kind, unit nor"),
        (rule("'kind=a'", "'kind=b'", "'x', 'x'"), "inhibit[0].equal[1]: \"x\" is there twice"),
    ];
    for (text, expected) in cases {
        let refusal = refused(&text);
        assert!(refusal.starts_with(expected), "{refusal}\n--- expected\n{expected}");
    }
    let warned = |text: &str| -> Vec<String> {
        let kinds = "kind = [{ name = \"a\" }, { name = \"b\", topics = [\"b/{unit}\"] }]";
        let warnings = load(&format!("{kinds}\n{text}")).unwrap().warnings;
        warnings.into_iter().filter(|one| one.path.starts_with("inhibit")).map(|one| one.text).collect()
    };
    assert_eq!(warned(&rule("'kind=a'", "'kind=b'", "'site', 'unit'")), [""; 0]);
    let cases = [
        (
            rule("'kind=a', 'site=x'", "'site=x', 'kind=a'", ""),
            "inhibits nothing: its targets are its sources",
        ),
        (rule("'kind=a'", "'kind=b'", "'unit', 'kind'"), "inhibits nothing: no two units"),
        (rule("'site=a'", "'site=b'", "'site'"), "inhibits nothing: site is \"a\" of sources and \"b\""),
    ];
    for (text, expected) in cases {
        let warnings = warned(&text);
        assert!(warnings.len() == 1 && warnings[0].starts_with(expected), "{warnings:?}");
    }
}

#[test]
fn files_of_tls_are_read_where_there_is_tls_and_errors_where_there_is_none() {
    load("mqtt.url = \"mqtts://broker\"").unwrap();
    load("mqtt.url = \"wss://broker/mqtt\"").unwrap();
    for (url, option) in
        [("mqtt://a", "ca_file"), ("ws://a", "client_cert_file"), ("ws://a", "client_key_file")]
    {
        let refusal = refused(&format!("[mqtt]\nurl = {url:?}\n{option} = \"x.pem\""));
        assert!(refusal.contains(&format!("mqtt.{option}: has no effect with")), "{refusal}");
    }
    let refusal = refused("[mqtt]\nurl = \"mqtts://a\"\nca_file = \"missing.pem\"");
    assert!(refusal.contains("mqtt.ca_file: missing.pem cannot be read"), "{refusal}");
    let refusal = refused("[mqtt]\nurl = \"mqtts://a\"\nclient_key_file = \"missing.pem\"");
    assert!(refusal.contains("mqtt.client_cert_file: is missing"), "{refusal}");
}

#[test]
fn files_of_tls_to_redis_are_read_where_there_is_tls_and_errors_where_there_is_none() {
    for url in ["rediss://a", "rediss-sentinel://a/m", "rediss-cluster://a,b"] {
        load(&format!("engine.url = {url:?}")).unwrap();
        let told = refused(&format!("[engine]\nurl = {url:?}\nca_file = \"missing.pem\""));
        assert!(told.contains("engine.ca_file: missing.pem cannot be read"), "{told}");
        let told = refused(&format!("[engine]\nurl = {url:?}\nclient_cert_file = \"missing.pem\""));
        assert!(told.contains("engine.client_key_file: is missing; engine.client_cert_file needs"), "{told}");
    }
    for (url, todo) in [
        ("redis://a", "write rediss:// in engine.url"),
        ("redis-sentinel://a/m", "write rediss-sentinel:// in engine.url"),
        ("redis-cluster://a", "write rediss-cluster:// in engine.url"),
        ("redis+unix:///a", "a socket of this machine; remove it"),
    ] {
        for option in ["ca_file", "client_cert_file", "client_key_file"] {
            let told = refused(&format!("[engine]\nurl = {url:?}\n{option} = \"x.pem\""));
            assert!(
                told.contains(&format!("engine.{option}: has no effect with")) && told.contains(todo),
                "{told}"
            );
        }
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ca.pem"), "garbage").unwrap();
    let text = "[engine]\nurl = \"rediss://a\"\nca_file = \"ca.pem\"";
    let told = config::parse(text, Some(&dir.path().join("rollcall.toml")), []).unwrap_err().to_string();
    assert!(told.contains("engine.ca_file: ") && told.contains("ca.pem holds no certificate"), "{told}");
}

#[test]
fn a_user_of_redis_without_a_password_is_an_error() {
    for rest in ["a", "a:1/0"] {
        let told = refused(&format!("engine.url = \"redis://rollcall@{rest}\""));
        assert!(
            told.contains("engine.password_file: is missing; the user in engine.url needs its password"),
            "{told}"
        );
    }
    for url in
        ["redis-cluster://rollcall@a,b", "redis-sentinel://rollcall@a/m", "redis+unix:///a?user=rollcall"]
    {
        let told = refused(&format!("engine.url = {url:?}"));
        assert!(told.contains("engine.password_file: is missing"), "{told}");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("password"), "hunter2").unwrap();
    let text = "[engine]\nurl = \"redis://rollcall@a\"\npassword_file = \"password\"";
    config::parse(text, Some(&dir.path().join("rollcall.toml")), []).unwrap();
    for url in ["redis://rollcall:hunter2@a", "redis://:hunter2@a", "redis://a"] {
        load(&format!("engine.url = {url:?}")).unwrap();
    }
}

#[test]
fn the_login_at_sentinels_is_read_where_there_are_sentinels_and_an_error_where_there_are_none() {
    let options = ["sentinel_username", "sentinel_password_file"];
    for (url, option) in options.into_iter().flat_map(|it| [("redis://a", it), ("redis-cluster://a", it)]) {
        let told = refused(&format!("[engine]\nurl = {url:?}\n{option} = \"x\""));
        assert!(told.contains(&format!("engine.{option}: is for sentinels")), "{told}");
    }
    let sentinels = "[engine]\nurl = \"redis-sentinel://a/m\"";
    let told = refused(&format!("{sentinels}\nsentinel_username = \"x\""));
    assert!(told.contains("engine.sentinel_password_file: is missing"), "{told}");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("password"), "hunter2\n").unwrap();
    let text = format!("{sentinels}\nsentinel_username = \"x\"\nsentinel_password_file = \"password\"");
    let config = config::parse(&text, Some(&dir.path().join("rollcall.toml")), []).unwrap();
    let EngineConfig::Redis(engine) = &config.engine else { panic!("it is on Redis") };
    assert_eq!(engine.sentinel_username.as_deref(), Some("x"));
    assert_eq!(engine.sentinel_password.as_deref(), Some("hunter2"));
    assert!(!format!("{engine:?}").contains("hunter2"));
}

#[test]
fn partitions_and_replicas_are_a_number_or_follow_from_the_address() {
    let counts = |config: Config| {
        let EngineConfig::Redis(engine) = config.engine else { panic!("it is on Redis") };
        (engine.partitions, engine.wait_replicas, engine.wait_timeout.as_millis())
    };
    assert_eq!(counts(load("").unwrap()), (None, None, 100));
    let text = "[engine]\npartitions = \"auto\"\nwait_replicas = \"auto\"";
    assert_eq!(counts(load(text).unwrap()), (None, None, 100));
    let text = "[engine]\npartitions = 64\nwait_replicas = 2\nwait_timeout = \"5s\"";
    assert_eq!(counts(load(text).unwrap()), (Some(64), Some(2), 5000));
    let variables = |text: &str| {
        let names = ["ROLLCALL_ENGINE__PARTITIONS", "ROLLCALL_ENGINE__WAIT_REPLICAS"];
        with_variables("", &names.map(|name| (name, text)))
    };
    assert_eq!(counts(variables("3").unwrap()), (Some(3), Some(3), 100));
    assert_eq!(counts(variables("auto").unwrap()), (None, None, 100));
    for text in ["many", "-1", "70000"] {
        let told = variables(text).unwrap_err().to_string();
        assert!(
            told.contains("ROLLCALL_ENGINE__PARTITIONS: ") && told.contains("\"auto\" or a whole"),
            "{told}"
        );
    }
}

#[test]
fn several_connections_are_members_of_a_share() {
    load("mqtt = { share = \"all\", connections = 16 }").unwrap();
    for text in
        ["mqtt = { connections = 2 }", "mqtt = { share = \"all\", connections = 17 }", "mqtt.connections = 0"]
    {
        assert!(refused(text).contains("mqtt.connections: "), "{text}");
    }
}

#[test]
fn two_kinds_never_hear_the_same_topics() {
    let refusal = refused("kind = [{ name = \"a\" }, { name = \"b\" }]");
    assert!(refusal.contains("kind[1].topics[0]: matches the same topics as"), "{refusal}");
    let refusal = refused("kind = [{ topics = [\"x/{a}/{unit}\", \"x/{unit}/{b}\"] }]");
    assert!(refusal.contains("kind[0].topics[1]: matches the same topics as \"x/{a}/{unit}\""), "{refusal}");

    // Nor announcements: a message would be of one kind only.
    let kind = |name: &str, topics: &str, presence: &str| {
        format!("{{ name = \"{name}\", topics = [\"{topics}\"], presence = {{ {presence} }} }}")
    };
    let tasmota = "format = \"tasmota\"";
    let own = "format = \"tasmota\", topics = [\"b/{unit}/LWT\"]";
    let unnamed = "format = \"homeassistant\", topics = [\"tele/+/LWT\"]";
    for (second, is_refused) in [
        (kind("b", "b/{unit}", tasmota), true),
        (kind("b", "tele/{unit}/LWT", ""), true),
        (kind("b", "b/{unit}", "format = \"last_will\", topics = [\"a/{unit}\"]"), true),
        (kind("b", "b/{unit}", own), false),
        (kind("b", "b/{unit}", unnamed), false),
        (kind("b", "b/{unit}", "format = \"last_will\""), false),
    ] {
        let both = format!("kind = [{}, {second}]", kind("a", "a/{unit}", tasmota));
        let refusal = config::parse(&both, None, []).map_or_else(|why| why.to_string(), |_| String::new());
        let text = ".presence.topics: ";
        let advice = "name topics that only this kind has";
        assert_eq!(refusal.contains(text) && refusal.contains(advice), is_refused, "{both} {refusal}");
    }
}

const PUMP: &str = r#"
    [[kind]]
    name = "pump"
    topics = ["pumps/{unit}"]
    [[kind.metric]]
    name = "pump_starts_total"
    pointer = "/motor/starts~1day"
    type = "counter"
    help = "Starts of the motor."
    unit = "starts"
    [[kind.metric]]
    name = "firmware_info"
    pointer = "/fw"
    type = "info"
    help = "The firmware."
    label = "version"
"#;

#[test]
fn metrics_of_units_are_named_by_kind() {
    let config = load(PUMP).unwrap();
    let [starts, firmware] = config.metrics.of(&kind("pump")) else { panic!("{:?}", config.metrics) };
    assert_eq!((starts.name.as_str(), starts.unit.as_str()), ("pump_starts_total", "starts"));
    assert_eq!(starts.pointer, ["motor", "starts/day"]);
    assert_eq!((firmware.metric_type.as_str(), firmware.label.as_str()), ("info", "version"));
    assert!(load("").unwrap().metrics.is_empty());
}

#[test]
fn a_metric_that_prometheus_would_not_understand_is_refused() {
    let other = |changes: &[(&str, &str)]| {
        let second = PUMP.replace("\"pump\"", "\"meter\"").replace("pumps/", "meters/");
        format!("{PUMP}{}", changes.iter().fold(second, |text, (from, to)| text.replace(from, to)))
    };
    assert!(load(&other(&[("/fw", "/firmware")])).is_ok(), "the same metrics of another kind");
    let cases = [
        (PUMP.replace("pump_starts_total", "rollcall_starts_total"), "kind[0].metric[0].name"),
        (PUMP.replace("pump_starts_total", "pump_starts"), "kind[0].metric[0].name"),
        (PUMP.replace("firmware_info", "firmware"), "kind[0].metric[1].name"),
        (PUMP.replace("firmware_info", "pump_starts_info"), "kind[0].metric[1].name"),
        (PUMP.replace("\"/fw\"", "\"fw\""), "kind[0].metric[1].pointer"),
        (PUMP.replace("The firmware.", ""), "kind[0].metric[1].help"),
        (PUMP.replace("unit = \"starts\"", "unit = \"seconds\""), "kind[0].metric[0].unit"),
        (PUMP.replace("\"version\"", "\"unit\""), "kind[0].metric[1].label"),
        (PUMP.replace("type = \"info\"", ""), "kind[0].metric[1].type"),
        (other(&[("The firmware.", "Another.")]), "kind[1].metric[1].help"),
        (other(&[("version", "release")]), "kind[1].metric[1].label"),
        (
            other(&[("firmware_info", "pump_starts_total"), ("\"info\"", "\"counter\"")]),
            "kind[1].metric[1].name",
        ),
        (other(&[("_starts_total", "_starts"), ("counter", "gauge")]), "kind[1].metric[0].name"),
    ];
    for (text, option) in cases {
        let refusal = refused(&text);
        assert!(
            refusal.lines().any(|line| line.starts_with(&format!("{option}: "))),
            "{refusal}\n--- expected {option}"
        );
    }
    let many: String = (0..17)
        .map(|n| {
            format!("[[kind.metric]]\nname = \"m{n}\"\npointer = \"/m\"\ntype = \"gauge\"\nhelp = \"M.\"\n")
        })
        .collect();
    let many = format!("[[kind]]\nname = \"pump\"\n{many}");
    assert!(refused(&many).contains("more than 16"));
}

#[test]
fn an_instance_advertises_its_listen_address_unless_another_is_configured() {
    let advertised = |text: &str| load(text).unwrap().advertise;
    assert_eq!(advertised(""), "127.0.0.1:8080");
    assert_eq!(advertised("http.advertise = \"rollcall-1.example.org:80\""), "rollcall-1.example.org:80");
    let token = "sha256 = \"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"";
    let everywhere = format!("[http]\nlisten = \"0.0.0.0:9000\"\n[[http.token]]\nname = \"a\"\n{token}");
    let name = advertised(&everywhere);
    assert!(name.ends_with(":9000") && !name.starts_with("0.0.0.0") && name.len() > 5, "{name}");
    // As Kubernetes makes it of an address of IPv6.
    for given in ["fd00::5:8080", "[fd00::5]:8080"] {
        assert_eq!(advertised(&format!("http.advertise = {given:?}")), "[fd00::5]:8080");
    }
    for bad in ["rollcall", "rollcall:http", "a b:80", "http://rollcall:80", "fd00::5", ":80", "[a:80"] {
        assert!(refused(&format!("http.advertise = {bad:?}")).starts_with("http.advertise: "), "{bad}");
    }
}

#[test]
fn the_environment_wins_over_the_file_and_keeps_digits_text() {
    let file = "[mqtt]\nclient_id = \"file\"\nqos = 1\n";
    let variables = [
        ("ROLLCALL_ENGINE__URL", "redis://10.0.0.5:6379/1"),
        ("ROLLCALL_MQTT__CLIENT_ID", "0123"),
        ("ROLLCALL_MQTT__QOS", "0"),
        ("ROLLCALL_MQTT__FIELDS__TS", "time"),
        ("ROLLCALL_EXPIRY__HINTS", "false"),
        ("ROLLCALL_ROUTE__GROUP_WAIT", "1m 30s"),
        ("ROLLCALL_HTTP__LISTEN", "[::1]:9000"),
        ("PATH", "/bin"),
        ("ROLLCALL_CONFIG", "somewhere.toml"),
    ];
    let config = with_variables(file, &variables).unwrap();
    assert_eq!(config.engine.to_string(), "redis://10.0.0.5:6379/1");
    assert_eq!(config.intake[0].client_id, "0123");
    assert_eq!(config.intake[0].qos, 0);
    assert_eq!(config.intake[0].fields.ts, "time");
    assert!(!config.expiry.hints && config.expiry.sweep);
    assert_eq!(config.alerting.route.pace.wait, Duration::from_secs(90));
    assert_eq!(config.http.listen.to_string(), "[::1]:9000");
}

#[test]
fn a_variable_that_sets_nothing_is_an_error_with_a_suggestion() {
    let cases = [
        ("ROLLCALL_ENGINE_URL", "x", "there is no such option; did you mean ROLLCALL_ENGINE__URL?"),
        ("ROLLCALL_MQTT__QSO", "1", "there is no such option; did you mean ROLLCALL_MQTT__QOS?"),
        ("ROLLCALL_NONSENSE_ALTOGETHER", "1", "there is no such option; config/reference.toml has them all"),
        ("ROLLCALL_MQTT__QOS", "many", "write a whole number"),
        ("ROLLCALL_MQTT__QOS", "-1", "invalid value: integer `-1`, expected a whole number from 0 to 255"),
        ("ROLLCALL_EXPIRY__SWEEP", "yes", "write true or false"),
        ("ROLLCALL_ROUTE__RECEIVERS", "hook", "a list cannot be set here; write it into the file"),
        ("ROLLCALL_ROUTE__GROUP_WAIT", "soon", "invalid value: string \"soon\", expected a span of time"),
        ("ROLLCALL_LOG__FORMAT", "xml", "unknown value `xml`; known here: human, json"),
    ];
    for (name, value, expected) in cases {
        let refusal = with_variables("", &[(name, value)]).expect_err(name).to_string();
        assert!(refusal.starts_with(&format!("{name}: {expected}")), "{refusal}\n--- expected\n{expected}");
    }
}

#[test]
fn a_kubernetes_service_of_the_same_name_does_not_keep_rollcall_from_starting() {
    let links = [
        ("ROLLCALL_SERVICE_HOST", "10.0.0.1"),
        ("ROLLCALL_SERVICE_PORT_HTTP", "8080"),
        ("ROLLCALL_PORT", "tcp://10.0.0.1:8080"),
        ("ROLLCALL_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("ROLLCALL_REDIS_SERVICE_HOST", "10.0.0.2"),
    ];
    with_variables("", &links).unwrap();
}

#[test]
fn secrets_are_read_beside_the_file_without_their_newline() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rollcall.toml");
    std::fs::write(dir.path().join("redis"), "12345678\n").unwrap();
    std::fs::write(dir.path().join("mqtt"), " pass word \n").unwrap();
    std::fs::write(dir.path().join("hook"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    std::fs::write(dir.path().join("token"), "rollcall-test-token\n").unwrap();
    let text = r#"
        engine.password_file = "redis"
        mqtt.username = "rollcall"
        mqtt.password_file = "mqtt"
        receiver = [{ name = "hook", type = "webhook", url = "http://127.0.0.1:1/x", secret_file = "hook" }]
        route.receivers = ["hook"]
        http.listen = "0.0.0.0:80"
        http.token = [
            { name = "a", role = "admin", token_file = "token" },
            { name = "b", expires = "2027-01-01T01:00:00+01:00",
              sha256 = "6861cb833ad9bbe5fd6006da31701ea6f00d28539be923efe3b9e252e92155a1" },
        ]
    "#;
    std::fs::write(&file, text).unwrap();
    let config = config::load(Some(&file)).unwrap();
    assert_eq!(config.source.as_deref(), Some(file.as_path()));
    let EngineConfig::Redis(engine) = &config.engine else { panic!("{:?}", config.engine) };
    assert_eq!(engine.password.as_deref(), Some("12345678"));
    assert_eq!(config.intake[0].credentials, Some(("rollcall".into(), "pass word".into())));
    let ChannelConfig::Webhook(webhook) = &config.alerting.receivers[0].channel else { panic!() };
    assert_eq!(webhook.secret.as_deref(), Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    let [a, b] = config.http.tokens.as_slice() else { panic!() };
    assert_eq!(a.sha256, b.sha256, "both are the SHA-256 of the token in the file");
    assert_eq!((a.role, b.role), (Role::Admin, Role::Viewer));
    let ends = [a, b].map(|token| token.expires_at.map(|end| end.to_string()));
    assert_eq!(ends, [None, Some("2027-01-01T00:00:00.000Z".to_owned())]);
}

#[test]
fn a_secret_that_is_missing_empty_or_given_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("empty"), "\n").unwrap();
    let hook = "name = \"hook\"\ntype = \"webhook\"\nurl = \"http://127.0.0.1:1\"\n";
    let cases = [
        ("[engine]\npassword_file = \"gone\"".to_owned(), "engine.password_file: ", "cannot be read"),
        ("[engine]\npassword_file = \"empty\"".to_owned(), "engine.password_file: ", "is empty"),
        (
            "[engine]\nurl = \"redis://:a@b\"\npassword_file = \"empty\"".to_owned(),
            "engine.url: ",
            "holds a password",
        ),
        (
            format!("[[receiver]]\n{hook}secret = \"whsec_YWJj\"\nsecret_file = \"empty\""),
            "receiver \"hook\": ",
            "has both secret and secret_file",
        ),
        (
            "[[http.token]]\nname = \"a\"".to_owned(),
            "http.token \"a\": ",
            "needs either sha256 or token_file",
        ),
        (
            "[[http.token]]\nname = \"a\"\nsha256 = \"abc\"".to_owned(),
            "http.token \"a\": sha256: ",
            "is no SHA-256; write 64 hex digits",
        ),
        (
            "[[http.token]]\nname = \"a\"\nsha256 = \"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"".to_owned(),
            "http.token \"a\": sha256: ",
            "is the SHA-256 of \"\", which is found by trying",
        ),
        (
            "[[http.token]]\nname = \"a\"\nsha256 = \"41edf6e61ed42a3c6848b0ae91ddc5662377c09a3ed38fcd9f9e82664294bcfd\"".to_owned(),
            "http.token \"a\": sha256: ",
            "is the SHA-256 of \"changeme\\n\", which is found by trying",
        ),
        (
            format!("[[http.token]]\nname = \"a\"\nsha256 = \"{}\"\nexpires = \"soon\"", "ab".repeat(32)),
            "http.token \"a\": expires: ",
            "is not a moment",
        ),
        (
            format!("[[http.token]]\nname = \"a\"\nkinds = [\"detector\"]\nsha256 = \"{}\"", "ab".repeat(32)),
            "http.token \"a\": ",
            "of use only with role = \"device\"",
        ),
        (
            format!(
                "[[http.token]]\nname = \"a\"\nrole = \"device\"\nkinds = [\"pump\"]\nsha256 = \"{}\"",
                "ab".repeat(32)
            ),
            "http.token \"a\": kinds[0]: ",
            "there is no [[kind]] with the name \"pump\"",
        ),
        (
            "[http]\ntrusted_proxies = [\"10.0.0.7\"]\nuser_header = \"X-User\"\nuser_role = \"device\"".to_owned(),
            "http.user_roles: ",
            "a user is no device",
        ),
        ("[[kind]]\nname = \"a\"\ntopics = []".to_owned(), "kind: ", "also if all units are heard over HTTP"),
    ];
    for (text, path, expected) in cases {
        let refusal =
            config::parse(&text, Some(&dir.path().join("rollcall.toml")), []).unwrap_err().to_string();
        let found = refusal.lines().any(|line| line.contains(path) && line.contains(expected));
        assert!(found, "{refusal}\n--- expected\n{path}… {expected}");
    }
}

#[test]
fn several_brokers_have_names_and_kinds_say_at_which_they_are_heard() {
    let two = "[[mqtt]]\nname = \"eu\"\n[[mqtt]]\nname = \"us\"\nurl = \"mqtt://us\"\n";
    let kinds = "[[kind]]\nname = \"a\"\nbrokers = [\"eu\"]\n[[kind]]\nname = \"b\"\nbrokers = [\"us\"]\n";
    let config = config::parse(&format!("{two}{kinds}"), None, []).unwrap();
    let names: Vec<&str> = config.intake.iter().map(|one| one.broker.as_str()).collect();
    assert_eq!((names, config.intake[0].topics.len()), (vec!["eu", "us"], 2));
    let shared = config::parse(&format!("{two}share = \"all\"\nconnections = 2\n{kinds}"), None, []).unwrap();
    assert_eq!(shared.intake.iter().map(|one| one.share.as_str()).collect::<Vec<_>>(), ["", "all"]);
    let one = config::parse("mqtt.name = \"eu\"", None, []).unwrap();
    assert_eq!((one.intake.len(), one.intake[0].broker.as_str()), (1, "eu"));
    let cases = [
        (two.replace("\"us\"", "\"eu\""), "mqtt \"eu\": name: ", "is used twice"),
        (two.replace("name = \"us\"", ""), "mqtt[1].name: ", "is no name of a broker"),
        (two.replace("\"us\"", "\"http\""), "mqtt \"http\": name: ", "over HTTP"),
        (two.replace("mqtt://us", "mqtt//us"), "mqtt \"us\": url: ", ""),
        (format!("{two}share = \"x/y\"\n"), "mqtt \"us\": share: ", "has no /"),
        (format!("{two}connections = 2\n"), "mqtt \"us\": connections: ", "more than 1 only with mqtt.share"),
        (format!("{two}{}", kinds.replace("\"us\"", "\"asia\"")), "kind \"b\": brokers[0]: ", "asia"),
        (format!("{two}[instance]\nbrokers = [\"asia\"]"), "instance.brokers[0]: ", "asia"),
        (format!("{two}{kinds}topics = [\"{{kind}}/{{unit}}\"]"), "kind \"b\": brokers: ", "{kind}"),
    ];
    for (text, path, expected) in cases {
        let refusal = config::parse(&text, Some("rollcall.toml".as_ref()), []).unwrap_err().to_string();
        let found = refusal.lines().any(|line| line.contains(path) && line.contains(expected));
        assert!(found, "{refusal}\n--- expected\n{path}… {expected}");
    }
    let variable = [("ROLLCALL_MQTT__URL".to_owned(), "mqtt://x".to_owned())];
    let refusal = config::parse(two, None, variable).unwrap_err().to_string();
    assert!(refusal.contains("ROLLCALL_MQTT__URL: [[mqtt]] stands in the file as a list"), "{refusal}");
    let wrong = config::parse("[[mqtt]]\nnam = \"eu\"", None, []).unwrap_err().to_string();
    assert!(wrong.contains("nam") && wrong.contains("name"), "{wrong}");
}

const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

#[test]
fn a_valid_but_suspicious_setting_is_a_warning() {
    let text = r#"
        [[receiver]]
        name = "hook"
        type = "webhook"
        url = "http://127.0.0.1:1"
        [expiry]
        sweep = false
        [[kind]]
        name = "slow"
        flapping = { transitions = 6, window = "95h" }
        [[kind]]
        name = "quick"
        topics = ["quick/{unit}"]
        timeout = "30m"
        flapping = { transitions = 6 }
        [[kind]]
        name = "fine"
        topics = ["fine/{unit}"]
        timeout = "29m"
        flapping = { transitions = 6 }
    "#;
    let config = load(text).unwrap();
    let mut paths: Vec<&str> = config.warnings.iter().map(|problem| problem.path.as_str()).collect();
    paths.sort_unstable();
    let of_kinds = ["kind[0].flapping.window", "kind[1].flapping.stable"];
    assert_eq!(paths, ["expiry.sweep", of_kinds[0], of_kinds[1], "receiver[0]", "receiver[0].name"]);
    let rule = config.alerting.flapping[&"fine".parse().unwrap()];
    assert_eq!((rule.transitions, rule.window, rule.stable), (6, 2 * HALF_AN_HOUR, HALF_AN_HOUR));
}

#[test]
fn a_file_that_was_named_and_is_not_there_is_an_error() {
    let refusal = config::load(Some(Path::new("/nowhere/rollcall.toml"))).unwrap_err().to_string();
    assert!(refusal.starts_with("/nowhere/rollcall.toml cannot be read: "), "{refusal}");
}

#[test]
fn the_directory_of_an_embedded_fleet_lies_beside_the_file() {
    let load = |text: &str| config::parse(text, Some(Path::new("/etc/rollcall/rollcall.toml")), []).unwrap();
    let engine = load("[engine]\ntype = \"embedded\"").engine;
    assert_eq!(engine.to_string(), "/etc/rollcall/rollcall-data");
    let engine = load("[engine]\ntype = \"embedded\"\npath = \"/var/lib/rollcall\"").engine;
    assert_eq!(engine.to_string(), "/var/lib/rollcall");
}

#[test]
fn a_token_in_a_file_is_long_and_the_file_a_regular_small_one() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("short"), "fifteen-chars-x\n").unwrap();
    std::fs::write(at("right"), "sixteen-chars-xx\n").unwrap();
    std::fs::write(at("long"), "x".repeat(65_537)).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    for (file, expected) in [
        ("right", None),
        ("short", Some("fewer than 16 characters")),
        ("long", Some("more than 65536 bytes")),
        ("pipe", Some("no regular file")),
        ("/dev/zero", Some("no regular file")),
    ] {
        let text = format!("[[http.token]]\nname = \"a\"\nrole = \"viewer\"\ntoken_file = \"{file}\"\n");
        let loaded = config::parse(&text, Some(&at("rollcall.toml")), []);
        match (loaded, expected) {
            (Ok(_), None) => {}
            (Err(why), Some(expected)) => assert!(why.to_string().contains(expected), "{file}: {why}"),
            (loaded, _) => panic!("{file}: {:?}", loaded.err().map(|why| why.to_string())),
        }
    }
}

#[test]
fn a_secret_that_others_may_read_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let set = |name: &str, mode: u32| {
        let file = dir.path().join(name);
        if !file.exists() {
            std::fs::write(&file, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        }
        std::fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    };
    let text = r#"
        engine.password_file = "redis"
        mqtt = { username = "rollcall", password_file = "mqtt" }
        deadman.url_file = "deadman"
        receiver = [{ name = "hook", type = "webhook", url = "http://127.0.0.1:1/x", secret_file = "hook" }]
        route.receivers = ["hook"]
        [[http.token]]
        name = "grafana"
        token_file = "token"
    "#;
    let files = ["redis", "mqtt", "deadman", "hook", "token"];
    files.iter().for_each(|name| set(name, 0o644));
    std::fs::write(dir.path().join("deadman"), "https://example.org/x").unwrap();
    let warned = || {
        let config = config::parse(text, Some(&dir.path().join("rollcall.toml")), []).unwrap();
        let warnings = config.warnings.iter().filter(|warning| warning.text.contains("chmod o="));
        warnings.map(|warning| warning.path.clone()).collect::<Vec<_>>()
    };
    let mut warnings = warned();
    warnings.sort();
    let options =
        ["deadman.url_file", "engine.password_file", "http.token[0].token_file", "mqtt.password_file"];
    assert_eq!(warnings[..4], options);
    assert_eq!((warnings.len(), warnings[4].as_str()), (5, "receiver[0].secret_file"));
    // A service gets a secret through a group of its own.
    files.iter().for_each(|name| set(name, 0o640));
    assert_eq!(warned(), Vec::<String>::new());
}

/// Receivers that may and may not get timers, and the classes that a case adds.
fn with_timers(more: &str) -> String {
    format!(
        r#"
        [[receiver]]
        name = "hook"
        type = "webhook"
        url = "https://example.org/hook"
        [[receiver]]
        name = "alerts"
        type = "alertmanager"
        urls = ["http://127.0.0.1:9093"]
        [[receiver]]
        name = "as-alerts"
        type = "webhook"
        format = "alertmanager"
        url = "https://example.org/alerts"
        [[receiver]]
        name = "falls-back"
        type = "webhook"
        url = "https://example.org/first"
        fallback = "alerts"
        {more}
        "#
    )
}

#[test]
fn every_option_of_a_class_of_timers_reaches_its_rules() {
    let text = with_timers(
        r#"
        [[timer]]
        type = "report"
        receivers = ["hook"]
        [[timer]]
        type = "command_2"
        receivers = ["hook"]
        guarantee = "at_most_once"
        keep = "1h"
        max = 7
        [timers]
        max = 70
        rate = 0
        [mqtt]
        timers = true
        "#,
    );
    let config = load(&text).unwrap();
    let rules = &config.timers;
    let class = |name: &str| rules.classes[&name.parse().unwrap()].clone();
    let report = class("report");
    assert_eq!(
        (report.guarantee, report.keep, report.most),
        (Guarantee::AtLeastOnce, 7 * 24 * HOUR, 2_000_000)
    );
    let command = class("command_2");
    assert_eq!((command.guarantee, command.keep, command.most), (Guarantee::AtMostOnce, HOUR, 7));
    assert_eq!(command.receivers, ["hook"]);
    assert_eq!((rules.classes.len(), rules.most, rules.rate), (2, 70, 0));
    assert!(config.intake[0].timers);
    let unused = config.warnings.iter().map(|one| one.path.as_str()).filter(|path| path.ends_with(".name"));
    let unused: Vec<&str> = unused.collect();
    assert_eq!(unused, ["receiver[2].name", "receiver[3].name"], "a receiver of timers needs no route");
    let none = load("").unwrap();
    assert!(none.timers.classes.is_empty() && !none.intake[0].timers);
    assert_eq!((none.timers.most, none.timers.rate), (5_000_000, 100_000));
}

#[test]
fn all_errors_of_the_classes_of_timers_are_reported_at_once() {
    let text = with_timers(
        r#"
        [[timer]]
        type = "Report"
        receivers = []
        keep = "1s"
        [[timer]]
        type = "report"
        receivers = ["hok", "nobody-at-all", "alerts", "as-alerts", "falls-back", "hook", "hook"]
        max = 0
        [[timer]]
        type = "report"
        receivers = ["hook"]
        [timers]
        max = 0
        "#,
    );
    let why = refused(&text);
    for expected in [
        "timer[0].type: the type of a timer is 1 to 32",
        "timer[0].receivers: is missing",
        "timer[0].keep: 1s is out of bounds",
        "timer[1].receivers[0]: there is no receiver \"hok\"; did you mean \"hook\"?",
        "timer[1].receivers[1]: there is no receiver \"nobody-at-all\"; add a [[receiver]]",
        "timer[1].receivers[2]: \"alerts\" cannot get timers or reports: Alertmanager has alerts",
        "timer[1].receivers[3]: \"as-alerts\" cannot get timers or reports: its format",
        "timer[1].receivers[4]: \"falls-back\" cannot get timers or reports, for its fallback is \"alerts\"",
        "timer[1].receivers[6]: \"hook\" is there twice",
        "timer[1].max: 0 is out of bounds",
        "timer[2].type: \"report\" is used twice",
        "timers.max: 0 is out of bounds",
    ] {
        assert!(why.contains(expected), "{expected}\n{why}");
    }
    assert_eq!(why.lines().count(), 12, "{why}");
    assert!(refused("mqtt.timers = true").contains("mqtt.timers: is of use only with a [[timer]]"));
    let why = refused(&with_timers("[[timer]]\ntype = \"a\"\nguarantee = \"exactly_once\""));
    assert!(why.contains("at_least_once"), "{why}");
}

const HISTORY: &str = "[history]\nurl = \"postgres://rollcall@127.0.0.1/fleet\"\n";

#[test]
fn a_report_is_a_class_of_timers_that_no_client_registers() {
    let text = r#"
        [[report]]
        name = "sites"
        receivers = ["hook"]
        group_by = "site"
        target = 99.5
        [[report]]
        name = "quarters"
        receivers = ["hook"]
        every = "week"
        at = "18:30"
        range = "90d"
        "#;
    let config = load(&format!("{HISTORY}{}", with_timers(text))).unwrap();
    let rules = &config.timers;
    let reports: Vec<String> = rules
        .reports
        .iter()
        .map(|one| {
            format!("{} {:?} {:?} {} {:?}", one.name(), one.schedule, one.range, one.group, one.target)
        })
        .collect();
    assert_eq!(
        reports,
        [
            "sites ReportSchedule { every: Month, at: 06:00:00 } Last(Month) site Some(0.995)",
            "quarters ReportSchedule { every: Week, at: 18:30:00 } Days(90) kind None",
        ]
    );
    let class = &rules.classes[&"report_sites".parse().unwrap()];
    assert_eq!((class.receivers.as_slice(), class.keep), (&["hook".to_owned()][..], 400 * 24 * HOUR));
}

#[test]
fn all_errors_of_reports_are_reported_at_once() {
    let text = r#"
        [[report]]
        name = "Sites"
        receivers = []
        at = "25:00"
        range = "fortnight"
        group_by = ""
        target = 100.0
        [[report]]
        name = "sites"
        receivers = ["alerts", "hok"]
        range = "0d"
        [[report]]
        name = "sites"
        receivers = ["hook"]
        [[timer]]
        type = "report_due"
        receivers = ["hook"]
        "#;
    let why = refused(&with_timers(text));
    for expected in [
        "report[0].name: a report's name is 1 to 25",
        "report[0].receivers: is missing",
        "report[0].at: \"25:00\" is no time of a day",
        "report[0].range: \"fortnight\" is no range",
        "report[0].group_by: is empty",
        "report[0].target: 100 is no target",
        "report[1].receivers[0]: \"alerts\" cannot get timers or reports: Alertmanager has alerts",
        "report[1].receivers[1]: there is no receiver \"hok\"",
        "report[1].range: \"0d\" is no range",
        "timer[0].type: begins with report_",
        "report: is made from history; set history.url",
    ] {
        assert!(why.contains(expected), "{expected}\n{why}");
    }
    assert_eq!(why.lines().count(), 11, "{why}");
    let twice = "[[report]]\nname = \"a\"\nreceivers = [\"hook\"]\n";
    let why = refused(&format!("{HISTORY}{}", with_timers(&twice.repeat(2))));
    assert!(why.contains("report[1].name: \"a\" is used twice"), "{why}");
    let why = refused("[[report]]\nevery = \"fortnight\"");
    assert!(why.contains("quarter"), "{why}");
}

#[test]
fn an_error_of_a_value_names_the_file_the_line_and_the_element() {
    let text = r#"[[kind]]
name = "pump"
timeout = "401d"

[[kind]]
name = "valve"
topics = [
    "valves/{unit}",
    "valves/{unit}/{unit}",
]

[[receiver]]
name = "hook"
type = "webhook"

[route]
receivers = ["hook"]
routes = [
    { matchers = ["site=a"] },
    { matchers = ["site~a"] },
]

[[http.token]]
name = "desk"
sha256 = "x"
"#;
    let variables = [("ROLLCALL_MQTT__URL".to_owned(), "http://x".to_owned())];
    let file = Path::new("/etc/rollcall/rollcall.toml");
    let told = config::parse(text, Some(file), variables).unwrap_err().to_string();
    for expected in [
        ":3: kind \"pump\": timeout: 401d is out of bounds",
        ":9: kind \"valve\": topics[1]: ",
        ":12: receiver \"hook\": url: is missing",
        ":20: route.routes[1].matchers[0]: ",
        ":25: http.token \"desk\": sha256: ",
    ] {
        assert!(told.contains(&format!("/etc/rollcall/rollcall.toml{expected}")), "{expected}: {told}");
    }
    assert!(told.contains("ROLLCALL_MQTT__URL: mqtt.url: "), "{told}");
    assert_eq!(told.lines().count(), 6, "{told}");
}

#[test]
fn an_error_of_the_parser_says_what_to_write() {
    for (text, expected) in [
        (
            "[http]\nlisten = \"localhost:8080\"",
            "expected an IP address and a port in quotes, such as \"127.0.0.1:8080\"",
        ),
        ("[[kind]]\ntopics = \"units/{unit}\"", "expected a list in brackets, such as [\"…\"]"),
        ("[receiver]\nname = \"x\"", "there may be several of receiver; write [[receiver]]"),
        ("[[kind]]\nmax_units = \"many\"", "expected a whole number, 0 or more"),
        ("[mqtt]\nmax_payload = -1", "expected a whole number from 0 to 4294967295"),
        ("[mqtt]\nmax_payload = 99999999999999999999999", "expected a whole number from 0 to 4294967295"),
        ("[[kind]]\nflapping = true", "expected a table, such as { transitions = 6, "),
        ("[[kind]]\naccept_sleep = \"yes\"", "expected true or false, without quotes"),
    ] {
        let told = refused(text);
        assert!(told.contains(expected) && !told.contains("i128"), "{text}: {told}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, b"[log]\nlevel = \"\xff\"\n").unwrap();
    let told = config::load(Some(&file)).unwrap_err().to_string();
    assert!(told.ends_with("c.toml is not UTF-8: byte 0xff in line 2; save it as UTF-8"), "{told}");
}

#[test]
fn rules_without_effect_are_warned_of() {
    let text = r#"
        kind = [{ name = "pump" }]
        inhibit = [{ source_matchers = ["kind=nope"], target_matchers = ["kind=pump"] }]
        [[receiver]]
        name = "pd"
        type = "pagerduty"
        routing_key_file = "key"
        [[receiver]]
        name = "mail"
        type = "email"
        smtp = "smtp://mail.example.org"
        from = "a@example.org"
        to = ["b@example.org"]
        [route]
        receivers = ["mail"]
        routes = [
            { matchers = ["kind=~\"pump|valve\""], receivers = ["pd"], recoveries = false, routes = [{ matchers = ["a=b"] }] },
            { matchers = ["kind!=pump"] },
            { matchers = ["site=x"], receivers = [], escalate = [{ after = "5m", receivers = ["pd"] }] },
        ]
    "#;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(dir.path().join("key"), Permissions::from_mode(0o600)).unwrap();
    let config = config::parse(text, Some(&dir.path().join("rollcall.toml")), []).unwrap();
    let mut warned: Vec<&str> = config.warnings.iter().map(|one| one.path.as_str()).collect();
    warned.sort_unstable();
    assert_eq!(
        warned,
        ["inhibit[0].source_matchers", "route.routes[0].recoveries", "route.routes[1].matchers"],
        "a route that only escalates notifies"
    );
}
