//! Checks `[http]`: the server, its tokens, and the fields of units that it shows.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;

use data_encoding::HEXLOWER_PERMISSIVE;
use ipnet::IpNet;
use url::Url;

use super::file::{Http, Role, Token, UnitMetrics};
use super::problem::Problems;
use super::{instance, secrets};
use crate::alerting::Links;
use crate::clock::parse_moment;
use crate::fleet::Rules;
use crate::fleet::mirror::MAX_LABELS;
use crate::http::{self, DeviceRights, Proxies, ProxyUsers};
use crate::presence::{Kind, is_label_name};
use crate::trust::ServerFiles;

/// The shortest token, in characters.
const MIN_TOKEN: usize = 16;

pub(super) fn http(http: &Http, rules: &Rules, base: &Path, problems: &mut Problems) -> http::Config {
    let proxies = proxies(http, problems);
    let has_tokens = !http.token.is_empty() || proxies.users.is_some();
    if !http.listen.ip().is_loopback() && !has_tokens {
        let text = format!(
            "other machines can reach {}, and there is no [[http.token]]; add one, or listen on \
             127.0.0.1",
            http.listen
        );
        problems.error("http.listen", text);
    }
    let mut names = Vec::new();
    for (at, one) in http.token.iter().enumerate() {
        if one.name.is_empty() {
            problems.error(
                format!("http.token[{at}].name"),
                "is missing; write a name, which the log and the audit show",
            );
        } else if names.contains(&&one.name) {
            problems
                .error(format!("http.token[{at}].name"), format!("{:?} is used twice; rename one", one.name));
        }
        names.push(&one.name);
    }
    let tokens = http.token.iter().enumerate();
    let tokens = tokens
        .filter_map(|(at, one)| token(&format!("http.token[{at}]"), one, (rules, base), problems))
        .collect();
    let tls = tls(http, has_tokens, base, problems);
    let unit_metrics = match http.unit_metrics {
        UnitMetrics::All => http::UnitMetrics::All,
        UnitMetrics::Offline => http::UnitMetrics::Offline,
        UnitMetrics::Off => http::UnitMetrics::Off,
    };
    let unit_metrics_limit =
        problems.number("http.unit_metrics_limit", http.unit_metrics_limit, 1, 100_000_000).into();
    // An invalid address is reported with the receivers.
    let external_url = links(http, &mut Problems::default()).home_page();
    let external_url = external_url.map(|front| front.trim_end_matches('/').to_owned());
    http::Config {
        listen: http.listen,
        tokens,
        unit_metrics,
        unit_metrics_limit,
        requests_per_second: http.requests_per_second,
        external_url,
        tls,
        proxies,
        switches: None,
        example_topic: None,
    }
}

/// The proxies in front of the server.
fn proxies(http: &Http, problems: &mut Problems) -> Proxies {
    let mut networks = Vec::new();
    for (at, text) in http.trusted_proxies.iter().enumerate() {
        match text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
            Ok(network) if network.prefix_len() > 0 => networks.push(network.trunc()),
            Ok(_) => problems.error(
                format!("http.trusted_proxies[{at}]"),
                format!("{text:?} contains every address, so every client could name any user; write the address of \
                         the proxy"),
            ),
            Err(_) => problems.error(
                format!("http.trusted_proxies[{at}]"),
                format!("{text:?} is neither an address nor a network; write 10.0.0.7 or 10.0.0.0/8"),
            ),
        }
    }
    if http.user_header.is_empty() {
        if !http.user_roles.is_empty() {
            problems.error("http.user_roles", "is of use only with http.user_header");
        }
        return Proxies { networks, users: None };
    }
    let mut roles = http.user_roles.values().chain([&http.user_role]);
    if roles.any(|role| *role == Role::Device) {
        problems.error("http.user_roles", "a user is no device; write viewer, operator or admin");
    }
    if http.trusted_proxies.is_empty() {
        problems
            .error("http.user_header", "needs http.trusted_proxies, the proxies whose header is believed");
    }
    let roles = http.user_roles.iter().map(|(user, role)| (user.clone(), (*role).into())).collect();
    let users = match http::HeaderName::try_from(http.user_header.as_str()) {
        Ok(header) => Some(ProxyUsers { header, role: http.user_role.into(), roles }),
        Err(_) => {
            let text = format!("{:?} cannot be the name of a header", http.user_header);
            problems.error("http.user_header", text);
            None
        }
    };
    Proxies { networks, users }
}

/// The address and the files of TLS, if it is configured.
fn tls(http: &Http, has_tokens: bool, base: &Path, problems: &mut Problems) -> Option<http::TlsConfig> {
    let files = [("http.cert_file", &http.cert_file), ("http.key_file", &http.key_file)];
    if http.tls_listen.is_empty() {
        for (option, _) in files.iter().filter(|(_, file)| !file.is_empty()) {
            problems.error(*option, "is of use only with http.tls_listen, such as \"0.0.0.0:8443\"");
        }
        return None;
    }
    for (option, _) in files.iter().filter(|(_, file)| file.is_empty()) {
        problems.error(*option, "is missing; http.tls_listen needs the certificate and its key, in PEM");
    }
    let Ok(listen) = http.tls_listen.parse::<SocketAddr>() else {
        let text = format!("{:?} is not an address; write host:port", http.tls_listen);
        problems.error("http.tls_listen", text);
        return None;
    };
    if !listen.ip().is_loopback() && !has_tokens {
        let text = format!("other machines can reach {listen}, and there is no [[http.token]]; add one");
        problems.error("http.tls_listen", text);
    }
    if listen == http.listen {
        problems.error("http.tls_listen", "is the address of http.listen; choose another port");
    }
    let files =
        ServerFiles { cert: base.join(&http.cert_file), key: base.join(&http.key_file), client_ca: None };
    secrets::check_mode("http.key_file", &files.key, problems);
    Some(http::TlsConfig { listen, files })
}

/// The address for scrapes from other machines.
pub(super) fn advertise(http: &Http, problems: &mut Problems) -> String {
    if http.advertise.is_empty() {
        let host = match http.listen.ip() {
            ip if !ip.is_unspecified() => return http.listen.to_string(),
            _ => instance::host(),
        };
        return format!("{host}:{}", http.listen.port());
    }
    if http.advertise.parse::<SocketAddr>().is_ok() {
        return http.advertise.clone();
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match http.advertise.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) {
        // Kubernetes writes the address of a pod without brackets.
        Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => format!("[{host}]:{port}"),
        Some((host, _)) if !host.is_empty() && host.chars().all(plain) => http.advertise.clone(),
        _ => {
            let text = format!("{:?} is not an address; write host:port, or [address]:port", http.advertise);
            problems.error("http.advertise", text);
            http.advertise.clone()
        }
    }
}

/// The links of messages to the pages of Rollcall.
pub(super) fn links(http: &Http, problems: &mut Problems) -> Links {
    if http.external_url.is_empty() {
        return Links::default();
    }
    let plain = |url: &Url| {
        let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
        is_web && url.query().is_none() && url.fragment().is_none() && url.username().is_empty()
    };
    match Url::parse(&http.external_url).ok().filter(plain) {
        Some(url) => Links::new(&url),
        None => {
            let text = "is not the address of a page; write https://host or https://host/path";
            problems.error("http.external_url", text);
            Links::default()
        }
    }
}

/// The labels that units are counted by.
pub(super) fn count_by_labels(http: &Http, problems: &mut Problems) -> Vec<String> {
    if http.count_by_labels.len() > MAX_LABELS {
        problems.error("http.count_by_labels", format!("names more than {MAX_LABELS} labels"));
    }
    for label in http.count_by_labels.iter().filter(|label| !is_label_name(label)) {
        problems.error("http.count_by_labels", format!("{label:?} cannot be the name of a label"));
    }
    http.count_by_labels.clone()
}

/// Placeholders that operators write in place of a token, and forget to replace.
const GUESSED: [&str; 24] = [
    "admin",
    "root",
    "user",
    "viewer",
    "operator",
    "rollcall",
    "token",
    "TOKEN",
    "$TOKEN",
    "secret",
    "password",
    "passw0rd",
    "changeme",
    "change-me",
    "default",
    "test",
    "demo",
    "example",
    "letmein",
    "foobar",
    "123456",
    "12345678",
    "1234567890",
    "qwerty",
];

/// A short text with this digest. A digest does not show the length of its text, but the shortest and the most likely
/// texts can be tried. `echo` adds a line break to its text.
fn short_text_of(digest: [u8; 32]) -> Option<String> {
    let one = (b' '..=b'~').map(|byte| char::from(byte).to_string());
    let words = GUESSED.iter().map(|word| (*word).to_owned());
    let texts = std::iter::once(String::new()).chain(one).chain(words);
    texts.flat_map(|text| [format!("{text}\n"), text]).find(|text| http::Token::digest(text) == digest)
}

/// The SHA-256 of a token: from the configuration, or of the token in a file.
fn digest(path: &str, token: &Token, base: &Path, problems: &mut Problems) -> Option<[u8; 32]> {
    match (token.sha256.is_empty(), token.token_file.is_empty()) {
        (false, true) => {
            let option = format!("{path}.sha256");
            let digits = HEXLOWER_PERMISSIVE.decode(token.sha256.as_bytes()).ok();
            let Some(bytes) = digits.and_then(|bytes| bytes.try_into().ok()) else {
                let text = "is no SHA-256; write 64 hex digits, as `printf %s TOKEN | sha256sum` prints them";
                problems.error(option, text);
                return None;
            };
            if let Some(text) = short_text_of(bytes) {
                problems.error(
                    option,
                    format!(
                        "is the SHA-256 of {text:?}, which is found by trying; write that of a token of at least \
                         {MIN_TOKEN} characters, made of random bits, as `rollcall token new` prints it"
                    ),
                );
                return None;
            }
            Some(bytes)
        }
        (true, false) => {
            let option = format!("{path}.token_file");
            let secret = secrets::read(&option, &token.token_file, base, problems)?;
            if secret.chars().count() < MIN_TOKEN {
                let text = format!(
                    "the token has fewer than {MIN_TOKEN} characters, so it could be found by trying; write one made \
                     of random bits, as `rollcall token new` prints"
                );
                problems.error(option, text);
                return None;
            }
            Some(http::Token::digest(&secret))
        }
        (true, true) => {
            problems.error(path, "needs either sha256 or token_file");
            None
        }
        (false, false) => {
            problems.error(path, "has both sha256 and token_file; keep one");
            None
        }
    }
}

fn token(
    path: &str,
    token: &Token,
    (rules, base): (&Rules, &Path),
    problems: &mut Problems,
) -> Option<http::Token> {
    let sha256 = digest(path, token, base, problems)?;
    let role = token.role.into();
    let expires_at = match (token.expires.as_str(), parse_moment(&token.expires)) {
        ("", _) => None,
        (_, Some(moment)) => Some(moment),
        (text, None) => {
            let text = format!("{text:?} is not a moment; write 2027-01-01T00:00:00Z");
            problems.error(format!("{path}.expires"), text);
            return None;
        }
    };
    let device = device(path, token, rules, problems)?;
    Some(http::Token { name: token.name.clone(), sha256, role, expires_at, device })
}

/// The units for which a device may send heartbeats.
fn device(path: &str, token: &Token, rules: &Rules, problems: &mut Problems) -> Option<DeviceRights> {
    let defaults = Token::default();
    let has_rights = !token.kinds.is_empty()
        || !token.unit_prefixes.is_empty()
        || token.heartbeats_per_second != defaults.heartbeats_per_second;
    if token.role != Role::Device && has_rights {
        problems.error(
            path,
            "kinds, unit_prefixes and heartbeats_per_second are of use only with role = \"device\"",
        );
    }
    let kind = |name: &String| name.parse().ok().filter(|kind: &Kind| rules.contains_key(kind));
    let kinds = token.kinds.iter().filter_map(kind).collect();
    for (at, name) in token.kinds.iter().enumerate().filter(|(_, name)| kind(name).is_none()) {
        problems.error(format!("{path}.kinds[{at}]"), format!("there is no [[kind]] with the name {name:?}"));
    }
    if token.unit_prefixes.iter().any(String::is_empty) {
        problems.error(
            format!("{path}.unit_prefixes"),
            "has an empty text, which every id begins with; leave it out",
        );
    }
    let (unit_prefixes, heartbeats_per_second) = (token.unit_prefixes.clone(), token.heartbeats_per_second);
    Some(DeviceRights { kinds, unit_prefixes, heartbeats_per_second })
}

impl From<Role> for http::Role {
    fn from(role: Role) -> http::Role {
        match role {
            Role::Viewer => http::Role::Viewer,
            Role::Operator => http::Role::Operator,
            Role::Admin => http::Role::Admin,
            Role::Device => http::Role::Device,
        }
    }
}
