//! Frames in, frames and violations out.

use super::*;
use proptest::prelude::*;

/// A connection whose CONNECT has passed.
fn connected() -> FrameFilter {
    let mut frames = FrameFilter::new(1 << 20);
    run(&mut frames, &connect(0x02), usize::MAX).unwrap();
    frames
}

/// CONNECT of 3.1.1 with these flags, and a will if they say so.
fn connect(flags: u8) -> Vec<u8> {
    let mut body = vec![0, 4, b'M', b'Q', b'T', b'T', 4, flags, 0, 60, 0, 1, b'a'];
    if flags & 0x04 != 0 {
        body.extend([0, 1, b'w', 0, 1, b'x']);
    }
    frame(0x10, &body)
}

fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    put_length(body.len() as u32, &mut frame);
    frame.extend(body);
    frame
}

fn publish(first: u8, topic: &str, id: Option<u16>, payload: &[u8]) -> Vec<u8> {
    let mut body = (topic.len() as u16).to_be_bytes().to_vec();
    body.extend(topic.as_bytes());
    body.extend(id.into_iter().flat_map(u16::to_be_bytes));
    body.extend(payload);
    frame(first, &body)
}

/// Passes on every frame that is announced; `at_once` bytes arrive at a time.
fn run(frames: &mut FrameFilter, input: &[u8], at_once: usize) -> Result<Vec<u8>, Violation> {
    let mut output = Vec::new();
    for chunk in input.chunks(at_once.clamp(1, input.len().max(1))) {
        let mut chunk = chunk;
        while let Some(announced) = frames.take(&mut chunk, &mut output)? {
            frames.pass(announced, &mut output)?;
        }
        assert!(chunk.is_empty());
    }
    Ok(output)
}

#[test]
fn retain_flags_are_cleared_and_nothing_else_changes() {
    let mut frames = FrameFilter::new(1 << 20);
    assert_eq!(run(&mut frames, &connect(0x26), 3).unwrap(), connect(0x06), "of the will");
    assert_eq!(frames.take_unretained(), 1);
    let beat = |first| publish(first, "units/a", Some(7), b"x");
    assert_eq!(run(&mut frames, &beat(0x33), 1).unwrap(), beat(0x32));
    assert_eq!(run(&mut frames, &beat(0x35), 2).unwrap(), beat(0x34));
    assert_eq!(frames.take_unretained(), 2);
    let other = [0xc0, 0, 0xe0, 0];
    assert_eq!(run(&mut frames, &other, 1).unwrap(), other);
    assert_eq!(frames.take_unretained(), 0);
}

#[test]
fn a_message_at_qos_0_goes_on_at_qos_1_and_its_acknowledgement_is_suppressed() {
    let mut frames = connected();
    let sent =
        [publish(0x30, "t", None, b"0"), publish(0x32, "t", Some(9), b"1"), publish(0x31, "", None, b"")];
    let passed = run(&mut frames, &sent.concat(), 4).unwrap();
    let expected =
        [publish(0x32, "t", Some(ADDED_ID), b"0"), sent[1].clone(), publish(0x32, "", Some(ADDED_ID), b"")];
    assert_eq!(passed, expected.concat());
    for (answer, is_suppressed) in [
        (&[0x40, 2, 0xff, 0xff][..], true),
        (&[0x20, 2, 0, 0], false),
        (&[0x40, 2, 0, 9], false),
        (&[0x40, 3, 0xff, 0xff, 0x87], true),
        (&[0x40, 2, 0xff, 0xff], false),
    ] {
        assert_eq!(frames.suppresses(answer), is_suppressed, "{answer:?}");
    }
}

#[test]
fn a_packet_id_of_the_device_that_equals_the_added_one_is_still_acknowledged() {
    let mut frames = connected();
    let sent = [publish(0x32, "t", Some(ADDED_ID), b"1"), publish(0x30, "t", None, b"0")];
    run(&mut frames, &sent.concat(), 1000).unwrap();
    assert!(!frames.suppresses(&[0x40, 2, 0xff, 0xff]));
    assert!(frames.suppresses(&[0x40, 2, 0xff, 0xff]));
}

#[test]
fn other_protocols_are_not_read_far_and_frames_not_beyond_the_limit() {
    let cases: [(&[u8], Violation); 4] = [
        (b"GET / HTTP/1.1\r\n", Violation::NotMqtt),
        (&[0x30, 0], Violation::NotMqtt),
        (&[0x10, 0xff, 0xff, 0xff, 0xff], Violation::NotMqtt),
        (&[0x10, 0x81, 0x80, 0x01], Violation::TooLarge(16_385)),
    ];
    for (input, why) in cases {
        assert_eq!(run(&mut FrameFilter::new(1 << 20), input, 1), Err(why), "{input:?}");
    }
    assert_eq!(run(&mut connected(), &[0x30, 0x80, 0x80, 0x40], 1), Err(Violation::TooLarge(1 << 20)));
}

#[test]
fn messages_at_qos_2_are_bounded_until_they_are_released() {
    let mut frames = connected();
    for id in 1..=MAX_UNRELEASED {
        run(&mut frames, &publish(0x34, "t", Some(id), b"x"), 100).unwrap();
    }
    assert_eq!(frames.unreleased(), u64::from(MAX_UNRELEASED) * 6);
    run(&mut frames, &frame(0x62, &[0, 1]), 1).unwrap();
    // A refused message needs no release; a repeated one is no second message.
    frames.suppresses(&[0x50, 3, 0, 2, 0x87]);
    run(&mut frames, &publish(0x3c, "t", Some(3), b"x"), 100).unwrap();
    assert_eq!(frames.unreleased(), u64::from(MAX_UNRELEASED - 2) * 6);
    for id in [1, 2] {
        run(&mut frames, &publish(0x34, "t", Some(id), b"x"), 100).unwrap();
    }
    let one_more = publish(0x34, "t", Some(1000), b"x");
    assert_eq!(run(&mut frames, &one_more, 100), Err(Violation::Unreleased));
}

proptest! {
    #[test]
    fn the_size_of_the_pieces_makes_no_difference(
        input in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        firsts in prop::collection::vec(any::<u8>(), 8),
        at_once in 1..50_usize,
    ) {
        let bodies = firsts.iter().zip(&input);
        let stream: Vec<u8> = bodies.flat_map(|(first, body)| frame(*first, body)).collect();
        let (mut whole, mut cut) = (connected(), connected());
        prop_assert_eq!(run(&mut whole, &stream, usize::MAX), run(&mut cut, &stream, at_once));
        prop_assert_eq!(whole.take_unretained(), cut.take_unretained());
        prop_assert_eq!(whole.unreleased(), cut.unreleased());
    }

    #[test]
    fn arbitrary_bytes_break_nothing(input in prop::collection::vec(any::<u8>(), 0..300), at_once in 1..50_usize) {
        let _ = run(&mut connected(), &input, at_once);
        let _ = run(&mut FrameFilter::new(1 << 20), &input, at_once);
    }
}
