//! The requests that services document, as data, and a comparison of Rollcall's requests with them.
//!
//! A shape is JSON in which texts stand for values: `text` or `text<=N`, `int`, `bool`, `time`, `url`, `null`, and
//! `=value`, with `|` between choices. A key that ends with `?` may be missing, the key `*` stands for all others, and
//! every other key is refused. A list has one shape for all of its elements.

use serde_json::{Value, json};

/// docs.slack.dev: incoming webhooks, secondary attachments, section blocks.
pub fn slack() -> Value {
    let text = json!({"type": "=mrkdwn|plain_text", "text": "text<=3000", "emoji?": "bool"});
    let section = json!({"type": "=section", "text": text});
    json!({
        "text": "text<=4000",
        "blocks": [section],
        "attachments": [{
            "color": "text<=7",
            "fallback": "text",
            "blocks": [section],
        }],
    })
}

/// learn.microsoft.com: the workflow that posts a card when a webhook request is received; adaptivecards.io 1.4.
pub fn teams() -> Value {
    json!({
        "type": "=message",
        "attachments": [{
            "contentType": "=application/vnd.microsoft.card.adaptive",
            "contentUrl": "null",
            "content": {
                "$schema": "=http://adaptivecards.io/schemas/adaptive-card.json",
                "type": "=AdaptiveCard",
                "version": "=1.4",
                "msteams": {"width": "=Full"},
                "body": [{
                    "type": "=TextBlock",
                    "text": "text<=20000",
                    "color?": "=Attention|Good|Accent|Warning|Default",
                    "size?": "=Small|Default|Medium|Large|ExtraLarge",
                    "weight?": "=Lighter|Default|Bolder",
                    "wrap": "bool",
                }],
                "actions": [{"type": "=Action.OpenUrl", "title": "text", "url": "url"}],
            },
        }],
    })
}

/// developer.pagerduty.com: Events API v2, alert events.
pub fn pagerduty() -> Value {
    json!({
        "routing_key": "text<=32",
        "event_action": "=trigger|acknowledge|resolve",
        "dedup_key": "text<=255",
        "payload?": {
            "summary": "text<=1024",
            "source": "text",
            "severity": "=critical|error|warning|info",
            "timestamp": "time",
            "component?": "text",
            "class?": "text",
            "group": "text",
            "custom_details": {"*": "any"},
        },
        "client?": "text",
        "client_url?": "url",
        "links?": [{"href": "url", "text": "text"}],
    })
}

/// docs.opsgenie.com: Alert API, create alert.
pub fn opsgenie() -> Value {
    json!({
        "message": "text<=130",
        "alias": "text<=512",
        "description": "text<=15000",
        "entity": "text<=512",
        "source": "text<=100",
        "priority": "=P1|P2|P3|P4|P5",
        "tags": ["text<=50"],
        "details": {"*": "text<=8000"},
    })
}

/// docs.opsgenie.com: Alert API, close alert and acknowledge alert.
pub fn opsgenie_change() -> Value {
    json!({"source": "text<=100", "note": "text<=25000"})
}

/// core.telegram.org: Bot API, sendMessage.
pub fn telegram() -> Value {
    json!({
        "chat_id": "text",
        "message_thread_id?": "int",
        "text": "text<=4500",
        "parse_mode": "=HTML|MarkdownV2",
        "link_preview_options": {"is_disabled": "bool"},
    })
}

/// discord.com: execute webhook.
pub fn discord() -> Value {
    json!({
        "allowed_mentions": {"parse": ["text"]},
        "embeds": [{
            "title": "text<=256",
            "description": "text<=4096",
            "url?": "url",
            "color": "int",
            "timestamp": "time",
        }],
    })
}

/// docs.ntfy.sh: publish as JSON.
pub fn ntfy() -> Value {
    json!({
        "topic": "text",
        "title": "text",
        "message": "text<=4096",
        "tags": ["text"],
        "click?": "url",
        "priority": "int",
    })
}

/// pushover.net: Message API.
pub fn pushover() -> Value {
    json!({
        "token": "text<=30",
        "user": "text<=30",
        "title": "text<=250",
        "message": "text<=1024",
        "url?": "url",
        "url_title?": "text<=100",
        "priority": "int",
        "timestamp": "int",
    })
}

/// prometheus.io: webhook_config, version 4.
pub fn alertmanager() -> Value {
    json!({
        "version": "=4",
        "groupKey": "text",
        "truncatedAlerts": "int",
        "status": "=firing|resolved",
        "receiver": "text",
        "groupLabels": {"*": "text"},
        "commonLabels": {"*": "text"},
        "commonAnnotations": {"*": "text"},
        "routeLabels": {"*": "text"},
        "externalURL": "text",
        "alerts": [{
            "status": "=firing|resolved",
            "labels": {"*": "text"},
            "annotations": {"*": "text"},
            "startsAt": "time",
            "endsAt": "time",
            "generatorURL": "text",
            "fingerprint": "text<=16",
        }],
    })
}

/// cloudevents.io: JSON event format 1.0, structured mode.
pub fn cloud_event() -> Value {
    json!({
        "specversion": "=1.0",
        "id": "text",
        "source": "text",
        "type": "text",
        "subject": "text",
        "time": "time",
        "datacontenttype": "=application/json",
        "data": {"*": "any"},
    })
}

/// The parts of `value` that differ from the shape.
pub fn differences(shape: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", shape, value, &mut found);
    found
}

fn compare(at: &str, shape: &Value, value: &Value, found: &mut Vec<String>) {
    match (shape, value) {
        (Value::Object(shape), Value::Object(value)) => {
            for (key, one) in value {
                let optional = format!("{key}?");
                match shape.get(key).or_else(|| shape.get(&optional)).or_else(|| shape.get("*")) {
                    Some(shape) => compare(&format!("{at}/{key}"), shape, one, found),
                    None => found.push(format!("{at}/{key} is not documented")),
                }
            }
            let required = shape.keys().filter(|key| !key.ends_with('?') && *key != "*");
            found.extend(
                required.filter(|key| !value.contains_key(*key)).map(|key| format!("{at}/{key} is missing")),
            );
        }
        (Value::Array(shape), Value::Array(values)) => {
            for (index, one) in values.iter().enumerate() {
                compare(&format!("{at}/{index}"), &shape[0], one, found);
            }
        }
        (Value::String(shape), value) if matches(shape, value) => {}
        (shape, value) => found.push(format!("{at} is {value}, not {shape}")),
    }
}

fn matches(shape: &str, value: &Value) -> bool {
    if let Some(choices) = shape.strip_prefix('=') {
        return value.as_str().is_some_and(|text| choices.split('|').any(|choice| choice == text));
    }
    shape.split('|').any(|shape| match (shape, value) {
        ("any", _) | ("bool", Value::Bool(_)) | ("null", Value::Null) => true,
        ("int", value) => value.is_i64() || value.is_u64(),
        ("time", Value::String(text)) => text.parse::<jiff::Timestamp>().is_ok(),
        ("url", Value::String(text)) => text.starts_with("https://"),
        (shape, Value::String(text)) => match shape.split_once("<=") {
            Some(("text", most)) => text.chars().count() <= most.parse().unwrap(),
            _ => shape == "text",
        },
        _ => false,
    })
}

#[test]
fn a_shape_refuses_what_is_missing_unknown_too_long_or_of_another_type() {
    let shape = json!({"a": "text<=2", "b?": "int", "c": ["=x|y"]});
    assert!(differences(&shape, &json!({"a": "ab", "c": ["x", "y"]})).is_empty());
    let wrong = differences(&shape, &json!({"a": "abc", "b": "1", "c": ["z"], "d": 1}));
    assert_eq!(wrong.len(), 4, "{wrong:?}");
    assert_eq!(differences(&shape, &json!({"a": "a"})), ["/c is missing"]);
}
