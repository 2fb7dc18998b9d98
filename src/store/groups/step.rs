//! A step of a group: the state that was read, the decisions, and the change-set from both.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::member::{GroupVersion, MemberWait, StoredGroup, StoredMember};
use super::names::{WaitingName, lasting_name, member_name, returning_name};
use super::sealed::SealedMembers;
use crate::clock::Timestamp;
use crate::presence::{
    GroupTimes, Joining, Left, MemberTransition, Sealed, Stage, Unit, WaitingMember, is_detected_again,
};
use crate::store::documents::Document;
use crate::store::lane::{Lane, append, owe};
use crate::store::member_names::{names_of, of_member};
use crate::store::notification::{GroupMember, Notification, begin_of_blindness, is_blindness};
use crate::store::{
    Cell, ChangeSet, Delivery, Destination, Destinations, Group, Index, OutboxEvent, Result, Table,
    partition_of_group,
};

/// The time to the next check of a group in which other members may have begun to wait meanwhile.
const AGAIN: Duration = Duration::from_secs(1);

/// A transition that joins a group.
pub(super) struct JoiningEvent<'a> {
    pub event: &'a OutboxEvent,
    pub member: &'a GroupMember,
    /// Until when its silence is held.
    pub held_until: Option<Timestamp>,
}

impl<'a> JoiningEvent<'a> {
    pub fn new(
        event: &'a OutboxEvent,
        member: &'a GroupMember,
        destinations: &Destinations,
        now: Timestamp,
    ) -> JoiningEvent<'a> {
        let held_until = event.record().and_then(|record| destinations.silence_held_until(record, now));
        JoiningEvent { event, member, held_until }
    }

    /// The names of the members that its step reads.
    pub fn read(&self) -> impl Iterator<Item = String> + use<> {
        let begin = begin_of_blindness(&self.member.id).map(str::to_owned);
        names_of(&self.member.id, self.member.detected_at).into_iter().chain(begin)
    }
}

/// A member before and after the step. Ten thousand of a group are in memory at once, so no value is stored twice.
struct KnownMember {
    /// Without its value, which is in `after` until it changes.
    before: Document<StoredMember>,
    was: MemberEntries,
    after: Option<StoredMember>,
    is_changed: bool,
}

/// The entries of a member.
#[derive(Clone, Copy, Default)]
struct MemberEntries {
    /// Whether it waits as a silence, and since when it waits; `None`: it does not wait.
    waits: Option<(bool, Timestamp)>,
    /// Whether a return waits.
    is_back: bool,
    lasts: Option<Timestamp>,
    is_over: bool,
}

impl MemberEntries {
    /// Its name in the index of waiting members, if it waits as a silence. Each change of such a member changes its
    /// entry, so the change-set expects the entry instead of the value: ten thousand values would go to the engine
    /// and back.
    fn silence_name(&self, member: &str) -> Option<WaitingName> {
        self.waiting_name(member).filter(|name| name.is_silence)
    }

    fn of(member: Option<&StoredMember>) -> MemberEntries {
        let Some(member) = member else { return MemberEntries::default() };
        MemberEntries {
            waits: member.waits.as_ref().map(|wait| (!member.is_final(), wait.since())),
            is_back: member.stage == Stage::IsBack,
            lasts: member.lasts_since(),
            is_over: member.stage == Stage::Over,
        }
    }

    /// The name of the member in the index of waiting members, if it waits.
    fn waiting_name(&self, member: &str) -> Option<WaitingName> {
        let (is_silence, since) = self.waits?;
        Some(WaitingName { is_silence, since, member: member.to_owned() })
    }
}

/// A notification that the step seals.
struct SealedGroup {
    id: String,
    /// The stored form.
    body: Vec<u8>,
    /// `Some` if its deliveries may be leased to the caller: it has only silences, and is small enough for a second
    /// copy.
    notification: Option<Notification>,
    /// Its receivers, and whether the delivery to each is leased to the caller.
    told: Vec<(String, bool)>,
}

/// A notification of more members is not handed out when they join.
const HANDED_OUT: usize = 100;

/// The state of a group that was read, and the decisions.
pub(super) struct GroupStep<'a> {
    pub destination: Arc<Destination>,
    others: Vec<&'a String>,
    destinations: &'a Destinations,
    now: Timestamp,
    partition: u16,
    group: Document<StoredGroup>,
    after: StoredGroup,
    due: Option<Timestamp>,
    next_due: Option<Timestamp>,
    members: BTreeMap<String, Box<KnownMember>>,
    /// Entries of members that wait no longer, whatever their cells say.
    stray: Vec<String>,
    /// Expected unchanged if all waiting members were read: a member that begins to wait meanwhile changes it.
    pub version: Option<Document<GroupVersion>>,
    /// The number of waiting members; `None`: unknown.
    pub waiting: Option<usize>,
    /// The number of lasting silences.
    pub lasting: usize,
    pub reminder: Option<Timestamp>,
    next_reminder: Option<Timestamp>,
    /// Since when returns wait, by unit.
    pub returning: HashMap<Unit, Timestamp>,
    /// The lanes of receivers.
    pub lanes: BTreeMap<String, Document<Lane>>,
    sealed: Option<SealedGroup>,
    /// The number of sealed members.
    pub count: usize,
}

impl<'a> GroupStep<'a> {
    pub fn new(
        group: Document<StoredGroup>,
        due: Option<Timestamp>,
        (destinations, now): (&'a Destinations, Timestamp),
        partitions: u16,
    ) -> GroupStep<'a> {
        let destination = destinations.of(&group.name);
        GroupStep {
            others: destinations.others(&destination),
            destination,
            destinations,
            now,
            partition: partition_of_group(&group.name, partitions),
            after: group.value.clone().unwrap_or_default(),
            group,
            due,
            next_due: due,
            members: BTreeMap::new(),
            stray: Vec::new(),
            version: None,
            waiting: None,
            lasting: 0,
            reminder: None,
            next_reminder: None,
            returning: HashMap::new(),
            lanes: BTreeMap::new(),
            sealed: None,
            count: 0,
        }
    }

    /// The key of the group.
    pub fn key(&self) -> &str {
        &self.group.name
    }

    /// Adds a member that was read.
    pub fn know(&mut self, name: &str, mut before: Document<StoredMember>) {
        let after = before.value.take();
        let was = MemberEntries::of(after.as_ref());
        if was.silence_name(name).is_some() {
            before = before.without_stored();
        }
        let known = KnownMember { before, was, after, is_changed: false };
        self.members.insert(name.to_owned(), Box::new(known));
    }

    fn times(&self) -> GroupTimes {
        GroupTimes { sealed: self.after.sealed(), due: self.next_due }
    }

    /// The name of the member of a transition, and the member.
    fn member_of(&self, joining: &JoiningEvent<'_>) -> (String, Option<&StoredMember>) {
        let GroupMember { id: name, detected_at, form, .. } = joining.member;
        let known = |name: &str| self.members.get(name).and_then(|known| known.after.as_ref());
        let first = known(name);
        let is_other =
            |known: &StoredMember| is_detected_again(known.stage, known.detected_at(), *detected_at);
        // An ended member is removed after some time, and its silence may have been detected again before.
        if !first.map_or(form.is_end(), is_other) {
            return (name.clone(), first);
        }
        let [name, again] = names_of(name, *detected_at);
        let second = known(&again);
        if first.is_some() || second.is_some() { (again, second) } else { (name, None) }
    }

    /// Lets a transition join.
    pub fn join(&mut self, joining: &JoiningEvent<'_>, group: &Group) {
        let JoiningEvent { event, member, held_until } = *joining;
        let (pace, now) = (self.destination.pace, self.now);
        let (name, known) = self.member_of(joining);
        let stage = known.map(|known| known.stage);
        let (is_told, was) = (known.is_none_or(StoredMember::is_told), MemberEntries::of(known));
        let told = known.and_then(|known| known.told.clone());
        let form = Stage::form(stage, pace.form(member.form), is_told);
        let Some(next) = Stage::next(stage, form) else { return };
        if was.lasts.is_some() {
            self.lasting = self.lasting.saturating_sub(1);
        }
        let waited = was.waits.is_some();
        let after = StoredMember::new(next, member.detected_at);
        if next == Stage::Over {
            self.waiting = self.waiting.map(|waiting| waiting.saturating_sub(usize::from(waited)));
            self.change(&name, after);
            if self.waiting == Some(0) {
                self.next_due = None;
            }
            return;
        }
        let unit = event.record().map(|record| &record.id.unit);
        let joining = Joining {
            form,
            deadline: member.deadline,
            held_until,
            returning: unit.and_then(|unit| self.returning.get(unit)).copied(),
            lasting: self.lasting,
            group_held_until: self.destinations.held_until(self.key(), now),
        };
        let mut times = self.times();
        let since = times.join(joining, pace, now);
        self.next_due = times.due;
        self.waiting = self.waiting.map(|waiting| waiting + usize::from(!waited));
        if let Some(unit) = unit.filter(|_| form == MemberTransition::Online && pace.returns_wait().is_some())
        {
            self.returning.insert(unit.clone(), since);
        }
        self.change(&name, after.waiting(told, since, event.clone()));
        self.after.labels.get_or_insert_with(|| group.labels.clone());
    }

    fn change(&mut self, name: &str, after: StoredMember) {
        let known = self.members.entry(name.to_owned()).or_insert_with(|| {
            let name = member_name(&self.group.name, name);
            let before = Document::absent(Cell { table: Table::Members, partition: self.partition, name });
            Box::new(KnownMember { before, was: MemberEntries::default(), after: None, is_changed: true })
        });
        (known.after, known.is_changed) = (Some(after), true);
    }

    /// Seals the members that joined, if none waited before and the group is due at once.
    pub fn seal_at_once(&mut self) -> Result<()> {
        if self.due.is_some() || self.next_due.is_none_or(|due| due > self.now) {
            return Ok(());
        }
        let waiting = self.members.iter().filter_map(|(name, known)| known.is().waiting_name(name));
        let mut waiting: Vec<WaitingName> = waiting.collect();
        waiting.sort_unstable();
        let ready = self.ready(&waiting);
        self.seal(waiting, ready)
    }

    /// Sets the next check of the group to the end of its hold. Answers whether the group is held.
    pub fn hold(&mut self) -> bool {
        let held_until = self.destinations.held_until(self.key(), self.now);
        if held_until.is_some() {
            self.next_due = held_until;
        }
        held_until.is_some()
    }

    /// The members of which receivers may be notified now, in order. None while silences are being gathered: the
    /// group is due again when they have waited.
    pub fn ready(&mut self, waiting: &[WaitingName]) -> Vec<WaitingName> {
        let member = |one: &WaitingName| WaitingMember {
            since: one.since,
            is_silence: one.is_silence,
            is_blind: is_blindness(&one.member),
        };
        let (times, pace, now) = (self.times(), self.destination.pace, self.now);
        match times.ready(waiting.iter().map(member), pace.is_last(self.lasting), pace, now) {
            Ok(ready) => ready.into_iter().map(|at| waiting[at].clone()).collect(),
            Err(gathered_at) => {
                self.next_due = Some(gathered_at);
                Vec::new()
            }
        }
    }

    /// Seals these members: `ready`, which are among the first waiting members.
    pub fn seal(&mut self, mut waiting: Vec<WaitingName>, mut ready: Vec<WaitingName>) -> Result<()> {
        if self.next_due.is_some_and(|due| due > self.now) {
            return Ok(());
        }
        let (times, before) = (self.times(), self.after.sealed());
        self.hold_silences(&mut waiting, &mut ready);
        ready.sort_unstable_by(|a, b| a.member.cmp(&b.member));
        self.count = ready.len();
        let names: HashSet<&str> = ready.iter().map(|one| one.member.as_str()).collect();
        waiting.retain(|one| !names.contains(one.member.as_str()));
        self.notify(&ready, before)?;
        let pace = self.destination.pace;
        if self.sealed.is_some() {
            self.after = std::mem::take(&mut self.after).with_sealed(times.sealed_now(pace, self.now));
        }
        let left = waiting.iter().map(|one| (one.is_silence, one.since));
        let left = Left::of(left, pace.is_last(self.lasting), pace, self.now);
        self.next_due = times.due_after(left, Sealed::of(self.count), pace, self.now);
        Ok(())
    }

    /// Extends the waits of held silences, so that no held silence is sealed now.
    fn hold_silences(&mut self, waiting: &mut Vec<WaitingName>, ready: &mut Vec<WaitingName>) {
        let (key, mut held, mut lost) = (&self.group.name, HashMap::new(), HashSet::new());
        for one in &*ready {
            let known = self.members.get_mut(&one.member);
            let known = known.and_then(|known| Some((known.after.as_mut()?, &mut known.is_changed)));
            let waits =
                |member: &StoredMember| member.waits.as_ref().map(|wait| wait.since()) == Some(one.since);
            let Some((member, is_changed)) = known.filter(|(member, _)| waits(member)) else {
                self.stray.push(one.text(&self.group.name));
                lost.insert(one.member.clone());
                continue;
            };
            let record = member.record().filter(|_| one.is_silence);
            let until = record.and_then(|record| self.destinations.member_held_until(key, record, self.now));
            if let (Some(until), Some(wait)) = (until, &mut member.waits) {
                **wait = MemberWait::new(until - self.destination.pace.wait, wait.event.clone());
                *is_changed = true;
                held.insert(one.member.clone(), wait.since());
            }
        }
        ready.retain(|one| !lost.contains(&one.member) && !held.contains_key(&one.member));
        waiting.retain(|one| !lost.contains(&one.member));
        for one in waiting {
            one.since = held.get(&one.member).copied().unwrap_or(one.since);
        }
    }

    /// Creates a notification of these members, and stores the receivers that are notified of each.
    fn notify(&mut self, ready: &[WaitingName], before: Option<Timestamp>) -> Result<()> {
        let (destination, now) = (self.destination.clone(), self.now);
        let Destination { receivers, pace, .. } = &*destination;
        let mut sealed = SealedMembers::default();
        for WaitingName { member: name, .. } in ready {
            let begin = begin_of_blindness(name);
            let notified_of_begin = begin.and_then(|begin| self.end_blindness(begin));
            let known = self.members.get_mut(name).map(|known| &mut **known);
            let Some(KnownMember { after: Some(member), is_changed, .. }) = known else { continue };
            let Some(wait) = member.waits.take() else { continue };
            *is_changed = true;
            member.told = member.told.take().or(notified_of_begin);
            let kept = wait.event.record().filter(|_| pace.looks_after.is_some()).cloned().map(Box::new);
            sealed.add(name, member, wait.event);
            let next = member.stage.once_notified(begin.is_some());
            let mut after = StoredMember::new(next, member.detected_at());
            if next == Stage::Notified {
                let others = sealed.notified_of_return(name, &self.others).into_iter();
                let told: Vec<&str> = receivers.iter().chain(others).map(String::as_str).collect();
                // A silence of which no receiver is notified does not last, unless it may be escalated.
                let lasts = pace.has_lasting() && (!told.is_empty() || pace.looks_after.is_some());
                after.told = Some(told.join(","));
                if lasts {
                    after = StoredMember { kept, ..after.lasting(now) };
                    self.lasting += 1;
                    self.next_reminder = pace.looks_after.map(|looks| now + looks);
                }
            }
            *member = after;
        }
        let told = sealed.receivers(receivers, &self.others);
        // Without a receiver no notification is stored, because no delivery would ever remove it, and no interval
        // begins.
        if told.is_empty() {
            return Ok(());
        }
        let labels = self.after.labels.clone().unwrap_or_default();
        let group = Group { key: self.key().to_owned(), labels };
        let id = sealed.id(self.key());
        let may_be_leased = sealed.has_only_silences() && ready.len() <= HANDED_OUT;
        let notification = Notification {
            lasting: pace.is_shared.then_some(self.lasting as u64),
            before: before.filter(|_| pace.is_shared).map(Timestamp::as_millis),
            ..sealed.notification(group, now, receivers, &told)
        };
        let told = told.into_iter().map(|name| (name, false)).collect();
        let body = notification.stored()?;
        self.sealed =
            Some(SealedGroup { id, body, notification: may_be_leased.then_some(notification), told });
        Ok(())
    }

    /// Ends the member of a blind interval that is over, by the name of its begin. Answers the receivers that were
    /// notified of it.
    fn end_blindness(&mut self, begin: &str) -> Option<String> {
        let known = self.members.get_mut(begin)?;
        let member = known.after.as_mut().filter(|member| member.stage == Stage::Notified)?;
        known.is_changed = true;
        let told = member.told.take();
        *member = StoredMember::new(Stage::Over, member.detected_at());
        told
    }

    /// The receivers that the group may notify: its own and, for a return or the end of a blind interval, all others.
    pub fn may_tell(&self, has_end: bool) -> Vec<String> {
        let others = self.others.iter().copied().filter(|_| has_end);
        self.destination.receivers.iter().chain(others).cloned().collect()
    }

    /// Leases the deliveries of new lanes to the caller, up to its capacity.
    pub fn hand_out(&mut self, free: &mut HashMap<&str, usize>) {
        let Some(sealed) = self.sealed.as_mut().filter(|sealed| sealed.notification.is_some()) else {
            return;
        };
        for (receiver, is_leased) in &mut sealed.told {
            let is_new = self.lanes.get(receiver).is_none_or(|lane| lane.value.is_none());
            if let Some(free) = free.get_mut(receiver.as_str()).filter(|free| is_new && **free > 0) {
                *free -= 1;
                *is_leased = true;
            }
        }
    }

    /// Restores the caller's capacity, because this step was not written.
    pub fn give_back(&self, free: &mut HashMap<&str, usize>) {
        for (receiver, is_leased) in self.sealed.iter().flat_map(|sealed| &sealed.told) {
            if let Some(free) = free.get_mut(receiver.as_str()).filter(|_| *is_leased) {
                *free += 1;
            }
        }
    }

    /// The deliveries that are leased to the caller, and whether others wait.
    pub fn handed_out(self) -> (Vec<Delivery>, bool) {
        let Some(SealedGroup { id, notification, told, .. }) = self.sealed else {
            return (Vec::new(), false);
        };
        let leased: Vec<&String> =
            told.iter().filter(|(_, is_leased)| *is_leased).map(|(receiver, _)| receiver).collect();
        let has_queued = leased.len() < told.len();
        let copies = notification.into_iter().flat_map(|one| std::iter::repeat_n(one, leased.len()));
        let delivery = |(notification, receiver): (Notification, &String)| {
            let delivery = notification.delivery(Delivery::id_of(&id, receiver), receiver, 1);
            Delivery { is_alone: told.len() == 1, ..delivery }
        };
        (copies.zip(leased.iter().copied()).map(delivery).collect(), has_queued)
    }

    /// Schedules another check soon, because other members may begin to wait meanwhile that this step does not see.
    pub fn look_again(&mut self) {
        self.version = None;
        if self.next_due != self.due {
            let again = self.now + AGAIN;
            self.next_due = Some(self.next_due.map_or(again, |due| due.min(again)));
        }
    }

    /// The change-set, which expects the state that was read. Its parts have a fixed order, so that steps of one
    /// shape are written together.
    pub fn change_set(&self, until: Timestamp) -> Result<ChangeSet> {
        let key = self.key();
        let changed = self.members.iter().map(|(name, known)| (name, &**known));
        let changed: Vec<(&String, &KnownMember)> = changed.filter(|(_, known)| known.is_changed).collect();
        let is_same = changed.is_empty() && self.stray.is_empty() && self.next_due == self.due;
        let mut set = ChangeSet::of(self.partition);
        if is_same {
            return Ok(set);
        }
        set = set.is_at(Index::GroupsDue, key, self.due.map(Timestamp::as_millis));
        if self.next_due != self.due {
            set = set.enter(Index::GroupsDue, key, self.next_due.map(Timestamp::as_millis));
        }
        let after = self.group_after();
        set = match self.group.value.as_ref() == Some(&after) {
            true => self.group.expect_in(set),
            false => self.group.change_in(set, Some(&after))?,
        };
        // A step that is due earlier, or at the same time, skips no waiting member.
        let is_later = self.due.is_some_and(|due| self.next_due.is_none_or(|next| next > due));
        if let Some(version) = self.version.as_ref().filter(|_| is_later) {
            set = version.expect_in(set);
        }
        if changed.iter().any(|(_, known)| known.begins()) {
            set = set.add(Table::GroupVersions, key, 1);
        }
        for (name, known) in &changed {
            set = match known.was.silence_name(name) {
                Some(waiting) => {
                    set = set.is_at(Index::Waiting, &waiting.text(key), Some(0));
                    known.before.put_in(set, known.after.as_ref())?
                }
                None => known.before.change_in(set, known.after.as_ref())?,
            };
        }
        for stray in &self.stray {
            set = set.enter(Index::Waiting, stray, None);
        }
        for (index, entries) in self.entries(&changed) {
            for (name, at) in entries {
                set = set.enter(index, &name, at);
            }
        }
        let over = changed.iter().filter(|(_, known)| known.is_over_now());
        for (member, _) in over {
            set = set.enter(Index::Over, &member_name(key, member), Some(self.now.as_millis()));
        }
        if let Some(next) = self.next_reminder {
            let next = self.reminder.map_or(next, |known| known.min(next));
            set = set.enter(Index::Reminders, key, Some(next.as_millis()));
        }
        self.notification_in(set, until)
    }

    /// A group in which nothing has waited needs no labels: a storm has such a group for each unit.
    fn group_after(&self) -> StoredGroup {
        let remains = |member: &StoredMember| member.waits.is_some() || member.lasts_since().is_some();
        let had_labels = self.group.value.as_ref().is_some_and(|group| group.labels.is_some());
        let has_labels =
            had_labels || self.members.values().any(|known| known.after.as_ref().is_some_and(remains));
        let labels = self.after.labels.as_ref().filter(|_| has_labels).cloned();
        StoredGroup { labels, sealed: self.after.sealed }
    }

    /// The added and removed entries of changed members, removals first, because a name may be in both.
    fn entries(&self, changed: &[(&String, &KnownMember)]) -> [(Index, NamedEntries); 3] {
        let (mut waiting, mut lasting, mut returning) = (Vec::new(), Vec::new(), Vec::new());
        let returns_wait = self.destination.pace.returns_wait().is_some();
        for (is_after, at) in [(false, None), (true, Some(0))] {
            for (name, known) in changed {
                let of = if is_after { known.is() } else { known.was };
                waiting.extend(of.waiting_name(name).map(|one| (one.text(self.key()), at)));
                lasting.extend(of.lasts.map(|since| (lasting_name(self.key(), since, name), at)));
                let since = of.waits.filter(|_| of.is_back && returns_wait).map(|(_, since)| since);
                returning.extend(since.zip(of_member(name)).map(|(since, (_, id))| {
                    (returning_name(self.key(), &id.unit), at.map(|_| since.as_millis()))
                }));
            }
        }
        [(Index::Waiting, waiting), (Index::Lasting, lasting), (Index::Returning, returning)]
    }

    /// A change-set that also appends the notification to each lane. `until`: when leases end.
    fn notification_in(&self, mut set: ChangeSet, until: Timestamp) -> Result<ChangeSet> {
        let Some(SealedGroup { id, body, told, .. }) = &self.sealed else { return Ok(set) };
        set = owe(set.put(Table::Notifications, id, Some(body)), id, told.len());
        for (receiver, is_leased) in told {
            let new = Document::absent(Lane::cell(receiver, self.partition, self.key()));
            let lane = self.lanes.get(receiver).unwrap_or(&new);
            let at = if *is_leased { until } else { self.now };
            set = append(set, lane, receiver, &[id], (at, *is_leased))?;
        }
        Ok(set)
    }
}

/// Names of an index, each with its number; `None`: the name leaves.
type NamedEntries = Vec<(String, Option<i64>)>;

impl KnownMember {
    fn is(&self) -> MemberEntries {
        MemberEntries::of(self.after.as_ref())
    }

    /// Whether the member begins to wait, or to last.
    fn begins(&self) -> bool {
        let is = self.is();
        (self.was.waits.is_none() && is.waits.is_some()) || (self.was.lasts.is_none() && is.lasts.is_some())
    }

    fn is_over_now(&self) -> bool {
        !self.was.is_over && self.is().is_over
    }
}
