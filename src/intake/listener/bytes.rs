//! The bytes of a packet, read part by part, and their violations of the protocol.

/// Reason codes of MQTT 5.
pub const MALFORMED: u8 = 0x81;
pub const PROTOCOL: u8 = 0x82;
pub const UNSUPPORTED_VERSION: u8 = 0x84;
pub const BAD_CLIENT_ID: u8 = 0x85;
pub const BAD_LOGIN: u8 = 0x86;
pub const NOT_AUTHORIZED: u8 = 0x87;
pub const BUSY: u8 = 0x89;
pub const STOPPING: u8 = 0x8b;
pub const BAD_AUTHENTICATION: u8 = 0x8c;
pub const KEEP_ALIVE: u8 = 0x8d;
pub const TAKEN_OVER: u8 = 0x8e;
pub const BAD_FILTER: u8 = 0x8f;
pub const BAD_TOPIC: u8 = 0x90;
pub const UNKNOWN_ID: u8 = 0x92;
pub const RECEIVE_MAXIMUM_EXCEEDED: u8 = 0x93;
pub const BAD_ALIAS: u8 = 0x94;
pub const TOO_LARGE: u8 = 0x95;
pub const QUOTA: u8 = 0x97;

/// A violation of the protocol by a client, with the reason code for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    pub code: u8,
    pub why: &'static str,
}

pub fn violation<T>(code: u8, why: &'static str) -> Result<T, Violation> {
    Err(Violation { code, why })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// MQTT 3.1.1.
    #[default]
    Four,
    Five,
}

/// The unread rest of a packet.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Violation> {
        let Some((taken, rest)) = self.0.split_at_checked(count) else {
            return violation(MALFORMED, "a packet that ends too early");
        };
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, Violation> {
        Ok(self.take(1)?[0])
    }

    pub fn two(&mut self) -> Result<u16, Violation> {
        Ok(u16::from_be_bytes(self.take(2)?.try_into().unwrap_or_default()))
    }

    pub fn four(&mut self) -> Result<u32, Violation> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into().unwrap_or_default()))
    }

    /// A number of one to four bytes.
    pub fn variable(&mut self, is_shortest: bool) -> Result<u32, Violation> {
        let mut number = 0;
        for place in 0..4 {
            let byte = self.byte()?;
            number |= u32::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                let is_long = is_shortest && byte == 0 && place > 0;
                return if is_long {
                    violation(MALFORMED, "a number that is longer than it need be")
                } else {
                    Ok(number)
                };
            }
        }
        violation(MALFORMED, "a number of more than four bytes")
    }

    pub fn binary(&mut self) -> Result<&'a [u8], Violation> {
        let length = self.two()?;
        self.take(length.into())
    }

    pub fn text(&mut self) -> Result<&'a str, Violation> {
        match std::str::from_utf8(self.binary()?) {
            Ok(text) if !text.contains('\0') => Ok(text),
            _ => violation(MALFORMED, "a text that is not UTF-8, or has a zero in it"),
        }
    }

    pub fn id(&mut self) -> Result<u16, Violation> {
        match self.two()? {
            0 => violation(PROTOCOL, "a packet id of 0"),
            id => Ok(id),
        }
    }

    pub fn end(&self) -> Result<(), Violation> {
        if self.0.is_empty() {
            Ok(())
        } else {
            violation(MALFORMED, "a packet with more bytes than it has parts")
        }
    }
}
