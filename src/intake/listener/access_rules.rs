//! The rules for publishing and subscribing, from a file in the format of Mosquitto's `acl_file`, so that a site which
//! outgrows this broker can keep its rules.
//!
//! ```text
//! topic read public/#              # clients without a user name
//! user gateway
//! topic write sites/+/+/heartbeat
//! topic deny sites/secret/#
//! pattern write units/%c/#         # all clients: %c is the client id, %u the user name
//! ```
//!
//! Access that no rule allows is denied, and `deny` wins. A subscription is allowed if one rule allows all topics that
//! fit it, and no rule denies any of them. So, unlike in Mosquitto, a client learns at once that it will not receive
//! the messages.

use std::borrow::Cow;
use std::collections::HashMap;

use super::names::is_filter;
use crate::presence::covers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Both,
    Deny,
}

#[derive(Clone, Debug)]
struct AccessRule {
    access: Access,
    filter: String,
}

/// The rules of a file.
#[derive(Clone, Debug, Default)]
pub struct AccessRules {
    anonymous: Vec<AccessRule>,
    users: HashMap<String, Vec<AccessRule>>,
    patterns: Vec<AccessRule>,
}

/// A client id, and the name of the user.
#[derive(Clone, Copy)]
pub struct ClientIdentity<'a> {
    pub id: &'a str,
    pub name: Option<&'a str>,
}

impl AccessRules {
    /// Reads a file.
    ///
    /// # Errors
    /// The first line that cannot be read, with its number.
    pub fn parse(text: &str) -> Result<AccessRules, String> {
        let mut rules = AccessRules::default();
        let mut user: Option<String> = None;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| format!("line {number}: {why}: {line:?}");
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim();
            if rest.is_empty() {
                return Err(wrong("it ends too early"));
            }
            match word {
                "user" => user = Some(rest.to_owned()),
                "topic" | "pattern" => {
                    let rule = AccessRule::parse(rest).map_err(|why| wrong(&why))?;
                    match (word, &user) {
                        ("pattern", _) => rules.patterns.push(rule),
                        (_, Some(user)) => rules.users.entry(user.clone()).or_default().push(rule),
                        (_, None) => rules.anonymous.push(rule),
                    }
                }
                _ => return Err(wrong("expected user, topic or pattern")),
            }
        }
        Ok(rules)
    }

    pub fn may_publish(&self, client: ClientIdentity, topic: &str) -> bool {
        let mut allowed = false;
        for (access, filter) in self.of(client) {
            if covers(&filter, topic) {
                match access {
                    Access::Deny => return false,
                    Access::Write | Access::Both => allowed = true,
                    Access::Read => {}
                }
            }
        }
        allowed
    }

    pub fn may_subscribe(&self, client: ClientIdentity, wanted: &str) -> bool {
        let mut allowed = false;
        for (access, filter) in self.of(client) {
            match access {
                Access::Deny if overlaps(&filter, wanted) => return false,
                Access::Read | Access::Both if covers(&filter, wanted) => allowed = true,
                _ => {}
            }
        }
        allowed
    }

    fn of<'a>(&'a self, client: ClientIdentity<'a>) -> impl Iterator<Item = (Access, Cow<'a, str>)> + 'a {
        let own = match client.name {
            None => Some(&self.anonymous),
            Some(name) => self.users.get(name),
        };
        let own = own.into_iter().flatten().map(|rule| (rule.access, Cow::from(&rule.filter)));
        let patterns = self.patterns.iter().filter_map(move |rule| {
            let name = if rule.filter.contains("%u") { client.name? } else { "" };
            // A wildcard or a separator in an id or name would widen the client's own rules.
            let plain = |text: &str| !text.contains(['+', '#', '/']);
            let fits = plain(name) && (plain(client.id) || !rule.filter.contains("%c"));
            fits.then(|| (rule.access, Cow::from(rule.filter.replace("%u", name).replace("%c", client.id))))
        });
        own.chain(patterns)
    }
}

impl AccessRule {
    fn parse(text: &str) -> Result<AccessRule, String> {
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or(("", text));
        let (access, filter) = match word {
            "read" => (Access::Read, rest.trim()),
            "write" => (Access::Write, rest.trim()),
            "readwrite" => (Access::Both, rest.trim()),
            "deny" => (Access::Deny, rest.trim()),
            // A topic may hold spaces; a line that names no access allows both.
            _ => (Access::Both, text),
        };
        if !is_filter(filter) {
            return Err("# stands only at the end, + only for a whole level".to_owned());
        }
        Ok(AccessRule { access, filter: filter.to_owned() })
    }
}

/// Returns whether some topic fits both filters.
pub fn overlaps(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            (Some("#"), _) | (_, Some("#")) => return true,
            (None, None) => return true,
            (Some(x), Some(y)) if x == "+" || y == "+" || x == y => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: &str = "
        # a comment
        topic read public/#
        user gateway
        topic write sites/+/+/heartbeat
        topic deny sites/secret/#
        topic read replies/gateway
        user reader
        topic readwrite a b/c
        pattern write units/%c/#
        pattern read answers/%u
    ";

    fn anonymous(id: &str) -> ClientIdentity<'_> {
        ClientIdentity { id, name: None }
    }

    fn named<'a>(name: &'a str) -> ClientIdentity<'a> {
        ClientIdentity { id: "x", name: Some(name) }
    }

    #[test]
    fn a_client_may_do_what_a_rule_of_its_own_allows_and_none_denies() {
        let rules = AccessRules::parse(FILE).unwrap();
        let publish = [
            (named("gateway"), "sites/north/7/heartbeat", true),
            (named("gateway"), "sites/secret/7/heartbeat", false),
            (named("gateway"), "sites/north/7/data", false),
            (named("gateway"), "replies/gateway", false),
            (named("reader"), "sites/north/7/heartbeat", false),
            (named("reader"), "a b/c", true),
            (named("unknown"), "units/x/data", true),
            (anonymous("pump-7"), "units/pump-7/data", true),
            (anonymous("pump-7"), "units/pump-8/data", false),
            (anonymous("+"), "units/pump-8/data", false),
            (anonymous("a/b"), "units/a/b", false),
            (anonymous("pump-7"), "public/x", false),
        ];
        for (client, topic, allowed) in publish {
            assert_eq!(rules.may_publish(client, topic), allowed, "{:?} {topic}", client.name);
        }
        let subscribe = [
            (anonymous("x"), "public/a/+", true),
            (anonymous("x"), "#", false),
            (named("gateway"), "replies/gateway", true),
            (named("gateway"), "replies/#", false),
            (named("reader"), "answers/reader", true),
            (named("reader"), "answers/gateway", false),
            (anonymous("x"), "answers/", false),
        ];
        for (client, filter, allowed) in subscribe {
            assert_eq!(rules.may_subscribe(client, filter), allowed, "{:?} {filter}", client.name);
        }
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_by_its_number() {
        for (text, line) in [("user", 1), ("\ntopic read a/#/b", 2), ("topic a+", 1), ("allow all", 1)] {
            let why = AccessRules::parse(text).unwrap_err();
            assert!(why.starts_with(&format!("line {line}: ")), "{text:?}: {why}");
        }
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = prop::sample::select(vec!["a", "b", "", "+"]);
        (prop::collection::vec(level, 1..4), any::<bool>()).prop_map(|(levels, open)| {
            let mut text = levels.join("/");
            if open {
                text.push_str("/#");
            }
            text
        })
    }

    fn topic() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", ""]), 1..5)
            .prop_map(|levels| levels.join("/"))
    }

    proptest! {
        #[test]
        fn covering_and_overlapping_agree_with_topics(wide in filter(), narrow in filter(), topic in topic()) {
            let both = covers(&wide, &topic) && covers(&narrow, &topic);
            prop_assert!(!both || overlaps(&wide, &narrow));
            if covers(&wide, &narrow) && covers(&narrow, &topic) {
                prop_assert!(covers(&wide, &topic));
            }
        }
    }
}
