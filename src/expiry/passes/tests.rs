use super::*;
use crate::clock::monotonic;
use crate::store::EngineError;

const TICK: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(10);

fn ms(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// Partition 3 has a unit that is due at 1000.
fn first() -> FirstCheck {
    FirstCheck { partition: 3, at: ms(1000), since: ms(1000), patience: Duration::ZERO, slack: SLACK }
}

/// The sweeps that begin when the index has answered: with the unit of [`first`], unless only later moments were
/// read.
fn asked(passes: &mut Passes, heard: Timestamp) -> Vec<Due> {
    let after = passes.ask(Duration::ZERO, |_| true);
    passes.answered();
    let firsts = match after.get(&3) {
        Some(after) if ms(1000) <= *after => Vec::new(),
        _ => vec![first()],
    };
    passes.begin_sweeps(&firsts, ms(2000), Some(heard), Duration::ZERO)
}

#[test]
fn a_unit_that_waits_for_hearing_is_swept_once_a_tick_and_not_again_and_again() {
    let unit: Unit = "detector:a".parse().unwrap();
    let heard = Some(ms(500));
    let mut passes = Passes::new(monotonic());
    assert!(passes.rechecks(heard, TICK, false, |_| 0).is_empty());

    let [due] = asked(&mut passes, ms(500))[..] else { panic!("it is due") };
    let sweep = Sweep { due, heard, held: Vec::new(), left_out: 0 };
    passes.swept(sweep, Ok(vec![unit.clone()]), heard).unwrap();
    assert_eq!(asked(&mut passes, ms(500)), [], "it waits");

    passes.turn(passes.moment + TICK);
    let [check] = passes.rechecks(heard, TICK, false, |_| 0).try_into().ok().expect("it is checked again");
    let [due] = asked(&mut passes, ms(500))[..] else { panic!("the index is read from its beginning") };
    let sweep = Sweep { due, heard, held: Vec::new(), left_out: 1 };
    passes.swept(sweep, Ok(Vec::new()), heard).unwrap();
    for _ in 0..3 {
        assert_eq!(asked(&mut passes, ms(500)), [], "it is left out until the next tick");
    }
    passes.checked(check, Ok(vec![unit]), heard).unwrap();
    assert_eq!(asked(&mut passes, ms(500)), [], "it waits again");
}

#[test]
fn a_partition_that_cannot_be_swept_counts_from_its_own_first_failure() {
    let mut passes = Passes::new(monotonic());
    let begin = passes.moment;
    let mut sweep = |second: u64, partition: u16, is_successful: bool| {
        passes.turn(begin + Duration::from_secs(second));
        let due = Due { partition, after: None, until: ms(2000) };
        let sweep = Sweep { due, heard: None, held: Vec::new(), left_out: 0 };
        let fails = || Err(EngineError::Passing("its slot moves".to_owned()));
        let _ = passes.swept(sweep, if is_successful { Ok(Vec::new()) } else { fails() }, None);
        passes.fails_for()
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(sweep(0, 1, false), seconds(0));
    assert_eq!(sweep(5, 2, false), seconds(5), "the first one still fails");
    assert_eq!(sweep(6, 1, true), seconds(1), "the second one failed later");
    assert_eq!(sweep(8, 2, false), seconds(3), "the first failure counts");
    assert_eq!(sweep(9, 2, true), None);
}

#[test]
fn a_partition_whose_sweep_failed_is_swept_again_soon_and_not_at_once() {
    let mut passes = Passes::new(monotonic());
    passes.rechecks(Some(ms(500)), TICK, false, |_| 0);
    let [due] = asked(&mut passes, ms(2000))[..] else { panic!("it is due") };
    let sweep = Sweep { due, heard: None, held: Vec::new(), left_out: 0 };
    let failed = Err(EngineError::Passing("a replica takes over".to_owned()));
    assert!(passes.swept(sweep, failed, Some(ms(500))).is_err());
    assert!(passes.is_time_to_ask(ms(2000), TICK), "other partitions may be due");
    assert_eq!(asked(&mut passes, ms(2000)), [], "it rests");
    assert!(!passes.is_time_to_ask(ms(2000), TICK) && passes.rest(ms(2000), TICK) == ASK_AGAIN);
    passes.turn(passes.moment + ASK_AGAIN);
    assert_eq!(asked(&mut passes, ms(2000)), [due], "neither a tick nor more hearing is needed");
    assert!(!passes.wait_for_hearing());
}

#[test]
fn an_index_that_did_not_answer_is_asked_soon_and_at_once_when_rollcall_has_heard_more() {
    let mut passes = Passes::new(monotonic());
    passes.rechecks(Some(ms(500)), TICK, false, |_| 0);
    assert_eq!(asked(&mut passes, ms(2000)).len(), 1);
    passes.ask(Duration::ZERO, |_| true);
    passes.not_answered();
    assert!(!passes.is_time_to_ask(ms(2000), TICK), "it is given some time");
    assert!(passes.rest(ms(2000), TICK) == ASK_AGAIN, "but not a whole tick");
    assert!(passes.wait_for_hearing());
    passes.rechecks(Some(ms(600)), TICK, false, |_| 0);
    assert!(passes.is_time_to_ask(ms(2000), TICK));
    passes.ask(Duration::ZERO, |_| true);
    passes.answered();
    assert!(!passes.wait_for_hearing() && passes.rest(ms(2000), TICK) > ASK_AGAIN);
}
