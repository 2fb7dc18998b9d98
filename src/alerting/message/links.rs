//! Links from a message to the pages of Rollcall.

use url::Url;

use crate::pages;
use crate::presence::OfflineRecord;
use crate::store::Delivery;

/// The address by which operators reach Rollcall, `http.external_url`. Without it there are no links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Without a slash at its end.
    base: Option<String>,
}

impl Links {
    pub fn new(external_url: &Url) -> Links {
        Links { base: Some(external_url.as_str().trim_end_matches('/').to_owned()) }
    }

    /// The URL of the home page; `None` without a base.
    pub fn home_page(&self) -> Option<String> {
        self.page("/")
    }

    /// The page of a record's unit.
    pub fn unit(&self, record: &OfflineRecord) -> Option<String> {
        self.page(&pages::unit_of(record))
    }

    fn page(&self, path: &str) -> Option<String> {
        self.base.as_ref().map(|base| format!("{base}{path}"))
    }

    /// The page for a whole message: of its unit if it has one, of the open records if one of several is offline, of
    /// all records if they are back, else the home page.
    pub fn message(&self, delivery: &Delivery) -> Option<String> {
        let mut records = delivery.offline.iter().chain(&delivery.online);
        match (records.next(), records.next()) {
            (Some(record), None) => self.unit(record),
            (Some(_), Some(_)) if delivery.offline.is_empty() => self.page(pages::RECORDS),
            (Some(_), Some(_)) => self.page(pages::INCIDENTS),
            (None, _) => self.home_page(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn a_link_leads_to_the_unit_whatever_its_name_holds() {
        let zero = Timestamp::ZERO;
        let record = |unit: &str| OfflineRecord::open(unit.parse().unwrap(), zero, zero, zero);
        let links = Links::new(&"https://rollcall.example.org/fleet/".parse().unwrap());
        let expected = "https://rollcall.example.org/fleet/units/gate/a%20%3C7%3E";
        assert_eq!(links.unit(&record("gate:a <7>")).as_deref(), Some(expected));
        assert_eq!(Links::default().unit(&record("gate:a")), None);
    }
}
