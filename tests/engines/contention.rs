//! Changes that lose races: between the read and the write of one instance, other instances write the same cell.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rollcall::alerting::{GroupIncidents, Incidents, RateLimit, ReceiverLimit};
use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::receivers::{ReceiverHealth, ReceiverHealths};
use rollcall::fleet::{Census, LastingIncident, Mirror, Silences};
use rollcall::presence::{LEAST, OfflineRecord, Registration};
use rollcall::routing::alert_silence::SilenceRequest;
use rollcall::routing::parse_label_matchers;
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine};
use rollcall::store::{
    Capacity, Cell, CellCursor, CellPage, Cells, ChangeSet, Delivery, Destinations, Documents, Group, Index,
    IndexEntry, IndexRange, Join, Layout, MAX_CHANGES, NameRange, OutboxEvent, Pace, ReceiverName, Result,
    StoredDeliveries, StoredGroups, Table, Unreadable, What,
};
use rollcall::telemetry::Telemetry;
use serde_json::json;

use crate::conformance::world::{roll_with, rules};

const NOW: Timestamp = Timestamp::from_millis(1_732_147_200_000);
const MINUTE: Duration = Duration::from_secs(60);

/// An engine on which other instances write first, this many times.
struct Contended {
    engine: Arc<EmbeddedEngine>,
    races: AtomicUsize,
}

impl Layout for Contended {
    fn partitions(&self) -> u16 {
        self.engine.partitions()
    }

    fn pages(&self) -> u32 {
        self.engine.pages()
    }
}

#[async_trait]
impl Cells for Contended {
    async fn read_cells(&self, cells: &[Cell]) -> Result<Vec<Option<Vec<u8>>>> {
        self.engine.read_cells(cells).await
    }

    async fn write_cells(&self, sets: &[ChangeSet]) -> Result<Vec<bool>> {
        let lost = |left: usize| left.checked_sub(1);
        if self.races.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lost).is_ok() {
            for set in sets {
                for part in set.parts() {
                    let faster = ChangeSet::of(set.partition);
                    let faster = match part.what {
                        What::Has(Table::Versions) | What::Lacks(Table::Versions) => {
                            let version = format!("\"{}\"", self.races.load(Ordering::SeqCst));
                            faster.put(Table::Versions, part.name, Some(version.as_bytes()))
                        }
                        What::Has(Table::Limits) | What::Lacks(Table::Limits) => {
                            self.message_sent(faster, part.name.to_owned()).await?
                        }
                        What::Has(table) | What::Lacks(table) => {
                            let last_success =
                                Some(Timestamp::from_millis(self.races.load(Ordering::SeqCst) as i64));
                            let health = ReceiverHealth { last_success, ..ReceiverHealth::default() };
                            let health = serde_json::to_vec(&health).unwrap();
                            faster.put(table, part.name, Some(&health))
                        }
                        _ => continue,
                    };
                    self.engine.write_cells(&[faster]).await?;
                }
            }
        }
        self.engine.write_cells(sets).await
    }

    async fn numbers(&self, index: Index, entries: &[(u16, &str)]) -> Result<Vec<Option<i64>>> {
        self.engine.numbers(index, entries).await
    }

    async fn receivers_with_cells(&self) -> Result<BTreeSet<ReceiverName>> {
        self.engine.receivers_with_cells().await
    }

    fn telemetry(&self) -> &Arc<Telemetry> {
        self.engine.telemetry()
    }

    async fn range(&self, range: &IndexRange<'_>, partitions: &[u16]) -> Result<Vec<IndexEntry>> {
        self.engine.range(range, partitions).await
    }

    async fn names(&self, index: Index, ranges: &[NameRange], limit: usize) -> Result<Vec<Vec<String>>> {
        self.engine.names(index, ranges, limit).await
    }

    async fn count_names(&self, index: Index, ranges: &[NameRange]) -> Result<Vec<usize>> {
        self.engine.count_names(index, ranges).await
    }

    async fn sizes(&self, index: Index, partitions: &[u16]) -> Result<Vec<i64>> {
        self.engine.sizes(index, partitions).await
    }

    async fn scan_cells(&self, table: Table, partition: u16, from: Option<CellCursor>) -> Result<CellPage> {
        self.engine.scan_cells(table, partition, from).await
    }

    async fn quarantine_cell(&self, unreadable: &Unreadable, why: &str) -> Result<()> {
        self.engine.quarantine_cell(unreadable, why).await
    }
}

impl Contended {
    /// Another instance sends a message to the receiver with this limit; a digest stays open.
    async fn message_sent(&self, set: ChangeSet, receiver: String) -> Result<ChangeSet> {
        let cell = Cell { table: Table::Limits, partition: set.partition, name: receiver.clone() };
        let stored = self.engine.read_cells(&[cell]).await?.remove(0);
        let mut state = stored.map_or(json!({}), |stored| serde_json::from_slice(&stored).unwrap());
        state["sent"] = json!([self.races.load(Ordering::SeqCst)]);
        Ok(set.put(Table::Limits, &receiver, Some(state.to_string().as_bytes())))
    }

    /// Does a step while it loses this many races: it has the expected effect, or fails and has none.
    async fn step<T: PartialEq + Debug>(&self, races: usize, expected: T, step: impl AsyncFn() -> Result<T>) {
        self.races.store(races, Ordering::SeqCst);
        let mut done = step().await;
        assert_eq!(done.is_ok(), races < MAX_CHANGES, "{done:?} after {races} races");
        if done.is_err() {
            self.races.store(0, Ordering::SeqCst);
            done = step().await;
        }
        assert_eq!(done.unwrap(), expected, "after {races} races");
    }
}

const LABEL: &str = "site";

async fn contended(races: usize, dir: &tempfile::TempDir) -> Arc<Contended> {
    let config = EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(2) };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let engine = EmbeddedEngine::open_with_labels(&config, &[LABEL.to_owned()], telemetry).await.unwrap();
    Arc::new(Contended { engine: Arc::new(engine), races: races.into() })
}

#[tokio::test]
async fn outcomes_of_a_receiver_that_lost_every_race_are_written_with_the_next_write() {
    let dir = tempfile::tempdir().unwrap();
    let cells = contended(MAX_CHANGES + 2, &dir).await;
    let healths = ReceiverHealths::new(cells.clone());
    let at = Timestamp::from_millis(9000);
    healths.note("hook", Some("it answered 503"), at);
    healths.write().await.unwrap();
    let stored = || async {
        let stored = Documents::new(cells.clone()).of_fleet::<ReceiverHealth>().await.unwrap();
        stored["hook"].last_failure
    };
    assert_eq!(stored().await, None, "others wrote all the time");
    healths.write().await.unwrap();
    assert_eq!(stored().await, Some(at));
}

#[tokio::test]
async fn a_silence_is_added_although_others_change_silences_meanwhile_or_its_caller_is_told_that_it_is_not() {
    for (races, is_added) in [(0, true), (5, true), (1000, false)] {
        let dir = tempfile::tempdir().unwrap();
        let silences = Silences::new(contended(races, &dir).await);
        let now = Timestamp::from_millis(1_732_147_200_000);
        let wanted = SilenceRequest {
            matchers: parse_label_matchers("site=north").unwrap(),
            starts_at: now,
            ends_at: now + std::time::Duration::from_secs(60),
            author: "ana".to_owned(),
            comment: String::new(),
        };
        let added = silences.put(None, wanted, "ana", now).await;
        assert_eq!(added.is_ok(), is_added, "{races} races: {added:?}");
        let (kept, audit) = (silences.current().await.unwrap().len(), silences.audit(9).await.unwrap().len());
        assert_eq!((kept, audit), (usize::from(is_added), usize::from(is_added)), "{races} races");
    }
}

#[tokio::test]
async fn the_limit_of_a_receiver_changes_although_others_send_meanwhile_or_its_caller_is_told_that_it_does_not()
 {
    for races in [0, MAX_CHANGES - 1, MAX_CHANGES] {
        let dir = tempfile::tempdir().unwrap();
        let cells = contended(0, &dir).await;
        let limit = ReceiverLimit::new(
            RateLimit { messages: 3, per: MINUTE },
            "hook",
            cells.clone() as Arc<dyn Cells>,
        );
        let group = Group { key: "g".to_owned(), labels: Default::default() };
        let digest = Delivery::new("dig_1.hook", "hook", group, NOW);
        let id = digest.notification();
        let open = async || limit.read().await.unwrap().open.unwrap();
        cells.step(races, true, async || limit.open(id.to_owned(), Vec::new(), NOW).await).await;
        let opened = open().await;
        cells.step(races, true, async || limit.lease(&opened, NOW + MINUTE).await).await;
        assert_eq!(open().await.attempts, 1, "{races} races: only the attempt that is made counts");
        cells.step(races, Some(Ok(1)), async || limit.take(&digest, 1, NOW).await).await;
        cells.step(races, true, async || limit.set_next(&digest, NOW + 2 * MINUTE).await).await;
        assert_eq!((open().await.id.as_str(), open().await.next), (id, NOW + 2 * MINUTE));
        cells.step(races, (), async || limit.close(Some(id)).await).await;
        assert_eq!(limit.read().await.unwrap().open, None, "{races} races");
    }
}

const NORTH: &str = "site=north";

/// The notification by which all units of a site are silent, and how many units each site has.
async fn all_of_a_site(engine: &Arc<EmbeddedEngine>) -> (Delivery, Arc<Census>) {
    let mirror = Arc::new(Mirror::of(&**engine, Arc::new(rules()), &[LABEL.to_owned()]));
    let roll = roll_with(engine.clone(), rules(), mirror);
    let labels = rollcall::presence::Labels::from([(LABEL.to_owned(), "north".to_owned())]);
    let mut joins = Vec::new();
    for number in 0..LEAST {
        let unit = format!("detector:{number}").parse().unwrap();
        let wanted = Registration { labels: labels.clone(), ..Registration::default() };
        assert!(roll.register(&unit, &wanted, NOW).await.unwrap());
        let silence = OfflineRecord { labels: labels.clone(), ..OfflineRecord::open(unit, NOW, NOW, NOW) };
        let groups = vec![Group { key: NORTH.to_owned(), labels: labels.clone() }];
        joins.push(Join { groups, event: OutboxEvent::Record(silence) });
    }
    let to = Destinations::all(Pace { is_shared: true, ..Pace::new(MINUTE, MINUTE) }, &["pager".to_owned()]);
    let groups = StoredGroups::new(engine.clone());
    groups.join(&joins, &to, &Capacity::NONE, NOW).await.unwrap();
    let (all, now): (Vec<u16>, Timestamp) = ((0..engine.partitions()).collect(), NOW + 2 * MINUTE);
    assert_eq!(groups.seal(&all, &to, now).await.unwrap(), usize::try_from(LEAST).unwrap());
    let deliveries = StoredDeliveries::new(engine.clone());
    let delivery = deliveries.lease(&all, "pager", now, now + MINUTE, 1).await.unwrap().remove(0);
    (delivery, roll.census().clone())
}

#[tokio::test]
async fn an_incident_that_loses_races_is_notified_as_it_is_stored_and_no_pager_is_notified_without_it() {
    for (races, is_pager) in
        [0, MAX_CHANGES - 1, MAX_CHANGES].into_iter().flat_map(|races| [(races, true), (races, false)])
    {
        let dir = tempfile::tempdir().unwrap();
        let cells = contended(0, &dir).await;
        let engine = &cells.engine;
        let (delivery, census) = all_of_a_site(engine).await;
        let deliveries = StoredDeliveries::new(engine.clone());
        let lasting = GroupIncidents::new(
            StoredGroups::new(engine.clone()),
            deliveries.clone(),
            engine.clone(),
            cells.clone(),
        );
        let lasting = Arc::new(lasting);
        let incidents =
            Incidents { lasting: lasting.clone(), census, labels: vec![LABEL.to_owned()], is_pager };
        let attempted = async || {
            let attempted = incidents.attempted(Arc::new(delivery.clone()), NOW + 2 * MINUTE).await;
            attempted.map(|attempted| attempted.situation.incident.clone())
        };
        cells.races.store(races, Ordering::SeqCst);
        let mut notified = attempted().await;
        if races == MAX_CHANGES {
            assert_eq!(notified, (!is_pager).then_some(None), "a pager waits, others get it without");
            assert_eq!(deliveries.judged(&delivery, None).await.unwrap(), None, "nothing is decided");
            notified = attempted().await;
        }
        let stored: Option<LastingIncident> = lasting.of_group(NORTH).await.unwrap().value;
        let stored = stored.unwrap();
        assert_eq!((stored.incident.offline, stored.notification.as_str()), (LEAST, delivery.notification()));
        assert_eq!(notified, Some(Some(stored.incident)), "{races} races");
    }
}
