//! The shape of the configuration file: every option with its default, nothing checked yet.
//!
//! This is the one list of options. The environment, the suggestions and the test of `config/reference.toml` all read
//! it through [`options`], so a new option can be set from the environment, and the reference has to list it.
//!
//! Optional text is empty by default: the environment can switch such an option off, and the reference can show each
//! option at its default.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::count::Count;
use super::period::Period;
use super::recoveries::RecoveriesOption;
use super::span::Span;

#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "options are explained in config/reference.toml, their one home")]
pub struct File {
    pub instance: Instance,
    pub engine: Engine,
    pub mqtt: Brokers,
    pub broker: Broker,
    pub kind: Vec<Kind>,
    pub receiver: Vec<Receiver>,
    pub route: Route,
    pub time: Vec<Time>,
    pub inhibit: Vec<Inhibit>,
    pub breaker: Breaker,
    pub timer: Vec<Timer>,
    pub timers: Timers,
    pub report: Vec<Report>,
    pub hearing: Hearing,
    pub expiry: Expiry,
    pub records: Records,
    pub history: History,
    pub deadman: Deadman,
    pub http: Http,
    pub log: Log,
}

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$attr:meta])* $key:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Deserialize, Serialize)]
        #[serde(deny_unknown_fields, default)]
        #[allow(missing_docs, reason = "options are explained in config/reference.toml, their one home")]
        pub struct $name { $($(#[$attr])* pub $key: $type,)* }
        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default,)* }
            }
        }
    };
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($variant:ident),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(rename_all = "lowercase")]
        #[allow(missing_docs, reason = "options are explained in config/reference.toml, their one home")]
        pub enum $name { $($variant),* }
    };
}

mod brokers;
mod holds;
mod kind;
mod listen;
mod timers;

pub use brokers::Brokers;
pub use holds::{Breaker, Inhibit};
pub use kind::{ClockSource, Kind, Metric, MetricType, OnPlanned, Presence, PresenceFormat, Registry, Trust};
pub use timers::{GuaranteeOption, Report, ReportPeriod, Timer, Timers};

section! {
    /// This process, one of several that serve one fleet.
    Instance {
        name: String = String::new(),
        brokers: Vec<String> = Vec::new(),
    }
}

section! {
    Engine {
        #[serde(rename = "type")]
        engine: EngineType = EngineType::Redis,
        url: String = "redis://127.0.0.1:6379/0".into(),
        password_file: String = String::new(),
        ca_file: String = String::new(),
        client_cert_file: String = String::new(),
        client_key_file: String = String::new(),
        sentinel_username: String = String::new(),
        sentinel_password_file: String = String::new(),
        prefix: String = "rollcall".into(),
        partitions: Count = Count::Auto,
        wait_replicas: Count = Count::Auto,
        wait_timeout: Span = Span::from_millis(100),
        allow_eviction: String = String::new(),
        path: String = "rollcall-data".into(),
    }
}

choice! {
    EngineType { Redis, Embedded }
}

section! {
    /// The connection to the MQTT broker.
    Mqtt {
        name: String = String::new(),
        url: String = "mqtt://127.0.0.1:1883".into(),
        username: String = String::new(),
        password_file: String = String::new(),
        ca_file: String = String::new(),
        client_cert_file: String = String::new(),
        client_key_file: String = String::new(),
        client_id: String = String::new(),
        share: String = String::new(),
        connections: u8 = 1,
        qos: u8 = 1,
        keep_alive: Span = Span::from_secs(10),
        session_expiry: Span = Span::from_hours(1),
        receive_maximum: u16 = 1000,
        max_payload: u32 = 16_384,
        max_age: Span = Span::from_secs(0),
        watch_sys: bool = false,
        publish_state: bool = false,
        publish_state_rate: u32 = 20_000,
        homeassistant_discovery: bool = false,
        timers: bool = false,
        fields: Fields = Fields::default(),
    }
}

section! {
    /// Names of the JSON fields that are read.
    Fields {
        ts: String = "ts".into(),
        timeout: String = "timeout".into(),
        labels: String = "labels".into(),
        sleep: String = "sleep".into(),
    }
}

section! {
    /// The broker within the process.
    Broker {
        name: String = "listener".into(),
        listen: String = String::new(),
        tls_listen: String = String::new(),
        websocket_listen: String = String::new(),
        websocket_tls_listen: String = String::new(),
        cert_file: String = String::new(),
        key_file: String = String::new(),
        client_ca_file: String = String::new(),
        password_file: String = String::new(),
        rules_file: String = String::new(),
        max_connections: u32 = 10_000,
        max_packet: u32 = 1 << 20,
        max_rate: u32 = 1000,
        max_bytes_per_second: u32 = 1 << 20,
    }
}

section! {
    Receiver {
        name: String = String::new(),
        #[serde(rename = "type")]
        channel: Option<Channel> = None,
        url: String = String::new(),
        url_file: String = String::new(),
        secret: String = String::new(),
        secret_file: String = String::new(),
        token_file: String = String::new(),
        format: Format = Format::Rollcall,
        method: String = String::new(),
        headers: BTreeMap<String, String> = BTreeMap::new(),
        labels: BTreeMap<String, String> = BTreeMap::new(),
        body: String = String::new(),
        body_file: String = String::new(),
        ca_file: String = String::new(),
        client_cert_file: String = String::new(),
        client_key_file: String = String::new(),
        deny_private_addresses: bool = false,
        smtp: String = String::new(),
        from: String = String::new(),
        to: Vec<String> = Vec::new(),
        password_file: String = String::new(),
        title: String = String::new(),
        text: String = String::new(),
        routing_key_file: String = String::new(),
        severity: String = String::new(),
        api_key_file: String = String::new(),
        priority: String = String::new(),
        chat_id: String = String::new(),
        thread_id: String = String::new(),
        topic: String = String::new(),
        payload: String = String::new(),
        user_key_file: String = String::new(),
        username: String = String::new(),
        retain: bool = false,
        urls: Vec<String> = Vec::new(),
        resend: Span = Span::from_secs(60),
        max_alerts: usize = 1000,
        command: Vec<String> = Vec::new(),
        environment: BTreeMap<String, String> = BTreeMap::new(),
        zone: String = "UTC".into(),
        concurrency: usize = 4,
        timeout: Span = Span::from_secs(30),
        retry: Retry = Retry::default(),
        fallback: String = String::new(),
        fallback_after: Span = Span::from_secs(600),
        rate_limit: RateLimit = RateLimit::default(),
    }
}

section! {
    /// Zero messages mean that there is no limit.
    RateLimit { messages: usize = 0, per: Span = Span::from_secs(60), }
}

choice! {
    Channel {
        Webhook, Email, Slack, Teams, PagerDuty, Opsgenie, Telegram, Discord, Ntfy, Pushover, Exec, Mqtt,
        Alertmanager
    }
}

choice! {
    /// The body of a webhook.
    Format { Rollcall, Alertmanager, CloudEvents, Template }
}

section! {
    /// The retries of a failed attempt.
    Retry {
        first: Span = Span::from_secs(5),
        longest: Span = Span::from_hours(1),
        give_up_after: Span = Span::from_days(3),
    }
}

section! {
    Route {
        receivers: Vec<String> = Vec::new(),
        group_by: Vec<String> = vec!["kind".into()],
        group_wait: Span = Span::from_secs(10),
        group_interval: Span = Span::from_secs(300),
        #[serde(rename = "for")]
        lasts: Span = Span::from_secs(0),
        recoveries: RecoveriesOption = RecoveriesOption::All,
        repeat_interval: Span = Span::from_secs(0),
        escalate: Vec<Escalation> = Vec::new(),
        mute_times: Vec<String> = Vec::new(),
        active_times: Vec<String> = Vec::new(),
        routes: Vec<NestedRoute> = Vec::new(),
    }
}

section! {
    /// A route below another. It inherits the options that it does not set.
    NestedRoute {
        matchers: Vec<String> = Vec::new(),
        #[serde(rename = "continue")]
        continues: bool = false,
        receivers: Option<Vec<String>> = None,
        group_by: Option<Vec<String>> = None,
        group_wait: Option<Span> = None,
        group_interval: Option<Span> = None,
        #[serde(rename = "for")]
        lasts: Option<Span> = None,
        recoveries: Option<RecoveriesOption> = None,
        repeat_interval: Option<Span> = None,
        escalate: Option<Vec<Escalation>> = None,
        mute_times: Vec<String> = Vec::new(),
        active_times: Vec<String> = Vec::new(),
        routes: Vec<NestedRoute> = Vec::new(),
    }
}

section! {
    /// Other receivers that are notified of a silence which lasts.
    Escalation {
        after: Option<Span> = None,
        receivers: Vec<String> = Vec::new(),
    }
}

section! {
    /// A time in which a route is muted, or active.
    Time {
        name: String = String::new(),
        times: Vec<TimeRange> = Vec::new(),
        weekdays: Vec<String> = Vec::new(),
        days_of_month: Vec<String> = Vec::new(),
        months: Vec<String> = Vec::new(),
        years: Vec<String> = Vec::new(),
        zone: String = "UTC".into(),
    }
}

section! {
    /// A part of the day.
    TimeRange {
        start_time: String = String::new(),
        end_time: String = String::new(),
    }
}

section! {
    /// How Rollcall proves that it hears the fleet.
    Hearing {
        canary_period: Period = Period::Auto,
        settle: Span = Span(crate::presence::DEFAULT_SETTLE),
        tell_after: Span = Span::from_secs(300),
    }
}

section! {
    /// How silences are found.
    Expiry {
        sweep: bool = true,
        hints: bool = true,
    }
}

section! {
    /// The retention of records.
    Records {
        keep: Span = Span::from_days(90),
        keep_deliveries: Span = Span::from_days(7),
        close_unwatched: Span = Span::from_secs(3600),
    }
}

section! {
    /// Years of records, in PostgreSQL.
    History {
        url: String = String::new(),
        password_file: String = String::new(),
        ca_file: String = String::new(),
        client_cert_file: String = String::new(),
        client_key_file: String = String::new(),
        schema: String = "rollcall".into(),
        batch: u32 = 5000,
        statement_timeout: Span = Span::from_secs(30),
        keep: HistoryKeep = HistoryKeep::default(),
    }
}

section! {
    /// How long each table of history is kept.
    HistoryKeep {
        transitions: Span = Span::from_secs(0),
        blind: Span = Span::from_secs(0),
        operations: Span = Span::from_secs(0),
        notifications: Span = Span::from_secs(0),
        daily: Span = Span::from_secs(0),
    }
}

section! {
    /// Pings to another monitor.
    Deadman {
        url: String = String::new(),
        url_file: String = String::new(),
        every: Span = Span::from_secs(60),
    }
}

section! {
    Http {
        #[serde(deserialize_with = "listen::address")]
        listen: SocketAddr = (Ipv4Addr::LOCALHOST, 8080).into(),
        tls_listen: String = String::new(),
        cert_file: String = String::new(),
        key_file: String = String::new(),
        advertise: String = String::new(),
        external_url: String = String::new(),
        requests_per_second: u32 = 2_000,
        trusted_proxies: Vec<String> = Vec::new(),
        user_header: String = String::new(),
        user_role: Role = Role::Viewer,
        user_roles: BTreeMap<String, Role> = BTreeMap::new(),
        unit_metrics: UnitMetrics = UnitMetrics::All,
        unit_metrics_limit: u32 = 1_000_000,
        count_by_labels: Vec<String> = Vec::new(),
        token: Vec<Token> = Vec::new(),
    }
}

choice! {
    /// The units that have series of their own.
    UnitMetrics { All, Offline, Off }
}

section! {
    /// A bearer token.
    Token {
        name: String = String::new(),
        sha256: String = String::new(),
        token_file: String = String::new(),
        expires: String = String::new(),
        role: Role = Role::Viewer,
        kinds: Vec<String> = Vec::new(),
        unit_prefixes: Vec<String> = Vec::new(),
        heartbeats_per_second: u32 = 1_000,
    }
}

choice! {
    Role { Viewer, Operator, Admin, Device }
}

section! {
    Log {
        format: LogFormat = LogFormat::Human,
        level: String = "info".into(),
    }
}

choice! {
    /// For people or for machines.
    LogFormat { Human, Json }
}

impl Default for File {
    fn default() -> File {
        File {
            instance: Instance::default(),
            engine: Engine::default(),
            mqtt: Brokers::default(),
            broker: Broker::default(),
            kind: vec![Kind::default()],
            receiver: Vec::new(),
            route: Route::default(),
            time: Vec::new(),
            inhibit: Vec::new(),
            breaker: Breaker::default(),
            timer: Vec::new(),
            timers: Timers::default(),
            report: Vec::new(),
            hearing: Hearing::default(),
            expiry: Expiry::default(),
            records: Records::default(),
            history: History::default(),
            deadman: Deadman::default(),
            http: Http::default(),
            log: Log::default(),
        }
    }
}

/// Every option with its default: a tree of sections in which each array of tables holds one
/// table, and `null` stands for a choice that has no default.
pub fn options() -> serde_json::Value {
    let http = Http { token: vec![Token::default()], ..Http::default() };
    let kind = Kind { metric: vec![Metric::default()], ..Kind::default() };
    let (routes, escalate) = (vec![NestedRoute::default()], vec![Escalation::default()]);
    let route = Route { routes, escalate, ..Route::default() };
    let receiver = vec![Receiver::default()];
    let time = vec![Time { times: vec![TimeRange::default()], ..Time::default() }];
    let inhibit = vec![Inhibit::default()];
    let (timer, report) = (vec![Timer::default()], vec![Report::default()]);
    let file =
        File { kind: vec![kind], receiver, route, time, inhibit, timer, report, http, ..File::default() };
    serde_json::to_value(file).expect("plain structs with text keys are JSON")
}
