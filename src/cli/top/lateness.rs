//! How late silences are found, from the metrics of an instance.

/// A histogram of delays, from the deadline to the record: bounds in seconds, each with the number of silences up to
/// it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Delays(Vec<(f64, f64)>);

const BUCKET: &str = "rollcall_offline_detection_delay_seconds_bucket{le=\"";

impl Delays {
    /// Reads the delays from a page of metrics.
    pub fn read(metrics: &str) -> Delays {
        let bucket = |line: &str| {
            let (bound, count) = line.strip_prefix(BUCKET)?.split_once("\"} ")?;
            Some((bound.replace("+Inf", "inf").parse().ok()?, count.trim().parse().ok()?))
        };
        Delays(metrics.lines().filter_map(bucket).collect())
    }

    /// The delays since `before`. The counts of an instance that was restarted begin at zero.
    pub fn since(&self, before: &Delays) -> Delays {
        let is_restarted = self.count() < before.count() || self.0.len() != before.0.len();
        let earlier = |at: usize| if is_restarted { 0.0 } else { before.0[at].1 };
        Delays(self.0.iter().enumerate().map(|(at, (bound, count))| (*bound, count - earlier(at))).collect())
    }

    pub fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// A sentence such as `99 of 100 silences were found within 10 ms of their deadlines`; `None` if there were no
    /// silences.
    pub fn sentence(&self) -> Option<String> {
        let all = self.count();
        let (bound, within) = self.0.iter().find(|(_, count)| all > 0.0 && *count >= 0.99 * all)?;
        Some(match bound {
            bound if bound.is_infinite() => {
                format!("{all} silences found, most of them later than any bound")
            }
            bound if *bound < 1.0 => {
                format!("{within} of {all} silences found within {} ms of the deadline", bound * 1e3)
            }
            bound => format!("{within} of {all} silences found within {bound} s of the deadline"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(counts: [u32; 3]) -> Delays {
        let [first, second, all] = counts;
        Delays::read(&format!(
            "# TYPE rollcall_offline_detection_delay_seconds histogram\n\
             {BUCKET}0.005\"}} {first}\n{BUCKET}1\"}} {second}\n{BUCKET}+Inf\"}} {all}\n\
             rollcall_offline_detection_delay_seconds_sum 7\nrollcall_offline_detection_delay_seconds_count {all}\n"
        ))
    }

    #[test]
    fn the_bound_is_that_of_ninety_nine_in_a_hundred() {
        let sentence = |counts| metrics(counts).sentence();
        assert_eq!(sentence([0, 0, 0]), None);
        assert_eq!(Delays::read("nothing of that").sentence(), None);
        assert_eq!(sentence([99, 100, 100]).unwrap(), "99 of 100 silences found within 5 ms of the deadline");
        assert_eq!(sentence([98, 100, 100]).unwrap(), "100 of 100 silences found within 1 s of the deadline");
        assert_eq!(sentence([0, 0, 3]).unwrap(), "3 silences found, most of them later than any bound");
    }

    #[test]
    fn an_instance_that_was_started_again_begins_at_zero() {
        let before = metrics([90, 95, 100]);
        assert_eq!(metrics([91, 97, 102]).since(&before), metrics([1, 2, 2]));
        assert_eq!(metrics([1, 1, 2]).since(&before), metrics([1, 1, 2]));
        assert_eq!(metrics([1, 1, 2]).since(&Delays::default()), metrics([1, 1, 2]));
    }
}
