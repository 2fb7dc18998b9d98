//! The places for connections, and which of them goes when another one comes.
//!
//! When all are taken, or all of one address, the connection that has stood still for longest makes
//! room: one that waits for a request, or whose reader takes nothing. Where none stands still, a few
//! places are left for the pages that say how Rollcall is; they serve one request each.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio_util::sync::CancellationToken;

use super::conduct::Conduct;

/// How many connections there may be at a time.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// For every page, of all addresses together.
    pub most: usize,
    /// Of those, from one address: no client can have them all.
    pub most_of_one: usize,
    /// Beside them, for the pages that are always answered.
    pub kept: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { most: 512, most_of_one: 384, kept: 32 }
    }
}

/// What a place is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Every page.
    Ordinary,
    /// One of the pages that are always answered.
    Kept,
}

pub(super) struct Places {
    bounds: Bounds,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// In the order of their coming.
    by_number: BTreeMap<u64, Holder>,
    next: u64,
}

struct Holder {
    peer: IpAddr,
    sort: Sort,
    conduct: Arc<Conduct>,
    leave: CancellationToken,
}

/// A place that is held; dropped, it is free.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    sort: Sort,
    conduct: Arc<Conduct>,
    leave: CancellationToken,
}

impl Places {
    pub fn new(bounds: Bounds) -> Arc<Places> {
        Arc::new(Places { bounds, taken: Mutex::default() })
    }

    /// A place for a connection of `peer`; `None` if all are in use. `lost` hears of the peer that lost its
    /// place for it.
    pub fn take(self: &Arc<Places>, peer: IpAddr, lost: impl FnOnce(IpAddr)) -> Option<Place> {
        let peer = address(peer);
        let mut taken = self.lock();
        let (sort, loser) = taken.room(&self.bounds, peer)?;
        if let Some(loser) = loser.and_then(|number| taken.by_number.remove(&number)) {
            loser.leave.cancel();
            lost(loser.peer);
        }
        let number = taken.next;
        taken.next += 1;
        let (conduct, leave) = (Arc::new(Conduct::new()), CancellationToken::new());
        let holder = Holder { peer, sort, conduct: conduct.clone(), leave: leave.clone() };
        taken.by_number.insert(number, holder);
        Some(Place { places: self.clone(), number, sort, conduct, leave })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().expect("nothing panics under this lock")
    }
}

impl Taken {
    /// The sort of place that `peer` gets, and the number of the one that has to go for it.
    fn room(&self, bounds: &Bounds, peer: IpAddr) -> Option<(Sort, Option<u64>)> {
        let ordinary = |holder: &Holder| holder.sort == Sort::Ordinary;
        let of_peer = |holder: &Holder| ordinary(holder) && holder.peer == peer;
        let kept = |holder: &Holder| holder.sort == Sort::Kept;
        let loser = if self.count(of_peer) >= bounds.most_of_one {
            self.stillest(of_peer)
        } else if self.count(ordinary) >= bounds.most {
            self.stillest(ordinary)
        } else {
            return Some((Sort::Ordinary, None));
        };
        match loser {
            Some(loser) => Some((Sort::Ordinary, Some(loser))),
            None if self.count(kept) < bounds.kept => Some((Sort::Kept, None)),
            None => Some((Sort::Kept, Some(self.stillest(kept)?))),
        }
    }

    fn count(&self, which: impl Fn(&Holder) -> bool) -> usize {
        self.by_number.values().filter(|holder| which(holder)).count()
    }

    fn stillest(&self, which: impl Fn(&Holder) -> bool) -> Option<u64> {
        let of_them = self.by_number.iter().filter(|(_, holder)| which(holder));
        let still = of_them.filter_map(|(number, holder)| Some((holder.conduct.still_since()?, *number)));
        still.min().map(|(_, number)| number)
    }
}

impl Place {
    pub fn sort(&self) -> Sort {
        self.sort
    }

    pub fn conduct(&self) -> &Arc<Conduct> {
        &self.conduct
    }

    /// Ends when another connection got this place.
    pub async fn taken_away(&self) {
        self.leave.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().by_number.remove(&self.number);
    }
}

/// What counts as one address: a machine has as many of IPv6 as it likes within its network of /64.
fn address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(four) => four.into(),
        IpAddr::V6(six) => Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX)).into(),
    }
}
