use super::*;
use crate::store::GroupContext;

fn opened(name: &str, title: &str, text: &str) -> Result<ServiceChannel, String> {
    let service = SERVICES.iter().find(|service| service.name == name).unwrap();
    let value = |option: &ServiceOption| match (option.name, option.default) {
        ("url", "") => "https://example.org/".to_owned(),
        ("chat_id", _) => "-100123".to_owned(),
        (_, "") if option.is_required => "x".to_owned(),
        (_, default) => default.to_owned(),
    };
    let options = service.options.iter().map(|option| (option.name, value(option))).collect();
    let (title, text) = (title.to_owned(), text.to_owned());
    let config = ServiceConfig { service, options, title, text, http: HttpConfig::default() };
    ServiceChannel::new("hook", &config, &MessageConfig::default())
}

/// The bodies of a delivery's requests.
fn bodies(channel: &ServiceChannel, delivery: &Delivery) -> Vec<Value> {
    let data = channel.data(&ReceiverMessage::new(delivery)).into_iter();
    let body = |data| channel.request(data, &channel.options).unwrap().body;
    data.map(|data| serde_json::from_str(&body(data)).unwrap()).collect()
}

#[test]
fn a_return_is_no_all_clear_while_units_of_the_group_are_offline() {
    let places = [
        ("slack", "/attachments/0/color", ["#c62828", "#ef6c00", "#2e7d32"].map(Value::from)),
        ("discord", "/embeds/0/color", [0x00c6_2828, 0x00ef_6c00, 0x002e_7d32].map(Value::from)),
        ("teams", "/attachments/0/content/body/0/color", ["Attention", "Warning", "Good"].map(Value::from)),
        (
            "ntfy",
            "/tags/0",
            ["rotating_light", "hourglass_flowing_sand", "white_check_mark"].map(Value::from),
        ),
    ];
    for (name, place, [firing, partly, over]) in places {
        let channel = opened(name, "", "").unwrap();
        let cases = [
            (Example::Offline, Some(3), &firing),
            (Example::Recovery, Some(2), &partly),
            (Example::Recovery, Some(0), &over),
            (Example::Recovery, None, &over),
        ];
        for (example, lasting, expected) in cases {
            let mut delivery = example.delivery("hook");
            delivery.situation = GroupContext { lasting, ..GroupContext::default() };
            let body = bodies(&channel, &delivery).remove(0);
            assert_eq!(body.pointer(place), Some(expected), "{name} {example:?} {lasting:?}");
        }
    }
}

#[test]
fn an_alert_without_a_unit_has_no_empty_fields() {
    let channel = opened("pagerduty", "", "").unwrap();
    for example in Example::ALL {
        for body in bodies(&channel, &example.delivery("hook")) {
            let Some(payload) = body["payload"].as_object() else { continue };
            let empty: Vec<&String> = payload.keys().filter(|name| payload[*name].is_null()).collect();
            assert_eq!(empty, [""; 0], "{example:?}");
        }
    }
    let payload = &bodies(&channel, &Example::Offline.delivery("hook"))[0]["payload"];
    assert_eq!([&payload["component"], &payload["class"]], ["pump-7", "detector"]);
}

#[test]
fn slack_shows_names_as_they_are() {
    let mut delivery = Example::Offline.delivery("hook");
    delivery.offline[0].unit = "*_~`x`~_*:fire:<&>".parse().unwrap();
    let body = bodies(&opened("slack", "", "").unwrap(), &delivery).remove(0);
    for place in ["/blocks/0", "/attachments/0/blocks/0"] {
        let text = body.pointer(&format!("{place}/text")).unwrap();
        assert_eq!([&text["type"], &text["emoji"]], [&json!("plain_text"), &json!(false)]);
        let shown = text["text"].as_str().unwrap();
        assert!(shown.contains("*_~`x`~_*:fire:&lt;&amp;&gt;"), "{shown}");
    }
    // The text that telephones show in a notification has no type mrkdwn, and is escaped too.
    assert!(body["text"].as_str().unwrap().contains("\u{200b}*"), "{body}");
}

/// Where the services have texts of an operator, and how many characters they take there.
const PLACES: [(&str, &[(&str, usize)]); 8] = [
    ("slack", &[("/text", 4000), ("/blocks/0/text/text", 3000), ("/attachments/0/blocks/0/text/text", 3000)]),
    ("discord", &[("/embeds/0/title", 256), ("/embeds/0/description", 4096)]),
    ("ntfy", &[("/title", 250), ("/message", 1024)]),
    ("opsgenie", &[("/message", 130), ("/description", 15_000)]),
    ("pagerduty", &[("/payload/summary", 1024), ("/payload/custom_details/text", 20_000)]),
    ("pushover", &[("/title", 250), ("/message", 1024)]),
    // Telegram does not count tags.
    ("telegram", &[("/text", 4096)]),
    ("teams", &[("/attachments/0/content/body/0/text", 400), ("/attachments/0/content/body/1/text", 8000)]),
];

#[test]
fn no_template_of_an_operator_makes_a_message_that_is_too_long() {
    // Texts without line breaks, with many, and with the characters that need most bytes.
    let texts = [
        "{{ title }} {{ text }} {{ text }} {{ text }}",
        "{% for one in offline %}{{ one.unit }}\n{% endfor %}",
        "{{ '<\\'😀' * 9000 }}",
    ];
    for (name, places) in PLACES {
        for text in texts {
            let channel = opened(name, &format!("{{{{ title }}}} {text}"), text).unwrap();
            for body in bodies(&channel, &Example::Storm.delivery("hook")) {
                for (place, most) in places {
                    let Some(text) = body.pointer(place).and_then(Value::as_str) else { continue };
                    let text = text.replace("<b>", "").replace("</b>", "");
                    let count = text.replace("&lt;", "<").replace("&#39;", "'").chars().count();
                    assert!(count <= *most && count > 0, "{name}{place} of {text} has {count}");
                }
                assert!(body.to_string().len() <= 512 << 10, "{name}");
            }
        }
    }
    let teams = opened("teams", texts[2], texts[2]).unwrap();
    let data = teams.data(&ReceiverMessage::new(&Example::Storm.delivery("hook"))).remove(0);
    let length = teams.request(data, &teams.options).unwrap().body.len();
    assert!(length <= 28 << 10, "teams takes 28 KB a card, and this one has {length}");
}

#[test]
fn a_text_that_is_empty_is_the_title_and_a_title_is_never_empty() {
    let on_return = "{% if status == 'firing' %}{{ text }}{% endif %} ";
    for (name, places) in PLACES {
        let channel = opened(name, "", on_return).unwrap();
        for body in bodies(&channel, &Example::Recovery.delivery("hook")) {
            for (place, _) in places {
                let Some(text) = body.pointer(place).and_then(Value::as_str) else { continue };
                assert!(text.contains("BACK: detector pump"), "{name}{place}: {text}");
            }
        }
        let why = opened(name, on_return, "").err().expect(name);
        assert!(why.starts_with("title: its result is empty instead of \"BACK: detector pump-7"), "{why}");
    }
    // No example has such a unit.
    let title = "{% if 'xyz' not in title %}{{ title }}{% endif %}";
    let channel = opened("pushover", title, "").unwrap();
    let mut delivery = Example::Offline.delivery("hook");
    delivery.offline[0].unit = "xyz".parse().unwrap();
    assert_eq!(bodies(&channel, &delivery)[0]["title"], "OFFLINE: detector xyz (site=north)");
}
