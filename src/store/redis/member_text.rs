//! A member of a group as text: see `join.lua`.

use std::fmt;

use crate::presence::Stage;

/// The parts of a stored member.
pub(super) struct MemberText<'a> {
    pub stage: Stage,
    /// When its silence was detected (ms).
    pub detected: &'a str,
    /// The receivers that were notified of its silence, separated by commas.
    pub receivers: &'a str,
    /// A space and its record, or nothing.
    pub body: &'a str,
}

impl<'a> MemberText<'a> {
    /// `None`: it is no such text.
    pub fn read(text: &'a [u8]) -> Option<MemberText<'a>> {
        let text = str::from_utf8(text).ok()?;
        let stage = Stage::of(text.chars().next()?)?;
        let (head, body) = text[1..].split_at(text[1..].find(' ').unwrap_or(text.len() - 1));
        let (detected, receivers) = head.split_once(':').unwrap_or((head, ""));
        Some(MemberText { stage, detected, receivers, body })
    }
}

impl fmt::Display for MemberText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemberText { stage, detected, receivers, body } = self;
        write!(f, "{}{detected}:{receivers}{body}", stage.letter())
    }
}
