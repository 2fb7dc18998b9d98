//! The server of each of the 16384 slots of a cluster. A single server has all of them.

use std::sync::Arc;

use redis::{Arg, Cmd};

use super::server::RedisServer;
use crate::store::crc16;

/// The number of slots.
pub const SLOTS: u16 = 16_384;

/// Commands without a key.
const KEYLESS: &[&[u8]] = &[
    b"TIME", b"INFO", b"CONFIG", b"SCAN", b"SCRIPT", b"ROLE", b"WAIT", b"PING", b"UNWATCH", b"ASKING",
    b"MULTI",
];

/// The servers, and the slots that each of them has.
#[derive(Default)]
pub struct SlotMap {
    servers: Vec<Arc<RedisServer>>,
    /// The index of the server of each slot; empty if one server has all slots.
    of: Vec<Option<u16>>,
}

impl SlotMap {
    /// A server that has all slots.
    pub fn single(server: Arc<RedisServer>) -> SlotMap {
        SlotMap { servers: vec![server], of: Vec::new() }
    }

    /// The servers with their slots; no slot has two servers.
    pub fn new(shares: Vec<(Arc<RedisServer>, Vec<u16>)>) -> SlotMap {
        let mut of = vec![None; usize::from(SLOTS)];
        let mut servers = Vec::with_capacity(shares.len());
        for (server, slots) in shares {
            for slot in slots {
                of[usize::from(slot % SLOTS)] = Some(servers.len() as u16);
            }
            servers.push(server);
        }
        SlotMap { servers, of }
    }

    pub fn servers(&self) -> &[Arc<RedisServer>] {
        &self.servers
    }

    pub fn only(&self) -> Option<&Arc<RedisServer>> {
        if self.of.is_empty() { self.servers.first() } else { None }
    }

    /// The index of the server of a slot; `None` if no server has it.
    pub fn index(&self, slot: u16) -> Option<usize> {
        if self.of.is_empty() {
            return (!self.servers.is_empty()).then_some(0);
        }
        self.of.get(usize::from(slot)).copied().flatten().map(usize::from)
    }

    /// Splits items by the index of the server of their slots, in order.
    pub fn split<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        slot: impl Fn(&T) -> u16,
    ) -> Vec<(Option<usize>, Vec<T>)> {
        let mut parts: Vec<(Option<usize>, Vec<T>)> = Vec::new();
        for item in items {
            let index = self.index(slot(&item));
            match parts.iter_mut().find(|(of, _)| *of == index) {
                Some((_, part)) => part.push(item),
                None => parts.push((index, vec![item])),
            }
        }
        parts
    }

    /// The number of slots without a server.
    pub fn missing(&self) -> usize {
        self.of.iter().filter(|server| server.is_none()).count()
    }

    pub fn server(&self, slot: u16) -> Option<&Arc<RedisServer>> {
        self.servers.get(self.index(slot)?)
    }
}

/// The slot of a key: the slot of its tag, which is between the first `{` and the next `}`, or of the whole key.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(&[tag.unwrap_or(key)]) % SLOTS
}

/// The slot of a command: the slot of its first key. `None` for a command without a key.
pub fn slot_of_command(command: &Cmd) -> Option<u16> {
    let mut words = words(command);
    let name = words.next()?;
    if KEYLESS.iter().any(|keyless| name.eq_ignore_ascii_case(keyless)) {
        return None;
    }
    let is_script = name.eq_ignore_ascii_case(b"EVALSHA") || name.eq_ignore_ascii_case(b"EVAL");
    let key = if is_script {
        let count = words.nth(1)?;
        words.next().filter(|_| count != b"0")?
    } else {
        words.next()?
    };
    Some(slot_of(key))
}

/// Whether a command loads or checks scripts.
pub fn is_about_scripts(command: &Cmd) -> bool {
    words(command).next().is_some_and(|name| name.eq_ignore_ascii_case(b"SCRIPT"))
}

fn words(command: &Cmd) -> impl Iterator<Item = &[u8]> {
    command.args_iter().filter_map(|word| match word {
        Arg::Simple(word) => Some(word),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_a_key_decides_its_slot() {
        // The values come from CLUSTER KEYSLOT.
        assert_eq!(slot_of(b"123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot_of(b"rollcall:{p1}:deadlines"), slot_of(b"{p1}"));
        assert_eq!(slot_of(b"rollcall:{p1}:alive:a}b{c}"), slot_of(b"p1"));
        assert_eq!(slot_of(b"a{}b"), crc16(&[b"a{}b"]) % SLOTS);
        assert_eq!(slot_of(b"a{b"), crc16(&[b"a{b"]) % SLOTS);
    }

    #[test]
    fn the_first_key_of_a_command_decides_its_slot() {
        let of = |words: &[&str]| {
            let mut command = Cmd::new();
            for word in words {
                command.arg(*word);
            }
            slot_of_command(&command)
        };
        assert_eq!(of(&["SET", "{a}x", "1"]), Some(slot_of(b"a")));
        assert_eq!(of(&["EVALSHA", "sha", "2", "{a}x", "{a}y", "z"]), Some(slot_of(b"a")));
        assert_eq!(of(&["EVAL", "return 0", "0", "{a}"]), None);
        assert_eq!(of(&["TIME"]), None);
        assert_eq!(of(&["scan", "0"]), None);
        assert_eq!(of(&[]), None);
    }
}
