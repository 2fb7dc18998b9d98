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

/// CONNECT of MQTT 5.
fn connected_5() -> FrameFilter {
    let mut frames = FrameFilter::new(1 << 20);
    let body = [0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 60, 0, 0, 1, b'a'];
    run(&mut frames, &frame(0x10, &body), usize::MAX).unwrap();
    frames
}

/// A SUBSCRIBE of MQTT 5 with these properties, for one filter with options.
fn subscribe(id: u16, properties: &[u8], filter: &str, options: u8) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.push(properties.len() as u8);
    body.extend(properties);
    body.extend((filter.len() as u16).to_be_bytes());
    body.extend(filter.as_bytes());
    body.push(options);
    frame(0x82, &body)
}

#[test]
fn a_packet_that_is_against_the_protocol_ends_the_connection_with_its_reason() {
    let id_zero = PROTOCOL_ERROR;
    let cases = [
        ("PUBLISH at QoS 1 with id 0", publish(0x32, "t", Some(0), b"x"), id_zero),
        ("PUBLISH at QoS 2 with id 0", publish(0x34, "t", Some(0), b""), id_zero),
        ("PUBLISH without its id", publish(0x32, "t", None, b""), id_zero),
        ("PUBLISH at QoS 3", publish(0x36, "t", Some(1), b""), MALFORMED),
        ("PUBLISH at QoS 0, sent again", publish(0x38, "t", None, b""), MALFORMED),
        ("PUBACK with id 0", frame(0x40, &[0, 0]), id_zero),
        ("PUBREC with id 0", frame(0x50, &[0, 0]), id_zero),
        ("PUBREL with id 0", frame(0x62, &[0, 0]), id_zero),
        ("PUBCOMP with id 0", frame(0x70, &[0, 0]), id_zero),
        ("PUBREL without an id", frame(0x62, &[]), id_zero),
        ("PUBREL with other flags", frame(0x60, &[0, 1]), MALFORMED),
        ("SUBSCRIBE with id 0", subscribe(0, &[], "a", 0), id_zero),
        ("SUBSCRIBE with other flags", frame(0x80, &[0, 1, 0, 0, 1, b'a', 0]), MALFORMED),
        ("SUBSCRIBE without a filter", frame(0x82, &[0, 1, 0]), PROTOCOL_ERROR),
        ("SUBSCRIBE that is cut", frame(0x82, &[0, 1, 0, 0, 9, b'a']), MALFORMED),
        ("SUBSCRIBE without options", frame(0x82, &[0, 1, 0, 0, 1, b'a']), MALFORMED),
        ("subscription identifier 0", subscribe(1, &[0x0b, 0], "a", 0), PROTOCOL_ERROR),
        ("two subscription identifiers", subscribe(1, &[0x0b, 1, 0x0b, 2], "a", 0), PROTOCOL_ERROR),
        ("a property of another packet", subscribe(1, &[0x23, 0, 1], "a", 0), PROTOCOL_ERROR),
        ("QoS 3 in options", subscribe(1, &[], "a", 3), MALFORMED),
        ("reserved options", subscribe(1, &[], "a", 0x40), MALFORMED),
        ("retain handling 3", subscribe(1, &[], "a", 0x30), PROTOCOL_ERROR),
        ("no local on a share", subscribe(1, &[], "$share/s/a", 4), PROTOCOL_ERROR),
        ("a share without a name", subscribe(1, &[], "$share//x", 0), BAD_FILTER),
        ("a share with + in its name", subscribe(1, &[], "$share/a+/x", 0), BAD_FILTER),
        ("a share with # in its name", subscribe(1, &[], "$share/#/x", 0), BAD_FILTER),
        ("a share without a filter", subscribe(1, &[], "$share/s", 0), BAD_FILTER),
        ("a share with an empty filter", subscribe(1, &[], "$share/s/", 0), BAD_FILTER),
        ("an empty filter", subscribe(1, &[], "", 0), BAD_FILTER),
        ("# that is not last", subscribe(1, &[], "a/#/b", 0), BAD_FILTER),
        ("+ within a level", subscribe(1, &[], "a+", 0), BAD_FILTER),
        ("# within a level", subscribe(1, &[], "a/b#", 0), BAD_FILTER),
        ("a zero byte in a filter", subscribe(1, &[], "a\0", 0), MALFORMED),
        ("UNSUBSCRIBE with id 0", frame(0xa2, &[0, 0, 0, 0, 1, b'a']), id_zero),
        ("UNSUBSCRIBE of a/#/b", frame(0xa2, &[0, 1, 0, 0, 5, b'a', b'/', b'#', b'/', b'b']), BAD_FILTER),
        ("a second CONNECT", connect(0x02), PROTOCOL_ERROR),
        ("CONNACK", frame(0x20, &[0, 0]), PROTOCOL_ERROR),
        ("PINGREQ with flags", frame(0xc1, &[]), MALFORMED),
        ("packet 0", frame(0x00, &[]), PROTOCOL_ERROR),
    ];
    for (what, packet, reason) in cases {
        for at_once in [1, usize::MAX] {
            let mut frames = connected_5();
            let Err(why) = run(&mut frames, &packet, at_once) else { panic!("{what} is accepted") };
            assert_eq!(frames.farewell(why), Some([0xe0, 2, reason, 0]), "{what}: {why:?}");
        }
    }
    // MQTT 3.1.1 has no reason to give.
    let mut frames = connected();
    let why = run(&mut frames, &publish(0x32, "t", Some(0), b"x"), 1).unwrap_err();
    assert_eq!(frames.farewell(why), None);
    assert!(run(&mut connected(), &frame(0x82, &[0, 1, 0, 1, b'a', 4]), 1).is_err(), "options of MQTT 5");
}

#[test]
fn a_packet_within_the_protocol_passes_unchanged() {
    for packet in [
        subscribe(1, &[0x0b, 0x80, 0x01, 0x26, 0, 1, b'a', 0, 1, b'b'], "$share/s/+/a/#", 0x1a),
        subscribe(65_535, &[], "+", 2),
        subscribe(1, &[], "/", 4),
        frame(0xa2, &[0, 1, 0, 0, 1, b'#']),
        frame(0x40, &[0, 1]),
        frame(0xe0, &[]),
    ] {
        assert_eq!(run(&mut connected_5(), &packet, 1).unwrap(), packet);
    }
    let of_3 = frame(0x82, &[0, 1, 0, 1, b'a', 1, 0, 1, b'b', 0]);
    assert_eq!(run(&mut connected(), &of_3, 2).unwrap(), of_3);
}

#[test]
fn a_level_of_the_protocol_that_is_not_served_is_named_once() {
    let of = |name: &str, level: u8| {
        let mut body = vec![0, name.len() as u8];
        body.extend(name.as_bytes());
        body.extend([level, 2, 0, 60, 0, 1, b'a']);
        let mut frames = FrameFilter::new(1 << 20);
        run(&mut frames, &frame(0x10, &body), 1).unwrap();
        (frames.take_unserved(), frames.take_unserved())
    };
    assert_eq!(of("MQIsdp", 3), (Some(3), None));
    assert_eq!(of("MQTT", 0x84), (Some(0x84), None));
    assert_eq!([of("MQTT", 4), of("MQTT", 5)], [(None, None); 2]);
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
