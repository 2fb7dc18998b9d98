//! Packets in, parts and violations out.

use super::*;
use crate::intake::listener::bytes::{BAD_ALIAS, BAD_FILTER};
use crate::intake::listener::encode;
use proptest::prelude::*;

/// The reason code of the refusal, for a client of this version that sends these bytes after its CONNECT, or in its
/// place.
fn refusal(version: Version, bytes: &[u8]) -> Option<u8> {
    let known = (bytes.first() != Some(&0x10)).then_some(version);
    let frame = match frame(bytes, 1 << 20, known) {
        Ok(Arrived::Whole(frame)) => frame,
        Ok(Arrived::Part(_)) => return None,
        Err(violation) => return Some(violation.code),
    };
    if frame.first != 0x10 {
        return frame.read(version).err().map(|violation| violation.code);
    }
    frame.connect().err().map(|(_, violation)| violation.code)
}

/// A packet with these flags and this body.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    assert!(body.len() < 128);
    [&[first, body.len() as u8], body].concat()
}

fn connect(level: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
    packet(0x10, &[&[0, 4, b'M', b'Q', b'T', b'T', level, flags, 0, 60], rest].concat())
}

#[test]
fn what_a_client_may_not_send_is_refused_with_its_reason() {
    use Version::{Five, Four};
    let cases: Vec<(&str, Version, Vec<u8>, u8)> = vec![
        // CONNECT.
        ("level 3", Four, b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x3c\0\x01a".to_vec(), UNSUPPORTED_VERSION),
        ("level 6", Five, connect(6, 2, b"\0\0\x01a"), UNSUPPORTED_VERSION),
        ("another protocol", Four, b"\x10\x0d\0\x04HTTP\x04\x02\0\x3c\0\x01a".to_vec(), PROTOCOL),
        ("a reserved flag of CONNECT", Four, connect(4, 3, b"\0\x01a"), MALFORMED),
        ("a will at QoS 3", Four, connect(4, 0x1e, b"\0\x01a\0\x01w\0\0"), MALFORMED),
        ("the QoS of a will that is not there", Five, connect(5, 0x0a, b"\0\0\x01a"), MALFORMED),
        ("a retained will that is not there", Four, connect(4, 0x22, b"\0\x01a"), MALFORMED),
        ("a password without a user", Four, connect(4, 0x42, b"\0\x01a\0\x01p"), MALFORMED),
        ("no id, for a session that is kept", Four, connect(4, 0, b"\0\0"), BAD_CLIENT_ID),
        ("more bytes than CONNECT has parts", Four, connect(4, 2, b"\0\x01ab"), MALFORMED),
        ("an empty CONNECT", Five, packet(0x10, b""), MALFORMED),
        ("a CONNECT that ends too early", Five, connect(5, 2, b"\0\0\x05a"), MALFORMED),
        ("an id that is not UTF-8", Five, connect(5, 2, b"\0\0\x01\xff"), MALFORMED),
        ("an id with a zero", Four, connect(4, 2, b"\0\x01\0"), MALFORMED),
        ("a receive maximum of 0", Five, connect(5, 2, b"\x03\x21\0\0\0\x01a"), PROTOCOL),
        ("a maximum packet size of 0", Five, connect(5, 2, b"\x05\x27\0\0\0\0\0\x01a"), PROTOCOL),
        ("a property twice", Five, connect(5, 2, b"\x06\x22\0\x01\x22\0\x01\0\x01a"), PROTOCOL),
        ("a property of another packet", Five, connect(5, 2, b"\x03\x23\0\x01\0\x01a"), MALFORMED),
        ("problem information 2", Five, connect(5, 2, b"\x02\x17\x02\0\x01a"), PROTOCOL),
        ("data without a method", Five, connect(5, 2, b"\x04\x16\0\x01x\0\x01a"), PROTOCOL),
        ("a method that is not there", Five, connect(5, 2, b"\x04\x15\0\x01x\0\x01a"), BAD_AUTHENTICATION),
        ("a will with a wildcard", Five, connect(5, 6, b"\0\0\x01a\0\0\x01#\0\0"), BAD_TOPIC),
        // PUBLISH.
        ("QoS 3", Four, packet(0x36, b"\0\x01t\0\x01"), MALFORMED),
        ("DUP at QoS 0", Five, packet(0x38, b"\0\x01t\0"), MALFORMED),
        ("packet id 0", Four, packet(0x32, b"\0\x01t\0\0"), PROTOCOL),
        ("a wildcard in a topic", Four, packet(0x30, b"\0\x03a/+"), BAD_TOPIC),
        ("a hash in a topic", Five, packet(0x30, b"\0\x01#\0"), BAD_TOPIC),
        ("a noncharacter in a topic", Five, packet(0x30, b"\0\x04a\xef\xbf\xbe\0"), BAD_TOPIC),
        ("a control character in a topic", Four, packet(0x30, b"\0\x02a\x01"), BAD_TOPIC),
        ("a zero in a topic", Four, packet(0x30, b"\0\x03a\0b"), MALFORMED),
        ("no topic", Four, packet(0x30, b"\0\0x"), BAD_TOPIC),
        ("no topic and no alias", Five, packet(0x30, b"\0\0\0"), PROTOCOL),
        ("alias 0", Five, packet(0x30, b"\0\x01t\x03\x23\0\0"), BAD_ALIAS),
        ("the number of a subscription", Five, packet(0x30, b"\0\x01t\x02\x0b\x01"), MALFORMED),
        ("a wildcard in a response topic", Five, packet(0x30, b"\0\x01t\x04\x08\0\x01#"), PROTOCOL),
        ("payload format 2", Five, packet(0x30, b"\0\x01t\x02\x01\x02"), PROTOCOL),
        ("properties longer than the packet", Five, packet(0x30, b"\0\x01t\x7f"), MALFORMED),
        ("a length of five bytes", Four, b"\x30\xff\xff\xff\xff\x01".to_vec(), MALFORMED),
        ("a length with a byte too much", Five, b"\x30\x84\0\0\x01t\0".to_vec(), MALFORMED),
        ("a packet above the maximum", Five, b"\x30\xff\xff\xff\x7f".to_vec(), TOO_LARGE),
        // Acknowledgements.
        ("PUBREL with other flags", Four, packet(0x60, b"\0\x01"), MALFORMED),
        ("PUBACK with more", Four, packet(0x40, b"\0\x01\0"), MALFORMED),
        ("PUBACK of packet 0", Five, packet(0x40, b"\0\0"), PROTOCOL),
        ("PUBREC with an unknown reason", Five, packet(0x50, b"\0\x01\x01"), PROTOCOL),
        // SUBSCRIBE and UNSUBSCRIBE.
        ("SUBSCRIBE with other flags", Four, packet(0x80, b"\0\x01\0\x01a\0"), MALFORMED),
        ("SUBSCRIBE without a filter", Five, packet(0x82, b"\0\x01\0"), PROTOCOL),
        ("SUBSCRIBE at QoS 3", Four, packet(0x82, b"\0\x01\0\x01a\x03"), MALFORMED),
        ("options of MQTT 5 at 3.1.1", Four, packet(0x82, b"\0\x01\0\x01a\x04"), MALFORMED),
        ("reserved options", Five, packet(0x82, b"\0\x01\0\0\x01a\x40"), MALFORMED),
        ("retain handling 3", Five, packet(0x82, b"\0\x01\0\0\x01a\x30"), PROTOCOL),
        ("a hash before the end", Four, packet(0x82, b"\0\x01\0\x05a/#/b\0"), BAD_FILTER),
        ("a plus within a level", Five, packet(0x82, b"\0\x01\0\0\x02a+\0"), BAD_FILTER),
        ("an empty filter", Four, packet(0x82, b"\0\x01\0\0\0"), BAD_FILTER),
        ("a share without a name", Five, packet(0x82, b"\0\x01\0\0\x09$share//a\0"), BAD_FILTER),
        ("a share without a filter", Five, packet(0x82, b"\0\x01\0\0\x08$share/g\0"), BAD_FILTER),
        ("no-local of a share", Five, packet(0x82, b"\0\x01\0\0\x0a$share/g/a\x04"), PROTOCOL),
        ("subscription number 0", Five, packet(0x82, b"\0\x01\x02\x0b\0\0\x01a\0"), PROTOCOL),
        ("UNSUBSCRIBE without a filter", Four, packet(0xa2, b"\0\x01"), PROTOCOL),
        // Others.
        ("PINGREQ with a body", Four, packet(0xc0, b"x"), MALFORMED),
        ("DISCONNECT with a body", Four, packet(0xe0, b"\0"), MALFORMED),
        ("DISCONNECT with a reason of servers", Five, packet(0xe0, b"\x8d"), PROTOCOL),
        ("CONNACK of a client", Four, packet(0x20, b"\0\0"), PROTOCOL),
        ("type 0", Five, packet(0x00, b""), MALFORMED),
        ("AUTH at 3.1.1", Four, packet(0xf0, b""), MALFORMED),
        ("AUTH without a method", Five, packet(0xf0, b""), PROTOCOL),
    ];
    let wrong: Vec<String> = cases
        .iter()
        .map(|(what, version, bytes, code)| (what, refusal(*version, bytes), *code))
        .filter(|(_, refused, code)| *refused != Some(*code))
        .map(|(what, refused, code)| format!("{what}: {refused:x?}, not {code:x}"))
        .collect();
    assert!(wrong.is_empty() && cases.len() >= 50, "{}", wrong.join("\n"));
    let again = connect(4, 2, b"\0\x01a");
    let Ok(Arrived::Whole(again)) = frame(&again, 100, Some(Four)) else { panic!("it is whole") };
    assert_eq!(again.read(Four), violation(PROTOCOL, "a second CONNECT"));
}

#[test]
fn packets_that_are_allowed_are_read() {
    use Version::{Five, Four};
    let read = |version, bytes: &[u8]| match frame(bytes, 1 << 20, Some(version)) {
        Ok(Arrived::Whole(frame)) => format!("{:?}", frame.read(version).expect("it is allowed")),
        other => panic!("{other:?}"),
    };
    let bytes = packet(0x3d, b"\0\x01t\0\x07\x0e\x02\0\0\0\0\x08\0\x01r\x09\0\x02cdx");
    let text = read(Five, &bytes);
    for part in [
        "dup: true, qos: 2, retain: true, topic: \"t\", id: 7, payload: [120]",
        "expiry: Some(0), response_topic: Some(\"r\"), correlation: [99, 100]",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(read(Four, &packet(0x32, b"\0\x01t\0\x07x")).contains("id: 7, payload: [120]"));
    for (first, body) in [
        (0x40, &b"\0\x07"[..]),
        (0x40, b"\0\x07\x10"),
        (0x62, b"\0\x07\x92\0"),
        (0xe0, b"\x04\x05\x11\0\0\0\x01"),
    ] {
        read(Five, &packet(first, body));
    }
    for filter in ["#", "+", "/", "a//b", "+/+/#", "$share/g/+/a", "$SYS/#"] {
        let body = [&b"\0\x01"[..], &(filter.len() as u16).to_be_bytes(), filter.as_bytes(), &[1]].concat();
        read(Four, &packet(0x82, &body));
    }
    let connects = |bytes: &[u8]| match frame(bytes, 1 << 20, None) {
        Ok(Arrived::Whole(frame)) => frame.connect().is_ok(),
        _ => false,
    };
    assert!(connects(&connect(5, 0, b"\0\0\0")), "a session that is kept, with an id that is assigned");
    assert!(connects(&connect(5, 0x42, b"\0\0\x01a\0\x01p")), "a password alone, at MQTT 5");
    assert!(connects(&connect(0x84, 2, b"\0\x01a")), "a bridge");
}

#[test]
fn no_client_gets_bytes_of_another_version() {
    let written = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        out
    };
    let ack =
        |version| written(&|out| encode::acknowledgement(out, version, encode::AckKind::PubAck, 7, 0x87));
    assert_eq!(ack(Version::Four), [0x40, 2, 0, 7]);
    assert_eq!(ack(Version::Five), [0x40, 3, 0, 7, 0x87]);
    let suback = |version| written(&|out| encode::subscribed(out, version, 7, &[1, 0x87]));
    assert_eq!(suback(Version::Four), [0x90, 4, 0, 7, 1, 0x80]);
    assert_eq!(suback(Version::Five), [0x90, 5, 0, 7, 0, 1, 0x87]);
    assert!(written(&|out| encode::ended(out, Version::Four, 0x8e)).is_empty());
    assert_eq!(written(&|out| encode::connected(out, Version::Four, true, &[1])), [0x20, 2, 1, 0]);
    for (code, four) in [(UNSUPPORTED_VERSION, 1), (BAD_CLIENT_ID, 2), (0x89, 3), (0x86, 4), (0x87, 5)] {
        assert_eq!(written(&|out| encode::refused(out, Version::Four, code)), [0x20, 2, 0, four]);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic_and_cut_ones_wait(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for version in [Version::Four, Version::Five] {
            refusal(version, &bytes);
            for first in [0x10_u8, 0x32, 0x3d, 0x62, 0x82, 0xa2, 0xe0, 0xf0] {
                let whole = packet(first, &bytes[..bytes.len().min(100)]);
                refusal(version, &whole);
                let cut = &whole[..whole.len() - 1];
                prop_assert!(bytes.is_empty() || matches!(frame(cut, 1 << 20, Some(version)), Ok(Arrived::Part(_))));
            }
        }
    }

    #[test]
    fn a_message_is_read_as_it_was_written(
        topic in "[a-z/]{1,20}", payload in prop::collection::vec(any::<u8>(), 0..300), qos in 0_u8..3,
        retain in any::<bool>(), expiry in prop::option::of(any::<u32>()), is_five in any::<bool>(),
    ) {
        let version = if is_five { Version::Five } else { Version::Four };
        let listed = Properties { expiry, raw: b"\x26\0\x01k\0\x01v", ..Properties::default() };
        let id = u16::from(qos > 0) * 9;
        let message = Publish { dup: false, qos, retain, topic: &topic, id, payload: &payload, listed };
        let mut out = Vec::new();
        prop_assert!(encode::publish(&mut out, version, &message, &[], 1 << 20));
        out.extend(&payload);
        prop_assert!(!encode::publish(&mut Vec::new(), version, &message, &[], out.len() - 1));
        let Ok(Arrived::Whole(frame)) = frame(&out, out.len(), Some(version)) else { panic!("{out:x?}") };
        let Ok(Packet::Publish(read)) = frame.read(version) else { panic!("{out:x?}") };
        prop_assert_eq!((read.topic, read.payload, read.qos), (message.topic, message.payload, qos));
        prop_assert_eq!((read.retain, read.id, frame.length), (retain, message.id, out.len()));
        prop_assert_eq!(read.listed.expiry, expiry.filter(|_| is_five));
        prop_assert_eq!(read.listed.raw.starts_with(listed.raw), is_five);
    }
}
