//! A sentence for an operator, with the moments in it. Programs get exact moments; a page shows each as a time that it
//! keeps current, so that the sentence does not grow old beside a countdown.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::clock::{Timestamp, shown_span};

/// A part of a sentence. The word before a moment belongs to it, because it is another one before a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Text(String),
    At(Timestamp),
    /// A moment that has passed, and how long ago.
    Ago(Timestamp, Duration),
    Before(Timestamp),
    Since(Timestamp),
    Until(Timestamp),
    /// A moment to come, and how far away it is.
    In(Timestamp, Duration),
    /// The end of a span, and how long it still lasts.
    For(Timestamp, Duration),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said(Vec<Part>);

impl Said {
    pub fn parts(&self) -> &[Part] {
        &self.0
    }

    #[must_use]
    pub fn then(mut self, next: impl Into<Said>) -> Said {
        self.0.extend(next.into().0);
        self
    }

    /// These sentences with the text between them.
    pub fn joined(all: impl IntoIterator<Item = Said>, between: &str) -> Said {
        let mut all = all.into_iter();
        let first = all.next().unwrap_or_default();
        all.fold(first, |said, next| said.then(between).then(next))
    }
}

impl From<Part> for Said {
    fn from(part: Part) -> Said {
        Said(vec![part])
    }
}

impl From<&str> for Said {
    fn from(text: &str) -> Said {
        Said::from(text.to_owned())
    }
}

impl From<String> for Said {
    fn from(text: String) -> Said {
        Part::Text(text).into()
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(text),
            Part::At(moment) => write!(f, "at {moment}"),
            Part::Ago(_, span) => write!(f, "{} ago", shown_span(*span)),
            Part::Before(moment) => write!(f, "before {moment}"),
            Part::Since(moment) => write!(f, "since {moment}"),
            Part::Until(moment) => write!(f, "until {moment}"),
            Part::In(_, span) => write!(f, "in {}", shown_span(*span)),
            Part::For(_, span) => write!(f, "for another {}", shown_span(*span)),
        })
    }
}

impl Serialize for Said {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}
