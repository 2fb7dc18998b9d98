//! What is wrong with the first byte of a packet, and with a SUBSCRIBE or UNSUBSCRIBE, where the library accepts it.

use super::{
    AUTH, BAD_FILTER, CONNECT, DISCONNECT, MALFORMED, PINGREQ, PROTOCOL_ERROR, PUBACK, PUBCOMP, PUBLISH,
    PUBREC, PUBREL, SUBSCRIBE, UNSUBSCRIBE, Violation,
};

/// The property that names a subscription.
const SUBSCRIPTION_ID: u8 = 0x0b;
/// The property of a name and a value of the client's own.
const USER_PROPERTY: u8 = 0x26;

/// Checks the first byte of a packet of a device that has connected.
pub(super) fn check_flags(first: u8) -> Result<(), Violation> {
    let flags = first & 0xf;
    let (is_fine, why) = match first >> 4 {
        PUBLISH if flags >> 1 & 3 == 3 => (false, "a message at QoS 3"),
        PUBLISH => (flags & 0b1110 != 0b1000, "a message at QoS 0 that is marked as sent again"),
        PUBREL | SUBSCRIBE | UNSUBSCRIBE => (flags == 2, "flags that the packet may not have"),
        PUBACK | PUBREC | PUBCOMP | PINGREQ | DISCONNECT | AUTH => {
            (flags == 0, "flags that the packet may not have")
        }
        CONNECT => return Err(Violation::Malformed(PROTOCOL_ERROR, "a second CONNECT")),
        _ => return Err(Violation::Malformed(PROTOCOL_ERROR, "a packet that only a broker sends")),
    };
    if is_fine { Ok(()) } else { Err(Violation::Malformed(MALFORMED, why)) }
}

/// Checks the body of SUBSCRIBE, or of UNSUBSCRIBE, of MQTT 3.1.1 or 5.
pub(super) fn check_filters(body: &[u8], is_5: bool, is_subscribe: bool) -> Result<(), Violation> {
    let Some((id, mut rest)) = body.split_first_chunk::<2>() else { return Err(cut()) };
    if u16::from_be_bytes(*id) == 0 {
        return Err(Violation::Malformed(PROTOCOL_ERROR, "a packet id of 0"));
    }
    if is_5 {
        let length = number(&mut rest)? as usize;
        let (properties, filters) = rest.split_at_checked(length).ok_or(cut())?;
        check_properties(properties, is_subscribe)?;
        rest = filters;
    }
    if rest.is_empty() {
        return Err(Violation::Malformed(PROTOCOL_ERROR, "no topic filter"));
    }
    while !rest.is_empty() {
        let filter = std::str::from_utf8(text(&mut rest)?);
        let filter =
            filter.map_err(|_| Violation::Malformed(MALFORMED, "a topic filter that is not UTF-8"))?;
        check_filter(filter)?;
        if is_subscribe {
            let (options, more) = rest.split_first().ok_or(cut())?;
            check_options(*options, is_5, filter.starts_with("$share/"))?;
            rest = more;
        }
    }
    Ok(())
}

fn check_properties(mut rest: &[u8], is_subscribe: bool) -> Result<(), Violation> {
    let mut has_id = false;
    while let Some((property, more)) = rest.split_first() {
        rest = more;
        match *property {
            SUBSCRIPTION_ID if is_subscribe && !has_id => {
                has_id = true;
                if number(&mut rest)? == 0 {
                    return Err(Violation::Malformed(PROTOCOL_ERROR, "a subscription identifier of 0"));
                }
            }
            USER_PROPERTY => {
                text(&mut rest)?;
                text(&mut rest)?;
            }
            _ => return Err(Violation::Malformed(PROTOCOL_ERROR, "a property that the packet may not have")),
        }
    }
    Ok(())
}

fn check_filter(filter: &str) -> Result<(), Violation> {
    let bad = |why| Err(Violation::Malformed(BAD_FILTER, why));
    if filter.contains('\0') {
        return Err(Violation::Malformed(MALFORMED, "a topic filter with a zero byte"));
    }
    let shared = filter == "$share" || filter.starts_with("$share/");
    let filter = match filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/')) {
        Some((name, _)) if name.is_empty() || name.contains(['+', '#']) => {
            return bad("a shared subscription without a name, or with + or # in it");
        }
        Some((_, filter)) => filter,
        None if shared => return bad("a shared subscription without a filter"),
        None => filter,
    };
    if filter.is_empty() {
        return bad("an empty topic filter");
    }
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let is_fine = match level {
            "+" => true,
            "#" => levels.peek().is_none(),
            level => !level.contains(['+', '#']),
        };
        if !is_fine {
            return bad("a topic filter in which + or # is no level of its own, or # is not the last one");
        }
    }
    Ok(())
}

fn check_options(options: u8, is_5: bool, is_shared: bool) -> Result<(), Violation> {
    if options & 3 == 3 || options & if is_5 { 0xc0 } else { 0xfc } != 0 {
        return Err(Violation::Malformed(MALFORMED, "options that a subscription may not have"));
    }
    if options >> 4 & 3 == 3 {
        return Err(Violation::Malformed(PROTOCOL_ERROR, "a retain handling of 3"));
    }
    if is_shared && options & 4 != 0 {
        return Err(Violation::Malformed(PROTOCOL_ERROR, "a shared subscription without local messages"));
    }
    Ok(())
}

/// The number of one to four bytes that the rest begins with.
fn number(rest: &mut &[u8]) -> Result<u32, Violation> {
    let mut number = 0;
    for place in 0..4 {
        let (byte, more) = rest.split_first().ok_or(cut())?;
        *rest = more;
        number |= u32::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(cut())
}

/// The text that the rest begins with.
fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Violation> {
    let (length, more) = rest.split_first_chunk::<2>().ok_or(cut())?;
    let (text, more) = more.split_at_checked(u16::from_be_bytes(*length).into()).ok_or(cut())?;
    *rest = more;
    Ok(text)
}

fn cut() -> Violation {
    Violation::Malformed(MALFORMED, "a SUBSCRIBE or UNSUBSCRIBE that ends too early")
}
