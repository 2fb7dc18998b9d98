//! The members of groups: the silences that wait for a notification, the receivers that were notified of them, and
//! the lasting silences.

use super::member::{GroupsOf, StoredMember};
use super::names::{lasting_between, read_lasting};
use super::{StoredGroups, contended, member_cell};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId, Stage};
use crate::store::documents::Document;
use crate::store::member_names::{name_of, names_of, of_member};
use crate::store::notification::GroupMember;
use crate::store::receiver_list::with;
use crate::store::{ChangeSet, Group, Index, MAX_CHANGES, MAX_STEP, Membership, OutboxEvent, Result};

/// A silence, or a blind interval that lasts, of which a receiver was notified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifiedSilence {
    /// The key of its group.
    pub group: String,
    /// The name of the member.
    pub member: String,
    pub detected_at: Timestamp,
}

impl NotifiedSilence {
    /// The silence or the blind interval of this event, in the group with this key.
    pub fn of(group: &str, event: &OutboxEvent) -> NotifiedSilence {
        let GroupMember { id, detected_at, .. } = GroupMember::new(event);
        NotifiedSilence { group: group.to_owned(), member: id, detected_at }
    }
}

impl StoredGroups {
    /// The groups that each of these open records joined, and the receivers that were notified of the record there.
    pub async fn memberships(&self, records: &[&OfflineRecord]) -> Result<Vec<Vec<Membership>>> {
        let names: Vec<String> = records.iter().map(|record| name_of(record)).collect();
        let of: Vec<Document<GroupsOf>> = self.documents.read(&names).await?;
        let mut cells = Vec::new();
        for (record, groups) in records.iter().zip(&of) {
            for group in groups.value.iter().flatten() {
                let names = names_of(&name_of(record), record.detected_at);
                cells.extend(names.map(|name| member_cell(&group.key, &name, self.partitions())));
            }
        }
        let mut members = self.documents.read_cells::<StoredMember>(cells).await?.into_iter();
        let memberships = of.into_iter().map(|groups| {
            let groups = groups.value.into_iter().flatten();
            let of_group = groups.flat_map(|group| {
                let of_record = members.by_ref().take(2).filter_map(|one| one.value);
                let of_record: Vec<Membership> =
                    of_record.filter_map(|member| member.membership(group.clone())).collect();
                of_record
            });
            of_group.collect()
        });
        Ok(memberships.collect())
    }

    /// The silences of a shared group that receivers know of and whose units are not back, if receivers were notified
    /// at `from` or later, and before `before`.
    pub async fn lasting(
        &self,
        group: &str,
        from: Timestamp,
        before: Option<Timestamp>,
    ) -> Result<Vec<RecordId>> {
        let range = lasting_between(group, self.partitions(), from, before);
        let names = self.documents.names(Index::Lasting, &[range], usize::MAX).await?;
        let id = |name: &String| Some(of_member(read_lasting(name)?.1)?.1);
        Ok(names.iter().flatten().filter_map(id).collect())
    }

    /// Adds a receiver that was notified of these silences, except silences whose ends were already sealed.
    pub async fn add_receiver(&self, receiver: &str, silences: &[NotifiedSilence]) -> Result<()> {
        // A silence that was detected again is a separate member.
        let names = |NotifiedSilence { group, member, detected_at }: &NotifiedSilence| {
            names_of(member, *detected_at)
                .map(|name| (member_cell(group, &name, self.partitions()), *detected_at))
        };
        let all: Vec<_> = silences.iter().flat_map(names).collect();
        for step in all.chunks(MAX_STEP) {
            let mut open = step.to_vec();
            for round in 0.. {
                let cells = open.iter().map(|(cell, _)| cell.clone()).collect();
                let members: Vec<Document<StoredMember>> = self.documents.read_cells(cells).await?;
                let (mut sets, mut places) = (Vec::new(), Vec::new());
                for ((cell, detected_at), known) in open.iter().zip(&members) {
                    let member = known.value.as_ref();
                    if let Some(after) = member.and_then(|member| member.told_too(receiver, *detected_at)) {
                        sets.push(known.change_in(ChangeSet::of(cell.partition), Some(&after))?);
                        places.push((cell.clone(), *detected_at));
                    }
                }
                let written = self.documents.write(&sets).await?;
                open = places.into_iter().zip(written).filter(|(_, is)| !is).map(|(one, _)| one).collect();
                match open.first() {
                    None => break,
                    Some((cell, _)) if round == MAX_CHANGES => return Err(contended(&cell.name)),
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}

impl StoredMember {
    /// `None`: its silence is over.
    fn membership(self, group: Group) -> Option<Membership> {
        let names =
            |told: String| told.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        match self.stage {
            Stage::Waits => Some(Membership { group, receivers: None }),
            Stage::Notified | Stage::IsBack => {
                Some(Membership { group, receivers: Some(names(self.told.unwrap_or_default())) })
            }
            Stage::Over => None,
        }
    }

    /// This member with this receiver among the notified; `None`: the member is another silence, waits for no return,
    /// or already has the receiver.
    fn told_too(&self, receiver: &str, detected_at: Timestamp) -> Option<StoredMember> {
        let is_open = matches!(self.stage, Stage::Notified | Stage::IsBack);
        let is_same = is_open && self.detected_at() == detected_at;
        let told = with(self.told.as_deref().filter(|_| is_same)?, receiver)?;
        Some(StoredMember { told: Some(told), ..self.clone() })
    }
}
