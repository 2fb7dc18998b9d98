//! Who may publish and subscribe to what, by a file in the format of Mosquitto's `acl_file`, so that
//! a site which outgrows this broker takes its rules along.
//!
//! ```text
//! topic read public/#              # clients without a name
//! user gateway
//! topic write sites/+/+/heartbeat
//! topic deny sites/secret/#
//! pattern write units/%c/#         # everybody: %c is the client id, %u the name
//! ```
//!
//! What no rule allows is forbidden, and `deny` wins. A subscription is allowed where one rule allows
//! everything that it could bring, and none denies any of it: unlike in Mosquitto, a client is told
//! at once that it will not hear what it asked for.

use std::collections::HashMap;

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Both,
    Deny,
}

#[derive(Clone, Debug)]
struct Rule {
    access: Access,
    filter: String,
}

/// The rules of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    nameless: Vec<Rule>,
    users: HashMap<String, Vec<Rule>>,
    patterns: Vec<Rule>,
}

/// Who asks.
#[derive(Clone, Copy)]
pub(super) struct Client<'a> {
    pub id: &'a str,
    pub name: Option<&'a str>,
}

impl Rules {
    /// Reads a file.
    ///
    /// # Errors
    /// The first line that says nothing known, with its number.
    pub fn parse(text: &str) -> Result<Rules, String> {
        let mut rules = Rules::default();
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
                    let rule = Rule::parse(rest).map_err(|why| wrong(&why))?;
                    match (word, &user) {
                        ("pattern", _) => rules.patterns.push(rule),
                        (_, Some(user)) => rules.users.entry(user.clone()).or_default().push(rule),
                        (_, None) => rules.nameless.push(rule),
                    }
                }
                _ => return Err(wrong("expected user, topic or pattern")),
            }
        }
        Ok(rules)
    }

    /// Whether a client may publish to a topic.
    pub fn may_publish(&self, client: Client, topic: &str) -> bool {
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

    /// Whether a client may subscribe to a filter.
    pub fn may_subscribe(&self, client: Client, wanted: &str) -> bool {
        let mut allowed = false;
        for (access, filter) in self.of(client) {
            match access {
                Access::Deny if meets(&filter, wanted) => return false,
                Access::Read | Access::Both if covers(&filter, wanted) => allowed = true,
                _ => {}
            }
        }
        allowed
    }

    fn of<'a>(&'a self, client: Client<'a>) -> impl Iterator<Item = (Access, String)> + 'a {
        let own = match client.name {
            None => Some(&self.nameless),
            Some(name) => self.users.get(name),
        };
        let own = own.into_iter().flatten().map(|rule| (rule.access, rule.filter.clone()));
        let patterns = self.patterns.iter().filter_map(move |rule| {
            let name = if rule.filter.contains("%u") { client.name? } else { "" };
            // A wildcard or a level in what the client calls itself would widen its own rules.
            let plain = |text: &str| !text.contains(['+', '#', '/']);
            let fits = plain(name) && (plain(client.id) || !rule.filter.contains("%c"));
            fits.then(|| (rule.access, rule.filter.replace("%u", name).replace("%c", client.id)))
        });
        own.chain(patterns)
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, String> {
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or(("", text));
        let access = match word {
            "read" => Access::Read,
            "write" => Access::Write,
            "readwrite" => Access::Both,
            "deny" => Access::Deny,
            // A topic may hold spaces, and without a word it is for both.
            _ => return Rule::new(Access::Both, text),
        };
        Rule::new(access, rest.trim())
    }

    fn new(access: Access, filter: &str) -> Result<Rule, String> {
        if !is_filter(filter) {
            return Err("# stands only at the end, + only for a whole level".to_owned());
        }
        Ok(Rule { access, filter: filter.to_owned() })
    }
}

fn is_filter(text: &str) -> bool {
    let levels: Vec<&str> = text.split('/').collect();
    let last = levels.len() - 1;
    (0..).zip(&levels).all(|(place, level)| match *level {
        "#" => place == last,
        "+" => true,
        level => !level.contains(['#', '+']),
    })
}

/// Whether every topic that fits `narrow` (a filter or a topic) fits `wide`.
pub(super) fn covers(wide: &str, narrow: &str) -> bool {
    // A wildcard at the start does not reach what the server keeps to itself.
    if narrow.starts_with('$') != wide.starts_with('$') {
        return false;
    }
    let mut narrow = narrow.split('/');
    for level in wide.split('/') {
        match (level, narrow.next()) {
            ("#", _) => return true,
            ("+", Some(other)) if other != "#" => {}
            (level, Some(other)) if level == other => {}
            _ => return false,
        }
    }
    // `a/#` also fits `a`.
    narrow.next().is_none()
}

/// Whether any topic fits both filters.
pub(super) fn meets(a: &str, b: &str) -> bool {
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

    fn nobody(id: &str) -> Client<'_> {
        Client { id, name: None }
    }

    fn named<'a>(name: &'a str) -> Client<'a> {
        Client { id: "x", name: Some(name) }
    }

    #[test]
    fn a_client_may_do_what_a_rule_of_its_own_allows_and_none_denies() {
        let rules = Rules::parse(FILE).unwrap();
        let publish = [
            (named("gateway"), "sites/north/7/heartbeat", true),
            (named("gateway"), "sites/secret/7/heartbeat", false),
            (named("gateway"), "sites/north/7/data", false),
            (named("gateway"), "replies/gateway", false),
            (named("reader"), "sites/north/7/heartbeat", false),
            (named("reader"), "a b/c", true),
            (named("stranger"), "units/x/data", true),
            (nobody("pump-7"), "units/pump-7/data", true),
            (nobody("pump-7"), "units/pump-8/data", false),
            (nobody("+"), "units/pump-8/data", false),
            (nobody("a/b"), "units/a/b", false),
            (nobody("pump-7"), "public/x", false),
        ];
        for (client, topic, allowed) in publish {
            assert_eq!(rules.may_publish(client, topic), allowed, "{:?} {topic}", client.name);
        }
        let subscribe = [
            (nobody("x"), "public/a/+", true),
            (nobody("x"), "#", false),
            (named("gateway"), "replies/gateway", true),
            (named("gateway"), "replies/#", false),
            (named("reader"), "answers/reader", true),
            (named("reader"), "answers/gateway", false),
            (nobody("x"), "answers/", false),
        ];
        for (client, filter, allowed) in subscribe {
            assert_eq!(rules.may_subscribe(client, filter), allowed, "{:?} {filter}", client.name);
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        for (text, line) in [("user", 1), ("\ntopic read a/#/b", 2), ("topic a+", 1), ("allow all", 1)] {
            let why = Rules::parse(text).unwrap_err();
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
        fn covering_and_meeting_are_what_topics_say(wide in filter(), narrow in filter(), topic in topic()) {
            let both = covers(&wide, &topic) && covers(&narrow, &topic);
            prop_assert!(!both || meets(&wide, &narrow));
            if covers(&wide, &narrow) && covers(&narrow, &topic) {
                prop_assert!(covers(&wide, &topic));
            }
        }
    }
}
