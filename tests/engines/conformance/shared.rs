//! Cases that share servers.

use std::panic::AssertUnwindSafe;

use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, StreamExt, stream};

use super::ground::Ground;

/// How many cases run at once.
const AT_ONCE: usize = 4;

/// A ground whose servers have room for more fleets.
pub trait Shared: Ground {
    /// An empty fleet on the same servers. No case may crash them.
    fn apart(&self) -> Self;
}

/// The cases of one file.
#[derive(Default)]
pub struct Cases<'a>(Vec<(&'static str, LocalBoxFuture<'a, ()>)>);

impl<'a> Cases<'a> {
    pub fn add(&mut self, name: &'static str, case: impl Future<Output = ()> + 'a) {
        self.0.push((name, case.boxed_local()));
    }

    /// Runs all cases, and fails with the names of the failed ones.
    pub async fn pass(self) {
        assert!(!self.0.is_empty());
        let run = |(name, case): (&'static str, LocalBoxFuture<'a, ()>)| async move {
            let is_passed = AssertUnwindSafe(case).catch_unwind().await.is_ok();
            println!("{name}: {}", if is_passed { "passed" } else { "FAILED" });
            (!is_passed).then_some(name)
        };
        let failed = stream::iter(self.0.into_iter().map(run)).buffer_unordered(AT_ONCE);
        let failed: Vec<&str> = failed.filter_map(async |name| name).collect().await;
        assert!(failed.is_empty(), "failed: {}", failed.join(", "));
    }
}
