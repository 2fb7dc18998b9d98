//! The routes as a configuration of Alertmanager, which its clients read: `amtool config routes` draws and tries them.
//!
//! A route of Alertmanager has one receiver, which may notify in several ways. So several receivers of a route become
//! one, `hook+mail`. Waits and times are left out.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::NOBODY;
use crate::http::AlertRoutes;
use crate::routing::{Matcher, Route};

/// YAML, of which JSON is a part.
pub(super) fn original_config(AlertRoutes { routes, receivers, .. }: &AlertRoutes) -> String {
    let root = routes.tree();
    let mut names: BTreeSet<String> = receivers.iter().cloned().collect();
    names.extend(root.all().into_iter().map(receiver));
    let receivers: Vec<Value> = names.into_iter().map(|name| json!({ "name": name })).collect();
    let config = json!({ "receivers": receivers, "route": as_json(&root) });
    serde_json::to_string_pretty(&config).expect("it is made of texts")
}

fn as_json(route: &Route) -> Value {
    let mut shown = json!({ "receiver": receiver(route) });
    let mut add = |name: &str, value: Value| shown[name] = value;
    if !route.group_by.is_empty() {
        add("group_by", json!(route.group_by));
    }
    if !route.matchers.is_empty() {
        add("matchers", json!(route.matchers.iter().map(Matcher::to_string).collect::<Vec<_>>()));
    }
    if route.continues {
        add("continue", json!(true));
    }
    if !route.routes.is_empty() {
        add("routes", json!(route.routes.iter().map(as_json).collect::<Vec<_>>()));
    }
    shown
}

fn receiver(route: &Route) -> String {
    if route.receivers.is_empty() { NOBODY.to_owned() } else { route.receivers.join("+") }
}
