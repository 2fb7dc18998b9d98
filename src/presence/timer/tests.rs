use super::*;

#[test]
fn an_id_is_as_that_of_a_unit_and_its_firing_has_no_white_space() {
    for (id, refused) in [
        ("", TimerError::EmptyId),
        ("a/b", TimerError::BadId),
        ("a+b", TimerError::BadId),
        ("#", TimerError::BadId),
        ("a\nb", TimerError::BadId),
    ] {
        assert_eq!(id.parse::<TimerId>(), Err(refused), "{id:?}");
    }
    assert_eq!("x".repeat(129).parse::<TimerId>(), Err(TimerError::LongId));
    let due = Timestamp::from_millis(1_732_147_200_000);
    for (id, firing) in [
        ("report-7", "report-7:1732147200000"),
        ("a b%c", "a%20b%25c:1732147200000"),
        ("a\u{2003}ü", "a%E2%80%83%C3%BC:1732147200000"),
    ] {
        assert_eq!(id.parse::<TimerId>().unwrap().firing(due), firing);
    }
}

#[test]
fn data_are_kept_as_they_were_written() {
    let json = r#"{"b": 1.0, "a":12345678901234567890123}"#;
    let data: TimerData = json.parse().unwrap();
    assert_eq!(serde_json::to_string(&data).unwrap(), json);
    let read: TimerData = serde_json::from_str(json).unwrap();
    assert_eq!(read, data);
    assert_eq!(TimerData::default().as_str(), "null");
    for bad in ["", "{", "1 2", "nul"] {
        assert!(matches!(bad.parse::<TimerData>(), Err(TimerError::Data(_))), "{bad:?}");
    }
    let large = format!("\"{}\"", "x".repeat(MAX_TIMER_BYTES));
    assert_eq!(large.parse::<TimerData>(), Err(TimerError::LargeData));
}

#[test]
fn a_fired_timer_is_delivered_when_all_have_it_and_dead_when_one_never_will() {
    use Receipt::*;
    for (receipts, state) in [
        (&[][..], TimerState::Delivered),
        (&[Pending], TimerState::Fired),
        (&[Begun], TimerState::Fired),
        (&[Delivered, Pending], TimerState::Fired),
        (&[Dead, Pending], TimerState::Fired),
        (&[Delivered, Delivered], TimerState::Delivered),
        (&[Delivered, Dead], TimerState::Dead),
        (&[Unknown, Delivered], TimerState::Dead),
    ] {
        assert_eq!(Receipt::state(receipts.iter().copied()), state, "{receipts:?}");
    }
}
