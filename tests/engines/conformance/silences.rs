//! Alert silences and the audit.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::fleet::{Operators, Silences, SilencesError, Subject, UnitChange};
use rollcall::presence::{Acknowledgement, RecordId, Unit};
use rollcall::routing::alert_silence::{RETENTION, SilenceError, SilenceRequest};
use rollcall::routing::{AlertSilence, SilenceId, parse_label_matchers};
use rollcall::store::{AuditEntry, Audited, ChangeSet, Documents, Engine, MAX_AUDITED};

use super::ground::Ground;
use super::world::{HOUR, World};

pub fn wanted(matchers: &str, starts_at: Timestamp, ends_at: Timestamp) -> SilenceRequest {
    let (author, comment) = ("ana".to_owned(), "cable works".to_owned());
    SilenceRequest { matchers: parse_label_matchers(matchers).unwrap(), starts_at, ends_at, author, comment }
}

pub fn silences(engine: &Arc<dyn Engine>) -> Silences {
    Silences::new(engine.clone())
}

fn ids(silences: &[AlertSilence]) -> Vec<SilenceId> {
    let mut ids: Vec<SilenceId> = silences.iter().map(|silence| silence.id).collect();
    ids.sort();
    ids
}

pub async fn silences_are_added_changed_and_ended_and_every_instance_knows_them<G: Ground>(world: World<G>) {
    let one = silences(&world.engine);
    assert_eq!(one.current().await.unwrap().len(), 0);
    let now = world.at(0);
    let site = one.put(None, wanted("site=\"a\\\"b,c\"", now, now + HOUR), "ana", now).await.unwrap();
    let kind =
        one.put(None, wanted("kind=~\"p.*\",unit!=x", now + HOUR, now + 2 * HOUR), "ana", now).await.unwrap();
    let (engine, _) = world.another().await;
    let other = silences(&engine);
    let all = other.current().await.unwrap();
    let mut both = [site, kind];
    both.sort();
    assert_eq!(ids(&all), both);
    let of_site = all.iter().find(|silence| silence.id == site).unwrap();
    assert_eq!(of_site.matchers[0].value(), "a\"b,c");
    assert_eq!((of_site.author.as_str(), of_site.comment.as_str()), ("ana", "cable works"));
    assert_eq!((of_site.starts_at, of_site.ends_at, of_site.updated_at), (now, now + HOUR, now));

    // The other instance changes the silences, and the first one reads them again.
    let later = now + Duration::from_secs(60);
    other.extend(site, now + 5 * HOUR, "bo", later).await.unwrap();
    assert!(other.expire(kind, "bo", later).await.unwrap());
    assert!(!other.expire(kind, "bo", later).await.unwrap(), "it is over");
    let all = one.current().await.unwrap();
    let ends = |id| all.iter().find(|silence| silence.id == id).unwrap().ends_at;
    assert_eq!((ends(site), ends(kind)), (now + 5 * HOUR, later));
    let error = one.extend(kind, now + 9 * HOUR, "ana", later).await.unwrap_err();
    assert!(matches!(error, SilencesError::Refused(SilenceError::Expired(_))), "{error}");

    let audit = one.audit(100).await.unwrap();
    let lines: Vec<_> = audit.iter().map(|entry| (entry.change, entry.author.as_str(), entry.at)).collect();
    let expected = [
        (Audited::SilenceExpired, "bo", later),
        (Audited::SilenceChanged, "bo", later),
        (Audited::SilenceAdded, "ana", now),
        (Audited::SilenceAdded, "ana", now),
    ];
    assert_eq!(lines, expected);
    assert_eq!(audit[1].subject, site.to_string());
    assert!(audit[1].text.contains("site=\"a\\\"b,c\""), "{}", audit[1].text);
    assert_eq!(one.audit(1).await.unwrap(), audit[..1]);
}

/// Changes a unit, or the unit of a record, as an operator. Returns whether it was possible.
pub async fn change<G: Ground>(
    world: &World<G>,
    subject: &Subject,
    wanted: &UnitChange,
    now: Timestamp,
) -> bool {
    let operators = Operators { roll: &world.roll, silences: &silences(&world.engine) };
    operators.change(subject, wanted, ("ana (desk)", "works"), now).await.unwrap()
}

/// The entries of the audit, oldest first.
async fn audited<G: Ground>(world: &World<G>) -> Vec<(Audited, String, String)> {
    let audit = silences(&world.engine).audit(100).await.unwrap();
    assert!(audit.iter().all(|entry| entry.author == "ana (desk)"), "{audit:?}");
    audit.into_iter().rev().map(|entry| (entry.change, entry.subject, entry.text)).collect()
}

pub async fn an_acknowledgement_is_kept_with_its_record_and_ends_with_it<G: Ground>(mut world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    world.check(&unit, world.hours(49)).await;
    let now = world.hours(50);
    let ana = Acknowledgement { at: now, author: "ana".into(), comment: "on \"my\" way".into() };
    let [acknowledge, undo] = [Some(ana.clone()), None].map(UnitChange::Acknowledge);
    let of_unit = Subject::Unit(unit.clone());
    assert!(change(&world, &of_unit, &acknowledge, now).await);
    let open = world.open_records().await.remove(0);
    assert_eq!(open.acknowledged, Some(ana.clone()));
    let id = open.id.clone();
    assert_eq!(world.engine.record(&id).await.unwrap(), Some(open));
    let of_record = Subject::Record(id.clone());
    let other = Subject::Record(RecordId { last_seen: world.at(1), ..id.clone() });
    assert!(!change(&world, &other, &undo, now).await);
    assert!(!change(&world, &Subject::Unit(world.unit("b")), &acknowledge, now).await);
    world.crash().await;
    assert_eq!(world.open_records().await.remove(0).acknowledged, Some(ana.clone()));
    assert!(change(&world, &of_record, &undo, now).await);
    assert_eq!(world.open_records().await.remove(0).acknowledged, None);
    assert!(!change(&world, &of_record, &undo, now).await, "there is nothing to take back");
    assert!(change(&world, &of_record, &acknowledge, now).await);
    // Pagers are told of each acknowledgement; it is in the outbox with its record.
    let told: Vec<_> =
        world.transitions().await.into_iter().map(|record| (record.id, record.acknowledged)).collect();
    let acknowledged = (id.clone(), Some(ana.clone()));
    assert_eq!(told, [(id.clone(), None), acknowledged.clone(), acknowledged]);
    let (name, works) = (id.to_string(), "works".to_owned());
    let expected = [
        (Audited::Acknowledged, "detector/a".to_owned(), works.clone()),
        (Audited::AcknowledgementUndone, name.clone(), works.clone()),
        (Audited::Acknowledged, name, works),
    ];
    assert_eq!(audited(&world).await, expected);

    world.heard_until(world.hours(51)).await;
    world.hear(&unit, world.hours(51)).await;
    assert!(!change(&world, &of_record, &acknowledge, world.hours(51)).await, "the record is closed");
    let closed = world.engine.record(&id).await.unwrap().unwrap();
    assert_eq!((closed.back_at, closed.acknowledged), (Some(world.hours(51)), Some(ana)));
    world.heard_until(world.hours(100)).await;
    world.check(&unit, world.hours(100)).await;
    assert_eq!(world.open_records().await.remove(0).acknowledged, None, "the next one is another record");
}

pub async fn a_pause_moves_the_deadline_at_once_and_ends_when_it_is_ended<G: Ground>(world: World<G>) {
    let units = world.units(2);
    world.hear_all(&units, world.at(0)).await;
    let [paused, other] = [&units[0], &units[1]];
    let until = |moment| UnitChange::Pause(Some(moment));
    let (subject, end) = (Subject::Unit(paused.clone()), UnitChange::Pause(None));
    assert!(change(&world, &subject, &until(world.hours(100)), world.hours(1)).await);
    world.heard_until(world.hours(60)).await;
    for unit in &units {
        world.check(unit, world.hours(60)).await;
    }
    let open: Vec<Unit> = world.open_records().await.into_iter().map(|record| record.id.unit).collect();
    assert_eq!(open, std::slice::from_ref(other));
    assert!(change(&world, &subject, &end, world.hours(60)).await);
    assert!(!change(&world, &subject, &end, world.hours(60)).await, "it has ended");
    // 59 hours do not count, so 47 are left.
    world.heard_until(world.hours(110)).await;
    world.check(paused, world.hours(106)).await;
    assert_eq!(world.open_records().await.len(), 1);
    world.check(paused, world.hours(108)).await;
    assert_eq!(world.open_records().await.len(), 2);
    let unknown = Subject::Unit(world.unit("unknown"));
    assert!(!change(&world, &unknown, &until(world.hours(200)), world.hours(1)).await);
    let changes: Vec<Audited> = audited(&world).await.into_iter().map(|(change, ..)| change).collect();
    assert_eq!(changes, [Audited::Paused, Audited::PauseEnded]);
}

pub async fn silences_survive_a_crash<G: Ground>(mut world: World<G>) {
    let now = world.at(0);
    let id =
        silences(&world.engine).put(None, wanted("site=north", now, now + HOUR), "ana", now).await.unwrap();
    world.crash().await;
    let after = silences(&world.engine);
    assert_eq!(ids(&after.current().await.unwrap()), [id]);
    assert_eq!(after.audit(10).await.unwrap().len(), 1);
}

pub async fn of_two_changes_of_silences_at_the_same_time_none_is_lost<G: Ground>(world: World<G>) {
    let now = world.at(0);
    let (one, other) = (silences(&world.engine), silences(&world.engine));
    // Both instances know the same version.
    one.current().await.unwrap();
    other.current().await.unwrap();
    let add = async |silences: &Silences, name: &str| {
        for number in 0..5 {
            let matchers = format!("site={name}{number}");
            silences.put(None, wanted(&matchers, now, now + HOUR), "ana", now).await.unwrap();
        }
    };
    tokio::join!(add(&one, "a"), add(&other, "b"));
    assert_eq!(one.current().await.unwrap().len(), 10);
    assert_eq!(ids(&one.current().await.unwrap()), ids(&other.current().await.unwrap()));
}

pub async fn silences_that_ended_long_ago_are_removed_and_the_audit_is_bounded<G: Ground>(world: World<G>) {
    let (now, silences) = (world.at(0), silences(&world.engine));
    let old = silences.put(None, wanted("site=old", now, now + HOUR), "ana", now).await.unwrap();
    let end = now + HOUR + RETENTION;
    let kept = silences.put(None, wanted("site=new", end, end + HOUR), "ana", end).await.unwrap();
    assert_eq!(ids(&silences.current().await.unwrap()).len(), 2);
    let later = end + Duration::from_millis(1);
    silences.extend(kept, later + HOUR, "ana", later).await.unwrap();
    assert_eq!(ids(&silences.current().await.unwrap()), [kept], "{old} is over");
    let newest = silences.audit(1).await.unwrap().remove(0);
    let audit = |text: String| AuditEntry { text, ..newest.clone() };
    let documents = Documents::new(world.engine.clone());
    let append = |set: ChangeSet, number: usize| documents.audit(set, &audit(number.to_string())).unwrap();
    let appended = (0..MAX_AUDITED + 2).fold(ChangeSet::of(world.engine.partitions()), append);
    assert_eq!(world.engine.write_cells(&[appended]).await.unwrap(), [true]);
    silences.note(&audit((MAX_AUDITED + 2).to_string())).await.unwrap();
    let audit = silences.audit(usize::MAX).await.unwrap();
    let texts: Vec<usize> = audit.iter().map(|entry| entry.text.parse().unwrap()).collect();
    assert!(texts.iter().copied().eq((3..MAX_AUDITED + 3).rev()), "{texts:?}");
}
