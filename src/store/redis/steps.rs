//! Steps that are written in order, each only if the fields and scores from which it was decided are unchanged:
//! `write_steps.lua`.

use std::collections::HashMap;

use redis::Script;

use super::RedisEngine;
use super::topology::ScriptCall;
use crate::store::Result;

/// The keys of a script, which its arguments name by their numbers.
#[derive(Default)]
pub(super) struct NumberedKeys {
    numbers: HashMap<String, usize>,
    keys: Vec<String>,
}

impl NumberedKeys {
    /// The number of a key, from 1 on.
    pub fn number(&mut self, key: &str) -> usize {
        match self.numbers.get(key) {
            Some(number) => *number,
            None => {
                self.keys.push(key.to_owned());
                self.numbers.insert(key.to_owned(), self.keys.len());
                self.keys.len()
            }
        }
    }

    pub fn add_to(&self, call: &mut ScriptCall<'_>) {
        for key in &self.keys {
            call.key(key);
        }
    }
}

/// Steps on keys of one slot.
#[derive(Default)]
pub(super) struct KeySteps {
    keys: NumberedKeys,
    words: Vec<Vec<u8>>,
    current: KeyStep,
}

#[derive(Default)]
struct KeyStep {
    conditions: StepPart,
    writes: StepPart,
}

#[derive(Default)]
struct StepPart {
    count: usize,
    words: Vec<Vec<u8>>,
}

impl KeySteps {
    /// Ends the current step, and begins the next one.
    pub fn begin(&mut self) -> &mut KeySteps {
        let KeyStep { conditions, writes } = std::mem::take(&mut self.current);
        if writes.count > 0 {
            for part in [conditions, writes] {
                self.words.push(part.count.to_string().into_bytes());
                self.words.extend(part.words);
            }
        }
        self
    }

    /// Expects a field of a hash to have this text; `None`: to be absent.
    pub fn expect_field(&mut self, key: &str, field: &[u8], text: Option<&[u8]>) -> &mut KeySteps {
        let what = if text.is_some() { "field" } else { "absent" };
        self.expect(what, key, field, text.unwrap_or_default())
    }

    /// Expects a member of a sorted set to have this score.
    pub fn expect_score(&mut self, key: &str, member: &[u8], score: f64) -> &mut KeySteps {
        self.expect("score", key, member, score.to_string().as_bytes())
    }

    fn expect(&mut self, what: &str, key: &str, name: &[u8], text: &[u8]) -> &mut KeySteps {
        let key = self.keys.number(key).to_string();
        self.current.conditions.push([what.as_bytes(), key.as_bytes(), name, text]);
        self
    }

    /// Adds a write by one of the commands that the script knows.
    pub fn write(&mut self, command: &str, key: &str, arguments: &[&[u8]]) -> &mut KeySteps {
        let [key, count] = [self.keys.number(key), arguments.len()].map(|number| number.to_string());
        let words = [command.as_bytes(), key.as_bytes(), count.as_bytes()]
            .into_iter()
            .chain(arguments.iter().copied());
        self.current.writes.push(words);
        self
    }

    /// The call that writes the steps. Its answer says of each step whether it was written.
    pub fn call<'a>(&mut self, script: &'a Script) -> ScriptCall<'a> {
        self.begin();
        let mut call = ScriptCall::of(script);
        self.keys.add_to(&mut call);
        for word in &self.words {
            call.arg(word.as_slice());
        }
        call
    }
}

impl RedisEngine {
    /// Writes the steps. Answers, in order, which were written.
    pub(super) async fn write_steps(&self, name: &'static str, mut steps: KeySteps) -> Result<Vec<bool>> {
        let script = steps.call(&self.scripts.write_steps);
        if steps.words.is_empty() { Ok(Vec::new()) } else { self.topology.run(name, script).await }
    }
}

impl StepPart {
    fn push<'a>(&mut self, words: impl IntoIterator<Item = &'a [u8]>) {
        self.count += 1;
        self.words.extend(words.into_iter().map(<[u8]>::to_vec));
    }
}
