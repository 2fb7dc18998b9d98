//! Gives the units of a kind other ids, after `unit` of the kind was changed. No instance may serve the fleet
//! meanwhile.
//!
//! A plan reads every unit of the kind and finds its new id, from its old id and its labels. If two units would get one
//! id, or a unit has no new id, nothing is changed. The renaming may be broken off at any time: a new plan goes on.
//!
//! # How a plan knows which units are done
//! A unit is done if its id is one of the new ids, its labels say the same as its id, and it took over from its old
//! id: the old id is retired, or was copied, or was not heard since the new one is known. An id that only looks like
//! a new one belongs to another device.

use std::collections::{HashMap, HashSet};

use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::clock::Timestamp;
use crate::presence::{Change, Facts, KindRules, Lifecycle, Renaming, Snapshot, Unit, UnitName, rename};
use crate::store::{EngineError, FleetStore, MAX_CHANGES, MAX_STEP, Reading, Result};

/// Requests that are under way at once.
const UNDER_WAY: usize = 16;

/// The units of a kind, and their new ids.
#[derive(Clone, Debug, Default)]
pub struct RenamingPlan {
    /// The old unit and the new one.
    pub moves: Vec<(Unit, Unit)>,
    /// Units that have their new ids.
    pub done: usize,
    /// Units among those to move that are offline: they keep their ids until they are heard under the new ones.
    pub offline: usize,
    /// Ids that were removed from the fleet: the mark stays with the old id.
    pub removed: usize,
    /// Why nothing may be changed, each in a sentence.
    pub problems: Vec<String>,
}

/// The outcome of a renaming.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renamed {
    pub renamed: usize,
    /// Offline units that keep their ids until they are heard.
    pub waiting: usize,
}

/// The parts of a unit that a plan reads.
struct KnownUnit {
    unit: Unit,
    facts: Option<Facts>,
    last_heard: Option<Timestamp>,
    is_retired: bool,
}

impl KnownUnit {
    fn label(&self, name: &str) -> Option<&str> {
        self.facts.as_ref()?.labels.get(name).map(String::as_str)
    }

    fn is_offline(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| matches!(facts.lifecycle, Lifecycle::Offline(_)))
    }

    /// Whether this unit took over from the one with the id that it had before.
    fn follows(&self, before: &KnownUnit) -> bool {
        let plain = |facts: &Facts| Facts { known: None, ..facts.clone() };
        let (own, other) = (self.facts.as_ref().map(plain), before.facts.as_ref().map(plain));
        let known = self.facts.as_ref().and_then(|facts| facts.known);
        before.is_retired || own == other || known.is_some_and(|known| Some(known.since) >= before.last_heard)
    }
}

/// Finds the new id of each unit of the kind; `from` named its units before.
pub async fn plan(engine: &dyn FleetStore, from: &UnitName, rules: &KindRules) -> Result<RenamingPlan> {
    let (partitions, pages) = (engine.partitions(), engine.pages());
    let all = (0..partitions).flat_map(|partition| (0..pages).map(move |page| (partition, page)));
    let all = stream::iter(all).map(|(partition, page)| engine.walk(partition, page)).buffered(UNDER_WAY);
    let known = |seen: Snapshot| {
        if seen.unit.kind != rules.kind {
            return None;
        }
        let is_retired = !seen.is_known() && !seen.is_unreadable();
        let last_heard = seen.last_heard();
        Some(KnownUnit { unit: seen.unit, facts: seen.facts, last_heard, is_retired })
    };
    let units: Vec<KnownUnit> = all
        .try_fold(Vec::new(), |mut units, page| {
            units.extend(page.into_iter().filter_map(known));
            std::future::ready(Ok(units))
        })
        .await?;
    Ok(plan_of(&units, from, &rules.name))
}

fn plan_of(units: &[KnownUnit], from: &UnitName, to: &UnitName) -> RenamingPlan {
    let ids: HashMap<&str, &KnownUnit> = units.iter().map(|one| (one.unit.id.as_str(), one)).collect();
    let mut plan = RenamingPlan::default();
    let mut targets: HashMap<Unit, &Unit> = HashMap::new();
    let present: HashSet<&Unit> = units.iter().filter(|one| !one.is_retired).map(|one| &one.unit).collect();
    let mut kept: HashSet<&Unit> = HashSet::new();
    let mut left: HashSet<&str> = HashSet::new();
    let mut moves = Vec::new();
    for one in units.iter().filter(|one| !one.is_retired) {
        if let Some(before) = taken_over(one, from, to, &ids) {
            left.insert(before.unit.id.as_str());
            kept.insert(&one.unit);
            plan.done += 1;
            continue;
        }
        match new_id(one, from, to) {
            Err(why) => plan.problems.push(format!("{}: {why}", one.unit)),
            Ok(new) if new == one.unit => {
                kept.insert(&one.unit);
                plan.done += 1;
            }
            Ok(new) => {
                plan.offline += usize::from(one.is_offline());
                moves.push((&one.unit, new));
            }
        }
    }
    let is_removed = |one: &&KnownUnit| one.is_retired && !left.contains(one.unit.id.as_str());
    plan.removed = units.iter().filter(is_removed).count();
    for (old, new) in moves {
        if let Some(other) = targets.insert(new.clone(), old) {
            plan.problems.push(format!("{other} and {old} would both be {new}"));
        } else if present.contains(&new) && !kept.contains(&new) {
            plan.problems.push(format!("{old} would be {new}, which is the id of another unit"));
        } else {
            plan.moves.push((old.clone(), new));
        }
    }
    plan
}

/// The id that the unit had before, if it has its new id already.
fn taken_over<'a>(
    one: &KnownUnit,
    from: &UnitName,
    to: &UnitName,
    ids: &HashMap<&str, &'a KnownUnit>,
) -> Option<&'a KnownUnit> {
    let parts = to.parts(one.unit.id.as_str())?;
    let of = |name: &str| parts.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
    let agrees = parts.iter().all(|(name, value)| *name == "unit" || one.label(name) == Some(*value));
    let all = from.captures().all(|name| of(name).is_some());
    let before = from.compose(|name| of(name).unwrap_or_default());
    let before = before.ok().filter(|before| agrees && all && *before != one.unit.id)?;
    ids.get(before.as_str()).copied().filter(|before| one.follows(before))
}

fn new_id(one: &KnownUnit, from: &UnitName, to: &UnitName) -> std::result::Result<Unit, String> {
    let id = one.unit.id.as_str();
    let Some(parts) = from.parts(id) else { return Err(format!("its id is not {from}; see --from")) };
    let value = |name: &str| {
        let part = parts.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        part.or_else(|| one.label(name)).unwrap_or_default()
    };
    if let Some(name) = to.captures().find(|name| value(name).is_empty()) {
        return Err(format!(
            "neither its id nor a label says {{{name}}}; remove it, or set the label (rollcall import)"
        ));
    }
    let new = to.compose(value).map_err(|error| error.to_string())?;
    Ok(Unit::new(one.unit.kind.clone(), new))
}

/// Renames the units of a plan, and calls `progress` with each number of units that are done. `metrics`: the metrics
/// whose values move with the units.
pub async fn run(
    engine: &dyn FleetStore,
    plan: &RenamingPlan,
    (rules, metrics): (&KindRules, &[&str]),
    now: Timestamp,
    progress: impl Fn(usize),
) -> Result<Renamed> {
    let mut renamed = Renamed::default();
    for step in plan.moves.chunks(MAX_STEP) {
        let mut open: Vec<&(Unit, Unit)> = step.iter().collect();
        for _ in 0..MAX_CHANGES {
            open = rename_step(engine, open, (rules, metrics), now, &mut renamed).await?;
            if open.is_empty() {
                break;
            }
        }
        if let Some((old, _)) = open.first() {
            let why = format!("{old} changed while it was renamed; stop every instance, and begin again");
            return Err(EngineError::Refused(why));
        }
        progress(step.len());
    }
    Ok(renamed)
}

/// Returns the units that changed meanwhile.
async fn rename_step<'a>(
    engine: &dyn FleetStore,
    open: Vec<&'a (Unit, Unit)>,
    (rules, metrics): (&KindRules, &[&str]),
    now: Timestamp,
    renamed: &mut Renamed,
) -> Result<Vec<&'a (Unit, Unit)>> {
    let hearing = engine.hearing().await?;
    let old: Vec<Unit> = open.iter().map(|(old, _)| old.clone()).collect();
    let new: Vec<Unit> = open.iter().map(|(_, new)| new.clone()).collect();
    let (old, new) = (engine.read(&old).await?, engine.read(&new).await?);
    let (mut again, mut retired) = (Vec::new(), Vec::new());
    let (mut first, mut of_first): (Vec<(Snapshot, Change)>, Vec<_>) = Default::default();
    for ((names, old), new) in open.into_iter().zip(old).zip(new) {
        match rename(&old, &new, rules, &hearing, now) {
            Renaming::Done => renamed.renamed += 1,
            Renaming::Waits => renamed.waiting += 1,
            Renaming::Changes { new: None, old: change } => retired.push((names, (old, *change))),
            Renaming::Changes { new: Some(taken), old: change } => {
                first.push((new, *taken));
                of_first.push((names, (old, *change)));
            }
        }
    }
    for (one, applied) in of_first.into_iter().zip(engine.apply(&first).await?) {
        if applied { retired.push(one) } else { again.push(one.0) }
    }
    if !metrics.is_empty() {
        let moved = retired.iter().map(|(names, _)| move_values(engine, names, metrics));
        stream::iter(moved).buffer_unordered(UNDER_WAY).try_collect::<Vec<()>>().await?;
    }
    let (names, changes): (Vec<_>, Vec<_>) = retired.into_iter().unzip();
    for (names, applied) in names.into_iter().zip(engine.apply(&changes).await?) {
        if applied { renamed.renamed += 1 } else { again.push(names) }
    }
    Ok(again)
}

async fn move_values(engine: &dyn FleetStore, (old, new): &(Unit, Unit), metrics: &[&str]) -> Result<()> {
    let values = engine.values(old, metrics).await?;
    let found = metrics.iter().zip(&values).filter_map(|(metric, value)| Some((*metric, value.as_ref()?)));
    let readings: Vec<Reading> = found
        .map(|(metric, value)| Reading { unit: new, metric, at: value.at, value: &value.text })
        .collect();
    if readings.is_empty() {
        return Ok(());
    }
    engine.keep_values(&readings).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::presence::{Cause, Known, Silence};

    const START: Timestamp = Timestamp::from_millis(1_732_147_200_000);

    /// Units that are heard; each is known since another minute.
    fn known(id: &str, site: &str, is_retired: bool, minute: u32) -> KnownUnit {
        let heard = START + Duration::from_secs(3600);
        let lifecycle = if is_retired { Lifecycle::Retired(heard) } else { Lifecycle::Present };
        let mut facts = Facts::new(lifecycle, heard);
        facts.known = Some(Known::admitted(START + Duration::from_secs(60) * minute));
        facts.declared_timeout = Some(Duration::from_secs(minute.into()));
        if !site.is_empty() {
            facts.labels.insert("site".into(), site.into());
        }
        let unit = format!("pump:{id}").parse().unwrap();
        KnownUnit { unit, last_heard: Some(heard), facts: Some(facts), is_retired }
    }

    /// The new ids or the problems, and how many are done.
    fn of(to: &str, units: &[(&str, &str)], retired: &[&str]) -> (Vec<String>, usize) {
        let units = units.iter().zip(1..).map(|((id, site), minute)| known(id, site, false, minute));
        let retired = retired.iter().map(|id| known(id, "", true, 0));
        let mut units: Vec<KnownUnit> = units.chain(retired).collect();
        // `s.2` is a copy of `2`, and `late` became known after `1` was heard last.
        let of = |units: &[KnownUnit], id: &str| units.iter().position(|one| one.unit.id.as_str() == id);
        if let (Some(copy), Some(whole)) = (of(&units, "s.2"), of(&units, "2")) {
            units[copy].facts = units[whole].facts.clone();
        }
        if let Some(late) = of(&units, "n.late") {
            let facts = units[late].facts.as_mut().unwrap();
            facts.known = Some(Known::admitted(START + Duration::from_secs(7200)));
        }
        let plan = plan_of(&units, &UnitName::default(), &to.parse().unwrap());
        let moves = plan.moves.iter().map(|(old, new)| format!("{}>{}", old.id, new.id));
        (if plan.problems.is_empty() { moves.collect() } else { plan.problems }, plan.done)
    }

    #[test]
    fn a_new_id_comes_from_the_old_one_and_the_labels() {
        let to = "{site}.{unit}";
        let moves = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(of(to, &[("1", "n"), ("2", "s")], &[]), (moves(&["1>n.1", "2>s.2"]), 0));
        // A part is done: of the first unit the old id is retired, of the second it is there.
        assert_eq!(of(to, &[("n.1", "n"), ("2", "s"), ("s.2", "s")], &["1"]), (moves(&["2>s.2"]), 2));
        assert_eq!(of(to, &[("late", "n"), ("n.late", "n")], &[]), (moves(&["late>n.late"]), 1));
        // An id that only looks like a new one.
        assert_eq!(of(to, &[("n.1", "n")], &[]), (moves(&["n.1>n.n.1"]), 0));
        assert_eq!(of(to, &[], &["1"]), (moves(&[]), 0));
    }

    #[test]
    fn a_plan_counts_the_units_that_keep_their_ids() {
        let mut units = ["1", "2", "n.3", "3", "4"].map(|id| known(id, "n", id == "3" || id == "4", 1));
        let moment = START + Duration::from_secs(7200);
        let allowed = Duration::from_secs(60);
        let silence = Silence { deadline: moment, detected_at: moment, cause: Cause::Silence, allowed };
        units[0].facts.as_mut().unwrap().lifecycle = Lifecycle::Offline(silence);
        let plan = plan_of(&units, &UnitName::default(), &"{site}.{unit}".parse().unwrap());
        // The old id of `n.3` was retired by the renaming, and 4 by an operator.
        assert_eq!((plan.moves.len(), plan.done, plan.offline, plan.removed), (2, 1, 1, 1));
    }

    #[test]
    fn a_plan_with_a_problem_says_which_units_it_is_of() {
        let one = |to, units: &[(&str, &str)]| {
            let (problems, _) = of(to, units, &[]);
            assert_eq!(problems.len(), 1, "{problems:?}");
            problems.into_iter().next().unwrap()
        };
        assert_eq!(one("{site}", &[("1", "n"), ("2", "n")]), "pump:1 and pump:2 would both be pump:n");
        assert!(
            one("{site}.{unit}", &[("1", "")]).starts_with("pump:1: neither its id nor a label says {site}")
        );
        assert!(one("{site}.{unit}", &[("1", "a.b")]).contains("two devices could get one id"));
        let taken = one("x{unit}", &[("1", ""), ("x1", "")]);
        assert_eq!(taken, "pump:1 would be pump:x1, which is the id of another unit");
        let both = one("{site}.{unit}", &[("1", "n"), ("n.1", "n")]);
        assert_eq!(both, "pump:1 would be pump:n.1, which is the id of another unit");
    }
}
