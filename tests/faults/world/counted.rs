//! The sum of the counts of all instances.

/// Sums over the pages of all instances.
#[derive(Debug, Default)]
pub struct Counted {
    pub units: usize,
    pub offline: usize,
    /// Units with a series, and among them the units that are not up.
    pub shown: usize,
    pub shown_down: usize,
    /// Records since the processes started.
    pub opened: usize,
    pub closed: usize,
}

impl Counted {
    /// Adds a page of metrics.
    pub fn add(&mut self, page: &str) {
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let value = value.parse::<f64>().unwrap_or_default() as usize;
            match name {
                "rollcall_units" => {
                    self.units += value;
                    self.offline += if labels.contains("state=\"offline\"") { value } else { 0 };
                }
                "rollcall_unit_up" => {
                    self.shown += 1;
                    self.shown_down += 1 - value;
                }
                "rollcall_unit_transitions_total" if labels.contains("to=\"offline\"") => {
                    self.opened += value
                }
                "rollcall_unit_transitions_total" => self.closed += value,
                _ => {}
            }
        }
    }
}
