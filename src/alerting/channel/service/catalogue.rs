//! The services that Rollcall knows: one entry and one template each.

use std::fmt;

pub struct Service {
    /// The type of its receivers.
    pub name: &'static str,
    /// Whether it takes an alert for each unit, and not one message for all.
    pub is_for_each: bool,
    /// The template of the address. Where a path follows an option, a slash at its end does not count.
    pub url: &'static str,
    /// Names of headers, in lower case, and the templates of their values. An empty value is left out.
    pub headers: &'static [(&'static str, &'static str)],
    /// The template of the body, which is JSON.
    pub body: &'static str,
    pub options: &'static [ServiceOption],
}

pub struct ServiceOption {
    pub name: &'static str,
    /// The value is in a file, and is never shown: the key in the configuration is the name and `_file`. An address may
    /// also be written directly.
    pub is_secret: bool,
    pub is_required: bool,
    /// Empty: there is none.
    pub default: &'static str,
    /// The values that are possible; empty: every text.
    pub values: &'static [&'static str],
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const fn secret(name: &'static str) -> ServiceOption {
    ServiceOption { name, is_secret: true, is_required: true, default: "", values: &[] }
}

const fn required(name: &'static str) -> ServiceOption {
    ServiceOption { name, is_secret: false, is_required: true, default: "", values: &[] }
}

const fn optional(name: &'static str, default: &'static str) -> ServiceOption {
    ServiceOption { name, is_secret: false, is_required: false, default, values: &[] }
}

const fn choice(name: &'static str, default: &'static str, values: &'static [&'static str]) -> ServiceOption {
    ServiceOption { name, is_secret: false, is_required: false, default, values }
}

/// Services whose whole address is a secret.
const ADDRESS: &[ServiceOption] = &[secret("url")];

pub static SERVICES: [Service; 8] = [
    // docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
    Service {
        name: "slack",
        is_for_each: false,
        url: "{{ options.url }}",
        headers: &[],
        body: include_str!("slack.json.j2"),
        options: ADDRESS,
    },
    // A workflow of Teams that is started by a webhook request and posts a card.
    Service {
        name: "teams",
        is_for_each: false,
        url: "{{ options.url }}",
        headers: &[],
        body: include_str!("teams.json.j2"),
        options: ADDRESS,
    },
    // developer.pagerduty.com/docs/events-api-v2
    Service {
        name: "pagerduty",
        is_for_each: true,
        url: "{{ options.url }}",
        headers: &[],
        body: include_str!("pagerduty.json.j2"),
        options: &[
            secret("routing_key"),
            choice("severity", "error", &["critical", "error", "warning", "info"]),
            optional("url", "https://events.pagerduty.com/v2/enqueue"),
        ],
    },
    // docs.opsgenie.com/docs/alert-api
    Service {
        name: "opsgenie",
        is_for_each: true,
        url: "{{ options.url | trim('/') }}/v2/alerts{% if member.action == 'resolve' %}/{{ member.key | urlencode }}/close?identifierType=alias{% elif member.action == 'acknowledge' %}/{{ member.key | urlencode }}/acknowledge?identifierType=alias{% endif %}",
        headers: &[("authorization", "GenieKey {{ options.api_key }}")],
        body: include_str!("opsgenie.json.j2"),
        options: &[
            secret("api_key"),
            choice("priority", "P3", &["P1", "P2", "P3", "P4", "P5"]),
            optional("url", "https://api.opsgenie.com"),
        ],
    },
    // core.telegram.org/bots/api#sendmessage
    Service {
        name: "telegram",
        is_for_each: false,
        url: "{{ options.url | trim('/') }}/bot{{ options.token }}/sendMessage",
        headers: &[],
        body: include_str!("telegram.json.j2"),
        options: &[
            secret("token"),
            required("chat_id"),
            optional("thread_id", ""),
            optional("url", "https://api.telegram.org"),
        ],
    },
    // discord.com/developers/docs/resources/webhook#execute-webhook
    Service {
        name: "discord",
        is_for_each: false,
        url: "{{ options.url }}",
        headers: &[],
        body: include_str!("discord.json.j2"),
        options: ADDRESS,
    },
    // docs.ntfy.sh/publish/#publish-as-json
    Service {
        name: "ntfy",
        is_for_each: false,
        url: "{{ options.url }}",
        headers: &[("authorization", "{% if options.token %}Bearer {{ options.token }}{% endif %}")],
        body: include_str!("ntfy.json.j2"),
        options: &[
            required("topic"),
            ServiceOption { is_required: false, ..secret("token") },
            choice("priority", "high", &["min", "low", "default", "high", "max"]),
            optional("url", "https://ntfy.sh"),
        ],
    },
    // pushover.net/api
    Service {
        name: "pushover",
        is_for_each: false,
        url: "{{ options.url | trim('/') }}/1/messages.json",
        headers: &[],
        body: include_str!("pushover.json.j2"),
        options: &[
            secret("token"),
            secret("user_key"),
            choice("priority", "0", &["-2", "-1", "0", "1"]),
            optional("url", "https://api.pushover.net"),
        ],
    },
];
