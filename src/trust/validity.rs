//! The validity of a certificate: its two times, read from DER.
//!
//! # Why by hand
//! The TLS library checks whether a certificate is valid at a moment, but does not return its end. The times are the
//! fifth part of the certificate, and no other part is needed (RFC 5280, section 4.1).

use crate::clock::{Timestamp, parse_moment};

const SEQUENCE: u8 = 0x30;
/// The tag of the version, which certificates of version 1 leave out.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Validity {
    /// Reads the validity; `None` if the bytes are not a certificate.
    pub fn of(certificate: &[u8]) -> Option<Validity> {
        let mut certificate = Der(Der(certificate).take(SEQUENCE)?);
        let mut to_be_signed = Der(certificate.take(SEQUENCE)?);
        if to_be_signed.next_tag() == Some(VERSION) {
            to_be_signed.any()?;
        }
        // Skips the serial number, the algorithm and the issuer.
        for _ in 0..3 {
            to_be_signed.any()?;
        }
        let mut validity = Der(to_be_signed.take(SEQUENCE)?);
        Some(Validity { from: moment(validity.any()?)?, until: moment(validity.any()?)? })
    }
}

/// A moment, as `YYMMDDhhmmssZ` until 2049 and as `YYYYMMDDhhmmssZ` from then on.
fn moment((tag, text): (u8, &[u8])) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.is_ascii())?;
    let text = match tag {
        UTC_TIME if text.len() == 13 => {
            let century = if text.get(..2)?.parse::<u8>().ok()? < 50 { "20" } else { "19" };
            format!("{century}{text}")
        }
        GENERALIZED_TIME if text.len() == 15 => text.to_owned(),
        _ => return None,
    };
    let part = |from: usize, length: usize| text.get(from..from + length);
    let (date, time) = ([part(0, 4)?, part(4, 2)?, part(6, 2)?], [part(8, 2)?, part(10, 2)?, part(12, 2)?]);
    parse_moment(&format!("{}T{}Z", date.join("-"), time.join(":")))
}

/// Values in DER, one after the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn next_tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The content of the next value, which must have the tag `wanted`.
    fn take(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.any().filter(|(tag, _)| *tag == wanted).map(|(_, content)| content)
    }

    /// The tag and the content of the next value.
    fn any(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (first, mut rest) = rest.split_first()?;
        let mut length = usize::from(*first);
        if length > 0x7f {
            // The number of bytes that hold the length; a certificate needs no more than three.
            let bytes = rest.get(..length & 0x7f).filter(|bytes| (1..=3).contains(&bytes.len()))?;
            rest = &rest[bytes.len()..];
            length = bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        }
        let content = rest.get(..length)?;
        self.0 = &rest[length..];
        Some((*tag, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_certificate_are_read() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["rollcall.example.org".to_owned()]).unwrap();
        for (from, until) in [((2026, 1, 2), (2049, 12, 31)), ((1999, 3, 4), (2050, 1, 1))] {
            let date = |(year, month, day): (i32, u8, u8)| rcgen::date_time_ymd(year, month, day);
            (params.not_before, params.not_after) = (date(from), date(until));
            let certificate = params.self_signed(&key).unwrap();
            let at = |(year, month, day): (i32, u8, u8)| {
                parse_moment(&format!("{year}-{month:02}-{day:02}T00:00:00Z")).unwrap()
            };
            let wanted = Validity { from: at(from), until: at(until) };
            assert_eq!(Validity::of(certificate.der()), Some(wanted));
            // A certificate that is cut off anywhere is not a certificate.
            for end in 0..100 {
                assert_eq!(Validity::of(&certificate.der()[..end]), None, "{end}");
            }
        }
        assert_eq!(Validity::of(b"-----BEGIN CERTIFICATE-----"), None);
    }
}
