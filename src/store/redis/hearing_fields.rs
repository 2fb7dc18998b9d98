//! The state of hearing as fields of hashes, and the writes of a change to it. `keys.rs` lists the forms.

use std::collections::BTreeMap;
use std::time::Duration;

use super::conditional::{ConditionalWrite, Expect, HashFields};
use super::keys::Keys;
use super::reading::milliseconds;
use crate::clock::Timestamp;
use crate::presence::{HearingState, Kind, MemberState, SessionState};

/// The hashes of the state as read. Unreadable values are left out; an unreadable member is `None`.
#[derive(Clone, Copy)]
pub(super) struct HearingFields<'a> {
    pub heard: &'a HashFields,
    pub members: &'a HashFields,
    pub floors: &'a HashFields,
    /// Read only for a subscription with a session.
    pub sessions: Option<&'a HashFields>,
}

impl HearingFields<'_> {
    pub fn state(&self) -> HearingState {
        let heard = self.heard.get(b"at".as_slice()).and_then(|text| moment(text));
        let sessions = self.sessions.into_iter().flatten();
        HearingState {
            heard,
            sessions: sessions.filter_map(|(id, text)| Some((text_of(id)?, session(text)?))).collect(),
            ..membership(self.members, self.floors)
        }
    }

    /// Adds the writes and conditions of the change from this state to `after`, without `heard`. Concurrent proofs by
    /// other instances do not void the change: they only add to it.
    pub fn write(
        &self,
        write: &mut ConditionalWrite<'_>,
        keys: &Keys,
        after: Option<&HearingState>,
        others: Expect,
    ) {
        let changes = |before: &HashFields, of: fn(&HearingState, &HashFields) -> HashFields| {
            after.map(|after| changed(before, &of(after, before))).unwrap_or_default()
        };
        let all = [
            (keys.members(), Some(self.members), members as fn(&HearingState, &HashFields) -> HashFields),
            (keys.floors(), Some(self.floors), floors),
            (keys.plain(), self.sessions, sessions),
        ];
        for (n, (key, fields, of)) in all.into_iter().enumerate() {
            let Some(fields) = fields else { continue };
            let changes = changes(fields, of);
            let is_floors = n == 1;
            // Several canaries of one subscription may be under way; the latest counts.
            let may_grow = !is_floors && others == Expect::SameOrLater;
            write.expect_all(fields, |field| match changes.get(field) {
                Some(Some(_)) | None if may_grow => Expect::SameOrLater,
                _ => Expect::Same,
            });
            for (field, text) in changes {
                match text {
                    Some(text) if may_grow => write.raise(&key, &field, &text),
                    Some(text) => write.set(&key, &field, &text),
                    None => write.remove(&key, &field),
                }
            }
        }
    }
}

/// The state with members and floors only.
pub(super) fn membership(of_members: &HashFields, of_floors: &HashFields) -> HearingState {
    let member = |(name, text): (&Vec<u8>, &Vec<u8>)| {
        let (share, client_id) = str::from_utf8(name).ok()?.rsplit_once('/')?;
        Some(((share.to_owned(), client_id.to_owned()), parse_member(text)))
    };
    HearingState {
        members: of_members.iter().filter_map(member).collect(),
        floors: of_floors.iter().filter_map(|(name, text)| Some((text_of(name)?, moment(text)?))).collect(),
        ..HearingState::default()
    }
}

/// A filter of a kind, and up to when it was heard.
pub(super) fn parse_filter(name: &[u8], at: &[u8]) -> Option<((Kind, String), Timestamp)> {
    let (kind, filter) = str::from_utf8(name).ok()?.split_once(' ')?;
    Some(((kind.parse().ok()?, filter.to_owned()), moment(at)?))
}

pub(super) fn filter_field(kind: &Kind, filter: &str) -> Vec<u8> {
    format!("{kind} {filter}").into_bytes()
}

/// The fields that differ, with their new text; `None`: removed.
fn changed(before: &HashFields, after: &HashFields) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let removed =
        before.keys().filter(|field| !after.contains_key(*field)).map(|field| (field.clone(), None));
    let set = after.iter().filter(|(field, text)| before.get(*field) != Some(*text));
    removed.chain(set.map(|(field, text)| (field.clone(), Some(text.clone())))).collect()
}

/// An unreadable member stays unchanged.
fn members(state: &HearingState, before: &HashFields) -> HashFields {
    let of_member = |((share, client_id), state): (&(String, String), &Option<MemberState>)| {
        let name = format!("{share}/{client_id}").into_bytes();
        let text = match state {
            None => before.get(&name)?.clone(),
            Some(MemberState { connection, heard, release }) => {
                format!("{} {} {connection}", heard.as_millis(), release.as_millis()).into_bytes()
            }
        };
        Some((name, text))
    };
    state.members.iter().filter_map(of_member).collect()
}

fn floors(state: &HearingState, _: &HashFields) -> HashFields {
    let of_share = |(share, at): (&String, &Timestamp)| {
        (share.clone().into_bytes(), at.as_millis().to_string().into_bytes())
    };
    state.floors.iter().map(of_share).collect()
}

fn sessions(state: &HearingState, _: &HashFields) -> HashFields {
    let of_session = |(client_id, state): (&String, &SessionState)| {
        let SessionState { connection, heard, since } = state;
        let text = format!("{} {} {connection}", heard.as_millis(), since.as_millis());
        (client_id.clone().into_bytes(), text.into_bytes())
    };
    state.sessions.iter().map(of_session).collect()
}

fn parse_member(text: &[u8]) -> Option<MemberState> {
    let [heard, release, connection] = three(text)?;
    let release = Duration::from_millis(release.parse().ok()?);
    Some(MemberState { connection: connection.parse().ok()?, heard: moment(heard.as_bytes())?, release })
}

fn session(text: &[u8]) -> Option<SessionState> {
    let [heard, since, connection] = three(text)?;
    let (heard, since) = (moment(heard.as_bytes())?, moment(since.as_bytes())?);
    Some(SessionState { connection: connection.parse().ok()?, heard, since })
}

fn three(text: &[u8]) -> Option<[&str; 3]> {
    str::from_utf8(text).ok()?.split(' ').collect::<Vec<_>>().try_into().ok()
}

fn moment(text: &[u8]) -> Option<Timestamp> {
    milliseconds(text).map(Timestamp::from_millis)
}

fn text_of(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}
