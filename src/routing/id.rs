//! The id of a route, at the begin of the keys of its groups: `hook+mail.0123456789ab`.
//!
//! The id has the receivers, so that groups of a route that is gone are notified anyway, and a digest of the matchers
//! of the route and of the routes above it.

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

/// The longest list of receivers in an id, in bytes; a longer one is a digest.
const MAX_RECEIVERS: usize = 200;

/// `conditions`: the matchers of the route and of the routes above it.
pub(super) fn id(receivers: &[String], conditions: &str) -> String {
    let mut names = receivers.join("+");
    if names.len() > MAX_RECEIVERS {
        // No receiver has such a name.
        names = format!("~{}", short_digest(&names));
    }
    format!("{names}.{}", short_digest(conditions))
}

fn short_digest(text: &str) -> String {
    HEXLOWER.encode(&digest(&SHA256, text.as_bytes()).as_ref()[..6])
}

/// The id of the route in the key of a group; `None`: the group belongs to the root or to blindness. Values in a key
/// hold no `/`.
pub(super) fn route_in(key: &str) -> Option<&str> {
    key.split_once('/').map(|(id, _)| id)
}

/// Whether a group belongs to the root, or to blindness.
pub fn is_of_root(key: &str) -> bool {
    route_in(key).is_none()
}

/// Whether two ids are of routes with the same matchers, also above them: one route before and after its receivers were
/// changed, or routes beside each other.
pub(super) fn has_same_matchers(id: &str, other: &str) -> bool {
    let conditions = |id: &str| id.rsplit_once('.').map(|(_, digest)| digest.to_owned());
    conditions(id).is_some_and(|of_id| conditions(other) == Some(of_id))
}

/// The receivers in the id of a route; empty if the route has no receivers, or too many for an id.
pub(super) fn receivers_in(id: &str) -> impl Iterator<Item = &str> {
    let names = id.rsplit_once('.').map_or("", |(names, _)| names);
    names.split('+').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_are_read_from_an_id_and_the_id_from_a_key() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for receivers in [names(&[]), names(&["hook"]), names(&["hook", "mail-2"])] {
            let id = id(&receivers, "{}");
            assert_eq!(receivers_in(&id).collect::<Vec<_>>(), receivers, "{id}");
            assert!(has_same_matchers(&id, &super::id(&names(&["other"]), "{}")), "{id}");
            assert!(!has_same_matchers(&id, &super::id(&receivers, "{}/{}")) && !has_same_matchers("", &id));
            assert_eq!(route_in(&format!("{id}/kind=a,unit=1")), Some(id.as_str()));
        }
        assert_eq!(route_in("unit=a%2Fb"), None);
        let many: Vec<String> = (0..20).map(|n| format!("receiver-with-a-long-name-{n}")).collect();
        assert!(id(&many, "{}").len() < 40 && id(&many, "{}") != id(&many[1..], "{}"));
    }
}
