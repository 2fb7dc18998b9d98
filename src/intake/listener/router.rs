//! Routes messages to clients: subscriptions by filter, and retained messages.
//!
//! # Shared subscriptions
//! In a group `$share/<name>/<filter>`, each message goes to one client, in turn; connected clients come first.
//!
//! # What is retained
//! Only messages below `rollcall/`, where only Rollcall and clients in its rules may publish: a retained message of a
//! device would look alive to every later subscriber. At most [`MAX_RETAINED`] messages with [`MAX_RETAINED_BYTES`] are
//! retained; a further one is routed but not retained.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::codec::Subscribe;
use super::message::{Delivery, Kept, Message};
use super::names;
use super::session::Session;
use crate::clock::monotonic;
use crate::presence::covers;

const MAX_RETAINED: usize = 10_000;
const MAX_RETAINED_BYTES: usize = 16 << 20;
/// The most levels of a filter: how deep the tree is.
pub const MAX_LEVELS: usize = 64;

#[derive(Default)]
pub struct Router {
    tree: RwLock<TopicNode>,
    /// The number of subscriptions in the tree.
    count: AtomicUsize,
    turn: AtomicUsize,
    retained: Mutex<Retained>,
    /// The bytes of messages on their way to clients.
    pub kept: Arc<AtomicUsize>,
}

/// A level of filters: all filters that share the levels up to it.
#[derive(Default)]
struct TopicNode {
    next: HashMap<Box<str>, TopicNode>,
    here: Vec<RoutedSubscription>,
}

#[derive(Clone)]
struct RoutedSubscription {
    session: Arc<Session>,
    /// The group of a shared subscription, with its filter.
    group: Option<Box<str>>,
    qos: u8,
    no_local: bool,
    retain_as_published: bool,
    number: Option<u32>,
}

#[derive(Default)]
struct Retained {
    messages: BTreeMap<Box<str>, (Arc<Message>, u8)>,
    bytes: usize,
}

/// A message, borrowed from its packet.
#[derive(Clone, Copy)]
pub struct Routed<'a> {
    pub topic: &'a str,
    pub qos: u8,
    pub retain: bool,
    /// The number of the session that sent it.
    pub from: u64,
}

/// The group of a shared subscription, and the filter. Two filters with one name are two groups, and each gets every
/// message.
fn parts(filter: &str) -> (Option<&str>, &str) {
    let (name, of_messages) = names::shared(filter);
    (name.map(|_| filter), of_messages)
}

impl Router {
    /// Adds or changes a subscription, and queues the retained messages that the client wants; returns their number.
    pub fn subscribe(
        &self,
        session: &Arc<Session>,
        asked: &Subscribe,
        number: Option<u32>,
        is_new: bool,
    ) -> usize {
        let (group, filter) = parts(asked.filter);
        let subscription = RoutedSubscription {
            session: session.clone(),
            group: group.map(Into::into),
            qos: asked.qos,
            no_local: asked.no_local,
            retain_as_published: asked.retain_as_published,
            number,
        };
        let mut tree = self.tree.write();
        let node =
            filter.split('/').fold(&mut *tree, |node, level| node.next.entry(level.into()).or_default());
        let is_same =
            |one: &RoutedSubscription| one.session.number == session.number && one.group.as_deref() == group;
        match node.here.iter_mut().find(|one| is_same(one)) {
            Some(known) => *known = subscription,
            None => {
                node.here.push(subscription);
                self.count.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(tree);
        let wants_retained = asked.retain_handling == 0 || asked.retain_handling == 1 && is_new;
        if group.is_none() && wants_retained {
            return self.deliver_retained(session, filter, asked.qos, number);
        }
        0
    }

    pub fn unsubscribe(&self, session: &Session, filter: &str) {
        let (group, filter) = parts(filter);
        let mut tree = self.tree.write();
        let levels: Vec<&str> = filter.split('/').collect();
        let is_removed = tree.remove(&levels, &|one: &RoutedSubscription| {
            one.session.number == session.number && one.group.as_deref() == group
        });
        if is_removed {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Queues a message for its subscribers; calls `message` for the copy if there are any. Returns the clients without
    /// room for it.
    pub fn route(&self, routed: Routed, message: impl FnOnce() -> Message) -> Vec<Arc<Session>> {
        let mut found = Vec::new();
        if self.count.load(Ordering::Relaxed) > 0 {
            let tree = self.tree.read();
            tree.find(Some(routed.topic), true, &mut found);
        }
        found.retain(|one| !(one.no_local && one.session.number == routed.from));
        if found.is_empty() {
            return Vec::new();
        }
        let (mut deliveries, mut message) = (self.one_of_each_group(found), message());
        message.kept = Some(Kept::new(&self.kept, message.size()));
        let message = Arc::new(message);
        deliveries.sort_by_key(|one| one.session.number);
        let of_one = deliveries.chunk_by(|a, b| a.session.number == b.session.number);
        let without_room = of_one.filter(|of_one| {
            let delivery = Delivery {
                message: message.clone(),
                qos: of_one.iter().map(|one| one.qos).max().unwrap_or(0).min(routed.qos),
                retain: routed.retain && of_one.iter().any(|one| one.retain_as_published),
                numbers: of_one.iter().filter_map(|one| one.number).collect(),
                kept: None,
            };
            !of_one[0].session.deliver(delivery)
        });
        without_room.map(|of_one| of_one[0].session.clone()).collect()
    }

    fn one_of_each_group(&self, found: Vec<RoutedSubscription>) -> Vec<RoutedSubscription> {
        let (shared, mut chosen): (Vec<_>, Vec<_>) = found.into_iter().partition(|one| one.group.is_some());
        let mut groups: HashMap<Box<str>, Vec<RoutedSubscription>> = HashMap::new();
        for one in shared {
            groups.entry(one.group.clone().unwrap_or_default()).or_default().push(one);
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for mut group in groups.into_values() {
            if group.iter().any(|one| one.session.is_connected()) {
                group.retain(|one| one.session.is_connected());
            }
            let taken = turn % group.len().max(1);
            chosen.extend((!group.is_empty()).then(|| group.swap_remove(taken)));
        }
        chosen
    }

    /// Retains a message, or removes the retained message of its topic if the payload is empty; returns `false` if
    /// there is no room.
    pub fn retain(&self, topic: &str, qos: u8, message: impl FnOnce() -> Message) -> bool {
        topic.starts_with("rollcall/") && self.keep(topic, qos, message)
    }

    /// Retains a message of Rollcall on any topic, as [`Router::retain`] does.
    pub fn keep(&self, topic: &str, qos: u8, message: impl FnOnce() -> Message) -> bool {
        let message = Arc::new(message());
        let mut retained = self.retained.lock();
        if let Some((before, _)) = retained.messages.remove(topic) {
            retained.bytes -= before.size();
        }
        if message.payload.is_empty() {
            return true;
        }
        let size = message.size();
        if retained.messages.len() >= MAX_RETAINED || retained.bytes + size > MAX_RETAINED_BYTES {
            return false;
        }
        retained.bytes += size;
        retained.messages.insert(topic.into(), (message, qos));
        true
    }

    fn deliver_retained(&self, session: &Session, filter: &str, most: u8, number: Option<u32>) -> usize {
        let (now, mut count) = (monotonic(), 0);
        let retained = self.retained.lock();
        // Compare only topics that begin like the filter; `a/#` also fits `a`.
        let begin = filter.split(['+', '#']).next().unwrap_or_default().trim_end_matches('/');
        let alike = retained.messages.range::<str, _>((Bound::Included(begin), Bound::Unbounded));
        let alike = alike.take_while(|(topic, _)| topic.starts_with(begin));
        for (_, (message, qos)) in alike.filter(|(topic, _)| covers(filter, topic)) {
            if message.expires.is_none_or(|expires| expires > now) {
                let (message, qos) = (message.clone(), most.min(*qos));
                let numbers = Vec::from_iter(number);
                if !session.deliver(Delivery { message, qos, retain: true, numbers, kept: None }) {
                    break;
                }
                count += 1;
            }
        }
        count
    }
}

impl TopicNode {
    /// Finds the subscriptions to a topic; `rest` is the part of the topic that is not compared yet.
    fn find(&self, rest: Option<&str>, is_first: bool, found: &mut Vec<RoutedSubscription>) {
        // A wildcard in the first level matches no topic of the server (`$…`).
        let is_open = !(is_first && rest.is_some_and(|topic| topic.starts_with('$')));
        if is_open && let Some(all) = self.next.get("#") {
            found.extend_from_slice(&all.here);
        }
        let Some(rest) = rest else { return found.extend_from_slice(&self.here) };
        let (level, rest) = rest.split_once('/').map_or((rest, None), |(level, rest)| (level, Some(rest)));
        if let Some(next) = self.next.get(level).filter(|_| !matches!(level, "+" | "#")) {
            next.find(rest, false, found);
        }
        if is_open && let Some(next) = self.next.get("+") {
            next.find(rest, false, found);
        }
    }

    fn remove(&mut self, levels: &[&str], is_wanted: &impl Fn(&RoutedSubscription) -> bool) -> bool {
        let Some((level, rest)) = levels.split_first() else {
            let before = self.here.len();
            self.here.retain(|one| !is_wanted(one));
            return self.here.len() < before;
        };
        let Some(next) = self.next.get_mut(*level) else { return false };
        let is_removed = next.remove(rest, is_wanted);
        if next.here.is_empty() && next.next.is_empty() {
            self.next.remove(*level);
        }
        is_removed
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Wire;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn session(number: u64) -> Arc<Session> {
        Arc::new(Session::new(&number.to_string(), number, Arc::default()))
    }

    fn asks(filter: &str) -> Subscribe<'_> {
        Subscribe { filter, qos: 1, no_local: false, retain_as_published: false, retain_handling: 0 }
    }

    fn found(router: &Router, topic: &str) -> BTreeSet<u64> {
        let mut found = Vec::new();
        router.tree.read().find(Some(topic), true, &mut found);
        found.iter().map(|one| one.session.number).collect()
    }

    fn levels(of: &'static [&'static str]) -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(of), 1..5).prop_map(|levels| levels.join("/"))
    }

    proptest! {
        #[test]
        fn the_tree_finds_what_the_rule_of_filters_covers_also_after_some_are_removed(
            filters in prop::collection::vec((levels(&["a", "b", "", "+", "$x"]), any::<bool>(), any::<bool>()), 1..8),
            topic in levels(&["a", "b", "", "$x"]),
        ) {
            let (router, mut expected) = (Router::default(), BTreeSet::new());
            for (number, (filter, open, stays)) in (1..).zip(&filters) {
                let filter = if *open { format!("{filter}/#") } else { filter.clone() };
                router.subscribe(&session(number), &asks(&filter), None, true);
                if !stays {
                    router.unsubscribe(&session(number), &filter);
                } else if covers(&filter, &topic) {
                    expected.insert(number);
                }
            }
            prop_assert_eq!(found(&router, &topic), expected);
        }
    }

    #[test]
    fn a_tree_without_subscriptions_is_empty_again() {
        let (router, one) = (Router::default(), session(1));
        for filter in ["a/b/#", "a/+", "$share/g/a/b"] {
            router.subscribe(&one, &asks(filter), None, true);
            router.unsubscribe(&one, filter);
        }
        assert!(router.tree.read().next.is_empty());
        assert_eq!(router.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn retained_messages_are_bounded_in_number_and_bytes_and_all_reach_a_client_that_asks_for_them() {
        let router = Router::default();
        let retain = |topic: &str, payload: &[u8], properties: usize| {
            let (payload, properties) = (payload.into(), vec![0; properties].into());
            let message = Message { topic: topic.into(), payload, properties, ..Message::default() };
            router.retain(topic, 1, || message)
        };
        assert!(!retain("units/a/data", b"x", 0), "of a device");
        for number in 0..MAX_RETAINED {
            assert!(retain(&format!("rollcall/state/{number}"), b"x", 0));
        }
        assert!(!retain("rollcall/state/more", b"x", 0) && retain("rollcall/state/7", b"y", 0));
        let one = session(1);
        one.connect(1, Wire { max_packet: 1 << 20, receive_maximum: 20, ..Wire::default() });
        let asked = |filter: &str| router.subscribe(&one, &asks(filter), None, true);
        assert_eq!((asked("rollcall/state/7"), asked("rollcall/+/8"), asked("units/#")), (1, 1, 0));
        assert_eq!(asked("rollcall/state/7/#"), 1);
        assert_eq!((asked("rollcall/#"), one.ended(1)), (MAX_RETAINED, None));
        assert!(retain("rollcall/state/7", b"", 0) && retain("rollcall/state/more", b"x", 0));
        assert!(!retain("rollcall/state/more", b"x", MAX_RETAINED_BYTES), "with its properties");
    }
}
