use super::*;
use crate::clock::monotonic;

fn message(kept: &Arc<AtomicUsize>, size: usize) -> Arc<Message> {
    let kept = Some(Kept::new(kept, size));
    Arc::new(Message { topic: "t".into(), payload: vec![0; size].into(), kept, ..Message::default() })
}

fn delivers(session: &Session, message: &Arc<Message>) -> bool {
    let (message, numbers) = (message.clone(), Vec::new());
    session.deliver(Delivery { message, qos: 1, retain: false, numbers, kept: None })
}

fn connected(kept: &Arc<AtomicUsize>) -> Session {
    let session = Session::new("a", 1, kept.clone());
    session.connect(1, Wire { max_packet: 1 << 24, receive_maximum: 20, ..Wire::default() });
    session
}

#[test]
fn memory_is_counted_until_a_message_is_acknowledged_and_once_for_all_clients() {
    let kept = Arc::default();
    let (one, other) = (connected(&kept), connected(&kept));
    let large = message(&kept, 1 << 20);
    assert!(delivers(&one, &large) && delivers(&other, &large));
    drop(large);
    let mut out = Vec::new();
    let (payload, is_all) = one.write(&mut out, monotonic());
    assert!(payload.is_some_and(|message| message.payload.len() == 1 << 20) && !is_all && out.len() < 20);
    assert!(one.bytes() > 1 << 20 && (1 << 20..1 << 21).contains(&kept.load(Ordering::Relaxed)));
    one.completed(1);
    assert_eq!((one.bytes(), one.write(&mut Vec::new(), monotonic()).1), (0, true));
    drop(other);
    assert_eq!(kept.load(Ordering::Relaxed), 0);
}

#[test]
fn a_client_that_reads_all_is_not_cut_off_for_those_that_do_not() {
    let kept = Arc::default();
    let (reads, waits, away) = (connected(&kept), connected(&kept), connected(&kept));
    let small = message(&kept, 1);
    assert!(delivers(&waits, &small) && delivers(&away, &small));
    away.disconnected(1);
    let half = Kept::new(&kept, MAX_WAITING_OF_ALL / 2);
    assert!(delivers(&waits, &small) && !delivers(&away, &small));
    let _rest = Kept::new(&kept, MAX_WAITING_OF_ALL / 2);
    assert!(delivers(&reads, &small) && !delivers(&waits, &small));
    assert_eq!((reads.ended(1), waits.ended(1)), (None, Some(End::Slow)));
    drop(half);
    away.forget();
    assert_eq!(away.bytes(), 0);
}

#[test]
fn a_client_that_reads_nothing_is_given_up() {
    let kept = Arc::default();
    let (many, large) = (connected(&kept), connected(&kept));
    let (small, big) = (message(&kept, 1), message(&kept, 1 << 20));
    assert!((0..MAX_WAITING).all(|_| delivers(&many, &small)) && !delivers(&many, &small));
    assert!((0..7).all(|_| delivers(&large, &big)) && !delivers(&large, &big));
    assert_eq!((many.ended(1), large.ended(1)), (Some(End::Slow), Some(End::Slow)));
}
