//! A site that loses power: all its units fall silent together, and come back together.

use std::time::Duration;

use anyhow::ensure;

/// The power cuts of one site. Times count from the start of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCuts {
    /// The number of the site, from 0.
    pub site: usize,
    /// When the site loses power for the first time.
    pub first: Duration,
    /// The length of a cut.
    pub lasts: Duration,
    /// From the beginning of one cut to the next; longer than a cut.
    pub every: Duration,
}

impl PowerCuts {
    pub(super) fn check(&self, sites: usize) -> anyhow::Result<()> {
        ensure!(self.site < sites, "there is no site {}: there are {sites}, from 0", self.site);
        ensure!(self.lasts < self.every, "a power cut ends before the next one begins");
        Ok(())
    }

    /// The end of the cut that contains `at`; `None` while there is power.
    pub fn end_of(&self, at: Duration) -> Option<Duration> {
        let so_far = at.checked_sub(self.first)?;
        let round = so_far.as_nanos() / self.every.as_nanos();
        let end = self.nth(round as u32) + self.lasts;
        (at < end).then_some(end)
    }

    /// The beginning of the cut after `number` earlier ones.
    pub(super) fn nth(&self, number: u32) -> Duration {
        self.first + self.every.saturating_mul(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_includes_its_beginning_and_not_its_end() {
        let seconds = Duration::from_secs;
        let cuts = PowerCuts { site: 0, first: seconds(20), lasts: seconds(5), every: seconds(60) };
        let cases = [
            (0, None),
            (19, None),
            (20, Some(25)),
            (24, Some(25)),
            (25, None),
            (79, None),
            (80, Some(85)),
            (85, None),
            (600 + 24, Some(600 + 25)),
        ];
        for (at, end) in cases {
            assert_eq!(cuts.end_of(seconds(at)), end.map(seconds), "at {at} s");
        }
    }
}
