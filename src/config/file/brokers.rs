//! The brokers of a fleet: one `[mqtt]`, or several `[[mqtt]]`.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Mqtt;

#[derive(Clone, Serialize)]
#[serde(untagged)]
#[allow(missing_docs, reason = "options are explained in config/reference.toml, their one home")]
pub enum Brokers {
    One(Box<Mqtt>),
    Several(Vec<Mqtt>),
}

impl Default for Brokers {
    fn default() -> Brokers {
        Brokers::One(Box::default())
    }
}

impl Brokers {
    /// Every broker, with the path of its options.
    pub fn all(&self) -> Vec<(String, &Mqtt)> {
        match self {
            Brokers::One(mqtt) => vec![("mqtt".to_owned(), mqtt)],
            Brokers::Several(all) => {
                all.iter().enumerate().map(|(at, mqtt)| (format!("mqtt[{at}]"), mqtt)).collect()
            }
        }
    }

    /// The broker of a fleet that has one.
    pub fn one(&self) -> Option<&Mqtt> {
        match self {
            Brokers::One(mqtt) => Some(mqtt),
            Brokers::Several(_) => None,
        }
    }

    /// Every broker, to be changed.
    pub fn each(&mut self) -> &mut [Mqtt] {
        match self {
            Brokers::One(mqtt) => std::slice::from_mut(mqtt),
            Brokers::Several(all) => all,
        }
    }
}

impl<'de> Deserialize<'de> for Brokers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Brokers, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Brokers;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table [mqtt], or several tables [[mqtt]]")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Brokers, A::Error> {
                Mqtt::deserialize(MapAccessDeserializer::new(map)).map(|mqtt| Brokers::One(Box::new(mqtt)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Brokers, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Brokers::Several)
            }
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}
