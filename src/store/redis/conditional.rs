//! Writes that happen only if hashes are unchanged since they were read: `write_if_unchanged.lua`.
//!
//! # Why the last read values are kept
//! A rule decides from stored values, so a change reads before it writes. That takes two round trips. The last read
//! values are mostly still true, so the first attempt uses them; if a hash has changed, the answer has its new
//! contents.
//!
//! Several changes may be under way to a server far away. They run in the order in which they are sent, so each is
//! decided from the contents that the previous change leaves, before the answer to that change arrives.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline, Value};

use super::RedisEngine;
use super::topology::{ScriptCall, ServerView};
use crate::store::{EngineError, MAX_CHANGES, Result};

/// The fields of a hash.
pub(super) type HashFields = BTreeMap<Vec<u8>, Vec<u8>>;

/// The keys of a script, which its arguments name by their numbers.
#[derive(Default)]
struct NumberedKeys {
    numbers: HashMap<String, usize>,
    keys: Vec<String>,
}

impl NumberedKeys {
    /// The number of a key, from 1 on.
    fn number(&mut self, key: &str) -> usize {
        match self.numbers.get(key) {
            Some(number) => *number,
            None => {
                self.keys.push(key.to_owned());
                self.numbers.insert(key.to_owned(), self.keys.len());
                self.keys.len()
            }
        }
    }

    fn add_to(&self, call: &mut ScriptCall<'_>) {
        for key in &self.keys {
            call.key(key);
        }
    }
}

/// Hashes as they were read or written last, by key.
#[derive(Default)]
pub(super) struct LastRead(Mutex<HashMap<String, HashFields>>);

/// The expectation of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    /// The field is unchanged.
    Same,
    /// The field is unchanged, or begins with a later moment.
    SameOrLater,
}

/// The hashes that were read, the values that they must still have, and the writes.
pub(super) struct ConditionalWrite<'a> {
    read: &'a [(String, Option<HashFields>)],
    keys: NumberedKeys,
    conditions: Vec<Vec<u8>>,
    writes: Vec<Vec<u8>>,
    after: HashMap<String, HashFields>,
}

impl<'a> ConditionalWrite<'a> {
    fn new(read: &'a [(String, Option<HashFields>)]) -> ConditionalWrite<'a> {
        let known = read.iter().filter_map(|(key, fields)| Some((key.clone(), fields.clone()?)));
        let mut keys = NumberedKeys::default();
        for (key, _) in read {
            keys.number(key);
        }
        ConditionalWrite {
            read,
            keys,
            conditions: vec![read.len().to_string().into_bytes()],
            writes: Vec::new(),
            after: known.collect(),
        }
    }

    /// Expects the next of the hashes to have these fields and no others.
    pub fn expect_all(&mut self, fields: &HashFields, expect: impl Fn(&[u8]) -> Expect) {
        self.condition(
            "all",
            fields.iter().map(|(field, text)| (expect(field), field.as_slice(), Some(text))),
        );
    }

    /// Expects these fields of the next of the hashes to be as they were read, or still absent.
    pub fn expect_some<'b>(&mut self, fields: &HashFields, some: impl Iterator<Item = (&'b [u8], Expect)>) {
        let some: Vec<_> = some.map(|(field, expect)| (expect, field, fields.get(field))).collect();
        self.condition("some", some.into_iter());
    }

    fn expect_nothing_known(&mut self) {
        for _ in self.read {
            self.condition("none", std::iter::empty());
        }
    }

    fn condition<'b>(
        &mut self,
        scope: &str,
        fields: impl ExactSizeIterator<Item = (Expect, &'b [u8], Option<&'b Vec<u8>>)>,
    ) {
        self.conditions.extend([scope.into(), fields.len().to_string().into_bytes()]);
        for (expect, field, text) in fields {
            let how = match (text, expect) {
                (None, _) => "-",
                (Some(_), Expect::Same) => "=",
                (Some(_), Expect::SameOrLater) => ">",
            };
            self.conditions.extend([how.into(), field.to_vec(), text.cloned().unwrap_or_default()]);
        }
    }

    pub fn set(&mut self, key: &str, field: &[u8], text: &[u8]) {
        self.write("HSET", key, &[field, text]);
        self.note(key, field, Some(text));
    }

    /// Sets a field to a text that begins with a moment, unless the field begins with a later moment.
    pub fn raise(&mut self, key: &str, field: &[u8], text: &[u8]) {
        self.write("RAISE", key, &[field, text]);
        self.note(key, field, Some(text));
    }

    pub fn remove(&mut self, key: &str, field: &[u8]) {
        self.write("HDEL", key, &[field]);
        self.note(key, field, None);
    }

    /// Adds any command that the script knows.
    pub fn write(&mut self, command: &str, key: &str, words: &[&[u8]]) {
        let numbers = [self.keys.number(key), words.len()].map(|number| number.to_string().into_bytes());
        self.writes.push(command.into());
        self.writes.extend(numbers.into_iter().chain(words.iter().map(|word| word.to_vec())));
    }

    fn note(&mut self, key: &str, field: &[u8], text: Option<&[u8]>) {
        let Some(fields) = self.after.get_mut(key) else { return };
        match text {
            Some(text) => fields.insert(field.to_vec(), text.to_vec()),
            None => fields.remove(field),
        };
    }

    fn fill(&self, script: &mut ScriptCall<'_>) {
        self.keys.add_to(script);
        for word in self.conditions.iter().chain(&self.writes) {
            script.arg(word.as_slice());
        }
    }
}

/// The contents of the hashes, in order.
pub(super) type Read<'a> = [&'a HashFields];

impl RedisEngine {
    /// Reads hashes, lets `decide` add writes, and applies the writes in one step if the hashes are unchanged; if
    /// not, it starts again. The second argument of `decide` says whether other instances may change the hashes at
    /// the same time. The commands in `behind` run after that in the same round trip. `name` is for metrics and
    /// errors.
    pub(super) async fn write_if_unchanged<T, U: FromRedisValue>(
        &self,
        name: &'static str,
        keys: &[String],
        behind: &Pipeline,
        decide: impl Fn(&Read<'_>, bool, &mut ConditionalWrite<'_>) -> T,
    ) -> Result<(T, U)> {
        self.write_under(None, name, keys, behind, decide).await
    }

    /// Works as [`RedisEngine::write_if_unchanged`], by the servers of a view only, if there is a view: see
    /// [`Topology::run_under`].
    ///
    /// [`Topology::run_under`]: super::topology::Topology::run_under
    pub(super) async fn write_under<T, U: FromRedisValue>(
        &self,
        view: Option<&Arc<ServerView>>,
        name: &'static str,
        keys: &[String],
        behind: &Pipeline,
        decide: impl Fn(&Read<'_>, bool, &mut ConditionalWrite<'_>) -> T,
    ) -> Result<(T, U)> {
        let mut read = self.last_read.of(keys);
        for attempt in 0..MAX_CHANGES {
            let mut write = ConditionalWrite::new(&read);
            let known: Option<Vec<&HashFields>> = read.iter().map(|(_, fields)| fields.as_ref()).collect();
            let is_contended = attempt > 0 || self.topology.is_far();
            let decided = known.map(|known| decide(&known, is_contended, &mut write));
            if decided.is_none() {
                write.expect_nothing_known();
            }
            let mut script = ScriptCall::of(&self.scripts.write_if_unchanged);
            write.fill(&mut script);
            self.last_read.put(write.after);
            let sent = self.topology.run_and_send(view, name, script, behind).await;
            let (answer, others): (Value, U) = sent.inspect_err(|_| self.last_read.forget(keys))?;
            if let (Value::Okay, Some(decided)) = (&answer, decided) {
                return Ok((decided, others));
            }
            let current: Vec<HashFields> = redis::from_redis_value(answer)
                .map_err(|error| EngineError::Damaged(format!("{name}: {error}")))?;
            self.last_read.put(keys.iter().cloned().zip(current.clone()).collect());
            read = keys.iter().cloned().zip(current.into_iter().map(Some)).collect();
        }
        Err(EngineError::contended(format_args!("{name}: what is stored of hearing")))
    }
}

impl LastRead {
    fn of(&self, keys: &[String]) -> Vec<(String, Option<HashFields>)> {
        let known = self.0.lock();
        keys.iter().map(|key| (key.clone(), known.get(key).cloned())).collect()
    }

    fn forget(&self, keys: &[String]) {
        let mut known = self.0.lock();
        keys.iter().for_each(|key| drop(known.remove(key)));
    }

    fn put(&self, hashes: HashMap<String, HashFields>) {
        self.0.lock().extend(hashes);
    }
}
