//! The slots for connections, and which connection is evicted when another one needs a slot.
//!
//! When all slots, or all slots of one address, are in use, the connection that has been idle for longest is evicted. A
//! connection is idle while it waits for a request, or while its client does not read. If none is idle, a few reserved
//! slots are left for the health pages; they serve one request each.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use crate::address::client_network;
use crate::clock::monotonic;

/// The most connections at a time.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Slots for every page, of all addresses together.
    pub most: usize,
    /// The part of `most` that one address may use, so that no client can take all slots.
    pub most_per_address: usize,
    /// Additional slots for the pages that are always answered.
    pub reserved: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        // The bound on streams (`http/stream.rs`) leaves room for other pages; and the process may open 1024 files.
        Bounds { most: 768, most_per_address: 640, reserved: 32 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotKind {
    AnyPage,
    /// A reserved slot, which serves only the pages that are always answered.
    Reserved,
}

pub(super) struct ConnectionSlots {
    bounds: Bounds,
    taken: Mutex<SlotsInUse>,
}

#[derive(Default)]
struct SlotsInUse {
    /// The open connections by number; numbers grow.
    by_number: BTreeMap<u64, SlotHolder>,
    next: u64,
}

struct SlotHolder {
    peer: IpAddr,
    kind: SlotKind,
    activity: Arc<Activity>,
    leave: CancellationToken,
}

/// A slot in use; dropping it frees the slot.
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    kind: SlotKind,
    activity: Arc<Activity>,
    leave: CancellationToken,
}

impl ConnectionSlots {
    pub fn new(bounds: Bounds) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots { bounds, taken: Mutex::default() })
    }

    /// A slot for a connection of `peer`; `None` if all are in use. Calls `on_eviction` with the address of the
    /// connection that was evicted for it.
    pub fn take(
        self: &Arc<ConnectionSlots>,
        peer: IpAddr,
        on_eviction: impl FnOnce(IpAddr),
    ) -> Option<ConnectionSlot> {
        let peer = client_network(peer);
        let mut taken = self.taken.lock();
        let (kind, evicted) = taken.slot_for(&self.bounds, peer)?;
        if let Some(evicted) = evicted.and_then(|number| taken.by_number.remove(&number)) {
            evicted.leave.cancel();
            on_eviction(evicted.peer);
        }
        let number = taken.next;
        taken.next += 1;
        let (activity, leave) = (Arc::new(Activity::new()), CancellationToken::new());
        let connection = SlotHolder { peer, kind, activity: activity.clone(), leave: leave.clone() };
        taken.by_number.insert(number, connection);
        Some(ConnectionSlot { slots: self.clone(), number, kind, activity, leave })
    }
}

impl SlotsInUse {
    /// The kind of slot that `peer` gets, and the number of the connection to evict for it.
    fn slot_for(&self, bounds: &Bounds, peer: IpAddr) -> Option<(SlotKind, Option<u64>)> {
        let any_page = |connection: &SlotHolder| connection.kind == SlotKind::AnyPage;
        let of_peer = |connection: &SlotHolder| any_page(connection) && connection.peer == peer;
        let reserved = |connection: &SlotHolder| connection.kind == SlotKind::Reserved;
        let evicted = if self.count(of_peer) >= bounds.most_per_address {
            self.longest_idle(of_peer)
        } else if self.count(any_page) >= bounds.most {
            self.longest_idle(any_page)
        } else {
            return Some((SlotKind::AnyPage, None));
        };
        match evicted {
            Some(evicted) => Some((SlotKind::AnyPage, Some(evicted))),
            None if self.count(reserved) < bounds.reserved => Some((SlotKind::Reserved, None)),
            None => Some((SlotKind::Reserved, Some(self.longest_idle(reserved)?))),
        }
    }

    fn count(&self, which: impl Fn(&SlotHolder) -> bool) -> usize {
        self.by_number.values().filter(|connection| which(connection)).count()
    }

    fn longest_idle(&self, which: impl Fn(&SlotHolder) -> bool) -> Option<u64> {
        let now = monotonic();
        let chosen = self.by_number.iter().filter(|(_, connection)| which(connection));
        let idle =
            chosen.filter_map(|(number, connection)| Some((connection.activity.idle_since(now)?, *number)));
        idle.min().map(|(_, number)| number)
    }
}

impl ConnectionSlot {
    pub fn kind(&self) -> SlotKind {
        self.kind
    }

    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Completes when another connection has taken this slot.
    pub async fn evicted(&self) {
        self.leave.cancelled().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.taken.lock().by_number.remove(&self.number);
    }
}
