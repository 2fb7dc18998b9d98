//! The names of brokers, and the one of HTTP, which stands where a broker does: it is a way by which units are heard.

use std::str::FromStr;
use std::sync::Arc;

use super::NameError;
use super::name::{is_class_name, text_names};

/// The name of one of several brokers, `[a-z0-9_-]{1,32}`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerName(Arc<str>);

/// No broker may have this name: a unit with it was last heard over HTTP.
const HTTP: &str = "http";

/// The requests over HTTP among the proofs of hearing of a kind: the instances share them as the members of a share its
/// messages. No topic filter has this name.
pub const HTTP_PROOF: &str = "http/$share/requests";

impl BrokerName {
    /// The name that stands for HTTP.
    pub fn http() -> BrokerName {
        BrokerName(HTTP.into())
    }

    pub fn is_http(&self) -> bool {
        &*self.0 == HTTP
    }

    /// Whether a broker may have this name.
    pub fn is_name(text: &str) -> bool {
        is_class_name(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a filter among the proofs of hearing is one of this broker: it begins with the name. HTTP has one proof and
    /// no filter; the only broker of a fleet has no name, and its filters may begin with any word.
    pub fn has_filter(&self, proof: &str) -> bool {
        match self.is_http() {
            true => proof == HTTP_PROOF,
            false => proof.strip_prefix(&*self.0).is_some_and(|rest| rest.starts_with('/')),
        }
    }
}

impl FromStr for BrokerName {
    type Err = NameError;
    fn from_str(name: &str) -> Result<BrokerName, NameError> {
        if BrokerName::is_name(name) { Ok(BrokerName(name.into())) } else { Err(NameError::Broker) }
    }
}

text_names!(BrokerName);
