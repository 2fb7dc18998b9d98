//! Tells the engine what was heard: our own canaries, and the last words of others.
//!
//! What is told here comes in order and after everything before it was recorded. A plain
//! subscription tells each canary (enough of them: [`canary::worth_telling`]). A member of a shared
//! subscription attends with the first one that comes back, and is proved by those that follow.
//!
//! What probes have proved since the last canary is told with the next one: everything before them was recorded
//! then, and the engine is asked once.
//!
//! # A member that is told it is none
//! Somebody told the engine that the broker had dropped it. If that is true its connection ends by
//! itself, and the next one attends anew; so it is with a process that was frozen and finds old
//! canaries in its queue. If not (a false last word, from whoever may write to Rollcall's topics) it
//! has missed nothing, as a canary proves that is hardly older than it took; so it attends again from
//! that one on, and the others were told of blind time that was none.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::canary::{self, Told};
use super::mqtt::{Link, Proof, Session};
use super::probe::{Probe, Probes};
use super::record::Writer;
use crate::clock::Timestamp;
use crate::fleet::Roll;
use crate::presence::Probed;
use crate::store::{Member, Subscription};

/// Something to tell the engine.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Word {
    /// Our own canary came back by that connection.
    Canary { connection: u64, sent_at: Timestamp },
    /// A probe of the filter with this number came.
    Probe { number: usize, sent_at: Timestamp },
    /// The broker has dropped a member.
    Gone { member: Member, at: Timestamp },
    /// We were given everything by that connection, and are given no more.
    Farewell { connection: u64 },
}

/// Tells it.
pub(super) struct Prover {
    client_id: String,
    /// The share of a member; `None`: a plain subscription.
    share: Option<String>,
    /// How long the broker keeps the session of a plain one.
    kept: Duration,
    proof: watch::Sender<Proof>,
    /// The number of the first connection of this process that told a canary.
    first: Option<u64>,
    /// The number of the connection that attends.
    attends: u64,
    /// The last canary that was told: the number of its connection, and when it was sent.
    last_canary: Option<(u64, Timestamp)>,
    filters: Filters,
}

impl Prover {
    /// What the connection of that session proves is told by `proof`.
    pub fn new(session: &Session, proof: watch::Sender<Proof>, probes: Arc<Probes>) -> Prover {
        let kept = Duration::from_secs(session.expiry.unwrap_or(0).into());
        let client_id = session.client_id().to_owned();
        Prover {
            client_id,
            share: session.share.clone(),
            kept,
            proof,
            first: None,
            attends: 0,
            last_canary: None,
            filters: Filters::new(probes),
        }
    }

    /// Whether everything was told. If not, Rollcall is stopping and the engine away.
    pub async fn tell(&mut self, writer: &Writer, words: &[Word], link: &watch::Receiver<Link>) -> bool {
        let told = async {
            let worth = self.worth_telling(words, writer.roll.gap());
            for word in words {
                match word {
                    Word::Canary { connection, sent_at } => {
                        let told = (connection, sent_at);
                        if let Some((_, told)) = worth.iter().find(|(of, t)| (of, &t.sent_at) == told) {
                            self.canary(writer, *connection, *told, link).await?;
                        }
                    }
                    Word::Probe { number, sent_at } => self.filters.came(*number, *sent_at),
                    Word::Gone { member, at } => self.gone(writer, member, *at, link).await?,
                    Word::Farewell { connection } => self.farewell(writer, *connection).await?,
                }
            }
            Some(())
        };
        told.await.is_some()
    }

    /// The canaries among these words that must be told, by connection: what an earlier connection heard
    /// bridges no gap before a new one.
    fn worth_telling(&self, words: &[Word], gap: Duration) -> Vec<(u64, Told)> {
        let came: Vec<(u64, Timestamp)> = words.iter().filter_map(Word::canary).collect();
        let of_one = came.chunk_by(|a, b| a.0 == b.0).flat_map(|canaries| {
            let connection = canaries[0].0;
            let times: Vec<Timestamp> = canaries.iter().map(|(_, sent_at)| *sent_at).collect();
            let last = self.last_canary.filter(|(told, _)| *told == connection).map(|(_, sent_at)| sent_at);
            let worth = canary::worth_telling(&times, last, gap);
            worth.into_iter().map(move |told| (connection, told))
        });
        of_one.collect()
    }

    async fn canary(
        &mut self,
        writer: &Writer,
        connection: u64,
        Told { sent_at, unbroken }: Told,
        link: &watch::Receiver<Link>,
    ) -> Option<()> {
        let ear = match self.named(connection) {
            Some(member) if self.attends != connection => {
                return self.attend(writer, &member, sent_at, link).await;
            }
            Some(member) => Subscription::Member(member),
            None => self.kept(connection),
        };
        let probed = self.filters.probed(&writer.roll, sent_at);
        if writer.insist("canaries", || writer.roll.canary_of(&ear, sent_at, unbroken, &probed)).await? {
            self.filters.told();
            writer.telemetry.canary_returned(writer.clock.now().since(sent_at));
            self.last_canary = Some((connection, sent_at));
            self.proof.send_modify(|proof| {
                proof.at = Some(Instant::now());
                proof.canary = sent_at;
            });
        } else if let Subscription::Member(member) = ear {
            self.attend_again(writer, &member, sent_at, link).await?;
        }
        Some(())
    }

    /// A canary of a member that is told it is none.
    async fn attend_again(
        &self,
        writer: &Writer,
        member: &Member,
        sent_at: Timestamp,
        link: &watch::Receiver<Link>,
    ) -> Option<()> {
        let (number, release) = link.borrow().current();
        if number != member.connection || writer.clock.now().since(sent_at) > writer.roll.gap() {
            return Some(());
        }
        tracing::warn!(
            client_id = member.client_id,
            "others were told that the broker had dropped this connection, which stands; does anybody but Rollcall \
             write to {}#?",
            canary::PREFIX
        );
        writer.insist("members", || writer.roll.attend(member, sent_at, release)).await
    }

    /// A canary of a connection that does not attend yet.
    async fn attend(
        &mut self,
        writer: &Writer,
        member: &Member,
        sent_at: Timestamp,
        link: &watch::Receiver<Link>,
    ) -> Option<()> {
        let (number, release) = link.borrow().current();
        // What comes late from a connection that is no more proves nothing about this one.
        if number != member.connection {
            return Some(());
        }
        let now = writer.clock.now();
        writer.insist("members", || writer.roll.attend(member, now, release)).await?;
        writer.telemetry.canary_returned(now.since(sent_at));
        self.attends = member.connection;
        self.last_canary = Some((member.connection, now));
        self.proof.send_replace(Proof {
            attends: self.attends,
            at: Some(Instant::now()),
            canary: sent_at,
            left: false,
        });
        Some(())
    }

    async fn gone(
        &self,
        writer: &Writer,
        member: &Member,
        at: Timestamp,
        link: &watch::Receiver<Link>,
    ) -> Option<()> {
        if writer.insist("members", || writer.roll.gone(member, at)).await? {
            tracing::warn!(
                share = member.share,
                client_id = member.client_id,
                "the broker has dropped a member of the shared subscription; what it was given is lost, and that \
                 time does not count as silence"
            );
        }
        link.borrow().remove_will(&member.client_id);
        Some(())
    }

    async fn farewell(&mut self, writer: &Writer, connection: u64) -> Option<()> {
        let Some(member) = self.named(connection).filter(|_| self.attends == connection) else {
            return Some(());
        };
        writer.insist("members", || writer.roll.leave(&member)).await?;
        self.attends = 0;
        self.proof.send_modify(|proof| proof.left = true);
        Some(())
    }

    fn kept(&mut self, connection: u64) -> Subscription {
        let first = *self.first.get_or_insert(connection);
        let client_id = self.client_id.clone();
        Subscription::Kept { client_id, connection, was_cut: connection != first, span: self.kept }
    }

    fn named(&self, connection: u64) -> Option<Member> {
        let share = self.share.clone()?;
        Some(Member { share, client_id: self.client_id.clone(), connection })
    }
}

impl Word {
    fn canary(&self) -> Option<(u64, Timestamp)> {
        match self {
            Word::Canary { connection, sent_at } => Some((*connection, *sent_at)),
            _ => None,
        }
    }
}

/// The most probes of a filter that wait for a canary; of more the oldest are forgotten, and that time is blind.
const MOST: usize = 1000;

/// What probes have proved and was not told yet.
struct Filters {
    probes: Arc<Probes>,
    /// Of each filter when the probes were sent that came since.
    came: Vec<Vec<Timestamp>>,
    /// Of each filter the last one that was told.
    told: Vec<Option<Timestamp>>,
}

impl Filters {
    fn new(probes: Arc<Probes>) -> Filters {
        let count = probes.all().len();
        Filters { probes, came: vec![Vec::new(); count], told: vec![None; count] }
    }

    fn came(&mut self, number: usize, sent_at: Timestamp) {
        let came = &mut self.came[number];
        if came.len() == MOST {
            came.remove(0);
        }
        came.push(sent_at);
    }

    /// What is to be told with a canary that was sent at `sent_at`.
    fn probed(&mut self, roll: &Roll, sent_at: Timestamp) -> Vec<Probed> {
        let mut probed = Vec::new();
        let probes = self.probes.clone();
        for (number, probe) in probes.all().iter().enumerate() {
            let Probe { kinds, filter, .. } = probe;
            let mut gap = kinds.iter().map(|rules| roll.gap_of(&rules.kind)).min().unwrap_or_default();
            let standing = probe.standing();
            if standing.refused.is_some() {
                // Units speak when they like, and what they say after a canary was sent is not recorded yet.
                gap = kinds.iter().map(|rules| roll.pace().shortest_of(rules)).min().unwrap_or(gap).max(gap);
                let spoken = standing.spoken.map(|spoken| spoken.min(sent_at));
                let is_later = |spoken: &Timestamp| self.came[number].last().is_none_or(|last| last < spoken);
                spoken.filter(is_later).into_iter().for_each(|spoken| self.came(number, spoken));
            }
            let proofs = canary::worth_telling(&self.came[number], self.told[number], gap);
            for rules in kinds {
                probed.extend(proofs.iter().map(|Told { sent_at, unbroken }| Probed {
                    kind: rules.kind.clone(),
                    filter: filter.clone(),
                    sent_at: *sent_at,
                    gap: roll.gap_of(&rules.kind).max(*unbroken),
                }));
            }
        }
        probed
    }

    /// What came is told.
    fn told(&mut self) {
        for (came, told) in self.came.iter_mut().zip(&mut self.told) {
            *told = came.drain(..).max().max(*told);
        }
    }
}
