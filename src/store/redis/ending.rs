//! The end of a delivery: delivered, or a dead letter.

use crate::store::{DeadLetter, Delivery};

pub(super) struct Ending<'a> {
    pub delivery: &'a Delivery,
    /// `None`: it was delivered.
    pub letter: Option<DeadLetter>,
}
