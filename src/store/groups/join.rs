//! Joining: transitions of the outbox join their groups.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::member::GroupsOf;
use super::names::{of_group, returning_name};
use super::step::{GroupStep, JoiningEvent};
use super::{StoredGroups, contended};
use crate::clock::Timestamp;
use crate::presence::MemberTransition;
use crate::store::documents::Document;
use crate::store::notification::GroupMember;
use crate::store::{Delivery, Destinations, Group, Index, MAX_CHANGES, OutboxEvent, Result};

/// A transition that joins its groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// The group of each of its routes; at least one, all different.
    pub groups: Vec<Group>,
    pub event: OutboxEvent,
}

/// How many deliveries the caller of [`StoredGroups::join`] takes, and until when they are leased to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The number for each receiver, in the order of [`Destinations::receivers`]; zero for receivers without an entry.
    pub most: Vec<usize>,
    pub until: Timestamp,
}

impl Capacity {
    /// The caller takes no deliveries: [`StoredDeliveries::lease`](crate::store::StoredDeliveries::lease) hands them
    /// out.
    pub const NONE: Capacity = Capacity { most: Vec::new(), until: Timestamp::ZERO };
}

/// The result of joining.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JoinResult {
    /// How many members were sealed.
    pub sealed: usize,
    /// Whether some of their deliveries wait for [`StoredDeliveries::lease`](crate::store::StoredDeliveries::lease).
    pub has_queued: bool,
    /// Deliveries that are leased to the caller.
    pub deliveries: Vec<Delivery>,
    /// The partitions of the groups, for [`OutboxStore::remove_entries`](crate::store::OutboxStore::remove_entries).
    pub groups: BTreeSet<u16>,
}

/// A group, and the transitions that join it, in order.
struct JoinedGroup<'a> {
    group: &'a Group,
    events: Vec<JoiningEvent<'a>>,
}

impl JoinedGroup<'_> {
    fn has(&self, form: MemberTransition) -> bool {
        self.events.iter().any(|one| one.member.form == form)
    }

    fn has_end(&self) -> bool {
        self.events.iter().any(|one| one.member.form.is_end())
    }
}

impl StoredGroups {
    /// Lets transitions join their groups; each group has its receivers and its pace. Joining is idempotent: a
    /// transition that has joined before, in this form or a later one, changes nothing, even after its notification
    /// was sent. A return that joins before its silence was sealed cancels the silence: receivers are notified of
    /// neither. All events of a record join the groups that its first event joined, whichever groups the caller
    /// names, because the notifications belong to the record. The notification of a return goes to the receivers that
    /// were notified of its silence and are still configured, even if the group does not have them any more.
    ///
    /// A group that is due at once and has no waiting members is sealed in the same step, as by
    /// [`StoredGroups::seal`]. That step also leases the deliveries of its silences to the caller, as
    /// [`StoredDeliveries::lease`](crate::store::StoredDeliveries::lease) does, up to the capacity of each receiver.
    pub async fn join(
        &self,
        joins: &[Join],
        destinations: &Destinations,
        capacity: &Capacity,
        now: Timestamp,
    ) -> Result<JoinResult> {
        let members: Vec<GroupMember> = joins.iter().map(|join| GroupMember::new(&join.event)).collect();
        let groups_of = self.groups_of(joins, &members).await?;
        let mut of_groups: BTreeMap<&str, JoinedGroup<'_>> = BTreeMap::new();
        for ((join, member), groups) in joins.iter().zip(&members).zip(&groups_of) {
            for group in groups.iter() {
                let event = JoiningEvent::new(&join.event, member, destinations, now);
                let new = || JoinedGroup { group, events: Vec::new() };
                of_groups.entry(&group.key).or_insert_with(new).events.push(event);
            }
        }
        let names = destinations.receivers().iter().map(String::as_str);
        let mut free: HashMap<&str, usize> = names.zip(capacity.most.iter().copied()).collect();
        let mut open: Vec<JoinedGroup> = of_groups.into_values().collect();
        let groups = open.iter().map(|one| self.partition(&one.group.key)).collect();
        let mut joined = JoinResult { groups, ..JoinResult::default() };
        for round in 0..MAX_CHANGES {
            open = self
                .try_to_join(open, (destinations, round == 0), (&mut free, capacity.until), now, &mut joined)
                .await?;
            let Some(first) = open.first() else { break };
            if round + 1 == MAX_CHANGES {
                return Err(contended(&first.group.key));
            }
        }
        let leased = joined.deliveries.iter().map(|one| self.partition(&one.group.key));
        let leased: BTreeSet<u16> = leased.collect();
        if !leased.is_empty() {
            self.engine.replicated(leased).await;
        }
        Ok(joined)
    }

    /// Answers the groups that others have changed meanwhile.
    async fn try_to_join<'a>(
        &self,
        groups: Vec<JoinedGroup<'a>>,
        (destinations, is_first): (&Destinations, bool),
        (free, until): (&mut HashMap<&str, usize>, Timestamp),
        now: Timestamp,
        joined: &mut JoinResult,
    ) -> Result<Vec<JoinedGroup<'a>>> {
        let (new, known): (Vec<JoinedGroup<'a>>, Vec<JoinedGroup<'a>>) =
            groups.into_iter().partition(|one| is_first && is_likely_new(one, destinations));
        let mut steps = self.expect_new(&new, (destinations, now));
        steps.extend(self.load(&known, (destinations, now)).await?);
        let all: Vec<JoinedGroup<'a>> = new.into_iter().chain(known).collect();
        let mut sets = Vec::with_capacity(steps.len());
        for (step, one) in steps.iter_mut().zip(&all) {
            one.events.iter().for_each(|event| step.join(event, one.group));
            step.seal_at_once()?;
            step.hand_out(free);
            sets.push(step.change_set(until)?);
        }
        let written = self.documents.write(&sets).await?;
        let mut open = Vec::new();
        for ((one, step), is_written) in all.into_iter().zip(steps).zip(written) {
            if !is_written {
                step.give_back(free);
                open.push(one);
                continue;
            }
            joined.sealed += step.count;
            let (deliveries, has_queued) = step.handed_out();
            joined.has_queued |= has_queued;
            joined.deliveries.extend(deliveries);
        }
        Ok(open)
    }

    /// Steps of groups that are likely new: reads nothing, and the change-set expects that nothing is stored.
    fn expect_new<'a>(
        &self,
        groups: &[JoinedGroup<'_>],
        (destinations, now): (&'a Destinations, Timestamp),
    ) -> Vec<GroupStep<'a>> {
        let step = |one: &JoinedGroup<'_>| {
            let group = self.absent(&one.group.key);
            GroupStep::new(group, None, (destinations, now), self.partitions())
        };
        groups.iter().map(step).collect()
    }

    /// Steps of groups, with their stored state.
    async fn load<'a>(
        &self,
        groups: &[JoinedGroup<'_>],
        (destinations, now): (&'a Destinations, Timestamp),
    ) -> Result<Vec<GroupStep<'a>>> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<String> = groups.iter().map(|one| one.group.key.clone()).collect();
        let (stored, due) = tokio::try_join!(self.documents.read(&keys), self.groups_due(&keys))?;
        let new = |(stored, due)| GroupStep::new(stored, due, (destinations, now), self.partitions());
        let mut steps: Vec<GroupStep> = stored.into_iter().zip(due).map(new).collect();
        let ending: Vec<usize> = (0..groups.len()).filter(|at| groups[*at].has_end()).collect();
        if !ending.is_empty() {
            // Read before the count: a member that begins to wait after it changes the version.
            self.load_versions(&mut steps, &ending).await?;
            let ranges: Vec<_> =
                ending.iter().map(|at| of_group(steps[*at].key(), self.partitions())).collect();
            for (at, count) in ending.iter().zip(self.documents.count_names(Index::Waiting, &ranges).await?) {
                steps[*at].waiting = Some(count);
            }
        }
        let names = groups
            .iter()
            .enumerate()
            .flat_map(|(at, one)| one.events.iter().flat_map(JoiningEvent::read).map(move |name| (at, name)));
        let names: Vec<(usize, String)> = names.collect();
        self.load_members(&mut steps, &names).await?;
        self.load_lasting(&mut steps).await?;
        self.load_returning(&mut steps, groups).await?;
        let lanes = (0..groups.len()).filter(|at| may_be_at_once(&groups[*at], &steps[*at]));
        let lanes = lanes.flat_map(|at| {
            let one = &groups[at];
            let has_end = one.has(MemberTransition::Online) || one.has(MemberTransition::Blind);
            let receivers = steps[at].may_tell(has_end);
            receivers.into_iter().map(move |receiver| (at, receiver))
        });
        let lanes: Vec<(usize, String)> = lanes.collect();
        self.load_lanes(&mut steps, lanes).await?;
        Ok(steps)
    }

    /// Reads since when earlier returns of the units of silences wait, for routes that hold returns.
    async fn load_returning(&self, steps: &mut [GroupStep<'_>], groups: &[JoinedGroup<'_>]) -> Result<()> {
        let (mut asked, mut names) = (Vec::new(), Vec::new());
        for (at, one) in groups.iter().enumerate() {
            if steps[at].destination.pace.returns_wait().is_none() {
                continue;
            }
            let silences = one.events.iter().filter(|event| event.member.form == MemberTransition::Offline);
            for record in silences.filter_map(|event| event.event.record()) {
                let unit = &record.id.unit;
                names.push((self.partition(&one.group.key), returning_name(&one.group.key, unit)));
                asked.push((at, unit.clone()));
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        let names: Vec<(u16, &str)> = names.iter().map(|(of, name)| (*of, name.as_str())).collect();
        for ((at, unit), since) in asked.into_iter().zip(self.engine.numbers(Index::Returning, &names).await?)
        {
            steps[at].returning.extend(since.map(|since| (unit, Timestamp::from_millis(since))));
        }
        Ok(())
    }

    /// The groups of each of these transitions, by its record. For a record without groups, stores the groups that
    /// the caller names.
    async fn groups_of<'a>(
        &self,
        joins: &'a [Join],
        members: &[GroupMember],
    ) -> Result<Vec<Cow<'a, [Group]>>> {
        let mut groups: Vec<Cow<'a, [Group]>> =
            joins.iter().map(|join| Cow::Borrowed(&join.groups[..])).collect();
        // The first of several transitions of one record decides.
        let mut first: HashMap<&str, usize> = HashMap::with_capacity(joins.len());
        let (mut open, mut later) = (Vec::new(), Vec::new());
        let of_record = joins.iter().zip(members).enumerate();
        let of_record = of_record.filter(|(_, (join, _))| join.event.record().is_some());
        for (at, (_, GroupMember { id, form, .. })) in of_record {
            match first.entry(id) {
                Entry::Occupied(first) => later.push((at, *first.get())),
                Entry::Vacant(vacant) => {
                    vacant.insert(at);
                    open.push((at, *form == MemberTransition::Offline));
                }
            }
        }
        for round in 0..MAX_CHANGES {
            // The first event of a record is usually its silence: read nothing, and expect that nothing is stored.
            let (new, known): (Vec<_>, Vec<_>) = open.into_iter().partition(|one| round == 0 && one.1);
            let names: Vec<String> = known.iter().map(|(at, _)| members[*at].id.clone()).collect();
            let (mut places, mut sets) = (Vec::new(), Vec::new());
            let mut choose = |at: usize, stored: &Document<GroupsOf>| -> Result<()> {
                places.push(at);
                sets.push(self.documents.change(stored, Some(&joins[at].groups))?);
                Ok(())
            };
            for (at, _) in new {
                choose(at, &self.absent(&members[at].id))?;
            }
            let stored: Vec<Document<GroupsOf>> = self.documents.read(&names).await?;
            for ((at, _), stored) in known.into_iter().zip(stored) {
                match stored.value {
                    Some(stored) if !stored.is_empty() => groups[at] = Cow::Owned(stored),
                    _ => choose(at, &stored)?,
                }
            }
            let written = self.documents.write(&sets).await?;
            let lost = places.into_iter().zip(written).filter(|(_, is_written)| !is_written);
            open = lost.map(|(at, _)| (at, false)).collect();
            if open.is_empty() {
                later.into_iter().for_each(|(at, first)| groups[at] = groups[first].clone());
                return Ok(groups);
            }
        }
        Err(contended(open.first().map_or("", |one| &joins[one.0].groups[0].key)))
    }
}

/// Whether a group is likely not stored yet: it is the group of one silence that is notified at once.
fn is_likely_new(one: &JoinedGroup<'_>, destinations: &Destinations) -> bool {
    let [only] = &one.events[..] else { return false };
    let pace = destinations.of(&one.group.key).pace;
    let is_at_once = pace.wait.is_zero() && pace.lasts.is_zero() && !pace.is_shared;
    only.member.form == MemberTransition::Offline && is_at_once
}

/// Whether the step in which these transitions join may also seal the group.
fn may_be_at_once(one: &JoinedGroup<'_>, step: &GroupStep<'_>) -> bool {
    let pace = step.destination.pace;
    let is_at_once = pace.wait.is_zero() && (!pace.is_shared || one.has(MemberTransition::Online));
    is_at_once || one.has(MemberTransition::Blind)
}
