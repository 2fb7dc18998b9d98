//! Both engines change alert silences, their audit and the states that instances share alike: generated changes are
//! given to the script on Redis and to the rules by which the embedded engine decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rollcall::clock::Timestamp;
use rollcall::routing::{AlertSilence, SilenceId, parse_label_matchers};
use rollcall::store::{AuditEntry, Audited, Engine, Shared, SharedChange, SilenceChange};

use crate::both_engines::engines;
use crate::support::redis::Redis;

const SILENCES: u8 = 4;
const NAMES: [&str; 4] = ["door", "a b,%d+", "Köln \"☃\"\\'\n", ""];

#[derive(Clone, Debug)]
enum Step {
    Change { version: Version, write: Vec<(u8, u8)>, forget: Vec<u8>, audit: Vec<u8> },
    Audit(u8),
    Share { of: usize, version: Version, write: Vec<(usize, u8)>, forget: Vec<usize> },
}

/// The version that a change was decided from.
#[derive(Clone, Copy, Debug)]
enum Version {
    Newest,
    /// So many changes before.
    Older(usize),
    None,
    /// No engine has it.
    Odd,
}

/// An engine, and the versions that it had: its own, so their order is compared.
struct Side {
    engine: Arc<dyn Engine>,
    silences: Vec<Option<String>>,
    shared: [Vec<Option<String>>; Shared::ALL.len()],
}

impl Version {
    fn of(self, seen: &[Option<String>]) -> Option<String> {
        match self {
            Version::Newest => seen.last().cloned().flatten(),
            Version::Older(by) => seen.iter().rev().nth(by).cloned().flatten(),
            Version::None => None,
            Version::Odd => Some("%x\n".to_owned()),
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let version = || {
        prop_oneof![
            5 => Just(Version::Newest),
            1 => (1..4usize).prop_map(Version::Older),
            1 => Just(Version::None),
            1 => Just(Version::Odd),
        ]
    };
    let silences = || prop::collection::vec((0..SILENCES, 0..3u8), 0..4);
    let ids = || prop::collection::vec(0..SILENCES, 0..3);
    let change = (version(), silences(), ids(), ids())
        .prop_map(|(version, write, forget, audit)| Step::Change { version, write, forget, audit });
    let entries = prop::collection::vec((0..NAMES.len(), 0..3u8), 0..4);
    let names = prop::collection::vec(0..NAMES.len(), 0..3);
    let share = (0..Shared::ALL.len(), version(), entries, names)
        .prop_map(|(of, version, write, forget)| Step::Share { of, version, write, forget });
    let step = prop_oneof![4 => change, 1 => (0..3u8).prop_map(Step::Audit), 4 => share];
    prop::collection::vec(step, 1..30)
}

fn at(seconds: u8) -> Timestamp {
    Timestamp::from_millis(1_732_147_200_000 + i64::from(seconds) * 1000)
}

fn id(number: u8) -> SilenceId {
    SilenceId::of_random(number.into())
}

fn silence(&(number, text): &(u8, u8)) -> AlertSilence {
    AlertSilence {
        id: id(number),
        matchers: parse_label_matchers("{site=\"a, \\\"b\\\"\"}").unwrap(),
        starts_at: at(0),
        ends_at: at(9),
        updated_at: at(text),
        author: "ops %d+".to_owned(),
        comment: format!("text {text}\n☃"),
    }
}

fn entry(number: u8) -> AuditEntry {
    let subject = id(number).to_string();
    let text = "ends \"soon\"\n".to_owned();
    AuditEntry { at: at(number), author: "ops".to_owned(), change: Audited::SilenceAdded, subject, text }
}

fn name(number: usize) -> String {
    NAMES[number].to_owned()
}

impl Side {
    fn new(engine: Arc<dyn Engine>) -> Side {
        Side { engine, silences: vec![None], shared: std::array::from_fn(|_| vec![None]) }
    }

    /// Whether the change is written.
    async fn take(&self, step: &Step) -> bool {
        match step {
            Step::Change { version, write, forget, audit } => {
                let change = SilenceChange {
                    version: version.of(&self.silences),
                    write: write.iter().map(silence).collect(),
                    forget: forget.iter().map(|number| id(*number)).collect(),
                    audit: audit.iter().map(|number| entry(*number)).collect(),
                };
                self.engine.change_silences(&change).await.unwrap()
            }
            Step::Audit(number) => {
                self.engine.add_audit(&entry(*number)).await.unwrap();
                true
            }
            Step::Share { of, version, write, forget } => {
                let change = SharedChange {
                    version: version.of(&self.shared[*of]),
                    write: write.iter().map(|(number, text)| (name(*number), text.to_string())).collect(),
                    forget: forget.iter().map(|number| name(*number)).collect(),
                };
                self.engine.change_shared(Shared::ALL[*of], &change).await.unwrap()
            }
        }
    }

    /// The alert silences, the audit and the shared states of the engine, as text.
    async fn shows(&mut self) -> String {
        let stored = self.engine.silences().await.unwrap();
        assert_eq!(self.engine.silences_version().await.unwrap(), stored.version);
        let place = place(&mut self.silences, stored.version);
        let mut silences = stored.silences;
        silences.sort_by_key(|silence| silence.id);
        let mut text = format!("version {place} of {silences:?}");
        for limit in [0, 3, 1000] {
            text += &format!(" audit {:?}", self.engine.audit(limit).await.unwrap());
        }
        for (of, seen) in Shared::ALL.into_iter().zip(&mut self.shared) {
            let mut shared = self.engine.shared(of).await.unwrap();
            assert_eq!(self.engine.shared_version(of).await.unwrap(), shared.version);
            shared.entries.sort();
            text += &format!(" {of:?} version {} of {:?}", self::place(seen, shared.version), shared.entries);
        }
        text
    }
}

/// The place of a version among those that were there, of which it is one more if it is new.
fn place(seen: &mut Vec<Option<String>>, version: Option<String>) -> usize {
    if let Some(place) = seen.iter().position(|one| *one == version) {
        return place;
    }
    seen.push(version);
    seen.len() - 1
}

#[test]
fn silences_their_audit_and_shared_states_are_changed_alike_on_both_engines() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = Redis::start();
    let number = AtomicUsize::new(0);
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let tried = runner.run(&steps(), |steps| {
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let engines = engines(&redis, number.fetch_add(1, Ordering::Relaxed), &dir).await;
            let [mut scripts, mut rules] = engines.map(Side::new);
            for (n, step) in steps.iter().enumerate() {
                let written = [scripts.take(step).await, rules.take(step).await];
                prop_assert_eq!(written[0], written[1], "step {}: {:?}", n, step);
                let shown = [scripts.shows().await, rules.shows().await];
                prop_assert_eq!(&shown[0], &shown[1], "after step {}: {:?}", n, step);
            }
            Ok::<(), TestCaseError>(())
        })
    });
    tried.unwrap();
}
