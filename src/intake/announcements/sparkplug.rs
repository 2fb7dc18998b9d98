//! Sparkplug B 3.0, as a host application: `spBv1.0/<group>/<type>/<node>[/<device>]`.
//!
//! | type | meaning |
//! |---|---|
//! | `NBIRTH`, `DBIRTH` | the node or the device is present, and these are its metrics |
//! | `NDATA`, `DDATA` | a heartbeat; of the node alone, if all values of the device are historical |
//! | `DDEATH` | the device is gone |
//! | `NDEATH` | the node is gone, and so are its devices; see [`nodes`] for which session it means |
//!
//! A node publishes for its devices, so births and data of a device are also heartbeats of its node.
//!
//! A host publishes a retained message on [`state_topic`] that it is online, and its last will says that it is offline.
//! Nodes with this primary host store their data meanwhile.

use serde::{Deserialize, Serialize};

pub(in crate::intake) mod nodes;
pub(in crate::intake) mod payload;

/// The topics of births and deaths.
pub(super) const STATUS: [&str; 4] = [
    "spBv1.0/{group}/NBIRTH/{node}",
    "spBv1.0/{group}/NDEATH/{node}",
    "spBv1.0/{group}/DBIRTH/{node}/{device}",
    "spBv1.0/{group}/DDEATH/{node}/{device}",
];
/// The topics of data.
pub(super) const DATA: [&str; 2] = ["spBv1.0/{group}/NDATA/{node}", "spBv1.0/{group}/DDATA/{node}/{device}"];

/// The names of a node and of a device.
pub(in crate::intake) const NODE: &str = "{group}.{node}";
pub(in crate::intake) const DEVICE: &str = "{group}.{node}.{device}";

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::intake) enum MessageType {
    Birth,
    Death,
    Data,
}

/// The type of a message, and whether it concerns a device.
pub(in crate::intake) fn message_type(topic: &str) -> Option<(MessageType, bool)> {
    Some(match topic.split('/').nth(2)? {
        "NBIRTH" => (MessageType::Birth, false),
        "NDEATH" => (MessageType::Death, false),
        "NDATA" => (MessageType::Data, false),
        "DBIRTH" => (MessageType::Birth, true),
        "DDEATH" => (MessageType::Death, true),
        "DDATA" => (MessageType::Data, true),
        _ => return None,
    })
}

/// The id of the node, with which the id of a node or device begins; `None` if a group or a node has a dot in its name,
/// because the id may then be that of another unit.
pub(in crate::intake) fn node_id(id: &str, is_device: bool) -> Option<&str> {
    let mut dots = id.match_indices('.').map(|(at, _)| at);
    dots.next()?;
    match (dots.next(), is_device) {
        (Some(end), true) => Some(&id[..end]),
        (None, false) => Some(id),
        _ => None,
    }
}

/// The captures of an id, each with its name; `None` if no topic gives this id. See [`node_id`].
pub(in crate::intake) fn parts(id: &str) -> Option<Vec<(&'static str, &str)>> {
    let parts: Vec<_> = ["group", "node", "device"].into_iter().zip(id.splitn(3, '.')).collect();
    (parts.len() > 1 && parts.iter().all(|(_, part)| !part.is_empty())).then_some(parts)
}

/// The beginning of the topics of the states of hosts.
pub(in crate::intake) const STATES: &str = "spBv1.0/STATE/";

/// The topic of the state of a host.
pub(in crate::intake) fn state_topic(host: &str) -> String {
    format!("{STATES}{host}")
}

/// The state of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::intake) struct HostState {
    pub online: bool,
    /// When its connection began, in milliseconds. The state of an earlier connection is void.
    pub timestamp: i64,
}

impl HostState {
    pub fn to_json(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("a boolean and a number")
    }

    pub fn read(payload: &[u8]) -> Option<HostState> {
        serde_json::from_slice(payload).ok()
    }
}

/// The topic of commands to a node, by its id.
pub(in crate::intake) fn command_topic(node: &str) -> Option<String> {
    let (group, node) = node.split_once('.')?;
    Some(format!("spBv1.0/{group}/NCMD/{node}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_has_a_type() {
        for (topic, expected) in [
            ("spBv1.0/plant/NBIRTH/n1", Some((MessageType::Birth, false))),
            ("spBv1.0/plant/DDATA/n1/d1", Some((MessageType::Data, true))),
            ("spBv1.0/plant/DDEATH/n1/d1", Some((MessageType::Death, true))),
            ("spBv1.0/plant/NCMD/n1", None),
            ("spBv1.0/STATE/rollcall", None),
        ] {
            assert_eq!(message_type(topic), expected, "{topic}");
        }
    }

    #[test]
    fn an_id_begins_with_its_node_in_one_way_only() {
        for (id, is_device, expected) in [
            ("plant.n1", false, Some("plant.n1")),
            ("plant.n1.d1", true, Some("plant.n1")),
            ("plant.n1.d.1", true, Some("plant.n1")),
            ("plant.n.1", false, None),
            ("plant", false, None),
            ("plant.n1", true, None),
        ] {
            assert_eq!(node_id(id, is_device), expected, "{id}");
        }
        assert_eq!(command_topic("plant.n1").as_deref(), Some("spBv1.0/plant/NCMD/n1"));
    }

    #[test]
    fn a_host_says_whether_it_is_there() {
        let state = HostState { online: true, timestamp: 1_732_147_200_000 };
        let json = "{\"online\":true,\"timestamp\":1732147200000}";
        assert_eq!(state.to_json(), json.as_bytes());
        assert_eq!(HostState::read(json.as_bytes()), Some(state));
        assert_eq!(HostState::read(b"OFFLINE"), None);
    }
}
