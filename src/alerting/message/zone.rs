//! Times and spans as operators read them: in the zone of their receiver.

use std::time::Duration;

use jiff::tz::TimeZone;

use crate::clock::Timestamp;

/// The form of a time in a zone other than UTC.
const FORM: &str = "%Y-%m-%d %H:%M:%S %Z";
/// Within this time a clock time says which day is meant.
const NEAR: Duration = Duration::from_secs(12 * 3600);

/// A zone of time, by default UTC.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone(TimeZone);

impl Default for Zone {
    fn default() -> Zone {
        Zone(TimeZone::UTC)
    }
}

impl Zone {
    /// The zone of that name, such as `Europe/Berlin`.
    pub fn parse(name: &str) -> Result<Zone, String> {
        if name == "UTC" {
            return Ok(Zone::default());
        }
        let zone = TimeZone::get(name);
        zone.map(Zone).map_err(|_| {
            format!("there is no zone {name:?}; write \"UTC\" or a name such as \"Europe/Berlin\"")
        })
    }

    /// A time for a message: RFC 3339 in UTC, and else with the abbreviation of the zone.
    pub fn show(&self, at: Timestamp) -> String {
        if self.0 == TimeZone::UTC {
            return at.to_string();
        }
        self.format(at, FORM).unwrap_or_else(|_| at.to_string())
    }

    /// A time near another one: without its day, if it is less than twelve hours earlier.
    pub fn show_near(&self, at: Timestamp, now: Timestamp) -> String {
        if at > now || now.since(at) >= NEAR {
            return self.show(at);
        }
        self.format(at, "%H:%M %Z").unwrap_or_else(|_| self.show(at))
    }

    /// A time in a form of `strftime`.
    pub fn format(&self, at: Timestamp, form: &str) -> Result<String, String> {
        let moment = jiff::Timestamp::from_millisecond(at.as_millis()).unwrap_or(jiff::Timestamp::MAX);
        let zoned = moment.to_zoned(self.0.clone());
        jiff::fmt::strtime::format(form, &zoned).map_err(|error| {
            format!("{form:?} is not a form of a time ({error}); write for example \"%H:%M\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_in_its_zone_with_summer_time() {
        let winter = Timestamp::from_millis(1_768_471_200_000);
        let summer = Timestamp::from_millis(1_784_109_600_123);
        assert_eq!(Zone::default().show(winter), "2026-01-15T10:00:00.000Z");
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        assert_eq!(berlin.show(winter), "2026-01-15 11:00:00 CET");
        assert_eq!(berlin.show(summer), "2026-07-15 12:00:00 CEST");
        assert_eq!(berlin.format(summer, "%H:%M").unwrap(), "12:00");
        assert!(berlin.show(Timestamp::NEVER).starts_with("9999-12-30"));
    }

    #[test]
    fn a_zone_or_a_form_that_does_not_exist_is_an_error_with_advice() {
        assert!(Zone::parse("Europe/Atlantis").unwrap_err().contains("; write "));
        assert_eq!(Zone::parse("UTC").unwrap(), Zone::default());
        assert!(Zone::default().format(Timestamp::ZERO, "%!").unwrap_err().contains("; write "));
    }
}
