//! A copy of a stored state that several tasks refresh.
//!
//! Two refreshes may overlap, and the answer that was read first may arrive last: it would set the copy back, and a
//! reader would act on a past state. Versions say only whether two states differ, not which is newer. So a refresh
//! stores its answer only if the copy is still the one with which the refresh began; otherwise it begins again, and
//! usually finds that the copy already has the current version.

use parking_lot::Mutex;

/// A version and the state of that version.
type Versioned<T> = (Option<String>, T);

/// The copy.
pub(super) struct NewestCopy<T>(Mutex<KnownCopy<T>>);

struct KnownCopy<T> {
    /// How often the copy was replaced.
    replaced: u64,
    /// `None` before the first read.
    known: Option<Versioned<T>>,
}

/// The copy with which a refresh began.
pub(super) struct Begun<T> {
    replaced: u64,
    pub known: Option<Versioned<T>>,
}

impl<T> Default for NewestCopy<T> {
    fn default() -> NewestCopy<T> {
        NewestCopy(Mutex::new(KnownCopy { replaced: 0, known: None }))
    }
}

impl<T: Clone> NewestCopy<T> {
    /// The current copy, with which a refresh begins.
    pub fn begin(&self) -> Begun<T> {
        let kept = self.0.lock();
        Begun { replaced: kept.replaced, known: kept.known.clone() }
    }

    /// Stores the answer of a refresh and calls `kept`, whose effects are in the order of the copies; `false`:
    /// another refresh was faster, and this one has to begin again.
    pub fn keep(&self, begun: &Begun<T>, read: &Versioned<T>, kept: impl FnOnce()) -> bool {
        let mut copy = self.0.lock();
        if copy.replaced != begun.replaced {
            return false;
        }
        *copy = KnownCopy { replaced: copy.replaced + 1, known: Some(read.clone()) };
        kept();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_began_before_another_one_ended_does_not_set_the_copy_back() {
        let (copy, state) = (NewestCopy::default(), |version: &str, n: u32| (Some(version.to_owned()), n));
        let (slow, fast) = (copy.begin(), copy.begin());
        assert!(slow.known.is_none());
        assert!(copy.keep(&fast, &state("b", 2), || {}));
        assert!(!copy.keep(&slow, &state("a", 1), || panic!("it is not kept")));
        let again = copy.begin();
        assert_eq!(again.known, Some(state("b", 2)));
        assert!(copy.keep(&again, &state("c", 3), || {}));
        assert_eq!(copy.begin().known, Some(state("c", 3)));
    }
}
