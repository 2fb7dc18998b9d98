//! The acknowledgement of a message, due when the message is recorded.

use std::sync::Arc;

use super::encode::AckKind;
use super::session::Session;

#[derive(Debug)]
pub struct Receipt {
    pub session: Arc<Session>,
    pub connection: u64,
    pub kind: AckKind,
    pub id: u16,
    /// The reason code of the answer.
    pub code: u8,
}

impl Receipt {
    pub fn acknowledge(&self) {
        self.session.recorded(self.connection, self.kind, self.id, self.code);
    }
}

impl PartialEq for Receipt {
    fn eq(&self, other: &Receipt) -> bool {
        (self.session.number, self.connection, self.id) == (other.session.number, other.connection, other.id)
    }
}
