//! Changes that lose races: between the read and the write of one instance, other instances write the same cell.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::Silences;
use rollcall::fleet::receivers::{ReceiverHealth, ReceiverHealths};
use rollcall::routing::alert_silence::SilenceRequest;
use rollcall::routing::parse_label_matchers;
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine};
use rollcall::store::{
    Cell, CellCursor, CellPage, Cells, ChangeSet, Documents, Index, IndexEntry, IndexRange, Layout,
    MAX_CHANGES, NameRange, ReceiverName, Result, Table, Unreadable, What,
};
use rollcall::telemetry::Telemetry;

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
                for part in &set.parts {
                    let faster = ChangeSet::of(set.partition);
                    let faster = match part.what {
                        What::Has(Table::Versions) | What::Lacks(Table::Versions) => {
                            let version = format!("\"{}\"", self.races.load(Ordering::SeqCst));
                            faster.put(Table::Versions, &part.name, Some(version.as_bytes()))
                        }
                        What::Has(table) | What::Lacks(table) => {
                            let last_success =
                                Some(Timestamp::from_millis(self.races.load(Ordering::SeqCst) as i64));
                            let health = ReceiverHealth { last_success, ..ReceiverHealth::default() };
                            let health = serde_json::to_vec(&health).unwrap();
                            faster.put(table, &part.name, Some(&health))
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

async fn contended(races: usize, dir: &tempfile::TempDir) -> Arc<Contended> {
    let config = EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(2) };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let engine = Arc::new(EmbeddedEngine::open(&config, telemetry).await.unwrap());
    Arc::new(Contended { engine, races: races.into() })
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
