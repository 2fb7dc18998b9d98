//! The end of a delivery: delivered, or given up.

use crate::store::{DeadLetter, Delivery};

/// `letter`: it was given up.
pub(super) struct Ending<'a> {
    pub delivery: &'a Delivery,
    pub letter: Option<DeadLetter>,
}
