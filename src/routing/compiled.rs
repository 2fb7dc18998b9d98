//! Compiled expressions: equal texts share one, and all of the process share a budget of bytes.
//!
//! # Why a budget
//! A short text can compile to much: `\pL{8}` takes fifty thousand times its length. Every instance compiles the
//! expressions of all alert silences, so without a budget a few requests would fill the memory of all of them. An
//! expression of the configuration or of the store counts, but is never refused: what was in force stays in force.
//!
//! # What an expression takes
//! Each has one cache for its search. A second thread that searches at the same time creates a cache of its own and
//! drops it. So an expression takes at most [`CHARGE`] times what it takes after compilation.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use regex_automata::Input;
use regex_automata::meta::{Builder, Cache, Config, Regex};
use regex_automata::util::syntax;

use super::expression::from_re2;

/// The longest text of an expression, in bytes.
pub const MAX_EXPRESSION: usize = 4096;
/// The largest automaton of an expression, in bytes.
const MAX_AUTOMATON: usize = 256 * 1024;
/// The least cache of a search, in bytes. Without much cache a search is slower, never wrong.
const SEARCH_CACHE: usize = 8 * 1024;
/// The memory of an expression and its cache, as a multiple of the memory of the expression alone.
const CHARGE: usize = 3;
/// The most bytes that expressions hold when a request adds one.
const MAX_HELD: usize = 64 << 20;
/// The part of these bytes for alert silences, which stay. The rest is for filters, which go with their request.
pub const MAX_KEPT: usize = MAX_HELD / 4 * 3;

/// The origin of an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpressionOrigin {
    /// A request, which is refused over the budget.
    Request,
    /// The configuration or the store.
    InForce,
}

/// An anchored expression.
#[derive(Debug)]
pub(super) struct Compiled {
    regex: Regex,
    cache: Mutex<Cache>,
    text: String,
    bytes: usize,
}

#[derive(Default)]
struct Expressions {
    by_text: HashMap<String, Weak<Compiled>>,
    bytes: usize,
}

static EXPRESSIONS: LazyLock<Mutex<Expressions>> = LazyLock::new(Mutex::default);

/// The bytes that all expressions of the process hold.
pub fn held() -> usize {
    EXPRESSIONS.lock().bytes
}

impl Compiled {
    /// # Errors
    /// The text is too long, no expression, too large when it is compiled, or over the budget.
    pub fn of(text: &str, origin: ExpressionOrigin) -> Result<Arc<Compiled>, String> {
        if text.len() > MAX_EXPRESSION {
            return Err(format!(
                "the expression has more than {MAX_EXPRESSION} bytes; write several shorter ones"
            ));
        }
        let known = EXPRESSIONS.lock().by_text.get(text).and_then(Weak::upgrade);
        if let Some(known) = known {
            return Ok(known);
        }
        let regex = compile(text)?;
        let bytes = CHARGE * (size_of::<Compiled>() + 2 * text.len() + regex.memory_usage());
        // An expression that is dropped takes the lock, so neither of the two is dropped under it.
        let cache = Mutex::new(regex.create_cache());
        let made = Arc::new(Compiled { regex, cache, text: text.to_owned(), bytes });
        let mut all = EXPRESSIONS.lock();
        let known = all.by_text.get(text).and_then(Weak::upgrade);
        let is_over = known.is_none() && origin == ExpressionOrigin::Request && all.bytes + bytes > MAX_HELD;
        all.bytes += bytes;
        if known.is_none() && !is_over {
            all.by_text.insert(text.to_owned(), Arc::downgrade(&made));
        }
        drop(all);
        match known {
            Some(known) => Ok(known),
            None if is_over => Err(format!(
                "the expressions that are in force take {} MiB already, and this one does not fit; compare with = \
                 instead of =~, or expire silences with expressions",
                MAX_HELD >> 20
            )),
            None => Ok(made),
        }
    }

    pub fn is_match(&self, value: &str) -> bool {
        let input = Input::new(value).earliest(true);
        let found = match self.cache.try_lock() {
            Some(mut cache) => self.regex.search_half_with(&mut cache, &input),
            None => self.regex.search_half_with(&mut self.regex.create_cache(), &input),
        };
        found.is_some()
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let mut all = EXPRESSIONS.lock();
        all.bytes -= self.bytes;
        if all.by_text.get(&self.text).is_some_and(|known| known.strong_count() == 0) {
            all.by_text.remove(&self.text);
        }
    }
}

fn compile(text: &str) -> Result<Regex, String> {
    let text = from_re2(text);
    // Check the text without parentheses first: `a)|(b` is an expression only within them.
    syntax::parse(&text).map_err(|error| last_line(&error.to_string()))?;
    let config = Config::new()
        .nfa_size_limit(Some(MAX_AUTOMATON))
        .hybrid_cache_capacity(SEARCH_CACHE)
        .dfa(false)
        .onepass(false);
    let built = Builder::new().configure(config).build(&format!("^(?:{text})$"));
    built.map_err(|error| match error.syntax_error() {
        Some(error) => last_line(&error.to_string()),
        None => "the expression is too large; write a shorter one, or fewer repetitions".to_owned(),
    })
}

fn last_line(error: &str) -> String {
    let last = error.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_one_expression_and_give_its_bytes_back() {
        let text = "shared-by-this-test-[0-9]+";
        let one = Compiled::of(text, ExpressionOrigin::Request).unwrap();
        let other = Compiled::of(text, ExpressionOrigin::InForce).unwrap();
        assert!(Arc::ptr_eq(&one, &other));
        assert!(one.is_match("shared-by-this-test-7") && !one.is_match("shared-by-this-test-7 "));
        drop(one);
        assert!(EXPRESSIONS.lock().by_text.contains_key(text));
        drop(other);
        assert!(!EXPRESSIONS.lock().by_text.contains_key(text));
    }

    #[test]
    fn requests_stay_within_the_budget_and_what_is_in_force_is_never_refused() {
        let letters = |number: usize| format!(r"{number}\pL{{3}}[a-z]*");
        let mut held = Vec::new();
        let why = loop {
            match Compiled::of(&letters(held.len()), ExpressionOrigin::Request) {
                Ok(one) => held.push(one),
                Err(why) => break why,
            }
            assert!(super::held() <= MAX_HELD, "{}", held.len());
        };
        assert!(why.contains("expire silences"), "{why}");
        assert!(Compiled::of(&letters(held.len()), ExpressionOrigin::InForce).is_ok());
        assert!(Compiled::of(&letters(0), ExpressionOrigin::Request).is_ok(), "it is compiled already");
        drop(held);
        assert!(Compiled::of(&letters(0), ExpressionOrigin::Request).is_ok());
    }

    #[test]
    fn an_expression_is_bounded_by_its_text_and_by_what_it_compiles_to() {
        for (text, expected) in [
            ("{".repeat(120_000), "more than 4096 bytes"),
            (r"\pL{22}".to_owned(), "too large"),
            ("(?:a{1000}){1000}".to_owned(), "too large"),
            ("a)|(b".to_owned(), "unopened group"),
            ("(".repeat(2000), ""),
        ] {
            let why = Compiled::of(&text, ExpressionOrigin::Request).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        assert!(Compiled::of(&"{".repeat(4096), ExpressionOrigin::Request).is_ok());
        let names = (0..100).map(|unit| format!("550e8400-e29b-41d4-a716-{unit:06}")).collect::<Vec<_>>();
        assert!(Compiled::of(&names.join("|"), ExpressionOrigin::Request).unwrap().is_match(&names[99]));
    }
}
